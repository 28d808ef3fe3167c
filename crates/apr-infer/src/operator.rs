//! What an operator is.

use apr_core::Result;
use apr_graph::ElementType;

use crate::Value;
use crate::call::Call;
use crate::convert::is_half;

/// What an operator computes.
pub(crate) type Kernel = fn(&mut Call<'_>) -> Result<Vec<Value>>;

/// An operator of some domain, from a version on.
pub(crate) struct Operator {
    /// `MatMul`, or `com.microsoft::MatMulNBits`.
    pub(crate) name: &'static str,
    /// First version of the domain's operators in which it means this.
    pub(crate) since: i64,
    kernel: Kernel,
    /// Whether floats of 16 bits come in as `f32`, and `f32` goes out as them.
    widens: bool,
    /// Whether it decodes weights by itself.
    pub(crate) decodes: bool,
    /// Whether it reads keys and values of earlier tokens as they lie.
    pub(crate) reads_cache: bool,
}

/// An operator that computes: with floats of 16 bits, it computes in `f32` and rounds what comes
/// out.
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

    /// It decodes weights by itself, a panel at a time.
    pub(crate) const fn decodes(self) -> Self {
        Self { decodes: true, ..self }
    }

    /// It takes keys and values of earlier tokens as they lie, where they are no tensors.
    pub(crate) const fn reads_cache(self) -> Self {
        Self { reads_cache: true, ..self }
    }

    /// Whether it looks at all elements of its inputs. What moves elements looks at those that it
    /// moves.
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
