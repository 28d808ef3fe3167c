//! What the elements of storages and arrays are, to PyTorch and to NumPy.

use apr_core::DType;

/// What a storage's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element {
    /// `None` where this build has no dtype for them, or where the tensor names its own.
    pub(crate) dtype: Option<DType>,
    /// Bytes of an element.
    pub(crate) width: u64,
    /// Name in PyTorch.
    pub(crate) name: &'static str,
}

/// A little-endian number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    Bool,
    Int,
    Uint,
    F32,
    F64,
}

/// What the elements of an array are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ArrayDType {
    /// `None` where the bytes of a value say nothing here.
    pub(crate) number: Option<Number>,
    /// `None` where this build has none for them, or they are big-endian.
    pub(crate) dtype: Option<DType>,
    /// Bytes of an element.
    pub(crate) size: u64,
    /// Whether they may be objects, which are pickled.
    pub(crate) objects: bool,
}
