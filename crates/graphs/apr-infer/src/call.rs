//! What an operator sees when it runs.

use apr_core::{Error, Result};
use apr_graph::{Attribute, AttributeValue, Body, ElementType, Node};

use crate::matrix::{Matrix, Rows};
use crate::store::Store;
use crate::tensor::{Data, elements};
use crate::value::{WeightHandle, WeightLook};
use crate::weight::Weight;
use crate::workers::Workers;
use crate::{Tensor, Value};

/// Multiplications of a product of matrices that are a step of work.
const MULTIPLICATIONS: u64 = 16;

fn product_of(numbers: &[usize]) -> u64 {
    numbers.iter().fold(1, |product: u64, &number| product.saturating_mul(number as u64))
}

/// Services that a run provides to its operators.
pub(crate) trait Environment {
    fn workers(&self) -> &dyn Workers;

    /// Bytes that may still be allocated.
    fn free_bytes(&self) -> u64;

    /// Counts steps of work.
    ///
    /// # Errors
    /// E008 over the budget.
    fn spend(&self, steps: u64) -> Result<()>;

    /// Returns the number of random draws in this run so far, and counts one more.
    fn draw(&mut self) -> u64;

    /// Returns the random seed.
    fn seed(&self) -> u64;

    /// Runs a body in an attribute of the node, with its inputs.
    fn run_body(&mut self, body: &Body, inputs: Vec<Value>) -> Result<Vec<Value>>;

    /// The value that an attribute holds.
    fn attribute_tensor(&self, value: &AttributeValue) -> Result<Tensor>;

    /// A weight that is not decoded, however it is looked at.
    fn weight(&self, handle: &WeightHandle) -> &Weight<'_>;

    /// Returns the store that holds the bytes of weights.
    fn store(&self) -> &Store<'_>;

    /// Counts a value that an operator keeps as alive.
    ///
    /// # Errors
    /// E008 over the memory limit.
    fn hold(&mut self, value: &Value) -> Result<()>;

    /// Ends what [`hold`](Self::hold) began.
    fn let_go(&mut self, value: &Value);

    /// Decodes a whole weight, if it fits the memory.
    fn decode(&self, handle: &WeightHandle) -> Result<Tensor>;
}

/// Attributes of a call of a function, which nodes in it refer to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) attributes: &'a [Attribute],
    pub(crate) defaults: &'a [Attribute],
    pub(crate) around: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    fn find(&self, name: &str) -> Option<&'a AttributeValue> {
        let of = |list: &'a [Attribute]| list.iter().find(|attribute| &*attribute.name == name);
        match &of(self.attributes).or_else(|| of(self.defaults))?.value {
            // A call within a function may pass on what that function was called with.
            AttributeValue::OfCall(outer) => self.around?.find(outer),
            value => Some(value),
        }
    }
}

/// A call of an operator.
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node,
    pub(crate) scope: Option<&'a Scope<'a>>,
    /// Version of the operators of the node's domain.
    pub(crate) opset: i64,
    pub(crate) inputs: Vec<Option<Value>>,
    pub(crate) environment: &'a mut dyn Environment,
}

impl<'a> Call<'a> {
    pub(crate) fn attribute(&self, name: &str) -> Option<&'a AttributeValue> {
        match self.node.attribute(name)? {
            AttributeValue::OfCall(outer) => self.scope?.find(outer),
            value => Some(value),
        }
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        self.optional_int(name).unwrap_or(default)
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        self.int(name, i64::from(default)) != 0
    }

    pub(crate) fn optional_int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            AttributeValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> f32 {
        match self.attribute(name) {
            Some(AttributeValue::Float(value)) => *value,
            _ => default,
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.attribute(name)? {
            AttributeValue::Ints(values) => Some(values.clone()),
            _ => None,
        }
    }

    pub(crate) fn floats(&self, name: &str) -> Option<Vec<f32>> {
        match self.attribute(name)? {
            AttributeValue::Floats(values) => Some(values.clone()),
            _ => None,
        }
    }

    pub(crate) fn text(&self, name: &str, default: &str) -> String {
        match self.attribute(name) {
            Some(AttributeValue::Text(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => default.to_owned(),
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Option<Vec<String>> {
        match self.attribute(name)? {
            AttributeValue::Texts(texts) => Some(
                texts.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect(),
            ),
            _ => None,
        }
    }

    /// Number of outputs that the node names, wanted or not.
    pub(crate) fn outputs(&self) -> usize {
        self.node.outputs.len()
    }

    pub(crate) fn value(&self, position: usize) -> Result<&Value> {
        self.optional_value(position)
            .ok_or_else(|| Error::format(format!("input {position} is missing")))
    }

    pub(crate) fn optional_value(&self, position: usize) -> Option<&Value> {
        self.inputs.get(position)?.as_ref()
    }

    pub(crate) fn tensor(&self, position: usize) -> Result<&Tensor> {
        self.value(position)?.tensor()
    }

    pub(crate) fn optional(&self, position: usize) -> Result<Option<&Tensor>> {
        self.optional_value(position).map(Value::tensor).transpose()
    }

    /// An input that the operator may change in place.
    pub(crate) fn take(&mut self, position: usize) -> Result<Tensor> {
        match self.inputs.get_mut(position).and_then(Option::take) {
            Some(Value::Tensor(tensor)) => Ok(tensor),
            Some(other) => other.tensor().cloned(),
            None => Err(Error::format(format!("input {position} is missing"))),
        }
    }

    pub(crate) fn workers(&self) -> &dyn Workers {
        self.environment.workers()
    }

    /// Counts work beyond looking at each element of the inputs and outputs once: as many steps as
    /// the product of some numbers.
    ///
    /// # Errors
    /// E008 over the budget.
    pub(crate) fn work(&self, numbers: &[usize]) -> Result<()> {
        self.environment.spend(product_of(numbers))
    }

    /// Counts the work of a matrix product, or of an operation computed as one, as its number of
    /// multiplications.
    ///
    /// # Errors
    /// E008 over the budget.
    pub(crate) fn multiplications(&self, numbers: &[usize]) -> Result<()> {
        self.environment.spend(product_of(numbers) / MULTIPLICATIONS)
    }

    /// The number of elements of a tensor that is about to be made, when memory allows it.
    ///
    /// # Errors
    /// E008 when it does not.
    pub(crate) fn room(&self, shape: &[usize], element: ElementType) -> Result<usize> {
        let width = match element {
            ElementType::Text => size_of::<String>() as u64,
            _ => element.bits().div_ceil(8).max(1),
        };
        self.room_for(shape, width)
    }

    /// Checks the memory like [`room`](Self::room), for elements that are copies of a tensor's
    /// elements. Each text is counted with the length of the longest one.
    pub(crate) fn room_like(&self, shape: &[usize], tensor: &Tensor) -> Result<usize> {
        match tensor.data() {
            Data::Text(texts) => {
                let longest = texts.iter().map(String::len).max().unwrap_or(0);
                self.room_for(shape, (size_of::<String>() + longest) as u64)
            }
            _ => self.room(shape, tensor.element()),
        }
    }

    /// Returns the number of elements of `width` bytes each, if the memory limit allows them.
    ///
    /// # Errors
    /// E008 when it does not.
    pub(crate) fn room_for(&self, shape: &[usize], width: u64) -> Result<usize> {
        let too_large =
            || Error::memory(format!("a tensor of shape {shape:?} does not fit the memory limit"));
        let count = elements(shape).ok_or_else(too_large)?;
        let bytes = (count as u64).checked_mul(width).ok_or_else(too_large)?;
        // Shapes come from strangers, and an allocation that fails would end the process.
        if bytes > self.environment.free_bytes() {
            return Err(too_large());
        }
        Ok(count)
    }

    /// Returns a weight as a matrix that is decoded by rows, or `None` if it is not such a matrix.
    pub(crate) fn matrix(&self, handle: &WeightHandle) -> Option<Matrix<'_>> {
        let matrix = self.environment.weight(handle).matrix(self.environment.store())?;
        handle.looked_at(matrix)
    }

    /// A weight as a matrix with a row for each place of its first dimension.
    pub(crate) fn flat_matrix(&self, handle: &WeightHandle) -> Option<Matrix<'_>> {
        let matrix = self.environment.weight(handle).flat_matrix(self.environment.store())?;
        handle.looked_at(matrix).filter(|matrix| !matrix.is_transposed())
    }

    /// Returns the dimensions of a weight, if they are known without decoding it.
    pub(crate) fn weight_shape(&self, handle: &WeightHandle) -> Option<Vec<usize>> {
        let weight = self.environment.weight(handle);
        if let Some(matrix) = weight.matrix(self.environment.store()) {
            let turns =
                handle.looks.iter().filter(|look| matches!(look, WeightLook::Turned)).count();
            let shape = [matrix.depth(), matrix.width()];
            return Some(if turns % 2 == 0 { shape.to_vec() } else { vec![shape[1], shape[0]] });
        }
        weight.plain_shape()
    }

    /// An input that may be a weight, decoded.
    ///
    /// # Errors
    /// E008 for a weight that does not fit the memory as a whole.
    pub(crate) fn decoded(&self, position: usize) -> Result<Tensor> {
        match self.value(position)? {
            Value::Weight(handle) => self.environment.decode(handle),
            value => value.tensor().cloned(),
        }
    }

    /// Decodes the given inputs if they are weights.
    pub(crate) fn decode_inputs(&mut self, positions: &[usize]) -> Result<()> {
        for &position in positions {
            if let Some(Value::Weight(_)) = self.optional_value(position) {
                self.inputs[position] = Some(self.decoded(position)?.widened()?.into());
            }
        }
        Ok(())
    }

    /// Makes a tensor of an input that has keys or values of earlier tokens.
    ///
    /// # Errors
    /// E008 where it does not fit the memory.
    pub(crate) fn uncache(&mut self, position: usize) -> Result<()> {
        if let Some(Value::Cached(heads)) = self.optional_value(position) {
            self.room(&heads.shape(), ElementType::F32)?;
            self.inputs[position] = Some(heads.tensor()?.into());
        }
        Ok(())
    }

    /// A body in an attribute.
    pub(crate) fn body(&self, name: &str) -> Result<&'a Body> {
        match self.attribute(name) {
            Some(AttributeValue::Body(body)) => Ok(body),
            _ => Err(Error::format(format!("the attribute {name} must be a graph"))),
        }
    }
}
