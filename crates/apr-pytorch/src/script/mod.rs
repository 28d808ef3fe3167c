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
//! have, and returns a tuple of its outputs, or the one that there is.

mod emit;
mod forward;
mod modules;
mod operators;
mod shapes;
mod text;

use apr_core::{Error, Result, TensorInfo};
use apr_graph::Graph;

pub(crate) use modules::Module;

/// The modules of a model, and the source of their classes. Without a graph the model has
/// parameters and no `forward`.
///
/// # Errors
/// E001 for names that modules can't have, or a weight that is not among the tensors; E003 for an
/// operator that has no counterpart in the source, with its node.
pub(crate) fn program(tensors: &[TensorInfo], graph: Option<&Graph>) -> Result<(Module, String)> {
    let mut root = Module::of(tensors)?;
    let forward = match graph {
        Some(graph) => forward::forward(graph, tensors)?,
        None => String::new(),
    };
    let source = root.classes(tensors, "")?;
    let forward = forward.replace("__torch__.Root", &format!("__torch__.{}", root.class));
    if source.len() + forward.len() > 1 << 30 {
        return Err(Error::memory("the program is longer than 1 GiB"));
    }
    Ok((root, source + &forward))
}
