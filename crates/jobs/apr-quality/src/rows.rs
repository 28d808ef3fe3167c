//! Logits compared as what they mean: a softmax sees how logits of a row differ, and not what they
//! have in common.

use crate::distance::l2_and_cosine;
use crate::scores::LogProbabilities;

/// Likeliest places of A that are looked for among as many of B.
const KEPT: usize = 5;

/// Agreement of the rows of two models' logits, as sums over rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Agreement {
    /// Rows that were compared.
    pub(crate) rows: usize,
    /// Rows whose largest value is at the same place.
    pub(crate) same_top: usize,
    /// Places among the five likeliest of both, over all rows.
    pub(crate) kept: usize,
    /// Places that could have been: five a row, or as many as it has.
    pub(crate) keepable: usize,
    /// Ranks that B gives to what A finds likeliest, 1 for the first.
    pub(crate) ranks: u64,
    /// Kullback-Leibler divergences of B from A, in nats; NaN if logits are NaN.
    pub(crate) divergence: f64,
}

impl Agreement {
    /// Compares rows of `width` values.
    pub(crate) fn of(a: &[f32], b: &[f32], width: usize) -> Self {
        let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
        rows.fold(Self::default(), |sum, (a, b)| sum.plus(&Self::of_row(a, b)))
    }

    fn of_row(a: &[f32], b: &[f32]) -> Self {
        let [left, right] = [LogProbabilities::of(a), LogProbabilities::of(b)];
        let pairs = left.iter().zip(right.iter());
        let divergence = pairs.map(|(left, right)| match left.exp() {
            0.0 => 0.0,
            share => share * (left - right),
        });
        let divergence = divergence.sum::<f64>();
        let [ours, theirs] = [likeliest(a), likeliest(b)];
        if divergence.is_nan() {
            // Nothing is likeliest then. `max` would make zero of it.
            let (keepable, ranks) = (ours.len(), b.len() as u64);
            return Self { rows: 1, same_top: 0, kept: 0, keepable, ranks, divergence };
        }
        let kept = ours.iter().filter(|place| theirs.contains(place)).count();
        Self {
            rows: 1,
            same_top: usize::from(left.top == right.top),
            kept,
            keepable: ours.len(),
            ranks: 1 + b.iter().filter(|logit| **logit > b[left.top]).count() as u64,
            divergence: divergence.max(0.0),
        }
    }

    /// The sums over the rows of both.
    pub(crate) fn plus(self, other: &Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            same_top: self.same_top + other.same_top,
            kept: self.kept + other.kept,
            keepable: self.keepable + other.keepable,
            ranks: self.ranks + other.ranks,
            divergence: self.divergence + other.divergence,
        }
    }
}

/// Places of the largest values, the largest first.
fn likeliest(row: &[f32]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..row.len()).collect();
    let largest_first = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
    if places.len() > KEPT {
        places.select_nth_unstable_by(KEPT - 1, largest_first);
        places.truncate(KEPT);
    }
    places
}

/// Takes the mean of each row of `width` values from its values.
pub(crate) fn centred(values: &mut [f32], width: usize) {
    for row in values.chunks_exact_mut(width) {
        let sum: f64 = row.iter().map(|value| f64::from(*value)).sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "a mean of floats of single precision"
        )]
        let mean = (sum / width.max(1) as f64) as f32;
        row.iter_mut().for_each(|value| *value -= mean);
    }
}

/// Returns the cosine between states of positions, of `width` values each, after the mean of all
/// positions was taken from each.
///
/// States of a trained model have a large part in common, beside which their differences hardly
/// count. Returns `None` for a single position, and for values that are not finite.
pub(crate) fn centred_cosine(a: &[f32], b: &[f32], width: usize) -> Option<f64> {
    if width == 0 || a.len() <= width {
        return None;
    }
    let [a, b] = [a, b].map(|values| without_mean(values, width));
    let (l2, cosine) = l2_and_cosine(&a, &b);
    l2.is_finite().then_some(cosine)
}

/// Takes the mean of all rows from each row.
fn without_mean(values: &[f32], width: usize) -> Vec<f32> {
    let mut mean = vec![0.0_f64; width];
    for row in values.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
    let rows = (values.len() / width).max(1) as f64;
    #[expect(clippy::cast_possible_truncation, reason = "a difference of floats")]
    let centred = |(value, sum): (&f32, &f64)| (f64::from(*value) - sum / rows) as f32;
    values.chunks_exact(width).flat_map(|row| row.iter().zip(&mean).map(centred)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_each_row_counts() {
        let found = Agreement::of(&[1.0, 2.0, 5.0, 4.0], &[0.0, 1.0, 1.0, 2.0], 2);
        assert_eq!((found.rows, found.same_top, found.kept, found.keepable), (2, 1, 4, 4));
    }

    #[test]
    fn divergence_matches_the_divergence_of_the_probabilities() {
        // scipy.stats.entropy(softmax([1, 3, 2]), softmax([2, 3, 1])) == 0.15469789788441718
        let found = Agreement::of(&[1.0, 3.0, 2.0], &[2.0, 3.0, 1.0], 3);
        assert!((found.divergence - 0.154_697_897_884_417_18).abs() < 1e-7, "{found:?}");
    }

    #[test]
    fn logits_that_are_nan_agree_in_nothing() {
        let found = Agreement::of(&[1.0, 3.0, 2.0], &[f32::NAN, 3.0, 2.0], 3);
        assert!(found.divergence.is_nan(), "{found:?}");
        assert_eq!((found.rows, found.same_top, found.kept), (1, 0, 0));
        let sum = found.plus(&Agreement::of(&[1.0], &[1.0], 1));
        assert!(sum.divergence.is_nan(), "{sum:?}");
    }

    #[test]
    fn a_constant_added_to_all_logits_does_not_matter() {
        let (a, b) = ([1.0, 3.0, 2.0], [101.0, 103.0, 102.0]);
        assert!(Agreement::of(&a, &b, 3).divergence < 1e-12);
        let [mut a, mut b] = [a, b];
        centred(&mut a, 3);
        centred(&mut b, 3);
        assert_eq!((a, b), ([-1.0, 1.0, 0.0], [-1.0, 1.0, 0.0]));
    }

    #[test]
    fn the_rank_of_what_a_finds_likeliest_counts() {
        // scipy.stats.rankdata([-1, -5, -2, -3])[2] == 2: B has two values above the third.
        let found = Agreement::of(&[0.0, 1.0, 9.0, 2.0], &[1.0, 5.0, 2.0, 3.0], 4);
        assert_eq!(found.ranks, 3);
        assert_eq!(Agreement::of(&[0.0, 1.0], &[0.0, 1.0], 2).ranks, 1);
        assert_eq!(Agreement::of(&[0.0, 1.0], &[f32::NAN, 1.0], 2).ranks, 2);
    }

    #[test]
    fn states_are_compared_without_what_they_have_in_common() {
        let (a, b) = ([100.0, 1.0, 100.0, -1.0], [100.0, -1.0, 100.0, 1.0]);
        assert!(l2_and_cosine(&a, &b).1 > 0.999);
        assert!(centred_cosine(&a, &b, 2).is_some_and(|cosine| (cosine + 1.0).abs() < 1e-12));
        assert_eq!(centred_cosine(&a, &a, 2), Some(1.0));
        assert_eq!(centred_cosine(&a[..2], &b[..2], 2), None, "a single position");
    }

    #[test]
    fn five_of_a_row_are_looked_for() {
        let a = [9.0, 8.0, 7.0, 6.0, 5.0, 1.0, 0.0];
        let b = [0.0, 8.0, 7.0, 6.0, 5.0, 1.0, 9.0];
        let found = Agreement::of(&a, &b, 7);
        assert_eq!((found.kept, found.keepable), (4, 5));
    }
}
