//! The path of a text through the audio: for each token, where the heads attend, and the way
//! through these places that never goes back (dynamic time warping).

use std::ops::Range;

use apr_infer::Tensor;
use apr_registry::Error;

use crate::error::RunResult;

/// Width of the median filter over steps.
const FILTER: usize = 7;
/// Deviation below which tokens differ by rounding only.
const LEAST_DEVIATION: f64 = 1e-12;

/// Attention of heads: how far each token's is above that of other tokens at a step.
pub(super) struct Attention {
    tokens: usize,
    steps: usize,
    heads: usize,
    /// Sum of the heads, row by row of a token.
    sum: Vec<f64>,
}

impl Attention {
    pub(super) fn new(tokens: usize, steps: usize) -> Self {
        Self { tokens, steps, heads: 0, sum: Vec::new() }
    }

    /// Adds a head of a layer, whose shares are `[1, heads, tokens, vectors]`.
    ///
    /// # Errors
    /// E001 for another shape, or a head that the layer does not have.
    pub(super) fn add(&mut self, shares: &Tensor, head: usize) -> RunResult<()> {
        let &[1, heads, tokens, all] = shares.shape() else {
            return Err(Error::format("the decoder's attention is not split into heads").into());
        };
        if head >= heads || tokens != self.tokens {
            let message = format!("head {head} of alignment_heads: the layer has {heads} heads");
            return Err(Error::format(message).into());
        }
        self.steps = self.steps.min(all);
        let values = shares.floats()?;
        let values = &values[head * tokens * all..(head + 1) * tokens * all];
        let mut rows: Vec<f64> = Vec::with_capacity(tokens * self.steps);
        for row in values.chunks_exact(all) {
            // What the silence after the audio gets does not count.
            let row = &row[..self.steps];
            let total: f64 = row.iter().copied().map(f64::from).sum();
            let total = total.max(f64::MIN_POSITIVE);
            rows.extend(row.iter().map(|share| f64::from(*share) / total));
        }
        self.standardize(&mut rows);
        self.sum.resize(rows.len(), 0.0);
        for (sum, row) in
            self.sum.chunks_exact_mut(self.steps.max(1)).zip(rows.chunks_exact(self.steps.max(1)))
        {
            add_filtered(sum, row);
        }
        self.heads += 1;
        Ok(())
    }

    /// Brings each step to mean 0 and deviation 1 over all tokens.
    fn standardize(&self, rows: &mut [f64]) {
        let count = self.tokens as f64;
        for step in 0..self.steps {
            let places = (0..self.tokens).map(|token| token * self.steps + step);
            let mean = places.clone().map(|place| rows[place]).sum::<f64>() / count;
            let variance =
                places.clone().map(|place| (rows[place] - mean).powi(2)).sum::<f64>() / count;
            let deviation = variance.sqrt().max(LEAST_DEVIATION);
            places.for_each(|place| rows[place] = (rows[place] - mean) / deviation);
        }
    }

    /// Returns the mean of the heads, row by row of a token.
    pub(super) fn mean(&self) -> Vec<Vec<f64>> {
        let heads = self.heads.max(1) as f64;
        let rows = self.sum.chunks_exact(self.steps.max(1));
        rows.map(|row| row.iter().map(|value| value / heads).collect()).collect()
    }
}

/// Adds the medians of a row, which is mirrored at both ends.
fn add_filtered(sum: &mut [f64], row: &[f64]) {
    let half = FILTER / 2;
    if row.len() <= half {
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        return;
    }
    let last = row.len() - 1;
    for (at, sum) in sum.iter_mut().enumerate() {
        let mut near = [0.0; FILTER];
        for (offset, near) in near.iter_mut().enumerate() {
            let place = (at + offset).abs_diff(half);
            *near = row[if place > last { 2 * last - place } else { place }];
        }
        near.sort_by(f64::total_cmp);
        *sum += near[half];
    }
}

/// Returns the step at which the path comes to each token of a range.
pub(super) fn jumps(attention: &[Vec<f64>], tokens: Range<usize>) -> Vec<usize> {
    let Some(rows) = attention.get(tokens) else { return Vec::new() };
    let width = rows.first().map_or(0, Vec::len);
    if width == 0 {
        return vec![0; rows.len()];
    }
    let stride = width + 1;
    let mut costs = vec![f32::INFINITY; (rows.len() + 1) * stride];
    let mut moves = vec![Move::Step; costs.len()];
    costs[0] = 0.0;
    for step in 1..=width {
        for token in 1..=rows.len() {
            let here = token * stride + step;
            let (both, other, same) =
                (costs[here - stride - 1], costs[here - stride], costs[here - 1]);
            let (cost, way) = if both < other && both < same {
                (both, Move::Both)
            } else if other < both && other < same {
                (other, Move::Token)
            } else {
                (same, Move::Step)
            };
            #[expect(clippy::cast_possible_truncation, reason = "a sum in single precision")]
            let sum = (f64::from(cost) - rows[token - 1][step - 1]) as f32;
            costs[here] = sum;
            moves[here] = way;
        }
    }

    let mut found = vec![0; rows.len()];
    let (mut token, mut step) = (rows.len(), width);
    while token > 0 && step > 0 {
        // The last time that a token is set is where the path comes to it.
        found[token - 1] = step - 1;
        match moves[token * stride + step] {
            Move::Both => (token, step) = (token - 1, step - 1),
            Move::Token => token -= 1,
            Move::Step => step -= 1,
        }
    }
    found
}

/// Move of the path to a token at a step.
#[derive(Clone, Copy)]
enum Move {
    /// From the token before it, one step earlier.
    Both,
    /// From the token before it, at the same step.
    Token,
    /// From the same token, one step earlier.
    Step,
}

#[cfg(test)]
mod tests {
    use apr_testkit::locate;
    use serde_json::Value as Json;

    use super::*;

    /// `fixtures/run/words.py` computes it with the functions of openai-whisper.
    #[test]
    fn the_path_of_a_text_is_that_of_whisper() {
        let expected = std::fs::read_to_string(locate::fixture("run/words.json")).unwrap();
        let expected: Json = serde_json::from_str(&expected).unwrap();
        let path = &expected["path"];
        let list = |key: &str| path[key].as_array().unwrap().iter();
        let whole = |key: &str| -> Vec<usize> {
            list(key).map(|number| usize::try_from(number.as_u64().unwrap()).unwrap()).collect()
        };
        let shares: Vec<f32> =
            list("shares").map(|share| serde_json::from_value(share.clone()).unwrap()).collect();
        let shares = Tensor::new(whole("shape"), shares).unwrap();
        let steps = usize::try_from(path["steps"].as_u64().unwrap()).unwrap();
        let mut attention = Attention::new(12, steps);
        (0..3).for_each(|head| attention.add(&shares, head).unwrap());
        let tokens = whole("tokens");
        assert_eq!(jumps(&attention.mean(), tokens[0]..tokens[1]), whole("jumps"));
    }

    #[test]
    fn a_path_comes_to_each_token_where_it_attends() {
        let row = |high: Range<usize>| (0..8).map(|at| f64::from(high.contains(&at))).collect();
        let attention = [row(0..2), row(2..3), row(3..7), row(7..8)];
        // A token may share a step with the one before it.
        assert_eq!(jumps(&attention, 0..4), [0, 1, 2, 6]);
        assert_eq!(jumps(&attention, 1..3), [0, 2]);
        assert!(jumps(&attention, 2..9).is_empty());
        assert_eq!(jumps(&[Vec::new(), Vec::new()], 0..2), [0, 0]);
    }

    #[test]
    fn medians_are_taken_over_seven_steps_with_mirrored_ends() {
        let row = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let mut sum = [0.0; 6];
        add_filtered(&mut sum, &row);
        // At the beginning 3 2 1 9 1 2 3, at the end 2 3 4 5 4 3 2.
        assert_eq!(sum, [2.0, 2.0, 3.0, 4.0, 3.0, 3.0]);
        let mut short = [0.0; 3];
        add_filtered(&mut short, &row[..3]);
        assert_eq!(short, [9.0, 1.0, 2.0]);
    }

    #[test]
    fn heads_that_a_layer_lacks_are_errors() {
        let shares = Tensor::new(vec![1, 2, 3, 4], vec![0.25_f32; 24]).unwrap();
        let mut attention = Attention::new(3, 9);
        attention.add(&shares, 1).unwrap();
        assert_eq!(attention.mean(), vec![vec![0.0; 4]; 3]);
        assert!(attention.add(&shares, 2).is_err());
        assert!(Attention::new(2, 4).add(&shares, 0).is_err());
    }
}
