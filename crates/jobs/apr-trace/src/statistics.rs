//! Statistics of a value: one pass over its elements, one more for their distribution.

use apr_core::Result;
use apr_infer::{Tensor, Value};
use apr_tensor::stats::{Moments, Scratch, Stats};
use serde::Serialize;

/// Columns of a distribution.
const COLUMNS: usize = 16;

/// Statistics of a value's elements.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ValueStatistics {
    /// Statistics, the same as for a tensor.
    #[serde(flatten)]
    pub stats: Stats,
    /// Index of the element of the largest magnitude, along each dimension.
    pub largest_at: Vec<usize>,
    /// Number of elements in 16 bins of equal width from `min` to `max`; empty if no element is
    /// finite.
    pub distribution: Vec<u64>,
}

impl ValueStatistics {
    /// Returns the statistics of a value, or `None` if it is not an array of floats.
    ///
    /// # Errors
    /// E003 for float types without support for computation.
    pub fn of(value: &Value) -> Result<Option<Self>> {
        let Ok(tensor) = value.tensor() else { return Ok(None) };
        if !tensor.element().is_float() {
            return Ok(None);
        }
        let values = tensor.floats()?;
        let stats = Moments::of_values(&values, &mut Scratch::default()).finish();
        let distribution = match (stats.min, stats.max) {
            (Some(min), Some(max)) => columns(&values, min, max),
            _ => Vec::new(),
        };
        Ok(Some(Self { stats, largest_at: largest(tensor, &values), distribution }))
    }

    /// The largest magnitude.
    #[must_use]
    pub fn magnitude(&self) -> f64 {
        let ends = [self.stats.min, self.stats.max].map(|end| end.unwrap_or_default().abs());
        ends[0].max(ends[1])
    }

    /// The distribution as a line of blocks, the lowest values first.
    #[must_use]
    pub fn sparkline(&self) -> String {
        sparkline(&self.distribution)
    }
}

/// Counts as blocks of eight heights; none is a space.
#[must_use]
pub fn sparkline(counts: &[u64]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = counts.iter().copied().max().unwrap_or_default().max(1);
    let block = |count: &u64| match *count {
        0 => ' ',
        count => {
            let height = u128::from(count) * BLOCKS.len() as u128;
            let height = usize::try_from(height.div_ceil(u128::from(most))).unwrap_or(1);
            BLOCKS[height.clamp(1, BLOCKS.len()) - 1]
        }
    };
    counts.iter().map(block).collect()
}

fn columns(values: &[f32], min: f64, max: f64) -> Vec<u64> {
    let mut counts = vec![0; COLUMNS];
    let width = (max - min) / COLUMNS as f64;
    for value in values.iter().filter(|value| value.is_finite()) {
        let column = if width > 0.0 { (f64::from(*value) - min) / width } else { 0.0 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and the largest value belongs to the last column"
        )]
        let column = (column as usize).min(COLUMNS - 1);
        counts[column] += 1;
    }
    counts
}

/// Returns the index of the largest magnitude; NaN and infinities count as the largest.
fn largest(tensor: &Tensor, values: &[f32]) -> Vec<usize> {
    let mut best = (0, -1.0_f32);
    for (at, value) in values.iter().enumerate() {
        let magnitude = if value.is_nan() { f32::INFINITY } else { value.abs() };
        if magnitude > best.1 {
            best = (at, magnitude);
        }
    }
    index(best.0, tensor.shape())
}

/// The position of an element along each dimension.
fn index(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut along = vec![0; shape.len()];
    for (place, size) in along.iter_mut().zip(shape).rev() {
        *place = at % (*size).max(1);
        at /= (*size).max(1);
    }
    along
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(shape: &[usize], values: Vec<f32>) -> ValueStatistics {
        let tensor = Tensor::new(shape.to_vec(), values).unwrap();
        ValueStatistics::of(&tensor.into()).unwrap().unwrap()
    }

    /// `numpy.mean`, `numpy.std`, `numpy.linalg.norm`, `numpy.histogram(bins=16)` of 0 to 11.
    #[test]
    fn statistics_match_numpy() {
        let found = statistics(&[3, 4], (0..12_u8).map(f32::from).collect());
        assert_eq!(
            (found.stats.min, found.stats.max, found.stats.mean),
            (Some(0.0), Some(11.0), Some(5.5))
        );
        let std = found.stats.std.unwrap();
        assert!((std - 3.452_052_529_534_663_4).abs() < 1e-12, "{std}");
        assert!((found.stats.l2 - 22.494_443_758_403_985).abs() < 1e-12, "{}", found.stats.l2);
        assert_eq!(found.largest_at, [2, 3]);
        assert_eq!(found.distribution, [1, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1]);
    }

    #[test]
    fn non_finite_values_are_counted_and_located() {
        let found = statistics(&[2, 2], vec![1.0, -8.0, f32::NAN, 0.0]);
        assert_eq!((found.stats.nan, found.stats.inf, found.stats.zeros), (1, 0, 1));
        assert_eq!((found.stats.min, &found.largest_at[..]), (Some(-8.0), &[1, 0][..]));
        assert_eq!(found.magnitude(), 8.0);
        let nothing = statistics(&[1], vec![f32::INFINITY]);
        assert_eq!((nothing.stats.inf, nothing.sparkline()), (1, String::new()));
    }

    #[test]
    fn a_line_of_blocks_is_as_high_as_its_counts() {
        assert_eq!(sparkline(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(sparkline(&[0, 0]), "  ");
    }
}
