//! Means with their standard errors, and percentiles, as llama-perplexity computes them.

use serde::Serialize;

/// A mean and its standard error.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Estimate {
    /// The mean, or what is computed of means.
    pub value: f64,
    /// Standard error of [`value`](Self::value); 0 for fewer than two numbers.
    pub error: f64,
}

impl Estimate {
    /// The exponential, with the error that follows to first order.
    pub(crate) fn exp(self) -> Self {
        let value = self.value.exp();
        Self { value, error: value * self.error }
    }

    /// The square root of a mean of squares, with the error that follows to first order.
    pub(crate) fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        Self { value, error: if value > 0.0 { 0.5 * self.error / value } else { 0.0 } }
    }
}

/// Sums of two numbers for each token, of which means, errors and the covariance follow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PairMoments {
    count: f64,
    sums: [f64; 2],
    squares: [f64; 2],
    product: f64,
}

impl PairMoments {
    pub(crate) fn add(&mut self, pair: [f64; 2]) {
        self.count += 1.0;
        for (at, value) in pair.into_iter().enumerate() {
            self.sums[at] += value;
            self.squares[at] += value * value;
        }
        self.product += pair[0] * pair[1];
    }

    /// The mean of the first or second number.
    pub(crate) fn mean(&self, at: usize) -> Estimate {
        mean(self.sums[at], self.squares[at], self.count)
    }

    /// The covariance of the two means.
    pub(crate) fn covariance(&self) -> f64 {
        if self.count < 2.0 {
            return 0.0;
        }
        let means = self.sums.map(|sum| sum / self.count);
        (self.product / self.count - means[0] * means[1]) / (self.count - 1.0)
    }
}

/// A mean by sums of numbers and of their squares.
fn mean(sum: f64, squares: f64, count: f64) -> Estimate {
    if count < 1.0 {
        return Estimate::default();
    }
    let value = sum / count;
    let variance = squares / count - value * value;
    let error = if variance > 0.0 && count > 1.0 { (variance / (count - 1.0)).sqrt() } else { 0.0 };
    Estimate { value, error }
}

/// The mean of numbers.
pub(crate) fn mean_of(values: impl Iterator<Item = f64>) -> Estimate {
    let mut moments = PairMoments::default();
    values.for_each(|value| moments.add([value, 0.0]));
    moments.mean(0)
}

/// Distribution of numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Distribution {
    /// Mean of the numbers.
    pub mean: Estimate,
    /// Largest number.
    pub max: f64,
    /// Percentiles by their per cent, interpolated between numbers, the largest first.
    pub percentiles: Vec<Percentile>,
    /// Half of the numbers are below.
    pub median: f64,
    /// Smallest number.
    pub min: f64,
}

/// Number below which a percentage of all numbers lies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentile {
    /// Percentage from 0 to 100.
    pub percent: f64,
    /// Number below which the percentage of numbers lies.
    pub value: f64,
}

impl Distribution {
    /// Computes the distribution of these numbers and sorts them.
    pub(crate) fn of(values: &mut [f64], percents: &[f64]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let percentile =
            |percent: f64| Percentile { percent, value: interpolated(values, percent / 100.0) };
        Self {
            mean: mean_of(values.iter().copied()),
            max: values.last().copied().unwrap_or_default(),
            percentiles: percents.iter().map(|percent| percentile(*percent)).collect(),
            median: interpolated(values, 0.5),
            min: values.first().copied().unwrap_or_default(),
        }
    }
}

/// The number at a fraction of sorted ones.
fn interpolated(sorted: &[f64], fraction: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    #[expect(clippy::cast_precision_loss, reason = "counts of tokens fit a double")]
    let place = fraction * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it lies within the list"
    )]
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    let share = place - place.floor();
    (1.0 - share) * sorted[below] + share * sorted[above]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_the_standard_error_of_the_sample() {
        // statistics.stdev([1, 2, 4, 9]) / 2 == 1.7795130420052185
        let found = mean_of([1.0, 2.0, 4.0, 9.0].into_iter());
        assert_eq!(found.value, 4.0);
        assert!((found.error - 1.779_513_042_005_218_5).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn the_covariance_of_means_matches_numpy() {
        // numpy.cov([1, 2, 4, 9], [2, 1, 5, 7])[0, 1] / 4 == 2.25
        let mut moments = PairMoments::default();
        for pair in [[1.0, 2.0], [2.0, 1.0], [4.0, 5.0], [9.0, 7.0]] {
            moments.add(pair);
        }
        assert!((moments.covariance() - 2.25).abs() < 1e-12);
    }

    #[test]
    fn percentiles_are_interpolated_as_numpy_does() {
        // numpy.percentile([1, 2, 4, 9], [90, 50, 10]) == [7.5, 3.0, 1.3]
        let found = Distribution::of(&mut [9.0, 1.0, 4.0, 2.0], &[90.0, 10.0]);
        let values: Vec<f64> = found.percentiles.iter().map(|one| one.value).collect();
        assert!((values[0] - 7.5).abs() < 1e-12 && (values[1] - 1.3).abs() < 1e-12, "{values:?}");
        assert_eq!((found.median, found.min, found.max), (3.0, 1.0, 9.0));
    }
}
