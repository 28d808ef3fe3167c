//! Elements of integer tensors that follow from shapes.

use apr_graph::{Body, BodyBuilder, Constant, Dim, IncrementalInference, Opset, ValueId};

/// Elements of small integer tensors that inference found.
#[derive(Default)]
pub(super) struct Facts {
    elements: Vec<Option<Vec<Dim>>>,
}

impl Facts {
    /// Infers the elements of a body without function calls.
    pub(super) fn of(body: &Body, opsets: &[Opset]) -> Self {
        let mut builder = BodyBuilder::continuing(body.clone());
        let mut inference = IncrementalInference::new(opsets);
        inference.extend(&mut builder);
        let ids = (0..).map(ValueId).take(body.values.len());
        Self { elements: ids.map(|id| inference.elements(id).map(<[Dim]>::to_vec)).collect() }
    }

    /// Returns the elements of a value, if inference follows them.
    pub(super) fn elements(&self, id: ValueId) -> Option<&[Dim]> {
        self.elements.get(id.0 as usize)?.as_deref()
    }

    /// Returns the integers of a value that does not depend on the inputs.
    pub(super) fn integers(&self, id: ValueId) -> Option<Constant> {
        let elements = self.elements(id)?.iter().map(Dim::as_integer);
        elements.collect::<Option<Vec<i64>>>().map(|values| Constant::ints(&values))
    }
}
