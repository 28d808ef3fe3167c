//! How close a student is to its teacher on rows that it did not learn from.

use apr_core::Result;
use apr_infer::Tensor;

use crate::Row;
use crate::batch::Batch;
use crate::report::Scores;
use crate::targets::{Goal, Targets, normalize};

/// The logarithm of the sum of exponentials.
pub(crate) fn log_sum_exp(values: &[f32]) -> f64 {
    let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = values.iter().map(|value| f64::from(value - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

/// Returns the sum of the log-probabilities of a row's labels, and the number of labels.
pub(crate) fn teacher_scores(goal: &Goal, row: &Row, logits: &[f32]) -> (f64, usize) {
    let mut sum = (0.0, 0);
    for (place, logits) in logits.chunks(goal.width).enumerate() {
        let label = goal.label(row, place).and_then(|label| usize::try_from(label).ok());
        if let Some(logit) = label.and_then(|label| logits.get(label)) {
            sum.0 += f64::from(*logit) - log_sum_exp(logits);
            sum.1 += 1;
        }
    }
    sum
}

/// Sums over rows.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    loss: f64,
    rows: usize,
    agreed: usize,
    compared: usize,
    labels: (f64, usize),
    cosines: f64,
    vectors: usize,
}

impl Sums {
    /// Adds the loss of a batch and evaluates the student's output.
    pub(crate) fn add(
        &mut self,
        targets: &Targets,
        batch: &Batch<'_>,
        loss: f64,
        output: &Tensor,
    ) -> Result<()> {
        let goal = &targets.goal;
        self.loss += loss * batch.rows.len() as f64;
        self.rows += batch.rows.len();
        let values = output.floats()?;
        let places = if goal.per_token { batch.width } else { 1 };
        for (at, (position, row)) in batch.rows.iter().enumerate() {
            let own = &values[at * places * goal.width..][..goal.places(row) * goal.width];
            let record = targets.read(*position, row)?;
            if !goal.is_logits {
                self.vectors += 1;
                self.cosines += cosine(mean(own, goal.width), mean(&record.numbers, goal.width));
                continue;
            }
            if goal.is_score() {
                continue;
            }
            let (sum, count) = teacher_scores(goal, row, own);
            self.labels = (self.labels.0 + sum, self.labels.1 + count);
            for (place, logits) in own.chunks(goal.width).enumerate() {
                if !goal.counts(row, place) {
                    continue;
                }
                let best = largest(&record.numbers[place * goal.kept..][..goal.kept]);
                let best = match record.tokens.get(place * goal.kept + best) {
                    Some(token) => usize::try_from(*token).unwrap_or(usize::MAX),
                    None => best,
                };
                self.agreed += usize::from(largest(logits) == best);
                self.compared += 1;
            }
        }
        Ok(())
    }

    pub(crate) fn scores(&self) -> Scores {
        let share = |part: f64, whole: usize| (whole > 0).then(|| part / whole as f64);
        Scores {
            loss: self.loss / self.rows.max(1) as f64,
            agreement: share(self.agreed as f64, self.compared),
            perplexity: share(-self.labels.0, self.labels.1).map(f64::exp),
            cosine: share(self.cosines, self.vectors),
        }
    }
}

/// The place of the largest; of equal ones the first.
fn largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (at, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = at;
        }
    }
    best
}

fn mean(states: &[f32], width: usize) -> Vec<f32> {
    let mut mean = vec![0.0; width];
    for states in states.chunks(width) {
        mean.iter_mut().zip(states).for_each(|(mean, state)| *mean += state);
    }
    normalize(&mut mean);
    mean
}

fn cosine(a: Vec<f32>, b: Vec<f32>) -> f64 {
    a.into_iter().zip(b).map(|(a, b)| f64::from(a) * f64::from(b)).sum()
}
