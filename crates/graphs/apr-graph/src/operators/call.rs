//! What a rule sees of a node, and what it says about it.

use std::collections::HashMap;
use std::rc::Rc;

use super::operator::Operator;
use crate::{
    AttributeValue, Constant, ConstantData, Dim, ElementType, Name, Node, TensorType, ValueType,
};

/// Maximum number of elements of a tensor whose contents are tracked, and of a constant that is
/// read.
pub(crate) const MAX_KNOWN: usize = 64;
const MAX_CONSTANT: usize = 1024;

/// Known elements of a small tensor, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Known {
    /// Integers of any type, which may contain symbols, and floats without a fraction.
    Ints(Rc<[Dim]>),
    /// Floats, as bits.
    Floats(Rc<[u32]>),
}

impl Known {
    /// Returns the elements of a constant, if it is small and numeric.
    pub(crate) fn of(constant: &Constant) -> Option<Self> {
        let ConstantData::Bytes(bytes) = &constant.data else { return None };
        if bytes.len() > MAX_CONSTANT * 8 {
            return None;
        }

        if let Some(floats) = constant.as_floats() {
            let whole = |value: &f32| value.fract() == 0.0 && value.abs() < 16_777_216.0;
            return Some(if floats.iter().all(whole) {
                #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^24")]
                Self::ints(floats.iter().map(|value| *value as i64))
            } else {
                Self::Floats(floats.iter().map(|value| value.to_bits()).collect())
            });
        }

        Some(Self::ints(constant.as_ints().or_else(|| bytes_as_ints(constant.element, bytes))?))
    }

    pub(crate) fn ints(values: impl IntoIterator<Item = i64>) -> Self {
        Self::Ints(values.into_iter().map(Dim::integer).collect())
    }

    /// The elements as whole numbers.
    pub(crate) fn dims(&self) -> Option<&[Dim]> {
        match self {
            Self::Ints(dims) => Some(dims),
            Self::Floats(_) => None,
        }
    }

    /// The elements as floats.
    pub(crate) fn floats(&self) -> Option<Vec<f32>> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "whole floats were made integers, or the integers are sizes"
        )]
        match self {
            Self::Ints(dims) => dims.iter().map(|dim| Some(dim.as_integer()? as f32)).collect(),
            Self::Floats(bits) => Some(bits.iter().copied().map(f32::from_bits).collect()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ints(dims) => dims.len(),
            Self::Floats(bits) => bits.len(),
        }
    }
}

fn bytes_as_ints(element: ElementType, bytes: &[u8]) -> Option<Vec<i64>> {
    match element {
        ElementType::U8 => Some(bytes.iter().map(|byte| i64::from(*byte)).collect()),
        ElementType::I8 => Some(bytes.iter().map(|byte| i64::from(byte.cast_signed())).collect()),
        _ => None,
    }
}

/// An input as a rule sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) kind: &'a ValueType,
    pub(crate) known: Option<&'a Known>,
}

/// Rule that sets the shapes of the outputs, and the types that the table does not define.
///
/// Its error describes why the inputs do not fit.
pub(crate) type Rule = fn(&mut Call<'_>) -> Result<(), String>;

/// Node with the known facts about its inputs and the outputs that its rule sets.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node,
    pub(crate) operator: &'static Operator,
    pub(crate) inputs: Vec<Option<Input<'a>>>,
    /// Attributes of the call of the function around.
    pub(crate) of_call: Option<&'a HashMap<Name, AttributeValue>>,
    pub(crate) outputs: Vec<ValueType>,
    pub(crate) known: Vec<Option<Known>>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        node: &'a Node,
        operator: &'static Operator,
        inputs: Vec<Option<Input<'a>>>,
    ) -> Self {
        let outputs = vec![ValueType::Unknown; node.outputs.len()];
        let known = vec![None; node.outputs.len()];
        Self { node, operator, inputs, of_call: None, outputs, known }
    }

    /// The version of the operator.
    pub(crate) fn since(&self) -> i64 {
        self.operator.since
    }

    pub(crate) fn has(&self, position: usize) -> bool {
        self.inputs.get(position).is_some_and(Option::is_some)
    }

    pub(crate) fn kind(&self, position: usize) -> &'a ValueType {
        self.inputs.get(position).copied().flatten().map_or(&ValueType::Unknown, |input| input.kind)
    }

    pub(crate) fn tensor(&self, position: usize) -> Option<&'a TensorType> {
        match self.kind(position) {
            ValueType::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    pub(crate) fn element(&self, position: usize) -> Option<ElementType> {
        self.tensor(position)?.element
    }

    pub(crate) fn shape(&self, position: usize) -> Option<&'a [Dim]> {
        self.tensor(position)?.shape.as_deref()
    }

    /// Returns the elements of an input, if they are known integers.
    pub(crate) fn dims(&self, position: usize) -> Option<&'a [Dim]> {
        self.inputs.get(position).copied().flatten()?.known?.dims()
    }

    /// Returns the elements of an input, if they are numbers without symbols.
    pub(crate) fn ints(&self, position: usize) -> Option<Vec<i64>> {
        self.dims(position)?.iter().map(Dim::as_integer).collect()
    }

    /// The only element of an input.
    pub(crate) fn scalar(&self, position: usize) -> Option<Dim> {
        match self.dims(position)? {
            [dim] => Some(dim.clone()),
            _ => None,
        }
    }

    pub(crate) fn floats(&self, position: usize) -> Option<Vec<f32>> {
        self.inputs.get(position).copied().flatten()?.known?.floats()
    }

    /// Returns an attribute of the node or, if the node refers to it, of the call; otherwise the
    /// operator's default.
    pub(crate) fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        let own = self.node.attribute(name);
        let own = match own {
            Some(AttributeValue::OfCall(outer)) => self.of_call.and_then(|given| given.get(outer)),
            _ => own,
        };
        own.or_else(|| self.operator.setting(name)?.default.as_ref())
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            AttributeValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns `true` if a numeric attribute is not 0.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.int(name).is_some_and(|value| value != 0)
    }

    pub(crate) fn list(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name)? {
            AttributeValue::Ints(values) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            AttributeValue::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// A list that is an input in newer versions and was an attribute in older ones. `Ok(None)`:
    /// not given; `Err`: given, and not known.
    pub(crate) fn list_or_input(
        &self,
        name: &str,
        position: usize,
    ) -> Result<Option<Vec<i64>>, NotKnown> {
        if self.operator.setting(name).is_some() {
            return Ok(self.list(name).map(<[i64]>::to_vec));
        }
        if !self.has(position) {
            return Ok(None);
        }
        self.ints(position).map(Some).ok_or(NotKnown)
    }

    /// Returns the element type that an attribute declares by number.
    pub(crate) fn element_attribute(&self, name: &str) -> Result<Option<ElementType>, String> {
        let Some(code) = self.int(name).filter(|code| *code != 0) else { return Ok(None) };
        let element = i32::try_from(code).ok().and_then(ElementType::from_onnx_code);
        element
            .map(Some)
            .ok_or_else(|| format!("attribute '{name}' is {code}, not an element type"))
    }

    /// Sets the shape of an output.
    pub(crate) fn set_shape(&mut self, position: usize, shape: Vec<Dim>) {
        self.set(position, TensorType { element: None, shape: Some(shape) });
    }

    /// Sets the element type of an output.
    pub(crate) fn set_element(&mut self, position: usize, element: Option<ElementType>) {
        self.set(position, TensorType { element, shape: None });
    }

    /// Adds facts about an output that is a tensor.
    pub(crate) fn set(&mut self, position: usize, tensor: TensorType) {
        let Some(output) = self.outputs.get_mut(position) else { return };
        let ValueType::Tensor(known) = output else {
            *output = ValueType::Tensor(tensor);
            return;
        };
        known.element = tensor.element.or(known.element);
        if tensor.shape.is_some() {
            known.shape = tensor.shape;
        }
    }

    /// Sets the type of an output, which may be any type.
    pub(crate) fn set_kind(&mut self, position: usize, kind: ValueType) {
        if let Some(output) = self.outputs.get_mut(position) {
            *output = kind;
        }
    }

    /// Sets the individual elements of an output.
    pub(crate) fn set_known(&mut self, position: usize, known: Option<Known>) {
        if let Some(output) = self.known.get_mut(position) {
            *output = known;
        }
    }

    /// Checks the rank of an input and returns an error if it differs from `rank`.
    pub(crate) fn expect_rank(&self, position: usize, rank: usize) -> Result<(), String> {
        match self.shape(position) {
            Some(shape) if shape.len() != rank => Err(format!(
                "{} has {} dimensions, not {rank}",
                self.name_of(position),
                shape.len()
            )),
            _ => Ok(()),
        }
    }

    /// Returns the name of an input for messages: `input 'X'`.
    pub(crate) fn name_of(&self, position: usize) -> String {
        let name = self.operator.input(position).map_or("", |parameter| parameter.name);
        format!("input '{name}'")
    }
}

/// A value is given, but what is in it is not known before the model runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotKnown;

/// The dimension that a number means, which counts from the end below 0.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, String> {
    let rank_signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let counted = if axis < 0 { axis.saturating_add(rank_signed) } else { axis };
    match usize::try_from(counted) {
        Ok(position) if position < rank => Ok(position),
        _ => Err(format!("axis {axis} is not one of {rank} dimensions")),
    }
}

/// The dimensions that numbers mean, which must differ.
pub(crate) fn axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    let mut seen = vec![false; rank];
    axes.iter()
        .map(|number| {
            let position = axis(*number, rank)?;
            if std::mem::replace(&mut seen[position], true) {
                return Err(format!("axis {number} is given twice"));
            }
            Ok(position)
        })
        .collect()
}

/// The product of sizes.
pub(crate) fn product(dims: &[Dim]) -> Dim {
    dims.iter().fold(Dim::fixed(1), |product, dim| product.times(dim))
}

/// Merges two sizes that must be equal and returns the better known one, or an error if they
/// differ.
pub(crate) fn same(a: &Dim, b: &Dim) -> Result<Dim, String> {
    match (a.as_integer(), b.as_integer()) {
        (Some(left), Some(right)) if left != right => Err(format!("sizes {a} and {b} differ")),
        (Some(_), _) => Ok(a.clone()),
        (None, Some(_)) => Ok(b.clone()),
        (None, None) => Ok(if *a == Dim::Unknown { b.clone() } else { a.clone() }),
    }
}

/// The shape that tensors of these shapes have together, as NumPy widens them.
pub(crate) fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, String> {
    let rank = a.len().max(b.len());
    let one = Dim::fixed(1);
    let at = |shape: &[Dim], position: usize| -> Dim {
        (position + shape.len())
            .checked_sub(rank)
            .map_or_else(|| one.clone(), |position| shape[position].clone())
    };
    (0..rank).map(|position| broadcast_dim(&at(a, position), &at(b, position))).collect()
}

fn broadcast_dim(a: &Dim, b: &Dim) -> Result<Dim, String> {
    match (a.as_integer(), b.as_integer()) {
        _ if a == b => Ok(a.clone()),
        (Some(1), _) => Ok(b.clone()),
        (_, Some(1)) => Ok(a.clone()),
        (Some(_), Some(_)) => Err(format!("sizes {a} and {b} can't be broadcast")),
        // The other is 1 or the same.
        (Some(_), None) => Ok(a.clone()),
        (None, Some(_)) => Ok(b.clone()),
        (None, None) => Ok(Dim::Unknown),
    }
}

/// A shape for messages: `[2, n]`.
pub(crate) fn show(shape: &[Dim]) -> String {
    let dims: Vec<_> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}
