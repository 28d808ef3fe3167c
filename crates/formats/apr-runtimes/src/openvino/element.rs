//! Types of elements, by the names of the files.

use apr_core::DType;
use apr_graph::ElementType;

/// A type of the elements of a constant or a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Elements that tensors have too.
    Plain(DType),
    /// Fewer bits than a byte has.
    Packed(Packed),
    /// Texts, and types that are not known here.
    Other,
}

/// Elements of fewer bits than a byte has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packed {
    U1,
    U2,
    U3,
    U4,
    U6,
    I4,
    Nf4,
    F4E2m1,
}

const NAMES: [(&str, Kind); 28] = [
    ("f32", Kind::Plain(DType::F32)),
    ("f16", Kind::Plain(DType::F16)),
    ("bf16", Kind::Plain(DType::BF16)),
    ("f64", Kind::Plain(DType::F64)),
    ("i8", Kind::Plain(DType::I8)),
    ("i16", Kind::Plain(DType::I16)),
    ("i32", Kind::Plain(DType::I32)),
    ("i64", Kind::Plain(DType::I64)),
    ("u8", Kind::Plain(DType::U8)),
    ("u16", Kind::Plain(DType::U16)),
    ("u32", Kind::Plain(DType::U32)),
    ("u64", Kind::Plain(DType::U64)),
    ("boolean", Kind::Plain(DType::BOOL)),
    ("f8e4m3", Kind::Plain(DType::F8_E4M3)),
    ("f8e5m2", Kind::Plain(DType::F8_E5M2)),
    ("f8e8m0", Kind::Plain(DType::F8_E8M0)),
    ("u1", Kind::Packed(Packed::U1)),
    ("u2", Kind::Packed(Packed::U2)),
    ("u3", Kind::Packed(Packed::U3)),
    ("u4", Kind::Packed(Packed::U4)),
    ("u6", Kind::Packed(Packed::U6)),
    ("i4", Kind::Packed(Packed::I4)),
    ("nf4", Kind::Packed(Packed::Nf4)),
    ("f4e2m1", Kind::Packed(Packed::F4E2m1)),
    // Ports have the names of older versions.
    ("fp32", Kind::Plain(DType::F32)),
    ("fp16", Kind::Plain(DType::F16)),
    ("fp64", Kind::Plain(DType::F64)),
    ("bool", Kind::Plain(DType::BOOL)),
];

impl Kind {
    /// The type with this name, in letters of either case.
    pub(crate) fn of(name: &str) -> Self {
        let found = NAMES.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        match found {
            Some((_, kind)) => *kind,
            None if name.eq_ignore_ascii_case("bin") => Self::Packed(Packed::U1),
            None => Self::Other,
        }
    }

    /// The dtype of a tensor with such elements.
    pub(crate) fn dtype(self) -> Option<DType> {
        match self {
            Self::Plain(dtype) => Some(dtype),
            Self::Packed(packed) => Some(packed.dtype()),
            Self::Other => None,
        }
    }

    /// The type of a value of the graph.
    pub(crate) fn element(self) -> Option<ElementType> {
        self.dtype().and_then(ElementType::from_dtype)
    }

    /// Bytes of `count` elements in the file.
    pub(crate) fn stored_len(self, count: u64) -> Option<u64> {
        match self {
            Self::Plain(dtype) => count.checked_mul(dtype.block_bytes()),
            Self::Packed(packed) => Some(count.checked_mul(packed.bits())?.div_ceil(8)),
            Self::Other => None,
        }
    }
}

impl Packed {
    pub(crate) fn bits(self) -> u64 {
        match self {
            Self::U1 => 1,
            Self::U2 => 2,
            Self::U3 => 3,
            Self::U4 | Self::I4 | Self::Nf4 | Self::F4E2m1 => 4,
            Self::U6 => 6,
        }
    }

    /// The dtype that elements are decoded to.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::U1 | Self::U2 | Self::U3 | Self::U4 | Self::U6 => DType::U8,
            Self::I4 => DType::I8,
            Self::Nf4 | Self::F4E2m1 => DType::F32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_and_ports_name_their_types_differently() {
        assert_eq!(Kind::of("f32"), Kind::of("FP32"));
        assert_eq!(Kind::of("boolean"), Kind::of("BOOL"));
        assert_eq!(Kind::of("u1"), Kind::of("BIN"));
        assert_eq!(Kind::of("string"), Kind::Other);
        assert_eq!(Kind::of("u1").stored_len(9), Some(2));
        assert_eq!(Kind::of("u4").stored_len(3), Some(2));
        assert_eq!(Kind::of("f32").stored_len(u64::MAX), None);
    }
}
