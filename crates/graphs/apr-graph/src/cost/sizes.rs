//! Sizes of tensors whose dimensions have symbols.

use crate::{TensorType, Value};

/// Function that returns the size of a symbol, or `None` if the size is not known.
pub type Sizes<'a> = &'a dyn Fn(&str) -> Option<u64>;

/// Returns the number of elements of a tensor.
pub(super) fn elements(tensor: &TensorType, sizes: Sizes<'_>) -> Option<u64> {
    let shape = tensor.shape.as_ref()?;
    shape.iter().try_fold(1_u64, |count, dim| Some(count.saturating_mul(dim.value(sizes)?)))
}

/// Returns the size of a value in bytes.
pub(super) fn bytes(value: &Value, sizes: Sizes<'_>) -> Option<u64> {
    let tensor = value.tensor()?;
    tensor.element?.stored_len(elements(tensor, sizes)?)
}
