//! TorchScript: a state dict with a program that computes, for `torch.jit.load`.
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

mod chain;
mod emit;
mod layers;
mod method;
mod modules;
mod operators;
mod picked;
mod scan;
mod shapes;
mod spatial;
mod text;

use apr_core::{Error, Result, TensorInfo};
use apr_graph::Graph;

pub(crate) use modules::Module;

/// A method of a program: its name, and what it computes.
pub type Method<'a> = (&'a str, &'a Graph);

/// The modules of a model, and the source of their classes. Without methods the model has
/// parameters alone. Where none of them is `forward`, that runs an encoder and a decoder among
/// them, if they are there.
///
/// # Errors
/// E001 for names that modules can't have, or a weight that is not among the tensors; E003 for an
/// operator that has no counterpart in the source, with its node.
pub(crate) fn program(tensors: &[TensorInfo], methods: &[Method<'_>]) -> Result<(Module, String)> {
    let mut root = Module::of(tensors)?;
    let mut code = String::new();
    for (name, graph) in methods {
        if !text::is_identifier(name) || root.has(name) {
            let message = format!("the model can't have a method '{name}' beside its tensors");
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
    Ok((root, source + &code))
}
