//! The values of pairs, side by side in chunks.

use apr_core::{Phase, Progress};
use apr_registry::{CheckpointReader, Error, Pipeline, Result, TensorInfo};
use apr_tensor::element::widen_f64;
use apr_tensor::room::Room;
use apr_view::chunks::take;
use apr_view::values::read_quantized;

use super::pairing::Pair;

/// Sums over the values of one pair; squares of norms, so that parts can be added up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Comparison {
    pub(super) identical: bool,
    /// The files' digests are equal.
    pub(super) same_digest: bool,
    /// `true` if only the digests were compared, and the values were not read.
    pub(super) unread: bool,
    pub(super) incomparable: bool,
    pub(super) elements: u64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) dot: f64,
    pub(super) difference: f64,
    pub(super) max_delta: f64,
    /// Rounding error allowed by the dtype of each side.
    pub(super) room: [f64; 2],
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
        self.room = [self.room[0] + other.room[0], self.room[1] + other.room[1]];
        self.bytes_read += other.bytes_read;
    }
}

/// Norms over all pairs.
#[derive(Debug, Default)]
pub(super) struct Norms {
    /// Sums over pairs whose values differ somewhere.
    pub(super) sums: Comparison,
    elements: u64,
    /// Number of elements in pairs that are equal.
    same_elements: u64,
    /// Number of elements in pairs that could not be compared.
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

    /// Identical pairs were not read, so their norms are unknown: they enter by their share of the
    /// elements.
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
struct PairBuffers {
    bytes: [Vec<u8>; 2],
    values: [Vec<f64>; 2],
    row: Vec<f32>,
    narrow: Vec<f32>,
    sums: Comparison,
}

/// A range of a pair of tensors.
#[derive(Clone, Copy)]
struct PairRange {
    pair: usize,
    first: u64,
    count: u64,
}

/// Compares each pair: by dtypes, shapes and digests if they are enough, otherwise by reading both
/// sides.
///
/// # Errors
/// E002 and E007 when bytes can't be read.
pub(super) fn compare<P: Pipeline>(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
    pairs: &[Pair],
    read: bool,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<Comparison>> {
    let mut result: Vec<Comparison> =
        pairs.iter().map(|pair| known_beforehand(left, right, pair, read)).collect();
    let mut parts = Vec::new();
    for (number, comparison) in result.iter().enumerate() {
        if !comparison.identical && !comparison.incomparable {
            parts.extend(ranges(number, &left.tensors()[pairs[number].left]));
        }
    }

    let bytes = |pair: &Pair| {
        let left = left.tensors()[pair.left].byte_len().unwrap_or_default();
        left + right.tensors()[pair.right].byte_len().unwrap_or_default()
    };
    let unequal =
        pairs.iter().zip(&result).filter(|(_, found)| !found.identical && !found.incomparable);
    let total = unequal.map(|(pair, _)| bytes(pair)).fold(0, u64::saturating_add);
    progress.begin(Phase::Comparing, total);

    // Ranges are merged by "and", so that a pair is identical until one differs.
    for comparison in &mut result {
        comparison.identical |= !comparison.incomparable;
    }

    let produce = |at: usize, slot: &mut PairBuffers| {
        let pair = &pairs[parts[at].pair];
        slot.sums = compare_range([(left, pair.left), (right, pair.right)], parts[at], slot)?;
        Ok(())
    };
    pipeline.run(parts.len(), produce, |at, slot: &mut PairBuffers| {
        result[parts[at].pair].merge(&slot.sums);
        progress.advance(slot.sums.bytes_read);
        Ok(())
    })?;
    Ok(result)
}

/// Compares a pair by dtypes, shapes and digests alone.
///
/// A digest stated by a file is not proof of its bytes: with `read`, only the bytes count.
fn known_beforehand(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
    pair: &Pair,
    read: bool,
) -> Comparison {
    let (a, b) = (&left.tensors()[pair.left], &right.tensors()[pair.right]);
    let digests = left.stored(pair.left).digest().zip(right.stored(pair.right).digest());
    let same_digest = a.dtype == b.dtype && digests.is_some_and(|(a, b)| a == b);
    let by_digest = same_digest && !read;
    let identical = pair.renamed || by_digest;
    let comparable = a.shape == b.shape || pair.is_flat;
    let elements = a.shape.elements().unwrap_or_default();
    let unread = by_digest || (pair.renamed && pair.by_digest);
    let incomparable = !identical && !comparable;
    Comparison { identical, same_digest, unread, incomparable, elements, ..Comparison::default() }
}

/// Ranges of elements: whole packed groups and whole blocks of any dtype fit their length.
fn ranges(pair: usize, info: &TensorInfo) -> impl Iterator<Item = PairRange> + use<> {
    const RANGE_ELEMENTS: u64 = 1 << 16;
    let total = info.shape.elements().unwrap_or_default();
    (0..total.div_ceil(RANGE_ELEMENTS)).map(move |i| PairRange {
        pair,
        first: i * RANGE_ELEMENTS,
        count: RANGE_ELEMENTS.min(total - i * RANGE_ELEMENTS),
    })
}

fn compare_range(
    sides: [(&dyn CheckpointReader, usize); 2],
    range: PairRange,
    slot: &mut PairBuffers,
) -> Result<Comparison> {
    let PairBuffers { bytes: [a, b], values: [a_values, b_values], row, narrow, .. } = slot;
    let [left, right] = sides.map(|(reader, tensor)| &reader.tensors()[tensor]);
    if left.dtype == right.dtype && !left.dtype.is_quantized() {
        // Equal bytes are equal values, NaN included.
        let [len, other] = [read_plain(sides[0], range, a)?, read_plain(sides[1], range, b)?];
        let identical = a[..len] == b[..other];
        widen_f64(left.dtype, &a[..len], a_values);
        widen_f64(right.dtype, &b[..other], b_values);
        let bytes_read = (len + other) as u64;
        return Ok(Comparison {
            identical,
            bytes_read,
            ..Comparison::of_values(a_values, b_values)
        });
    }

    let mut bytes_read = 0;
    for ((side, bytes), values) in
        sides.into_iter().zip([a, b]).zip([&mut *a_values, &mut *b_values])
    {
        let (reader, tensor) = side;
        let info = &reader.tensors()[tensor];
        if info.dtype.is_quantized() {
            read_quantized(
                reader,
                tensor,
                range.first..range.first + range.count,
                (bytes, row),
                narrow,
            )?;
            values.clear();
            values.extend(narrow.iter().copied().map(f64::from));
            // Scales of rows aside.
            bytes_read += range.count.div_ceil(info.dtype.block_len()) * info.dtype.block_bytes();
        } else {
            let len = read_plain(side, range, bytes)?;
            widen_f64(info.dtype, &bytes[..len], values);
            bytes_read += len as u64;
        }
    }
    let identical = left.dtype == right.dtype && a_values == b_values;
    let room = Room::of_pair([left.dtype, right.dtype], [a_values, b_values]);
    Ok(Comparison { identical, room, bytes_read, ..Comparison::of_values(a_values, b_values) })
}

/// Reads a range of a tensor whose elements are plain values, and returns the number of bytes read.
fn read_plain(
    (reader, tensor): (&dyn CheckpointReader, usize),
    range: PairRange,
    bytes: &mut Vec<u8>,
) -> Result<usize> {
    let info = &reader.tensors()[tensor];
    let (block_len, block_bytes) = (info.dtype.block_len(), info.dtype.block_bytes());
    let offset = range.first / block_len * block_bytes;
    // The last group may be cut short: only the tensor's bits as a whole fill its last byte.
    let end = (range.first + range.count)
        .div_ceil(block_len)
        .saturating_mul(block_bytes)
        .min(info.byte_len()?);
    let len = usize::try_from(end - offset)
        .map_err(|_| Error::memory("the range does not fit in memory"))?;
    reader.read_tensor(tensor, offset, take(bytes, len))?;
    Ok(len)
}
