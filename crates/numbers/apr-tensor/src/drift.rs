//! How far a tensor has drifted from its original, for example by quantization.

use crate::kernel::{self, LANES, total};
use crate::square_root::square_root;

/// Sums over two tensors of equal shape, mergeable over chunks.
///
/// ```
/// use apr_tensor::drift::Drift;
///
/// let mut drift = Drift::of(&[3.0, 0.0], &[3.0, 0.5]);
/// drift.merge(&Drift::of(&[4.0], &[4.0]));
/// assert_eq!(drift.max_error(), 0.5);
/// assert_eq!(drift.relative_error(), Some(0.1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Drift {
    /// Pairs of elements.
    pub count: u64,
    /// Pairs of which either element is NaN or infinite. They are in the count but in none of the
    /// sums.
    pub non_finite: u64,
    /// Sum of the squared differences.
    pub sum_squared_error: f64,
    /// Sum of the original elements' squares.
    pub sum_squares: f64,
    /// Sum of the new elements' squares.
    pub sum_squares_new: f64,
    /// The greatest absolute difference.
    pub max_error: f64,
}

impl Drift {
    /// Compares two parts of tensors, as one pass over both.
    ///
    /// Differences are rounded to `f32`, which keeps those of values within a factor of two exact
    /// (Sterbenz 1974), and summed in `f64`; the order of additions is fixed.
    ///
    /// # Panics
    /// If the parts differ in length.
    #[must_use]
    pub fn of(original: &[f32], new: &[f32]) -> Self {
        assert_eq!(original.len(), new.len(), "both tensors must have the same elements");
        let mut drift = Self::default();
        for (original, new) in original.chunks(kernel::BLOCK).zip(new.chunks(kernel::BLOCK)) {
            drift.merge(&of_block(original, new));
        }
        drift
    }

    /// Adds another part of the same tensors.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.non_finite += other.non_finite;
        self.sum_squared_error += other.sum_squared_error;
        self.sum_squares += other.sum_squares;
        self.sum_squares_new += other.sum_squares_new;
        self.max_error = self.max_error.max(other.max_error);
    }

    /// Returns the root of the mean squared difference of finite pairs; `None` without any.
    #[must_use]
    pub fn rmse(&self) -> Option<f64> {
        let finite = self.count - self.non_finite;
        (finite > 0).then(|| square_root(self.sum_squared_error / finite as f64))
    }

    /// Norm of the difference over the norm of the original; `None` if the original is zero but the
    /// new is not.
    #[must_use]
    pub fn relative_error(&self) -> Option<f64> {
        if self.sum_squared_error == 0.0 {
            return Some(0.0);
        }
        (self.sum_squares > 0.0).then(|| square_root(self.sum_squared_error / self.sum_squares))
    }

    /// The greatest absolute difference of finite pairs.
    #[must_use]
    pub fn max_error(&self) -> f64 {
        self.max_error
    }

    /// Cosine of the angle between the tensors, at most 1 in magnitude; `None` if either is zero.
    #[must_use]
    pub fn cosine(&self) -> Option<f64> {
        let norms = square_root(self.sum_squares) * square_root(self.sum_squares_new);
        // |a - b|^2 = |a|^2 + |b|^2 - 2ab.
        let dot = (self.sum_squares + self.sum_squares_new - self.sum_squared_error) / 2.0;
        (norms > 0.0).then(|| (dot / norms).clamp(-1.0, 1.0))
    }
}

/// Compares two slices of equal length, of at most [`kernel::BLOCK`] elements.
fn of_block(original: &[f32], new: &[f32]) -> Drift {
    let mut lanes = kernel::drift(original.as_chunks().0, new.as_chunks().0);
    let (rest, new_rest) = (original.as_chunks::<LANES>().1, new.as_chunks::<LANES>().1);
    let (mut last, mut new_last) = ([0.0; LANES], [0.0; LANES]);
    last[..rest.len()].copy_from_slice(rest);
    new_last[..new_rest.len()].copy_from_slice(new_rest);
    lanes.add(&last, &new_last);
    let sum_squared_error = total(lanes.squared_error);
    if !sum_squared_error.is_finite() {
        return drift_of_finite_pairs(original, new);
    }

    Drift {
        count: original.len() as u64,
        non_finite: 0,
        sum_squared_error,
        sum_squares: total(lanes.squares),
        sum_squares_new: total(lanes.squares_new),
        max_error: lanes.max_error.into_iter().fold(0.0, f32::max).into(),
    }
}

/// For values of which some are NaN or infinite, or so large that their difference is.
#[cold]
fn drift_of_finite_pairs(original: &[f32], new: &[f32]) -> Drift {
    let mut drift = Drift { count: original.len() as u64, ..Drift::default() };
    for (&value, &new) in original.iter().zip(new) {
        if !(value.is_finite() && new.is_finite()) {
            drift.non_finite += 1;
            continue;
        }
        let (value, new) = (f64::from(value), f64::from(new));
        drift.sum_squared_error += (value - new) * (value - new);
        drift.sum_squares += value * value;
        drift.sum_squares_new += new * new;
        drift.max_error = drift.max_error.max((value - new).abs());
    }
    drift
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn pair() -> (Vec<f32>, Vec<f32>) {
        let original: Vec<f32> =
            (0..10_000_u16).map(|i| f32::from(i % 977) * 0.37 - 180.0).collect();
        let new = original.iter().map(|value| (value * 8.0).round() / 8.0).collect();
        (original, new)
    }

    #[test]
    fn sums_match_a_plain_loop() {
        let (original, new) = pair();
        let drift = Drift::of(&original, &new);
        let sum = |term: fn(f64, f64) -> f64| -> f64 {
            original.iter().zip(&new).map(|(&a, &b)| term(a.into(), b.into())).sum()
        };
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
        assert!(close(drift.sum_squared_error, sum(|a, b| (a - b) * (a - b))));
        assert!(close(drift.sum_squares, sum(|a, _| a * a)));
        assert!(close(drift.sum_squares_new, sum(|_, b| b * b)));
        let norms = (sum(|a, _| a * a) * sum(|_, b| b * b)).sqrt();
        assert!((drift.cosine().unwrap() - sum(|a, b| a * b) / norms).abs() < 1e-12);
        assert_eq!((drift.count, drift.non_finite), (10_000, 0));
        assert!(drift.max_error() > 0.06 && drift.max_error() <= 0.0625);
        assert!(drift.rmse().is_some_and(|rmse| close(rmse * rmse * 1e4, drift.sum_squared_error)));
    }

    #[test]
    fn parts_cut_at_blocks_merge_to_the_whole() {
        let (original, new) = pair();
        let mut merged = Drift::default();
        for (original, new) in original.chunks(kernel::BLOCK).zip(new.chunks(kernel::BLOCK)) {
            merged.merge(&Drift::of(original, new));
        }
        assert_eq!(merged, Drift::of(&original, &new));
    }

    #[test]
    fn values_that_are_not_finite_are_counted_and_left_out() {
        let original = [1.0, f32::NAN, 2.0, f32::INFINITY, 3.0];
        let drift = Drift::of(&original, &[1.0, 0.0, f32::NEG_INFINITY, f32::INFINITY, 3.5]);
        assert_eq!((drift.count, drift.non_finite), (5, 3));
        assert_eq!((drift.sum_squares, drift.max_error()), (10.0, 0.5));
    }

    #[test]
    fn undefined_results_are_none() {
        let empty = Drift::of(&[], &[]);
        assert_eq!((empty.rmse(), empty.cosine(), empty.relative_error()), (None, None, Some(0.0)));
        let from_zero = Drift::of(&[0.0], &[1.0]);
        assert_eq!((from_zero.relative_error(), from_zero.cosine()), (None, None));
        let opposite = Drift::of(&[f32::MAX, 2.0], &[f32::MIN, -2.0]);
        assert_eq!((opposite.cosine(), opposite.relative_error()), (Some(-1.0), Some(2.0)));
    }
}
