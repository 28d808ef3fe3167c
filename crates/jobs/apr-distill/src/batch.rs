//! Rows side by side, as a graph takes them.

use apr_core::{Error, Escaped, Result};
use apr_graph::{Body, Meaning, ValueOrigin};
use apr_infer::{Tensor, Value};

use crate::{Encoded, Row};

/// Rows of one step, filled up to the longest.
#[derive(Debug)]
pub(crate) struct Batch<'r> {
    pub(crate) rows: Vec<(usize, &'r Row)>,
    pub(crate) width: usize,
}

impl<'r> Batch<'r> {
    /// Rows by their positions among all.
    pub(crate) fn of(all: &'r [Row], positions: &[usize]) -> Self {
        let rows: Vec<(usize, &Row)> = positions.iter().map(|at| (*at, &all[*at])).collect();
        let width = rows.iter().map(|(_, row)| row.tokens.len()).max().unwrap_or(0);
        Self { rows, width }
    }

    /// Returns the number of tokens without padding.
    pub(crate) fn tokens(&self) -> usize {
        self.rows.iter().map(|(_, row)| row.tokens.len()).sum()
    }

    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.rows.len(), self.width]
    }

    /// Returns one number per position, and `padding` for positions without a token.
    pub(crate) fn each<T: Copy>(&self, padding: T, of: impl Fn(&Row, usize) -> T) -> Vec<T> {
        let mut all = Vec::with_capacity(self.rows.len() * self.width);
        for (_, row) in &self.rows {
            let here = row.tokens.len();
            all.extend((0..self.width).map(|at| if at < here { of(row, at) } else { padding }));
        }
        all
    }

    /// Returns the inputs of the graph: token ids and, if the graph uses them, mask, types and
    /// positions.
    ///
    /// A decoder behind an encoder gets token ids and the encoder's outputs for the rows.
    ///
    /// # Errors
    /// E003 if the graph has other inputs.
    pub(crate) fn inputs(
        &self,
        body: &Body,
        padding: i64,
        encoded: Option<&Encoded>,
    ) -> Result<Vec<(String, Value)>> {
        let mut inputs = match encoded {
            Some(encoded) => {
                let positions: Vec<usize> = self.rows.iter().map(|(at, _)| *at).collect();
                encoded.inputs(body, &positions)?
            }
            None => Vec::new(),
        };
        for value in body.inputs.iter().map(|id| body.value(*id)) {
            if value.origin != ValueOrigin::Input || is_own(&value.name) {
                continue;
            }
            let numbers = match value.meaning {
                Meaning::EncoderStates | Meaning::AttentionMask if encoded.is_some() => continue,
                Meaning::TokenIds => self.each(padding, |row, at| row.tokens[at]),
                Meaning::AttentionMask => self.each(0, |_, _| 1),
                Meaning::TokenTypes => self.each(0, |row, at| {
                    i64::from(row.second_text.is_some_and(|second| at >= second))
                }),
                Meaning::PositionIds => self.each(0, |_, at| i64::try_from(at).unwrap_or(i64::MAX)),
                _ => {
                    return Err(Error::version(format!(
                        "students learn from texts only, but the model also takes '{}'",
                        Escaped::short(&value.name)
                    )));
                }
            };
            let tensor = Tensor::new(self.shape().to_vec(), numbers)?;
            let tensor = tensor.cast(value.element().unwrap_or(tensor.element()))?;
            inputs.push((value.name.clone(), Value::Tensor(tensor)));
        }
        Ok(inputs)
    }
}

/// Name prefix of the inputs that exist only in a training graph.
pub(crate) const OWN: &str = "distill/";

fn is_own(name: &str) -> bool {
    name.starts_with(OWN)
}

/// Steps whose rows are put in the order of their lengths together.
const SORTED: usize = 16;

/// The rows of each step of an epoch, by their positions: shuffled, then of like length side by
/// side, so that little is padding, and the steps shuffled again. They follow from the seed and the
/// lengths alone.
pub(crate) fn batches(
    rows: &[usize],
    len: impl Fn(usize) -> usize,
    batch: usize,
    seed: u64,
    epoch: u64,
) -> Vec<Vec<usize>> {
    let mut order = shuffled(rows, seed, epoch);
    for part in order.chunks_mut(batch.saturating_mul(SORTED)) {
        part.sort_by_key(|row| len(*row));
    }
    let steps: Vec<&[usize]> = order.chunks(batch).collect();
    let places: Vec<usize> = (0..steps.len()).collect();
    shuffled(&places, seed, epoch).into_iter().map(|place| steps[place].to_vec()).collect()
}

/// The order of rows in an epoch, which follows from the seed alone.
pub(crate) fn shuffled(rows: &[usize], seed: u64, epoch: u64) -> Vec<usize> {
    let mut keyed: Vec<(u64, usize)> =
        rows.iter().map(|row| (mixed(mixed(seed ^ mixed(epoch)) ^ *row as u64), *row)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, row)| row).collect()
}

/// SplitMix64's output function (Steele et al. 2014).
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_every_row_once_in_another_order() {
        let rows: Vec<usize> = (0..100).collect();
        let (first, second) = (shuffled(&rows, 7, 0), shuffled(&rows, 7, 1));
        assert_ne!(first, second);
        assert_eq!(first, shuffled(&rows, 7, 0));
        let mut sorted = second;
        sorted.sort_unstable();
        assert_eq!(sorted, rows);
    }

    #[test]
    fn rows_of_like_length_are_a_step() {
        let rows: Vec<usize> = (0..1000).collect();
        let len = |row: usize| row * 37 % 101;
        let steps = batches(&rows, len, 8, 7, 0);
        assert_eq!(steps.len(), 125);
        let mut sorted = steps.concat();
        sorted.sort_unstable();
        assert_eq!(sorted, rows);
        let padding = |step: &Vec<usize>| {
            let longest = step.iter().map(|row| len(*row)).max().unwrap_or(0);
            step.iter().map(|row| longest - len(*row)).sum::<usize>()
        };
        let filled: usize = steps.iter().map(padding).sum();
        let all: usize = rows.iter().map(|row| len(*row)).sum();
        assert!(filled * 10 < all, "{filled} of {all} are padding");
        let lengths: Vec<usize> = steps.iter().map(|step| len(step[0])).collect();
        assert!(!lengths.is_sorted(), "steps are in no order of lengths");
        assert_ne!(steps, batches(&rows, len, 8, 7, 1));
    }

    #[test]
    fn short_rows_are_filled_up() {
        let rows = [Row::new(vec![5, 6, 7]), Row::new(vec![8])];
        let batch = Batch::of(&rows, &[1, 0]);
        assert_eq!(batch.each(-1, |row, at| row.tokens[at]), [8, -1, -1, 5, 6, 7]);
        assert_eq!((batch.tokens(), batch.shape()), (4, [2, 3]));
    }
}
