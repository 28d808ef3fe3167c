//! Sizes of tensors whose dimensions have symbols.

use crate::{TensorType, Value};

/// The size that a symbol stands for; `None` where it is not said.
pub type Sizes<'a> = &'a dyn Fn(&str) -> Option<u64>;

/// How many elements a tensor has.
pub(super) fn elements(tensor: &TensorType, sizes: Sizes<'_>) -> Option<u64> {
    let shape = tensor.shape.as_ref()?;
    shape.iter().try_fold(1_u64, |count, dim| Some(count.saturating_mul(dim.value(sizes)?)))
}

/// How many bytes it takes.
pub(super) fn bytes(value: &Value, sizes: Sizes<'_>) -> Option<u64> {
    let tensor = value.tensor()?;
    tensor.element?.stored_len(elements(tensor, sizes)?)
}
