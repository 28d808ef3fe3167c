//! A layer as it is lowered.

use apr_graph::{AttributeValue, Dim, ElementType, Node, Value, ValueId, View, WeightRef};

use super::Lowering;

/// A value that a layer produces. For rank 5, the first dimension has size 1 and is not written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blob {
    pub(super) id: ValueId,
    pub(super) is_rank_5: bool,
}

impl Blob {
    pub(super) fn exact(id: ValueId) -> Self {
        Self { id, is_rank_5: false }
    }

    /// Another value with as many dimensions.
    pub(super) fn with(self, id: ValueId) -> Self {
        Self { id, ..self }
    }
}

/// A weight of a layer.
pub(super) struct Weight {
    /// Name of the weight within its layer.
    field: String,
    tensor: String,
    element: ElementType,
    dims: Vec<u64>,
}

impl Weight {
    pub(super) fn new(node: &Node, weight: &WeightRef, value: &Value) -> Option<Self> {
        weight.views.is_empty().then_some(())?;
        // Names of models and networks around the layer come before its own.
        let at = value.name.find(&format!("{}/", node.name))?;
        let field = value.name.get(at + node.name.len() + 1..)?;
        let dims: Option<Vec<u64>> = value.shape()?.iter().map(Dim::size).collect();
        Some(Self {
            field: field.to_owned(),
            tensor: weight.tensor.clone(),
            element: value.element()?,
            dims: dims?,
        })
    }
}

/// A layer, its inputs and its weights.
pub(super) struct Layer<'g> {
    pub(super) node: &'g Node,
    /// The name of its first output.
    pub(super) name: String,
    pub(super) inputs: Vec<Blob>,
    pub(super) weights: Vec<Weight>,
}

impl Layer<'_> {
    pub(super) fn op(&self) -> &str {
        &self.node.op.name
    }

    /// The only input.
    pub(super) fn only(&self) -> Option<Blob> {
        match self.inputs.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    pub(super) fn pair(&self) -> Option<[Blob; 2]> {
        self.inputs.as_slice().try_into().ok()
    }

    pub(super) fn has(&self, field: &str) -> bool {
        self.node.attribute(field).is_some()
    }

    /// Returns an integer field, or 0 if the file does not have it.
    pub(super) fn int(&self, field: &str) -> i64 {
        self.node.int(field).unwrap_or_default()
    }

    pub(super) fn is_set(&self, field: &str) -> bool {
        self.int(field) != 0
    }

    pub(super) fn float(&self, field: &str) -> f32 {
        self.node.float(field).unwrap_or_default()
    }

    /// Returns a float field, or `default` if it is 0.
    pub(super) fn float_or(&self, field: &str, default: f32) -> f32 {
        Some(self.float(field)).filter(|float| *float != 0.0).unwrap_or(default)
    }

    /// Returns a list of integers. A single integer becomes a list of one.
    pub(super) fn ints(&self, field: &str) -> Vec<i64> {
        match self.node.attribute(field) {
            Some(AttributeValue::Ints(ints)) => ints.clone(),
            Some(AttributeValue::Int(int)) => vec![*int],
            _ => Vec::new(),
        }
    }

    /// Two integers, of the height and the width.
    pub(super) fn two(&self, field: &str, default: i64) -> Option<[i64; 2]> {
        match self.ints(field).as_slice() {
            [] => Some([default, default]),
            [height, width] => Some([*height, *width]),
            _ => None,
        }
    }

    /// Returns the amounts at the top, the bottom, the left and the right.
    pub(super) fn edges(&self, field: &str) -> Option<[i64; 4]> {
        match self.ints(field).as_slice() {
            [] => Some([0; 4]),
            list => list.try_into().ok(),
        }
        .filter(|edges: &[i64; 4]| edges.iter().all(|edge| *edge >= 0))
    }

    /// The member of an enumeration, or the first one.
    pub(super) fn member<'a>(&'a self, field: &str, first: &'a str) -> Option<&'a str> {
        if self.has(field) { self.node.text(field) } else { Some(first) }
    }

    /// A name for a step on the way to the output.
    pub(super) fn step(&self, step: &str) -> String {
        format!("{}/{step}", self.name)
    }

    pub(super) fn weight(&self, field: &str) -> Option<&Weight> {
        self.weights.iter().find(|weight| weight.field == field)
    }
}

impl Lowering<'_> {
    /// A weight of these sizes, as floats of single precision.
    pub(super) fn weight(
        &mut self,
        layer: &Layer<'_>,
        field: &str,
        sizes: &[u64],
    ) -> Option<ValueId> {
        let own = layer.weight(field)?;
        let count =
            |sizes: &[u64]| sizes.iter().try_fold(1_u64, |all, size| all.checked_mul(*size));
        (count(&own.dims) == count(sizes)).then_some(())?;
        let views = match own.dims == sizes {
            true => Vec::new(),
            false => vec![View::Reshaped(sizes.to_vec())],
        };
        let id = self.out.main.viewed(&own.tensor, views, own.element, sizes.to_vec());
        Some(self.out.cast(id, ElementType::F32, &layer.step(field)))
    }

    /// A weight as the file has it.
    pub(super) fn whole(&mut self, layer: &Layer<'_>, field: &str) -> Option<ValueId> {
        let dims = layer.weight(field)?.dims.clone();
        self.weight(layer, field, &dims)
    }

    /// A matrix with its dimensions exchanged.
    pub(super) fn turned(&mut self, layer: &Layer<'_>, field: &str) -> Option<ValueId> {
        let own = layer.weight(field)?;
        let [rows, columns] = own.dims.as_slice().try_into().ok()?;
        let views = vec![View::Transposed(vec![1, 0])];
        let id = self.out.main.viewed(&own.tensor, views, own.element, [columns, rows]);
        Some(self.out.cast(id, ElementType::F32, &layer.step(field)))
    }

    /// The sizes of a weight.
    pub(super) fn sizes<'l>(&self, layer: &'l Layer<'_>, field: &str) -> Option<&'l [u64]> {
        layer.weight(field).map(|weight| weight.dims.as_slice())
    }
}
