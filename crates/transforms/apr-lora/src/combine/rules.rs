//! Arithmetic of combined matrices, element by element, as in PEFT's `merge_utils`.

use apr_merge::Draws;

use super::{CombineMethod, MajoritySign};

/// How the matrices of several adapters become one.
#[derive(Clone, Copy)]
pub(super) struct Rule<'r> {
    pub(super) method: CombineMethod,
    /// Share of the elements that are kept.
    pub(super) density: f64,
    pub(super) majority: MajoritySign,
    pub(super) seed: u64,
    /// Name of the tensor, from which random numbers follow.
    pub(super) name: &'r str,
}

impl Rule<'_> {
    /// Combines matrices of one size with their weights.
    pub(super) fn apply(self, mut matrices: Vec<Vec<f32>>, weights: &[f32]) -> Vec<f32> {
        for (model, values) in matrices.iter_mut().enumerate() {
            self.thin(values, model);
        }
        let len = matrices.first().map_or(0, Vec::len);
        match self.method {
            CombineMethod::Ties | CombineMethod::DareTies => {
                (0..len).map(|at| self.elected(&matrices, weights, at)).collect()
            }
            _ => (0..len)
                .map(|at| matrices.iter().zip(weights).map(|(values, w)| values[at] * w).sum())
                .collect(),
        }
    }

    /// Sets elements to zero: all but the largest, or random ones.
    fn thin(self, values: &mut [f32], model: usize) {
        if self.density >= 1.0 {
            return;
        }
        match self.method {
            CombineMethod::Cat | CombineMethod::Linear => {}
            CombineMethod::Ties | CombineMethod::MagnitudePrune => {
                keep_largest(values, self.density);
            }
            CombineMethod::DareLinear | CombineMethod::DareTies => {
                let draws = Draws::of(self.seed, self.name, model);
                let scale = 1.0 / self.density;
                for (at, value) in values.iter_mut().enumerate() {
                    let is_kept = draws.at(at as u64) < self.density;
                    #[expect(clippy::cast_possible_truncation, reason = "elements are of that")]
                    let kept = (f64::from(*value) * scale) as f32;
                    *value = if is_kept { kept } else { 0.0 };
                }
            }
        }
    }

    /// The mean of the weighted elements that have the sign of the majority.
    fn elected(self, matrices: &[Vec<f32>], weights: &[f32], at: usize) -> f32 {
        let votes = matrices.iter().map(|values| match self.majority {
            MajoritySign::Total => values[at],
            MajoritySign::Frequency if values[at] == 0.0 => 0.0,
            MajoritySign::Frequency => values[at].signum(),
        });
        let is_positive = votes.sum::<f32>() >= 0.0;
        let (mut sum, mut count) = (0.0, 0.0_f32);
        for (values, weight) in matrices.iter().zip(weights) {
            let value = values[at];
            if (is_positive && value > 0.0) || (!is_positive && value < 0.0) {
                sum += value * weight;
                count += 1.0;
            }
        }
        sum / count.max(1.0)
    }
}

/// Keeps a share of the elements, those of the largest magnitude, and the first of equal ones.
fn keep_largest(values: &mut [f32], density: f64) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of it")]
    let count = (density * values.len() as f64) as usize;
    if count == 0 {
        values.fill(0.0);
        return;
    }
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.select_nth_unstable_by(count - 1, |&a, &b| {
        values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b))
    });
    order[count..].iter().for_each(|&at| values[at] = 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(method: CombineMethod, density: f64) -> Rule<'static> {
        Rule { method, density, majority: MajoritySign::Total, seed: 0, name: "w" }
    }

    #[test]
    fn signs_are_elected_by_sum_or_by_number() {
        let matrices = vec![vec![3.0, 0.0], vec![-1.0, 0.0], vec![-1.0, 2.0]];
        let ties = rule(CombineMethod::Ties, 1.0);
        assert_eq!(ties.apply(matrices.clone(), &[1.0, 1.0, 1.0]), [3.0, 2.0]);
        let by_number = Rule { majority: MajoritySign::Frequency, ..ties };
        assert_eq!(by_number.apply(matrices, &[1.0, 2.0, 1.0]), [-1.5, 2.0]);
    }

    #[test]
    fn the_largest_elements_are_kept_and_the_first_of_equal_ones() {
        let matrices = vec![vec![1.0, -4.0, 1.0, 2.0, 0.5]];
        let pruned = rule(CombineMethod::MagnitudePrune, 0.6).apply(matrices.clone(), &[2.0]);
        assert_eq!(pruned, [2.0, -8.0, 0.0, 4.0, 0.0]);
        let none = rule(CombineMethod::MagnitudePrune, 0.1).apply(matrices, &[2.0]);
        assert_eq!(none, [0.0; 5]);
    }

    #[test]
    fn random_elements_are_dropped_and_the_rest_is_scaled() {
        let ones = vec![vec![1.0; 100_000]];
        let dare = rule(CombineMethod::DareLinear, 0.25);
        let made = dare.apply(ones.clone(), &[1.0]);
        assert!(made.iter().all(|value| *value == 0.0 || *value == 4.0));
        let kept = made.iter().filter(|value| **value != 0.0).count() as f64 / 100_000.0;
        assert!((kept - 0.25).abs() < 0.01, "{kept}");
        assert_eq!(dare.apply(ones.clone(), &[1.0]), made);
        assert_ne!(Rule { seed: 1, ..dare }.apply(ones, &[1.0]), made);
    }
}
