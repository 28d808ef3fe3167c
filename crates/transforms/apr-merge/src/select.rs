//! The element of a given rank, exactly, in bounded memory.
//!
//! Ranks are found by refining histograms over the bit patterns of magnitudes, 16 bits at a time,
//! with one pass over the elements for each: two for `f32` and `f16`, four for `f64`, one for
//! `bf16`.
//! Elements of equal magnitude have an order too, that of their positions: what is kept is
//! described by a magnitude and a position, whatever the size of the tensor.

use apr_core::{DType, Result};

/// Bits of a key that one pass resolves.
const DIGIT: u32 = 16;
const BINS: usize = 1 << DIGIT;

/// Hands each block of magnitudes to a function: the series, the position of the first, the
/// magnitudes.
pub(crate) type Visit<'v> = dyn FnMut(usize, u64, &[f64]) + 'v;

/// A pass over the magnitudes of all series.
pub(crate) type Pass<'p> = dyn FnMut(&mut Visit<'_>) -> Result<()> + 'p;

/// An element by its rank in ascending order, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank {
    pub(crate) series: usize,
    pub(crate) rank: u64,
}

/// Result of the search for a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    /// The magnitude there.
    pub(crate) magnitude: f64,
    /// Elements of the series that are smaller.
    pub(crate) below: u64,
    /// Elements that are equal.
    pub(crate) equal: u64,
}

/// The bits of a magnitude, in its order.
#[expect(clippy::cast_possible_truncation, reason = "the value is one of f32")]
#[inline]
fn key(dtype: DType, magnitude: f64) -> u64 {
    if dtype == DType::F64 { magnitude.to_bits() } else { u64::from((magnitude as f32).to_bits()) }
}

fn magnitude(dtype: DType, key: u64) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(key),
        // The upper half is zero.
        _ => f64::from(f32::from_bits(u32::try_from(key).unwrap_or(u32::MAX))),
    }
}

/// Finds the magnitudes at `ranks`, of values of `dtype` that are not negative.
///
/// # Errors
/// What a pass says.
pub(crate) fn find(ranks: &[Rank], dtype: DType, pass: &mut Pass<'_>) -> Result<Vec<Found>> {
    /// State of the search for a rank: upper digits of the key, and rank among elements with these
    /// digits.
    struct Search {
        rank: Rank,
        prefix: u64,
        left: u64,
        bins: Vec<u64>,
    }

    // The lower half of a bfloat16 in single precision is zero.
    let (bits, lowest) = match dtype {
        DType::F64 => (64, 0),
        DType::BF16 => (32, 1),
        _ => (32, 0),
    };
    let mut searches: Vec<Search> = ranks
        .iter()
        .map(|&rank| Search { rank, prefix: 0, left: rank.rank, bins: vec![0; BINS] })
        .collect();
    for digit in (lowest..bits / DIGIT).rev() {
        let shift = digit * DIGIT;
        let above = shift + DIGIT;
        let upper = |key: u64| if above >= 64 { 0 } else { key >> above };
        pass(&mut |series, _, magnitudes| {
            for search in searches.iter_mut().filter(|search| search.rank.series == series) {
                for &value in magnitudes {
                    let key = key(dtype, value);
                    if upper(key) == search.prefix {
                        let bin = (key >> shift) & (BINS as u64 - 1);
                        search.bins[usize::try_from(bin).unwrap_or_default()] += 1;
                    }
                }
            }
        })?;
        for search in &mut searches {
            let mut bin = 0;
            while bin + 1 < BINS && search.left >= search.bins[bin] {
                search.left -= search.bins[bin];
                bin += 1;
            }
            search.prefix = search.prefix << DIGIT | bin as u64;
            if digit == lowest {
                search.bins = vec![search.bins[bin]];
            } else {
                search.bins.fill(0);
            }
        }
    }
    let found = searches.into_iter().map(|search| Found {
        magnitude: magnitude(dtype, search.prefix << (lowest * DIGIT)),
        below: search.rank.rank - search.left,
        equal: search.bins.first().copied().unwrap_or_default(),
    });
    Ok(found.collect())
}

/// An element by the order of magnitudes and, among equal ones, positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    pub(crate) magnitude: f64,
    pub(crate) position: u64,
}

/// A magnitude of a series, and which of the elements that have it is meant, from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tie {
    pub(crate) series: usize,
    pub(crate) magnitude: f64,
    pub(crate) nth: u64,
}

/// The positions of the elements that `ties` mean.
///
/// # Errors
/// What the pass says.
pub(crate) fn positions(ties: &[Tie], pass: &mut Pass<'_>) -> Result<Vec<Place>> {
    let mut places: Vec<Place> =
        ties.iter().map(|tie| Place { magnitude: tie.magnitude, position: u64::MAX }).collect();
    if ties.is_empty() {
        return Ok(places);
    }
    let mut seen = vec![0_u64; ties.len()];
    pass(&mut |series, start, magnitudes| {
        for (at, tie) in ties.iter().enumerate().filter(|(_, tie)| tie.series == series) {
            if seen[at] > tie.nth {
                continue;
            }
            for (&value, position) in magnitudes.iter().zip(start..) {
                if value == tie.magnitude {
                    if seen[at] == tie.nth {
                        places[at].position = position;
                    }
                    seen[at] += 1;
                }
            }
        }
    })?;
    Ok(places)
}

/// Elements of a series that are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kept {
    /// All elements.
    All,
    /// No elements.
    None,
    /// Largest elements. Of equal elements, the first positions are kept.
    Largest(Place),
    /// Elements between two places of the ascending order, both included.
    Between(Place, Place),
}

impl Kept {
    /// Returns `true` if an element is kept.
    #[inline]
    pub(crate) fn has(&self, magnitude: f64, position: u64) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Largest(last) => {
                magnitude > last.magnitude
                    || (magnitude == last.magnitude && position <= last.position)
            }
            Self::Between(first, last) => {
                let after = magnitude > first.magnitude
                    || (magnitude == first.magnitude && position >= first.position);
                let before = magnitude < last.magnitude
                    || (magnitude == last.magnitude && position <= last.position);
                after && before
            }
        }
    }
}

/// Number of elements of a series to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    All,
    None,
    /// Number of largest elements.
    Largest(u64),
    /// Ranks from the first up to the second, which is excluded.
    Ranks(u64, u64),
}

/// Chooses the elements to keep of each series of `count` elements.
///
/// # Errors
/// Returns the errors of a pass.
pub(crate) fn choose(
    keeps: &[Keep],
    count: u64,
    dtype: DType,
    pass: &mut Pass<'_>,
) -> Result<Vec<Kept>> {
    let mut ranks = Vec::new();
    for (series, keep) in keeps.iter().enumerate() {
        match *keep {
            Keep::Largest(largest) if largest > 0 && largest < count => {
                ranks.push(Rank { series, rank: count - largest });
            }
            Keep::Ranks(first, end) if first < end => {
                ranks.push(Rank { series, rank: first });
                ranks.push(Rank { series, rank: end - 1 });
            }
            _ => {}
        }
    }
    let found = if ranks.is_empty() { Vec::new() } else { find(&ranks, dtype, pass)? };
    let ties: Vec<Tie> = ranks
        .iter()
        .zip(&found)
        .map(|(rank, found)| {
            let nth = match keeps[rank.series] {
                // Of those that are equal, as many stay as fit after the larger ones.
                Keep::Largest(largest) => {
                    largest.saturating_sub(count - found.below - found.equal).saturating_sub(1)
                }
                _ => rank.rank - found.below,
            };
            Tie { series: rank.series, magnitude: found.magnitude, nth }
        })
        .collect();
    let is_whole = |(tie, found): (&Tie, &Found)| tie.nth + 1 == found.equal;
    let largest_only = keeps.iter().all(|keep| !matches!(keep, Keep::Ranks(..)));
    let places = if largest_only && ties.iter().zip(&found).all(is_whole) {
        // Every tie stays: no position has to be known.
        ties.iter().map(|tie| Place { magnitude: tie.magnitude, position: u64::MAX }).collect()
    } else {
        positions(&ties, pass)?
    };

    let mut places = places.into_iter();
    let mut next = || places.next().unwrap_or(Place { magnitude: 0.0, position: u64::MAX });
    let kept = keeps.iter().map(|keep| match *keep {
        Keep::All => Kept::All,
        Keep::Largest(largest) if largest >= count => Kept::All,
        Keep::None | Keep::Largest(0) => Kept::None,
        Keep::Largest(_) => Kept::Largest(next()),
        Keep::Ranks(first, end) if first < end => Kept::Between(next(), next()),
        Keep::Ranks(..) => Kept::None,
    });
    Ok(kept.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magnitudes with many ties, from a small generator.
    fn series(len: u64, distinct: u64) -> Vec<f64> {
        let mut state = 7_u64;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 33) % distinct) as f64 * 0.375
            })
            .collect()
    }

    fn sorted(values: &[f64], descending: bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| {
            let by = values[a].total_cmp(&values[b]);
            if descending { by.reverse() } else { by }
        });
        order
    }

    #[test]
    fn exactly_those_elements_stay_that_sorting_finds() {
        for distinct in [1, 3, 50, 100_000] {
            let values = series(1000, distinct);
            let mut pass = |visit: &mut Visit<'_>| {
                for (at, piece) in values.chunks(64).enumerate() {
                    visit(0, 64 * at as u64, piece);
                }
                Ok(())
            };
            let mut check = |keep: Keep, expected: &[usize]| {
                let kept = choose(&[keep], 1000, DType::F32, &mut pass).expect("no pass fails")[0];
                let mut expected = expected.to_vec();
                expected.sort_unstable();
                let found: Vec<usize> =
                    (0..1000).filter(|&at| kept.has(values[at], at as u64)).collect();
                assert_eq!(found, expected, "{keep:?} of {distinct}");
            };
            let (down, up) = (sorted(&values, true), sorted(&values, false));
            for largest in [0_usize, 1, 2, 333, 999, 1000] {
                check(Keep::Largest(largest as u64), &down[..largest]);
            }
            for (first, end) in [(0_usize, 1000_usize), (0, 1), (10, 900), (500, 500), (999, 1000)]
            {
                check(Keep::Ranks(first as u64, end as u64), &up[first..end]);
            }
        }
    }
}
