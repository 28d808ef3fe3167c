//! Tensors: as they are stored, and what compressed ones are computed from.

use std::sync::{Arc, OnceLock};

use apr_core::{
    DType, Error, Limits, Result, SharedSource, StoredRange, TensorBytes, TensorDecoder,
};

use crate::grid::Grid;

/// Storage form of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Side by side, little-endian.
    Whole(DType),
    /// `bits` bits per element, without gaps.
    Bits { bits: u32, signed: bool, order: BitOrder },
}

/// Bits of a byte that hold its first element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BitOrder {
    /// The lowest bits.
    LowestFirst,
    /// The highest; so are the bits of an element.
    HighestFirst,
}

impl Encoding {
    /// Integers in bits of programs.
    pub(crate) const fn bits(bits: u32, signed: bool) -> Self {
        Self::Bits { bits, signed, order: BitOrder::LowestFirst }
    }

    /// Returns the dtype of the elements after reading.
    pub(crate) const fn dtype(self) -> DType {
        match self {
            Self::Whole(dtype) => dtype,
            Self::Bits { signed: true, .. } => DType::I8,
            Self::Bits { signed: false, .. } => DType::U8,
        }
    }

    /// Bits of an element.
    pub(crate) const fn width(self) -> u64 {
        match self {
            Self::Whole(dtype) => 8 * dtype.block_bytes(),
            Self::Bits { bits, .. } => bits as u64,
        }
    }

    /// Returns the number of bytes of `elements` elements, or `None` on overflow.
    pub(crate) fn len_of(self, elements: u64) -> Option<u64> {
        elements.checked_mul(self.width()).map(|bits| bits.div_ceil(8))
    }
}

/// Location of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// A range of a file.
    File(StoredRange),
    /// Bytes in memory, with the range of the file in which their numbers are stored one by one.
    Kept(Vec<u8>, StoredRange),
}

impl Bytes {
    pub(crate) const fn range(&self) -> StoredRange {
        match self {
            Self::File(range) | Self::Kept(_, range) => *range,
        }
    }
}

/// Rounding of linear quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linear {
    /// `scale * (quant - offset)` in single precision, rounded once: `constexpr_affine_dequantize`.
    Affine,
    /// Like [`Affine`](Self::Affine), in the precision of the scales:
    /// `constexpr_blockwise_shift_scale`.
    Blockwise,
    /// `quant * scale + offset` in double precision, rounded to single: networks.
    Network,
}

/// Elements of a tensor.
#[derive(Debug)]
pub(crate) enum Elements {
    Stored {
        bytes: Bytes,
        encoding: Encoding,
    },
    /// Floats of integers, by a scale and an offset for each block.
    Scaled {
        quants: Arc<Tensor>,
        scales: ByBlock,
        offsets: Option<ByBlock>,
        rule: Linear,
    },
    /// Entries of a table by their index; a block has a table of its own, an entry may be several
    /// elements along a dimension.
    Looked {
        indices: Arc<Tensor>,
        tables: ByBlock,
        /// Entries of one table.
        entries: u64,
        vectors: Option<Vectors>,
    },
    /// Elements of `dense` at the positions that the mask sets, and 0 elsewhere.
    Masked {
        dense: Arc<Tensor>,
        mask: Arc<Tensor>,
    },
    /// Elements of a list, one for each position that the mask sets, and 0 elsewhere.
    Scattered {
        listed: Arc<Tensor>,
        mask: Arc<Tensor>,
        ranks: OnceLock<Result<Vec<u64>>>,
    },
    /// Each element several times along a dimension.
    Repeated {
        of: Arc<Tensor>,
        vectors: Vectors,
    },
    /// Values of another tensor, converted to the dtype of this one.
    Cast {
        of: Arc<Tensor>,
    },
}

/// Values of which each block of a tensor has one, or one table.
#[derive(Debug)]
pub(crate) struct ByBlock {
    pub(crate) values: Arc<Tensor>,
    pub(crate) grid: Grid,
}

/// Elements of one tensor that each represent several elements of another, along a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vectors {
    /// Number of elements of a vector.
    pub(crate) len: u64,
    /// Elements of a step along the dimension.
    pub(crate) inner: u64,
}

/// Tensor with the way in which its elements are computed.
#[derive(Debug)]
pub(crate) struct Tensor {
    /// Dtype of the elements after reading.
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) elements: Elements,
    /// Length of the longest chain of tensors that this one is computed from.
    pub(crate) depth: u32,
    /// All values, cached when another tensor needs them in random order.
    pub(super) values: OnceLock<Result<Vec<f32>>>,
}

impl Tensor {
    /// A tensor that is computed from others.
    pub(crate) fn computed(dtype: DType, dims: Vec<u64>, elements: Elements, depth: u32) -> Self {
        Self { dtype, dims, elements, depth, values: OnceLock::new() }
    }

    /// Elements side by side in a file or in memory.
    ///
    /// # Errors
    /// E002 where they are more or fewer than the shape has.
    pub(crate) fn stored(bytes: Bytes, encoding: Encoding, dims: Vec<u64>) -> Result<Self> {
        let elements = element_count(&dims)?;
        let range = bytes.range();
        let len = match &bytes {
            Bytes::File(range) => range.len,
            Bytes::Kept(bytes, _) => bytes.len() as u64,
        };
        if encoding.len_of(elements) != Some(len) {
            let message = format!(
                "{len} bytes do not make up its {} elements of shape {dims:?}",
                encoding.dtype()
            );
            return Err(Error::corrupt(message).at(range.offset));
        }
        Ok(Self::computed(encoding.dtype(), dims, Elements::Stored { bytes, encoding }, 0))
    }

    /// Returns how the bytes of a tensor are stored.
    pub(crate) fn bytes(tensor: &Arc<Self>) -> TensorBytes {
        match &tensor.elements {
            Elements::Stored { bytes: Bytes::File(range), encoding: Encoding::Whole(_) } => {
                TensorBytes::Plain(*range)
            }
            _ => TensorBytes::decoded(Shared(Arc::clone(tensor))),
        }
    }

    /// Returns the number of elements, which was checked when the tensor was created.
    pub(crate) fn len(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Refuses what would take too much memory once all its values are there.
    ///
    /// # Errors
    /// E008.
    pub(crate) fn check_values(&self, limits: &Limits) -> Result<()> {
        limits.check_index(self.len().saturating_mul(4))
    }

    /// Returns the range of the elements in a file, if they are contiguous.
    pub(crate) fn data(&self) -> Option<StoredRange> {
        match &self.elements {
            Elements::Stored { bytes: Bytes::File(range), .. } => Some(*range),
            Elements::Stored { bytes: Bytes::Kept(..), .. } => None,
            Elements::Scaled { quants: of, .. }
            | Elements::Looked { indices: of, .. }
            | Elements::Masked { dense: of, .. }
            | Elements::Scattered { listed: of, .. }
            | Elements::Repeated { of, .. }
            | Elements::Cast { of } => of.data(),
        }
    }

    /// Returns the range of the tensor's bytes, or of the bytes that it is mainly computed from.
    pub(crate) fn range(&self) -> StoredRange {
        match &self.elements {
            Elements::Stored { bytes, .. } => bytes.range(),
            Elements::Scaled { quants: of, .. }
            | Elements::Looked { indices: of, .. }
            | Elements::Masked { dense: of, .. }
            | Elements::Scattered { listed: of, .. }
            | Elements::Repeated { of, .. }
            | Elements::Cast { of } => of.range(),
        }
    }
}

/// A tensor that other tensors may be computed from.
struct Shared(Arc<Tensor>);

impl TensorDecoder for Shared {
    fn range(&self) -> StoredRange {
        self.0.range()
    }

    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(sources, offset, buf)
    }
}

/// Returns the number of elements of a shape.
///
/// # Errors
/// E002 if the number of elements or of bits overflows.
pub(crate) fn element_count(dims: &[u64]) -> Result<u64> {
    // With a dimension of zero, the others still have to be possible.
    let product = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim.max(1)));
    let product = product.filter(|product| product.checked_mul(64).is_some());
    let product =
        product.ok_or_else(|| Error::corrupt(format!("a tensor has an impossible shape {dims:?}")));
    Ok(if dims.contains(&0) { 0 } else { product? })
}
