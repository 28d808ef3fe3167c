//! What the elements of storages and arrays are, to PyTorch and to NumPy.

use apr_core::DType;

/// Type of a storage's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element {
    /// `None` if this build has no dtype for the elements, or if the tensor states its own.
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

/// Type of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ArrayDType {
    /// Decoding of single values; `None` if values of this type are not decoded.
    pub(crate) number: Option<Number>,
    /// `None` if this build has no dtype for the elements, or if they are big-endian.
    pub(crate) dtype: Option<DType>,
    /// Bytes of an element.
    pub(crate) size: u64,
    /// `true` if the elements may be objects, which are pickled.
    pub(crate) objects: bool,
}
