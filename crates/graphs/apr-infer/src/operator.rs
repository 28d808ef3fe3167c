//! What an operator is.

use apr_core::Result;
use apr_graph::ElementType;

use crate::Value;
use crate::call::Call;
use crate::convert::is_half;

/// Function that computes an operator.
pub(crate) type Kernel = fn(&mut Call<'_>) -> Result<Vec<Value>>;

/// An operator of some domain, from a version on.
pub(crate) struct Operator {
    /// `MatMul`, or `com.microsoft::MatMulNBits`.
    pub(crate) name: &'static str,
    /// First version of the domain's operators in which it means this.
    pub(crate) since: i64,
    kernel: Kernel,
    /// `true` if 16-bit floats are passed as `f32`, and results in `f32` are converted back.
    widens: bool,
    /// `true` if the operator decodes weights itself.
    pub(crate) decodes: bool,
    /// `true` if the operator reads the keys and values of earlier tokens in place.
    pub(crate) reads_cache: bool,
}

/// Returns an operator that computes. For 16-bit floats, it computes in `f32` and rounds the
/// results.
pub(crate) const fn computes(name: &'static str, kernel: Kernel) -> Operator {
    Operator { name, since: 1, kernel, widens: true, decodes: false, reads_cache: false }
}

/// An operator that moves elements, or that handles every type itself.
pub(crate) const fn moves(name: &'static str, kernel: Kernel) -> Operator {
    Operator { name, since: 1, kernel, widens: false, decodes: false, reads_cache: false }
}

impl Operator {
    /// The meaning that it has from this version on.
    pub(crate) const fn since(self, since: i64) -> Self {
        Self { since, ..self }
    }

    /// Marks the operator as decoding weights itself, a panel at a time.
    pub(crate) const fn decodes(self) -> Self {
        Self { decodes: true, ..self }
    }

    /// Marks the operator as reading the keys and values of earlier tokens in place if they are not
    /// tensors.
    pub(crate) const fn reads_cache(self) -> Self {
        Self { reads_cache: true, ..self }
    }

    /// Returns `true` if the operator reads all elements of its inputs. Operators that move
    /// elements read only the elements that they move.
    pub(crate) fn reads_all(&self) -> bool {
        self.widens
    }

    pub(crate) fn run(&self, call: &mut Call<'_>) -> Result<Vec<Value>> {
        let half = call.inputs.iter().flatten().filter_map(half_of).next();
        match half.filter(|_| self.widens) {
            None => (self.kernel)(call),
            Some(half) => {
                for input in call.inputs.iter_mut().flatten() {
                    if let Value::Tensor(tensor) = input {
                        *tensor = tensor.widened()?;
                    }
                }
                let outputs = (self.kernel)(call)?;
                outputs.into_iter().map(|output| narrowed(output, half)).collect()
            }
        }
    }
}

fn half_of(value: &Value) -> Option<ElementType> {
    let element = match value {
        Value::Tensor(tensor) => tensor.element(),
        Value::Weight(weight) => weight.element,
        _ => return None,
    };
    is_half(element).then_some(element)
}

fn narrowed(value: Value, to: ElementType) -> Result<Value> {
    match value {
        Value::Tensor(tensor) if tensor.element() == ElementType::F32 => {
            tensor.narrowed(to).map(Value::Tensor)
        }
        other => Ok(other),
    }
}
