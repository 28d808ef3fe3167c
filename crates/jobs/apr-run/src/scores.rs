//! Scores and vectors: from what a model puts out to what people read.

/// Returns probabilities that add up to 1.
#[must_use]
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut weights: Vec<f64> =
        logits.iter().map(|logit| f64::from(logit - highest).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}

/// The probability of each by itself.
#[must_use]
pub fn sigmoid(logits: &[f32]) -> Vec<f64> {
    logits.iter().map(|logit| 1.0 / (1.0 + (-f64::from(*logit)).exp())).collect()
}

/// Positions of the largest values, the first of equal ones first.
#[must_use]
pub fn largest(values: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).filter(|&at| !values[at].is_nan()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(count);
    order
}

/// Returns the mean of vectors, which are stored one after the other.
#[must_use]
pub fn mean(states: &[f32], width: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = states.chunks_exact(width.max(1)).collect();
    let mean = |at: usize| {
        rows.iter().map(|row| f64::from(row[at])).sum::<f64>() / rows.len().max(1) as f64
    };
    #[expect(clippy::cast_possible_truncation, reason = "a mean of floats of single precision")]
    let narrow = |mean: f64| mean as f32;
    (0..width).map(mean).map(narrow).collect()
}

/// Scales a vector to length 1. A vector of zeros is unchanged.
pub fn normalize(vector: &mut [f32]) {
    // PyTorch's `normalize` divides by no less either.
    let length =
        vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt().max(1e-12);
    #[expect(clippy::cast_possible_truncation, reason = "numbers up to 1")]
    vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_come_to_one_whatever_the_logits() {
        let probabilities = softmax(&[1000.0, 1000.0, -1000.0]);
        assert_eq!(probabilities, [0.5, 0.5, 0.0]);
        assert_eq!(largest(&probabilities, 2), [0, 1]);
        assert_eq!(sigmoid(&[0.0]), [0.5]);
    }

    #[test]
    fn means_are_taken_by_column() {
        assert_eq!(mean(&[1.0, 4.0, 3.0, 2.0], 2), [2.0, 3.0]);
    }
}
