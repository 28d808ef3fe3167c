//! Types and shapes of all values, from those of the inputs.

mod call_key;
mod control;
mod engine;
mod functions;
mod incremental;
mod inference;
mod merge;
mod versions;

use crate::Graph;

pub(crate) use engine::steps;
pub(crate) use functions::{attribute_bytes, constant_bytes};
pub use incremental::IncrementalInference;
pub use inference::{Inference, MAX_DEPTH, Signature};
pub(crate) use versions::Versions;

/// Finds out the type of each value, and writes it to [`crate::Value::kind`].
///
/// Declared types are refined: a number takes the place of a symbol or of nothing. Where a declared
/// type contradicts what the node makes, the declared one stays, and an error says so. Small
/// integer tensors are followed element by element, so that shapes which a graph computes are
/// known.
///
/// A function's body gets the types of its first call; [`Inference::signatures`] has it with those
/// of each kind of call. The time is linear in the number of nodes; loops are followed up to three
/// times, and a function once for each kind of call, until the work is some times the graph's size.
/// From then on results of calls are unknown, which a notice says.
///
/// ```
/// use apr_graph::{Dim, ElementType, GraphBuilder, Meaning, infer};
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let x = main.input(
///     "x",
///     ElementType::F32,
///     [Dim::symbol("batch"), Dim::fixed(320)],
///     Meaning::Unknown,
/// );
/// let w = main.weight("w", ElementType::F32, [320, 64]);
/// let y = main.op("MatMul", [x, w]).output("y");
/// main.output("y", y, Meaning::Logits);
///
/// let mut graph = graph.finish();
/// assert!(infer(&mut graph).findings.is_empty());
/// assert_eq!(graph.body.value(y).tensor().unwrap().to_string(), "f32[batch, 64]");
/// ```
pub fn infer(graph: &mut Graph) -> Inference {
    // The functions are read while the main body is changed.
    let mut body = std::mem::take(&mut graph.body);
    let inference = engine::Engine::new(graph).run(&mut body);
    graph.body = body;
    let mut written = vec![false; graph.functions.len()];
    for signature in &inference.signatures {
        let function = signature.function.0 as usize;
        if !std::mem::replace(&mut written[function], true) {
            graph.functions[function].body = signature.body.clone();
        }
    }
    inference
}

#[cfg(test)]
mod tests;
