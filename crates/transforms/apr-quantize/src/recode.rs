//! Tensors that get another encoding: plans of pieces, and the work on one.

use std::sync::Arc;

use apr_registry::{CheckpointReader, DType, DTypeKind, Error, Result, TensorInfo};
use apr_tensor::block;
use apr_tensor::cast::{CastCounts, can_cast, cast_values};
use apr_tensor::drift::Drift;
use apr_tensor::stats::{Moments, Scratch};
use apr_view::chunks::Chunk;
use apr_view::values::decode;

/// Bytes of input that a chunk is to have: the digests' chunk, so that its sums serve them.
const CHUNK_LEN: u64 = apr_registry::digest::CHUNK_LEN as u64;

/// Elements that are decoded, encoded and compared at a time: as f32 before and after, they fit the
/// first-level cache.
const STEP_ELEMENTS: usize = 4096;

/// Longest row, in elements, that is handled in one step if a dtype or importance requires whole
/// rows.
const LONGEST_ROW: u64 = 4 << 20;

/// Target encoding of a tensor.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TensorTarget {
    /// Dtype of the target.
    pub dtype: DType,
    /// Weight of an error per column of a row, or per column of each matrix of a stack.
    pub importance: Option<Arc<[f32]>>,
    /// Reason for the dtype, for the report.
    pub why: Option<String>,
}

impl TensorTarget {
    /// Refuses, in words, a dtype that can't be made of this one.
    fn check(&self, from: DType) -> Result<(), String> {
        if self.dtype.is_quantized() && !block::can_quantize(self.dtype) {
            return Err(format!("this build can't quantize to {}", self.dtype));
        }
        if self.importance.is_none() && self.dtype != from && block::needs_importance(self.dtype) {
            return Err(format!("{} needs an importance matrix", self.dtype));
        }
        Ok(())
    }
}

impl From<DType> for TensorTarget {
    fn from(dtype: DType) -> Self {
        Self { dtype, importance: None, why: None }
    }
}

/// Plan for re-encoding a tensor.
#[derive(Debug, Clone)]
pub struct Recode {
    /// The dtype before.
    pub from: DType,
    /// The dtype after.
    pub to: DType,
    importance: Option<Arc<[f32]>>,
    row_len: usize,
    rows: u64,
    /// Bytes of a row of input.
    row_bytes: u64,
    /// `true` to compare the values before and after.
    pub measured: bool,
}

/// Buffers that are used again.
#[derive(Default)]
pub struct Buffers {
    values: Vec<f32>,
    back: Vec<f32>,
    encoded: Vec<u8>,
    scratch: Scratch,
}

/// Findings of re-encoding.
#[derive(Debug, Clone, Default)]
pub struct RecodeFindings {
    /// Effects of casts on the values.
    pub counts: CastCounts,
    /// Quantization error of the values.
    pub drift: Drift,
    /// Values that are not a number; they can't be quantized.
    pub nan: u64,
    /// Infinite values; neither can they.
    pub infinite: u64,
    /// Statistics of the values before re-encoding, if requested.
    pub moments: Option<Moments>,
}

impl RecodeFindings {
    /// Returns `true` if all values are finite, so that everything could be quantized.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.nan + self.infinite == 0
    }

    /// Adds what was found in another piece of the same tensor.
    pub fn merge(&mut self, other: &Self) {
        self.counts.merge(other.counts);
        self.drift.merge(&other.drift);
        self.nan += other.nan;
        self.infinite += other.infinite;
        // The moments of a tensor are put together by whoever judges it.
    }
}

impl Recode {
    /// Plans a tensor's way to its target.
    ///
    /// # Errors
    /// E001 when the target can't hold the tensor's shape or the importance is of another length,
    /// E008 when rows that must be in memory as a whole are too long for that.
    pub fn plan(info: &TensorInfo, target: &TensorTarget, measured: bool) -> Result<Self> {
        let wrong = |message: String| Error::format(message).for_tensor(&info.name);
        target.check(info.dtype).map_err(wrong)?;
        let row = [info.shape.row_len()].into();

        // Blocks never cross the end of a row, so a row has to be whole in both types.
        let row_bytes =
            info.dtype.stored_len(&row).zip(target.dtype.stored_len(&row)).map(|(from, _)| from);
        let row_bytes = row_bytes.ok_or_else(|| {
            wrong(format!(
                "rows of {} elements are not compatible with dtype {}",
                info.shape.row_len(),
                target.dtype
            ))
        })?;
        let row_len = usize::try_from(info.shape.row_len())
            .map_err(|_| Error::memory("a row does not fit in memory"))?;
        let importance = target.importance.clone();
        if importance
            .as_ref()
            .is_some_and(|weights| row_len == 0 || !weights.len().is_multiple_of(row_len))
        {
            let len = importance.map_or(0, |weights| weights.len());
            return Err(wrong(format!("{len} importance weights for rows of {row_len} elements")));
        }
        let recode = Self {
            from: info.dtype,
            to: target.dtype,
            importance,
            row_len,
            rows: info.shape.rows().unwrap_or_default(),
            row_bytes,
            measured: measured || target.dtype.is_quantized(),
        };

        if recode.needs_rows() && info.shape.row_len() > LONGEST_ROW {
            let message = format!("a row of {row_len} elements is too long for {}", target.dtype);
            return Err(Error::memory(message).for_tensor(&info.name));
        }

        Ok(recode)
    }

    /// Returns `true` if a step must hold whole rows.
    fn needs_rows(&self) -> bool {
        // A row of this type has one scale, which all of its values decide.
        self.importance.is_some() || [self.from, self.to].contains(&DType::I8_ROW)
    }

    /// Returns the pieces of the input: whole rows, or whole blocks if rows do not matter.
    #[must_use]
    pub fn pieces(&self) -> Vec<Chunk> {
        let unit = if self.needs_rows() { self.row_bytes } else { self.block_unit() };
        let total = self.row_bytes * self.rows;

        // A row may be longer than a chunk; it is a piece of its own then.
        let step = (CHUNK_LEN / unit).max(1) * unit;
        (0..total.div_ceil(step))
            .map(|piece| {
                let offset = piece * step;
                let len = step.min(total - offset);
                // A piece holds a mebibyte, or a row that was checked to fit.
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                // The digests' sums are over chunks of that length alone.
                Chunk { offset, len, last: offset + step >= total, summable: step == CHUNK_LEN }
            })
            .collect()
    }

    /// Bytes of input that hold whole blocks of both dtypes.
    fn block_unit(&self) -> u64 {
        /// The longest block; all others divide it.
        const SUPER_BLOCK: u64 = 256;
        if (self.row_len as u64).is_multiple_of(SUPER_BLOCK) {
            SUPER_BLOCK / self.from.block_len() * self.from.block_bytes()
        } else {
            let elements = self.from.block_len().max(self.to.block_len());
            elements / self.from.block_len() * self.from.block_bytes()
        }
    }

    /// Recodes a piece that starts `offset` bytes into the tensor, and replaces the contents of
    /// `out`.
    pub fn run(
        &self,
        offset: u64,
        input: &[u8],
        wants_moments: bool,
        buffers: &mut Buffers,
        out: &mut Vec<u8>,
    ) -> RecodeFindings {
        out.clear();
        let mut found = RecodeFindings {
            moments: wants_moments.then(Moments::default),
            ..RecodeFindings::default()
        };
        if self.needs_rows() {
            let rows = (STEP_ELEMENTS / self.row_len.max(1)).max(1);
            let row_bytes = usize::try_from(self.row_bytes).unwrap_or(usize::MAX);
            let mut row = offset / self.row_bytes;
            let mut rest = input;
            while !rest.is_empty() {
                let matrix = self.matrix_of(row);
                // The rows of the next expert have other weights, so a step ends before them.
                let until = self.rows_of_matrix().map_or(rows as u64, |len| len - row % len);
                let count = rows.min(usize::try_from(until).unwrap_or(rows));
                let (step, after) = rest.split_at((count * row_bytes).min(rest.len()));
                self.step(step, self.row_len, matrix, buffers, out, &mut found);
                row += count as u64;
                rest = after;
            }
        } else {
            let unit = usize::try_from(self.block_unit()).unwrap_or(usize::MAX);
            let elements = unit as u64 / self.from.block_bytes() * self.from.block_len();
            // The clamp keeps the count above 0, with which `chunks` would panic.
            let units = STEP_ELEMENTS
                / usize::try_from(elements).unwrap_or(STEP_ELEMENTS).clamp(1, STEP_ELEMENTS);
            for step in input.chunks(units * unit) {
                let elements = step.len() as u64 / self.from.block_bytes() * self.from.block_len();
                self.step(
                    step,
                    usize::try_from(elements).unwrap_or(usize::MAX),
                    None,
                    buffers,
                    out,
                    &mut found,
                );
            }
        }

        found
    }

    /// Returns the number of rows that share importance weights, or `None` if all rows share them.
    fn rows_of_matrix(&self) -> Option<u64> {
        let matrices = self.importance.as_ref().map(|weights| weights.len() / self.row_len)? as u64;
        (matrices > 1).then(|| (self.rows / matrices).max(1))
    }

    /// The importance weights of a row.
    fn matrix_of(&self, row: u64) -> Option<&[f32]> {
        let weights = self.importance.as_deref()?;
        let matrix = self.rows_of_matrix().map_or(0, |rows| row / rows);
        weights.chunks_exact(self.row_len).nth(usize::try_from(matrix).ok()?)
    }

    fn step(
        &self,
        input: &[u8],
        row_len: usize,
        importance: Option<&[f32]>,
        buffers: &mut Buffers,
        out: &mut Vec<u8>,
        found: &mut RecodeFindings,
    ) {
        let Buffers { values, back, encoded, scratch } = buffers;
        decode(self.from, input, row_len, values);

        // Moments count them anyway; without, only a quantizer has to know.
        let (nan, infinite) = match &mut found.moments {
            Some(moments) => {
                let step = Moments::of_values(values, scratch);
                moments.merge(&step);
                (step.nan(), step.inf())
            }
            None if self.to.is_quantized() => non_finite(values),
            None => (0, 0),
        };

        if !self.to.is_quantized() {
            found.counts.merge(cast_values(values, self.to, encoded));
            out.extend_from_slice(encoded);
            if self.measured {
                decode(self.to, encoded, row_len, back);
                found.drift.merge(&Drift::of(values, back));
            }
            return;
        }

        let start = out.len();

        // A block's scale would spread them over its neighbours; the pass ends with an error.
        if nan + infinite > 0 {
            found.nan += nan;
            found.infinite += infinite;
            return;
        }

        block::quantize(self.to, values, row_len, importance, out);
        block::dequantize(self.to, &out[start..], row_len, back);
        found.drift.merge(&Drift::of(values, back));
    }
}

/// NaN and infinities.
fn non_finite(values: &[f32]) -> (u64, u64) {
    // One test for both, without a branch, until there is something to tell apart.
    const EXPONENT: u32 = 0x7f80_0000;
    let finite =
        values.iter().fold(true, |finite, value| finite & (value.to_bits() & EXPONENT != EXPONENT));
    if finite {
        return (0, 0);
    }
    let nan = values.iter().filter(|value| value.is_nan()).count() as u64;
    (nan, values.iter().filter(|value| value.is_infinite()).count() as u64)
}

/// Returns the plan for a tensor, or `None` if its elements do not need one.
///
/// A tensor that is copied does not need a plan. Neither does a cast from float to float, except to
/// 8-bit floats, whose error is measured.
///
/// # Errors
/// Returns the errors of [`Recode::plan`].
pub fn needed(
    reader: &dyn CheckpointReader,
    tensor: usize,
    target: &TensorTarget,
) -> Result<Option<Recode>> {
    let info = &reader.tensors()[tensor];
    if info.dtype == target.dtype {
        return Ok(None);
    }
    let is_block = |dtype: DType| dtype.is_quantized();
    let measured =
        target.dtype.kind() == DTypeKind::MiniFloat && can_cast(info.dtype, target.dtype);
    if !(measured || is_block(info.dtype) || is_block(target.dtype)) {
        return Ok(None);
    }
    Recode::plan(info, target, measured).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(dtype: DType, dims: &[u64]) -> TensorInfo {
        TensorInfo { name: "w".to_owned(), dtype, shape: dims.to_vec().into() }
    }

    fn noise(len: usize) -> Vec<f32> {
        let mut state = 1_u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(0x3f80_0000 | state >> 9) - 1.5
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// All pieces, one after the other.
    fn run(info: &TensorInfo, target: &TensorTarget, input: &[u8]) -> (Vec<u8>, RecodeFindings) {
        let recode = Recode::plan(info, target, true).expect("the shape suits");
        let (mut all, mut found, mut out) = (Vec::new(), RecodeFindings::default(), Vec::new());
        let mut covered = 0;
        for piece in recode.pieces() {
            let start = usize::try_from(piece.offset).expect("small");
            assert_eq!(start, covered, "pieces follow one another");
            covered += piece.len;
            assert_eq!(piece.last, covered == input.len());
            found.merge(&recode.run(
                piece.offset,
                &input[start..covered],
                false,
                &mut Buffers::default(),
                &mut out,
            ));
            all.extend_from_slice(&out);
        }
        (all, found)
    }

    #[test]
    fn pieces_and_steps_do_not_show_in_the_bytes() {
        for (dtype, dims) in [
            (DType::Q8_0, [9, 96]),
            (DType::Q4_K, [700, 512]),
            (DType::I8_ROW, [300, 1000]),
            (DType::I4_ROW, [5, 32]),
        ] {
            let [rows, columns] = dims.map(|dim| usize::try_from(dim).expect("small"));
            let values = noise(rows * columns);
            let mut expected = Vec::new();
            block::quantize(dtype, &values, columns, None, &mut expected);
            let (ours, found) = run(&info(DType::F32, &dims), &dtype.into(), &bytes(&values));
            assert_eq!(ours, expected, "{dtype}");
            assert_eq!(found.drift.count, values.len() as u64);

            let mut back = Vec::new();
            block::dequantize(dtype, &expected, columns, &mut back);
            let (floats, _) = run(&info(dtype, &dims), &DType::F32.into(), &expected);
            assert_eq!(floats, bytes(&back), "{dtype} and back");
        }
    }

    #[test]
    fn every_matrix_of_a_stack_has_its_own_importance() {
        let (dims, row) = ([3, 40, 256], 256);
        let values = noise(3 * 40 * row);
        let importance: Vec<f32> = noise(3 * row).iter().map(|value| value.abs() + 0.1).collect();
        let mut expected = Vec::new();
        for (values, importance) in values.chunks(40 * row).zip(importance.chunks(row)) {
            block::quantize(DType::Q4_K, values, row, Some(importance), &mut expected);
        }
        let target =
            TensorTarget { dtype: DType::Q4_K, importance: Some(importance.into()), why: None };
        assert_eq!(run(&info(DType::F32, &dims), &target, &bytes(&values)).0, expected);
    }

    #[test]
    fn values_that_are_not_finite_are_counted() {
        let mut values = noise(64);
        (values[3], values[40], values[41]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let (_, found) = run(&info(DType::F32, &[2, 32]), &DType::Q8_0.into(), &bytes(&values));
        assert_eq!((found.nan, found.infinite), (1, 2));
    }

    #[test]
    fn shapes_and_weights_that_do_not_fit_are_refused() {
        assert!(Recode::plan(&info(DType::F32, &[2, 33]), &DType::Q8_0.into(), false).is_err());
        let weights =
            TensorTarget { dtype: DType::Q8_0, importance: Some(vec![1.0; 31].into()), why: None };
        assert!(Recode::plan(&info(DType::F32, &[2, 32]), &weights, false).is_err());
        assert!(
            Recode::plan(&info(DType::F32, &[1, LONGEST_ROW + 32]), &DType::I8_ROW.into(), false)
                .is_err()
        );
        assert!(
            Recode::plan(&info(DType::F32, &[1, LONGEST_ROW + 256]), &DType::Q4_K.into(), false)
                .is_ok()
        );
    }
}
