//! How the next token is chosen: the likeliest one, or one drawn by its probability.

use crate::ops::random::Random;
use crate::ops::vector::{exp_double, largest, sum_of_exponentials};

/// Distances from the largest logit within which tokens are put in order, one after the other: most
/// draws end among the first, and a vocabulary takes long to sort.
const DISTANCES: [f32; 4] = [4.0, 12.0, 36.0, f32::INFINITY];

/// Chooses tokens. The same seed and logits lead to the same tokens.
///
/// ```
/// use apr_infer::Sampler;
///
/// assert_eq!(Sampler::greedy().choose(&[0.5, 2.0, 1.0]), Some(1));
/// assert!(Sampler::seeded(7).choose(&[0.5, 2.0, 1.0]).is_some());
/// ```
#[derive(Debug, Clone)]
pub struct Sampler {
    /// `None` takes the likeliest token.
    random: Option<Random>,
}

impl Sampler {
    /// A sampler that takes the likeliest token, the first of several.
    #[must_use]
    pub fn greedy() -> Self {
        Self { random: None }
    }

    /// A sampler that draws tokens by their probabilities, the softmax of the logits.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { random: Some(Random::new(seed)) }
    }

    /// Returns a random number from 0 to 1, without 1, for random decisions of a program.
    ///
    /// Returns 0 without a seed.
    pub fn chance(&mut self) -> f64 {
        self.random.as_mut().map_or(0.0, Random::number)
    }

    /// Returns the next token, or `None` if no logit is a number.
    pub fn choose(&mut self, logits: &[f32]) -> Option<usize> {
        let largest = largest(logits);
        let first = || logits.iter().position(|logit| *logit == largest);
        match &mut self.random {
            Some(random) if largest.is_finite() => {
                let draw = random.number() * sum_of_exponentials(logits, largest);
                Some(drawn(logits, largest, draw))
            }
            _ => first(),
        }
    }
}

/// Returns the token at which the sum of the weights, from the likeliest token down, exceeds
/// `draw`.
fn drawn(logits: &[f32], largest: f32, draw: f64) -> usize {
    let (mut left, mut last, mut before) = (draw, 0, f32::NEG_INFINITY);
    for distance in DISTANCES {
        let is_next = |at: &usize| {
            let from = largest - logits[*at];
            from > before && from <= distance && logits[*at] > f32::NEG_INFINITY
        };
        let mut next: Vec<usize> = (0..logits.len()).filter(is_next).collect();
        next.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        for at in next {
            left -= exp_double(f64::from(logits[at] - largest));
            if left < 0.0 {
                return at;
            }
            last = at;
        }
        before = distance;
    }
    // Rounding may leave a little after the last weight.
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_seed_the_first_of_the_likeliest_is_chosen() {
        let mut sampler = Sampler::greedy();
        assert_eq!(sampler.choose(&[0.0, f32::NAN, 3.0, 3.0]), Some(2));
        assert_eq!(sampler.choose(&[f32::NEG_INFINITY, f32::NAN]), Some(0));
        assert_eq!(sampler.choose(&[f32::NAN]), None);
        assert_eq!(sampler.choose(&[]), None);
    }

    #[test]
    fn tokens_are_drawn_with_their_probabilities() {
        let logits = [0.0_f32, f32::NEG_INFINITY, 3.0_f32.ln()];
        let drawn = |sampler: &mut Sampler| {
            let count = (0..4000).filter(|_| sampler.choose(&logits) == Some(2)).count();
            assert_ne!(sampler.choose(&logits), Some(1));
            count
        };
        let second = drawn(&mut Sampler::seeded(7));
        assert!((2900..3100).contains(&second), "{second} of 4000, not three quarters");
        assert_eq!(drawn(&mut Sampler::seeded(7)), second);
    }

    #[test]
    fn drawn_tokens_equal_those_of_a_sorted_vocabulary() {
        // Far apart, near each other, and several alike.
        let logits: Vec<f32> =
            (0..5000).map(|at| ((at * 7919) % 997) as f32 / 20.0 - 30.0).collect();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let weight = |at: usize| libm::exp(f64::from(logits[at] - logits[order[0]]));
        let total: f64 = order.iter().map(|&at| weight(at)).sum();
        let (mut sampler, mut random) = (Sampler::seeded(3), Random::new(3));
        for _ in 0..500 {
            let mut left = random.number() * total;
            let expected = order.iter().find(|&&at| {
                left -= weight(at);
                left < 0.0
            });
            assert_eq!(sampler.choose(&logits), expected.copied());
        }
    }
}
