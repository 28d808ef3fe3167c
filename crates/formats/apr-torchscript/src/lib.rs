//! TorchScript: a state dict with a program that computes, for `torch.jit.load`; compiled from a
//! graph.
//!
//! ```text
//! model/data.pkl           the modules, as objects of the classes in the code, with their tensors
//! model/byteorder          "little"
//! model/constants.pkl      an empty tuple
//! model/code/__torch__.py  the classes; the outermost has `forward`
//! model/data/0             bytes of a storage
//! model/version            "3"
//! ```
//!
//! The source is written from a graph, one statement for each node, with functions of `torch` that
//! are there since 1.13. Parameters keep the names and the layout of the state dict; what the graph
//! looks at (transposed, a part, in single precision) is a statement too. Small integers, of which
//! shapes are made, are Python's numbers on the way.
//!
//! `forward` takes the graph's inputs in order, under their names with `_` for what a name can't
//! have, and returns a tuple of its outputs, or the one that there is. Where a model has several
//! graphs, each is a method of its own, and `forward` calls the encoder's and then the decoder's.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
mod chain;
mod emit;
mod format;
mod layers;
mod method;
mod modules;
mod operators;
mod picked;
mod scan;
mod shapes;
mod spatial;
mod text;

use apr_core::{Error, Metadata, Result, TensorInfo};
use apr_graph::Graph;
use apr_pytorch::{PytorchWriter, ScriptModule, WriteOptions};

pub use format::FORMAT;

use modules::Module;

/// A method of a program: its name and its graph.
pub type Method<'a> = (&'a str, &'a Graph);

/// Plans a TorchScript archive: the tensors as parameters of modules, and methods that compute what
/// their graphs say, for `torch.jit.load` from 1.13 on. One that is called `forward` runs the
/// model;
/// where none is, and an encoder and a decoder are among them, a `forward` calls these two. Weights
/// of the graphs name the tensors, and may look at them in any way; their stored types may differ
/// from those that are computed with. Without methods there are parameters only.
///
/// ```
/// use apr_core::{CheckpointWriter, DType, Metadata, Shape, TensorInfo};
/// use apr_graph::{Dim, ElementType, GraphBuilder, Meaning, infer};
/// use apr_pytorch::WriteOptions;
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let x = main.input("x", ElementType::F32, [Dim::symbol("n"), Dim::fixed(2)], Meaning::Unknown);
/// let w = main.weight("fc.weight", ElementType::F32, [2, 1]);
/// let y = main.op("MatMul", [x, w]).output("y");
/// main.output("y", y, Meaning::Unknown);
/// let mut graph = graph.finish();
/// infer(&mut graph);
///
/// let weight =
///     TensorInfo { name: "fc.weight".into(), dtype: DType::F32, shape: Shape::from([2, 1]) };
/// let writer = apr_torchscript::plan(
///     &[weight],
///     &Metadata::new(),
///     &[("forward", &graph)],
///     &WriteOptions::default(),
/// )?;
/// assert_eq!(writer.layout().tensors.len(), 1);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// Those of [`apr_pytorch::plan`], and E001 for names that modules can't have; E003 for an operator
/// that the program's language has no counterpart for, with its node.
pub fn plan(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    methods: &[Method<'_>],
    options: &WriteOptions,
) -> Result<PytorchWriter> {
    let (root, source) = program(tensors, methods)?;
    apr_pytorch::plan_script(tensors, metadata, &root, source, options)
}

/// The modules of a model, and the source of their classes. Without methods the model has
/// parameters alone. Where none of them is `forward`, that runs an encoder and a decoder among
/// them, if they are there.
///
/// # Errors
/// E001 for names that modules can't have, or a weight that is not among the tensors; E003 for an
/// operator that has no counterpart in the source, with its node.
fn program(tensors: &[TensorInfo], methods: &[Method<'_>]) -> Result<(ScriptModule, String)> {
    let mut root = Module::of(tensors)?;
    let mut code = String::new();
    for (name, graph) in methods {
        if !text::is_identifier(name) || root.has(name) {
            let message =
                format!("the model can't have a method '{name}' in addition to its tensors");
            return Err(Error::format(message));
        }
        code += &method::method(name, graph, tensors)?;
    }
    if methods.iter().all(|(name, _)| *name != "forward") {
        code += &chain::forward(methods);
    }

    let source = root.classes(tensors, "")?;
    let code = code.replace(method::ROOT, &format!("__torch__.{}", root.class));
    if source.len() + code.len() > 1 << 30 {
        return Err(Error::memory("the program is longer than 1 GiB"));
    }
    Ok((root.into_script(), source + &code))
}
