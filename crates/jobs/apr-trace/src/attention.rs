//! What tokens attend to, drawn small.

use apr_infer::Value;
use serde::Serialize;

/// Rows of a picture.
const ROWS: usize = 8;
/// Columns of a picture.
const COLUMNS: usize = 20;

/// Attention probabilities of a softmax, the mean of all heads.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AttentionPattern {
    /// Path of the softmax.
    pub path: String,
    /// Heads, of all sequences.
    #[serde(rename = "head_count")]
    pub heads: usize,
    /// Positions that attend.
    pub queries: usize,
    /// Positions that are attended to.
    pub keys: usize,
    /// Mean probability of the positions in each cell, at most 8 by 20 cells; queries are rows.
    pub cells: Vec<Vec<f64>>,
    /// For each row of cells, the range of keys (from, to) of the cell with the largest
    /// probability.
    pub focus: Vec<(usize, usize)>,
    /// Entropy over the keys, from 0 to 1 as a share of the largest possible one, for each head:
    /// the mean of its queries that have several keys to choose from.
    pub entropy: Vec<f64>,
    /// The largest probability of a query, for each head: the mean of its queries but the first,
    /// which has one key to choose from where a mask hides what follows.
    #[serde(rename = "peaks")]
    pub peak: Vec<f64>,
    /// `true` if all queries of all heads attend most to the same key.
    pub is_one_key: bool,
    /// The probabilities of each row sum to 1.
    pub sums_to_one: bool,
}

impl AttentionPattern {
    /// Returns the pattern of a value of shape `[.., queries, keys]`.
    ///
    /// Returns `None` if the value is not attention: if it has fewer than three dimensions, or its
    /// rows are not probabilities of several positions.
    #[must_use]
    pub fn of(path: &str, value: &Value) -> Option<Self> {
        let tensor = value.tensor().ok()?;
        let &[.., queries, keys] = tensor.shape() else { return None };
        if tensor.rank() < 3 || queries < 2 || keys < 2 {
            return None;
        }
        let values = tensor.floats().ok()?;
        let heads = values.len() / (queries * keys);
        let (rows, columns) = (queries.min(ROWS), keys.min(COLUMNS));
        let mut sums = vec![vec![0.0; columns]; rows];
        let (mut entropy, mut peak) = (Vec::with_capacity(heads), Vec::with_capacity(heads));
        let (mut sums_to_one, mut favourite, mut is_one_key) = (true, None, true);
        for head in values.chunks_exact(queries * keys) {
            let (mut mean, mut sharpest) = (Mean::default(), Mean::default());
            for (query, row) in head.chunks_exact(keys).enumerate() {
                let cells = &mut sums[query * rows / queries];
                let mut total = 0.0;
                for (key, share) in row.iter().enumerate() {
                    cells[key * columns / keys] += f64::from(*share);
                    total += f64::from(*share);
                }
                sums_to_one &= (total - 1.0).abs() < 1e-3;
                mean.add(entropy_of(row));
                let best = (0..keys).rev().max_by(|&a, &b| row[a].total_cmp(&row[b]));
                if query > 0 {
                    sharpest.add(best.map(|best| f64::from(row[best])));
                    is_one_key &= *favourite.get_or_insert(best) == best;
                }
            }
            entropy.push(mean.value());
            peak.push(sharpest.value());
        }

        let count = |cells: usize, of: usize, at: usize| {
            // How many positions a cell has: those that are cut to it.
            (0..of).filter(|position| position * cells / of == at).count().max(1)
        };
        for (at, row) in sums.iter_mut().enumerate() {
            let queries = count(rows, queries, at);
            for (column, cell) in row.iter_mut().enumerate() {
                *cell /= (heads.max(1) * queries * count(columns, keys, column)) as f64;
            }
        }

        let focus = sums.iter().map(|row| focus(row, keys)).collect();
        let path = path.to_owned();
        let cells = sums;
        Some(Self {
            path,
            heads,
            queries,
            keys,
            cells,
            focus,
            entropy,
            peak,
            is_one_key,
            sums_to_one,
        })
    }
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1.0;
        }
    }

    fn value(&self) -> f64 {
        if self.count > 0.0 { self.sum / self.count } else { 1.0 }
    }
}

/// Returns the entropy of probabilities as a share of the maximum for their number.
///
/// Returns `None` if fewer than two probabilities are not masked to zero.
fn entropy_of(row: &[f32]) -> Option<f64> {
    let open = row.iter().filter(|share| **share > 0.0).count();
    if open < 2 {
        // A row of zeros and one 1 is either masked to one position or collapsed: which of both
        // shows in the other rows.
        return None;
    }
    let entropy: f64 = row
        .iter()
        .filter(|share| **share > 0.0)
        .map(|share| -f64::from(*share) * f64::from(*share).ln())
        .sum();
    Some(entropy / (open as f64).ln())
}

/// The keys of the cell with the largest probability.
fn focus(row: &[f64], keys: usize) -> (usize, usize) {
    let best = (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
    let start = (best * keys).div_ceil(row.len().max(1));
    let end = ((best + 1) * keys).div_ceil(row.len().max(1)).saturating_sub(1);
    (start, end.max(start))
}

#[cfg(test)]
mod tests {
    use apr_infer::Tensor;

    use super::*;

    fn pattern(shape: &[usize], values: Vec<f32>) -> AttentionPattern {
        let tensor = Tensor::new(shape.to_vec(), values).unwrap();
        AttentionPattern::of("a", &tensor.into()).unwrap()
    }

    #[test]
    fn cells_are_the_mean_of_heads() {
        let found = pattern(&[1, 2, 2, 2], vec![1.0, 0.0, 0.5, 0.5, 0.0, 1.0, 0.5, 0.5]);
        assert_eq!(found.cells, [[0.5, 0.5], [0.5, 0.5]]);
        assert_eq!((found.heads, found.entropy), (2, vec![1.0, 1.0]));
        assert!(found.sums_to_one);
    }

    #[test]
    fn many_positions_share_a_cell() {
        let (queries, keys) = (3, 45);
        let mut values = vec![0.0; queries * keys];
        (0..queries).for_each(|query| values[query * keys + 30] = 1.0);
        let found = pattern(&[1, 1, queries, keys], values);
        assert_eq!((found.cells.len(), found.cells[0].len()), (3, 20));
        let (from, to) = found.focus[1];
        assert!((from..=to).contains(&30), "{from} to {to}");
    }

    #[test]
    fn values_that_are_not_distributions_are_detected() {
        assert!(!pattern(&[1, 2, 2], vec![1.0, 1.0, 0.5, 0.5]).sums_to_one);
        let row = Tensor::new(vec![2, 2], vec![1.0_f32, 0.0, 0.5, 0.5]).unwrap();
        assert_eq!(AttentionPattern::of("a", &row.into()), None);
    }
}
