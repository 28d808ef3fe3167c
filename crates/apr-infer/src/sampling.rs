//! How the next token is chosen: greedily, or by temperature, top-k and top-p.

use crate::ops::random::Random;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Most tokens that are considered; 0 for no bound.
    pub top_k: usize,
    /// Tokens are considered until their probabilities reach this sum.
    pub top_p: f32,
    /// Where the random numbers begin.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Chooses tokens. The same seed and logits lead to the same tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    random: Random,
}

impl Sampler {
    /// Begins with the seed.
    #[must_use]
    pub fn new(sampling: Sampling) -> Self {
        Self { sampling, random: Random::new(sampling.seed) }
    }

    /// The next token; `None` where no logit is a number.
    pub fn choose(&mut self, logits: &[f32]) -> Option<usize> {
        let numbers = (0..logits.len()).filter(|&at| !logits[at].is_nan());
        let temperature = self.sampling.temperature;
        if temperature <= 0.0 {
            // The first of equal ones, as everybody does.
            let later = |&at: &usize, &best: &usize| logits[at].total_cmp(&logits[best]).is_gt();
            return numbers.reduce(|best, at| if later(&at, &best) { at } else { best });
        }

        let mut order: Vec<usize> = numbers.collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let &first = order.first()?;
        if self.sampling.top_k > 0 {
            order.truncate(self.sampling.top_k);
        }

        let weight = |&at: &usize| libm::exp(f64::from((logits[at] - logits[first]) / temperature));
        let mut weights: Vec<f64> = order.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let enough = weights.iter().position(|weight| {
            sum += weight / total;
            sum >= f64::from(self.sampling.top_p)
        });
        weights.truncate(enough.map_or(weights.len(), |at| at + 1));
        let mut left = self.random.number() * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });

        // Rounding may leave a little after the last weight.
        Some(order[chosen.unwrap_or(weights.len() - 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_temperature_the_first_of_the_likeliest_is_chosen() {
        let mut sampler = Sampler::new(Sampling::default());
        assert_eq!(sampler.choose(&[0.0, f32::NAN, 3.0, 3.0]), Some(2));
        assert_eq!(sampler.choose(&[f32::NAN]), None);
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling);
        let logits = [0.0_f32, 3.0_f32.ln()];
        let second = (0..4000).filter(|_| sampler.choose(&logits) == Some(1)).count();
        assert!((2900..3100).contains(&second), "{second} of 4000, not three quarters");
        let mut again = Sampler::new(sampling);
        assert_eq!((0..4000).filter(|_| again.choose(&logits) == Some(1)).count(), second);
    }

    #[test]
    fn bounds_leave_out_what_is_unlikely() {
        let logits = [1.0_f32, 0.9, -5.0];
        for sampling in [
            Sampling { temperature: 1.0, top_k: 2, ..Sampling::default() },
            Sampling { temperature: 1.0, top_p: 0.9, ..Sampling::default() },
        ] {
            let mut sampler = Sampler::new(sampling);
            let chosen: std::collections::HashSet<_> =
                (0..300).map(|_| sampler.choose(&logits)).collect();
            assert_eq!(chosen, [Some(0), Some(1)].into());
        }
    }
}
