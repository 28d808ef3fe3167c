//! How a student is trained.

use serde::Serialize;

/// Options of a training.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DistillOptions {
    /// Divisor of the logits before predictions are compared (temperature); 2 by default.
    pub temperature: f32,
    /// Share of the loss that the teacher's predictions have, from 0 to 1; labels have the rest. 1
    /// by default.
    pub alpha: f32,
    /// Weight of the mean squared difference between the states after each layer; 0 by default.
    pub hidden_loss: f32,
    /// Number of passes over all rows; 3 by default.
    pub epochs: u64,
    /// Total number of steps, which overrides `epochs`.
    #[serde(rename = "step_count")]
    pub steps: Option<u64>,
    /// Rows of a step; 16 by default.
    pub batch: usize,
    /// The highest learning rate; 1e-3 by default.
    pub learning_rate: f32,
    /// Steps in which the learning rate rises from 0; a twentieth of all by default.
    pub warmup: Option<u64>,
    /// Weight decay of matrices (AdamW); 0.1 by default. Norms and biases are not decayed.
    pub weight_decay: f32,
    /// Longest gradient, as the norm of all of them together; 1 by default.
    pub clip: f32,
    /// Random seed; 0 by default.
    pub seed: u64,
    /// Share of the rows that is held out to judge the student; 0.05 by default.
    pub held_out: f64,
    /// Evaluations without a better loss after which the training ends; 5 by default.
    pub patience: u64,
    /// Bytes that a run of a model may take.
    pub max_memory: u64,
}

impl Default for DistillOptions {
    fn default() -> Self {
        Self {
            temperature: 2.0,
            alpha: 1.0,
            hidden_loss: 0.0,
            epochs: 3,
            steps: None,
            batch: 16,
            learning_rate: 1e-3,
            warmup: None,
            weight_decay: 0.1,
            clip: 1.0,
            seed: 0,
            held_out: 0.05,
            patience: 5,
            max_memory: 4 << 30,
        }
    }
}

impl DistillOptions {
    /// Returns the number of steps for training on `rows` rows.
    pub(crate) fn total_steps(&self, rows: usize) -> u64 {
        let each = rows.div_ceil(self.batch.max(1)) as u64;
        self.steps.unwrap_or_else(|| each.saturating_mul(self.epochs)).max(1)
    }

    /// Learning rate of a step, counted from 0: a linear rise, then half a cosine to 0
    /// (Loshchilov and Hutter 2017, arXiv:1608.03983).
    pub(crate) fn rate(&self, step: u64, steps: u64) -> f32 {
        let warmup = self.warmup.unwrap_or(steps / 20).min(steps);
        if step < warmup {
            return self.learning_rate * ratio(step + 1, warmup);
        }
        let angle = std::f32::consts::PI * ratio(step - warmup, steps - warmup);
        self.learning_rate * 0.5 * (1.0 + angle.cos())
    }
}

#[expect(clippy::cast_precision_loss, reason = "steps are far fewer than 2^24")]
fn ratio(part: u64, whole: u64) -> f32 {
    part as f32 / whole.max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_and_falls() {
        let options = DistillOptions { warmup: Some(10), ..DistillOptions::default() };
        let rate = |step| options.rate(step, 110);
        assert!((rate(0) - 1e-4).abs() < 1e-9);
        assert!((rate(9) - 1e-3).abs() < 1e-9);
        assert!((rate(10) - 1e-3).abs() < 1e-9);
        assert!((rate(60) - 0.5e-3).abs() < 1e-8);
        assert!(rate(109) < 1e-6);
    }

    #[test]
    fn steps_follow_from_the_epochs_unless_they_are_given() {
        let options = DistillOptions::default();
        assert_eq!(options.total_steps(33), 9);
        let options = DistillOptions { steps: Some(7), ..options };
        assert_eq!(options.total_steps(33), 7);
    }
}
