//! Tensors: as they are stored, and what compressed ones are computed from.

use std::sync::{Arc, OnceLock};

use apr_core::{DType, Error, Limits, Result, StoredRange};

use crate::grid::Grid;

/// How elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Side by side, little-endian.
    Whole(DType),
    /// In so many bits each, without gaps.
    Bits { bits: u32, signed: bool, order: BitOrder },
}

/// Which bits of a byte are the first element's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BitOrder {
    /// The lowest.
    LowestFirst,
    /// The highest; so are the bits of an element.
    HighestFirst,
}

impl Encoding {
    /// Integers in bits of programs.
    pub(crate) const fn bits(bits: u32, signed: bool) -> Self {
        Self::Bits { bits, signed, order: BitOrder::LowestFirst }
    }

    /// What elements are read as.
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

    /// Bytes of so many elements, if that is a number.
    pub(crate) fn len_of(self, elements: u64) -> Option<u64> {
        elements.checked_mul(self.width()).map(|bits| bits.div_ceil(8))
    }
}

/// Where bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// In a file.
    File(StoredRange),
    /// In memory: numbers that were written one by one, and where they were.
    Kept(Vec<u8>, StoredRange),
}

impl Bytes {
    pub(crate) const fn range(&self) -> StoredRange {
        match self {
            Self::File(range) | Self::Kept(_, range) => *range,
        }
    }
}

/// How linear quantization rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linear {
    /// `scale * (quant - offset)` in single precision, rounded once: `constexpr_affine_dequantize`.
    Affine,
    /// The same in the precision of the scales: `constexpr_blockwise_shift_scale`.
    Blockwise,
    /// `quant * scale + offset` in double precision, rounded to single: networks.
    Network,
}

/// What a tensor's elements are.
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
    /// Those of `dense` where the mask is set, others 0.
    Masked {
        dense: Arc<Tensor>,
        mask: Arc<Tensor>,
    },
    /// Those of a list, one for each that the mask sets, others 0.
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
    /// The same values in another dtype.
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

/// An element of one tensor that stands for several of another along a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vectors {
    /// How many.
    pub(crate) len: u64,
    /// Elements of a step along the dimension.
    pub(crate) inner: u64,
}

/// A tensor.
#[derive(Debug)]
pub(crate) struct Tensor {
    /// What its elements are read as.
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) elements: Elements,
    /// How many others it is computed from, one on the other.
    pub(crate) depth: u32,
    /// All its values, where another asks for any of them in no order.
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

    /// How many elements there are, which were counted when it was made.
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

    /// Where its elements lie side by side in a file, if they do.
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

    /// Where its bytes are, or those that it is mostly computed from.
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

/// How many elements a shape has.
///
/// # Errors
/// E002 for more than there are numbers, of bits too.
pub(crate) fn element_count(dims: &[u64]) -> Result<u64> {
    // With a dimension of zero, the others still have to be possible.
    let product = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim.max(1)));
    let product = product.filter(|product| product.checked_mul(64).is_some());
    let product =
        product.ok_or_else(|| Error::corrupt(format!("a tensor has an impossible shape {dims:?}")));
    Ok(if dims.contains(&0) { 0 } else { product? })
}
