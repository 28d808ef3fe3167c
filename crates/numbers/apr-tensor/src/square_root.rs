//! Square roots, which `core` does not offer. They are correctly rounded, and so equal on every
//! target.

pub(crate) fn square_root(value: f64) -> f64 {
    libm::sqrt(value)
}

/// The inner loops of quantization take it: with the standard library it is one instruction.
#[cfg(feature = "std")]
#[inline(always)]
pub(crate) fn square_root_f32(value: f32) -> f32 {
    value.sqrt()
}

#[cfg(not(feature = "std"))]
pub(crate) fn square_root_f32(value: f32) -> f32 {
    libm::sqrtf(value)
}
