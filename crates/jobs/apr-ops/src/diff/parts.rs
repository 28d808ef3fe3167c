//! A comparison in parts: each compares some of the pairs.

use std::ops::Range;

use apr_core::{Progress, StoredRange};
use apr_registry::{Error, Pipeline, Result};
use serde::{Deserialize, Serialize};

use super::compare::{Comparison, compare};
use super::pairing::pair;
use super::{DiffOptions, DiffReport, Side, judged};
use crate::parts::exact;

/// Maximum number of bytes counted for a pair.
const MOST: u64 = 1 << 43;

/// Result of a part of a comparison: sums over the values of each of its pairs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartOfDiff {
    pairs: Vec<Compared>,
}

/// A [`Comparison`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Compared {
    /// Equal, equal digests, not read, not to be compared.
    flags: [bool; 4],
    /// Left, right, product, difference, largest difference, room of both dtypes.
    #[serde(with = "exact")]
    sums: [f64; 7],
    bytes_read: u64,
}

impl From<&Comparison> for Compared {
    fn from(of: &Comparison) -> Self {
        Self {
            flags: [of.identical, of.same_digest, of.unread, of.incomparable],
            sums: [of.left, of.right, of.dot, of.difference, of.max_delta, of.room[0], of.room[1]],
            bytes_read: of.bytes_read,
        }
    }
}

impl Compared {
    /// Returns the comparison of two tensors with this number of elements.
    fn comparison(self, elements: u64) -> Comparison {
        let [identical, same_digest, unread, incomparable] = self.flags;
        let [left, right, dot, difference, max_delta, own, other] = self.sums;

        // Sums of them stay within 64 bits.
        let (bytes_read, room) = (self.bytes_read.min(MOST), [own, other]);
        Comparison {
            identical,
            same_digest,
            unread,
            incomparable,
            elements,
            left,
            right,
            dot,
            difference,
            max_delta,
            room,
            bytes_read,
        }
    }
}

/// The pairs there are to compare, each as the ranges of its bytes on both sides.
///
/// # Errors
/// Those of [`diff`](super::diff).
pub(crate) fn diff_units<P: Pipeline>(
    left: Side<'_>,
    right: Side<'_>,
    options: &DiffOptions,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<[Vec<StoredRange>; 2]>> {
    let pairs = pair(left, right, options, pipeline, progress)?.pairs;
    let ranges = |pair: super::Pair| {
        let stored = [left.reader.stored(pair.left), right.reader.stored(pair.right)];
        stored.map(|stored| stored.ranges().to_vec())
    };
    Ok(pairs.into_iter().map(ranges).collect())
}

/// Compares some of the pairs.
///
/// # Errors
/// Those of [`diff`](super::diff); E001 for missing pairs.
pub(crate) fn diff_part<P: Pipeline>(
    left: Side<'_>,
    right: Side<'_>,
    options: &DiffOptions,
    wanted: Range<usize>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<PartOfDiff> {
    let pairs = pair(left, right, options, pipeline, progress)?.pairs;
    let own = pairs
        .get(wanted)
        .ok_or_else(|| Error::format("the plan has parts that the models lack"))?;
    let compared = compare(left.reader, right.reader, own, options.read, pipeline, progress)?;
    Ok(PartOfDiff { pairs: compared.iter().map(Into::into).collect() })
}

/// Builds the report of [`diff`](super::diff) from the ordered results of the parts.
///
/// # Errors
/// Returns the same errors as [`diff`](super::diff); E001 when the parts have not compared all
/// pairs.
pub(crate) fn diff_in_parts<P: Pipeline>(
    left: Side<'_>,
    right: Side<'_>,
    options: &DiffOptions,
    parts: Vec<PartOfDiff>,
    pipeline: &P,
) -> Result<DiffReport> {
    let pairing = pair(left, right, options, pipeline, &())?;
    let found: Vec<Compared> = parts.into_iter().flat_map(|part| part.pairs).collect();
    if found.len() != pairing.pairs.len() {
        let message = format!(
            "the parts compared {} of {} pairs of tensors",
            found.len(),
            pairing.pairs.len()
        );
        return Err(Error::format(message));
    }

    let elements =
        pairing.pairs.iter().map(|pair| left.reader.tensors()[pair.left].shape.elements());
    let compared = found.into_iter().zip(elements);
    let compared: Vec<Comparison> =
        compared.map(|(found, elements)| found.comparison(elements.unwrap_or_default())).collect();
    judged(left, right, options, pairing, &compared)
}
