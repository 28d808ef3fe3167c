//! Types of a body while it is written.

use std::fmt;

use super::engine::{Engine, Facts};
use crate::{BodyBuilder, Dim, Opset, ValueId};

/// Shape inference for a body that is being written.
///
/// The program that writes a node can read the types of its outputs before it writes the next node.
///
/// ```
/// use apr_graph::{BodyBuilder, Dim, ElementType, IncrementalInference, Meaning, Opset};
///
/// let mut types = IncrementalInference::new(&[Opset { domain: "".into(), version: 18 }]);
/// let mut body = BodyBuilder::default();
/// let shape = [Dim::symbol("batch"), Dim::fixed(6)];
/// let x = body.input("x", ElementType::F32, shape, Meaning::Unknown);
/// let sizes = body.ints(&[-1, 2, 3]);
/// let y = body.op("Reshape", [x, sizes]).output("y");
/// types.extend(&mut body);
/// assert_eq!(body.body().value(y).tensor().unwrap().to_string(), "f32[batch, 2, 3]");
/// ```
pub struct IncrementalInference {
    engine: Engine<'static>,
    facts: Facts,
    /// The nodes that are done.
    nodes: usize,
}

impl IncrementalInference {
    /// For a body of operators of these versions, which calls no functions.
    #[must_use]
    pub fn new(opsets: &[Opset]) -> Self {
        Self { engine: Engine::of(&[], opsets), facts: Facts::default(), nodes: 0 }
    }

    /// Writes the types of all that was written to the body since the last call, which had the same
    /// body. Contradictions leave types unknown.
    pub fn extend(&mut self, body: &mut BodyBuilder) {
        let body = body.body_mut();
        self.engine.extend(body, &mut self.facts, self.nodes);
        self.nodes = body.nodes.len();
    }

    /// Returns the known elements of a small integer tensor.
    #[must_use]
    pub fn elements(&self, id: ValueId) -> Option<&[Dim]> {
        self.facts.known.get(id.0 as usize)?.as_ref()?.dims()
    }
}

impl fmt::Debug for IncrementalInference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncrementalInference").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ElementType, Meaning};

    #[test]
    fn shapes_that_a_body_computes_are_known_while_it_is_written() {
        let mut types = IncrementalInference::new(&[Opset { domain: "".into(), version: 18 }]);
        let mut body = BodyBuilder::default();
        let shape = [Dim::symbol("n"), Dim::fixed(8)];
        let x = body.input("x", ElementType::F32, shape, Meaning::Unknown);
        let shape = body.op("Shape", [x]).output("shape");
        types.extend(&mut body);
        assert_eq!(types.elements(shape), Some([Dim::symbol("n"), Dim::fixed(8)].as_slice()));
        let (first, axis) = (body.ints(&[0]), body.ints(&[0]));
        let last = body.ints(&[1]);
        let rows = body.op("Slice", [shape, first, last, axis]).output("rows");
        let halves = body.ints(&[2, 4]);
        let wanted = body.op("Concat", [rows, halves]).attribute("axis", 0).output("wanted");
        let y = body.op("Reshape", [x, wanted]).output("y");
        types.extend(&mut body);
        assert_eq!(body.body().value(y).tensor().unwrap().to_string(), "f32[n, 2, 4]");
        types.extend(&mut body);
    }
}
