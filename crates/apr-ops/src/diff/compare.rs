//! The values of pairs, side by side in chunks.

use apr::{CheckpointReader, Error, Pipeline, Result, TensorInfo};
use apr_tensor::element::{chunk_len, is_decodable, widen_f64};

use super::pairing::Pair;
use crate::Progress;
use crate::chunks::take;

/// Sums over the values of one pair; squares of norms, so that parts can be added up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Comparison {
    pub(super) identical: bool,
    pub(super) incomparable: bool,
    pub(super) elements: u64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) dot: f64,
    pub(super) difference: f64,
    pub(super) max_delta: f64,
    pub(super) bytes_read: u64,
}

impl Comparison {
    fn of_values(left: &[f64], right: &[f64]) -> Self {
        let mut sums = Self::default();
        for (&a, &b) in left.iter().zip(right) {
            // Two NaN are alike, and so are two equal infinities, whose difference would be NaN.
            let delta = if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() };
            sums.max_delta = sums.max_delta.max(if delta.is_nan() { f64::INFINITY } else { delta });
            if delta.is_finite() && a.is_finite() {
                sums.difference += delta * delta;
                sums.left += a * a;
                sums.right += b * b;
                sums.dot += a * b;
            }
        }
        sums
    }

    fn merge(&mut self, other: &Self) {
        self.identical &= other.identical;
        self.left += other.left;
        self.right += other.right;
        self.dot += other.dot;
        self.difference += other.difference;
        self.max_delta = self.max_delta.max(other.max_delta);
        self.bytes_read += other.bytes_read;
    }
}

/// Norms over all pairs.
#[derive(Debug, Default)]
pub(super) struct Norms {
    /// Of pairs whose values differ somewhere.
    pub(super) sums: Comparison,
    elements: u64,
    /// Of pairs that are equal.
    same_elements: u64,
    /// Of pairs that could not be compared.
    different_elements: u64,
}

impl Norms {
    pub(super) fn add(&mut self, pair: &Comparison) {
        self.elements += pair.elements;
        if pair.identical {
            self.same_elements += pair.elements;
        } else if pair.incomparable {
            self.different_elements += pair.elements;
        } else {
            self.sums.merge(pair);
        }
    }

    /// Identical pairs were not read, so their norms are unknown: they enter by their share of the elements.
    pub(super) fn similarity(&self, lonely_elements: u64) -> f64 {
        let total = self.elements + lonely_elements;
        if total == 0 {
            return 100.0;
        }
        let read = self.elements - self.same_elements - self.different_elements;
        let norms = self.sums.left.sqrt() + self.sums.right.sqrt();
        let alike = if norms > 0.0 { 1.0 - self.sums.difference.sqrt() / norms } else { 1.0 };
        100.0 * (self.same_elements as f64 + read as f64 * alike) / total as f64
    }
}

#[derive(Default)]
struct Slot {
    bytes: [Vec<u8>; 2],
    values: [Vec<f64>; 2],
    sums: Comparison,
}

/// A range of a pair of tensors.
#[derive(Clone, Copy)]
struct Job {
    pair: usize,
    first: u64,
    count: u64,
}

/// Compares each pair: by what is known beforehand where that is enough, otherwise by reading both sides.
///
/// # Errors
/// E002 and E007 when bytes can't be read.
pub(super) fn compare<P: Pipeline>(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
    pairs: &[Pair],
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<Comparison>> {
    let mut result: Vec<Comparison> = pairs.iter().map(|pair| known_beforehand(left, right, pair)).collect();
    let mut jobs = Vec::new();
    for (number, comparison) in result.iter().enumerate() {
        if !comparison.identical && !comparison.incomparable {
            jobs.extend(ranges(number, &left.tensors()[pairs[number].left]));
        }
    }
    for comparison in &mut result {
        comparison.identical |= !comparison.incomparable;
    }
    let produce = |at: usize, slot: &mut Slot| {
        let pair = &pairs[jobs[at].pair];
        slot.sums = compare_range([(left, pair.left), (right, pair.right)], jobs[at], slot)?;
        Ok(())
    };
    pipeline.run(jobs.len(), produce, |at, slot: &mut Slot| {
        result[jobs[at].pair].merge(&slot.sums);
        progress.advance(slot.sums.bytes_read);
        Ok(())
    })?;
    Ok(result)
}

/// What dtypes, shapes and digests alone tell.
fn known_beforehand(left: &dyn CheckpointReader, right: &dyn CheckpointReader, pair: &Pair) -> Comparison {
    let (a, b) = (&left.tensors()[pair.left], &right.tensors()[pair.right]);
    let digests = left.digest(pair.left).zip(right.digest(pair.right));
    let identical = pair.renamed || (a.dtype == b.dtype && digests.is_some_and(|(a, b)| a == b));
    let comparable = a.shape == b.shape && (a.dtype == b.dtype || (is_decodable(a.dtype) && is_decodable(b.dtype)));
    let elements = a.shape.elements().unwrap_or_default();
    Comparison { identical, incomparable: !identical && !comparable, elements, ..Comparison::default() }
}

/// Ranges of elements, or of bytes for dtypes that are compared as they are stored.
fn ranges(pair: usize, info: &TensorInfo) -> impl Iterator<Item = Job> + use<> {
    let (total, step) = if is_decodable(info.dtype) {
        // Whole packed groups of any dtype fit this many elements.
        (info.shape.elements().unwrap_or_default(), 1 << 16)
    } else {
        (info.byte_len().unwrap_or_default(), chunk_len(info.dtype) as u64)
    };
    (0..total.div_ceil(step)).map(move |i| Job { pair, first: i * step, count: step.min(total - i * step) })
}

fn compare_range(sides: [(&dyn CheckpointReader, usize); 2], job: Job, slot: &mut Slot) -> Result<Comparison> {
    let [left, right] = sides.map(|(reader, tensor)| &reader.tensors()[tensor]);
    let [(a_offset, a_len), (b_offset, b_len)] = [byte_range(left, job)?, byte_range(right, job)?];
    let [a, b] = &mut slot.bytes;
    let (a, b) = (take(a, a_len), take(b, b_len));
    sides[0].0.read_tensor(sides[0].1, a_offset, a)?;
    sides[1].0.read_tensor(sides[1].1, b_offset, b)?;
    let bytes_read = (a_len + b_len) as u64;
    let identical = left.dtype == right.dtype && a == b;
    if !is_decodable(left.dtype) {
        // That blocks differ is all there is to say about them.
        let max_delta = if identical { 0.0 } else { f64::INFINITY };
        return Ok(Comparison { identical, max_delta, bytes_read, ..Comparison::default() });
    }
    let [a_values, b_values] = &mut slot.values;
    widen_f64(left.dtype, a, a_values);
    widen_f64(right.dtype, b, b_values);
    Ok(Comparison { identical, bytes_read, ..Comparison::of_values(a_values, b_values) })
}

/// Where the bytes of a range are.
fn byte_range(info: &TensorInfo, job: Job) -> Result<(u64, usize)> {
    let (offset, end) = if is_decodable(info.dtype) {
        let (block_len, block_bytes) = (info.dtype.block_len(), info.dtype.block_bytes());
        // The last group may be cut short: only the tensor's bits as a whole fill its last byte.
        let end = (job.first + job.count).div_ceil(block_len).saturating_mul(block_bytes);
        (job.first / block_len * block_bytes, end.min(info.byte_len()?))
    } else {
        (job.first, job.first + job.count)
    };
    let len = usize::try_from(end - offset).map_err(|_| Error::memory("the range does not fit in memory"))?;
    Ok((offset, len))
}
