//! Rows of images that replace the vectors of tokens.

use apr_core::Result;

use crate::Tensor;
use crate::moving::part;

/// Rows of images that replace the vectors of a token, in the order of that token in a text.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRows {
    /// Name of the input for the rows. A run takes the rows of its own tokens.
    pub input: String,
    /// The token.
    pub token: i64,
    /// All rows of the text, `[rows, hidden]`.
    pub rows: Tensor,
    /// Rows and columns of each image, if the graph takes three positions for each token: its time,
    /// its row and its column in its image. `None` for graphs that take one.
    pub grids: Option<Vec<[usize; 2]>>,
    /// `true` if all tokens of a prompt see each other, so that it is read in one run.
    pub is_one_run: bool,
}

impl TokenRows {
    fn count(&self, tokens: &[i64]) -> usize {
        tokens.iter().filter(|token| **token == self.token).count()
    }

    /// Returns the rows for `tokens`, which follow the tokens of `past`.
    ///
    /// There are fewer rows than tokens if not enough rows are left. A token that the model
    /// generates does not belong to an image.
    pub(super) fn behind(&self, past: &[i64], tokens: &[i64]) -> Result<Tensor> {
        let rows = self.rows.shape().first().copied().unwrap_or_default();
        let start = self.count(past).min(rows);
        part(&self.rows, 0, start, self.count(tokens).min(rows - start))
    }

    /// Returns the positions of the tokens from `past` on, `[3, 1, tokens]`, or `None` if tokens
    /// have one position each.
    ///
    /// The three positions of a word are the same number. Those of an image's tokens are the number
    /// behind the text before it, plus 0, their row, and their column. The text behind it goes on
    /// behind the largest of them (Wang et al. 2024, <https://arxiv.org/abs/2409.12191>).
    pub(super) fn positions(&self, tokens: &[i64], past: usize) -> Option<Vec<i64>> {
        let mut grids = self.grids.as_ref()?.iter().filter(|[rows, columns]| rows * columns > 0);
        let mut axes = [const { Vec::<i64>::new() }; 3];
        let (mut next, mut at) = (0, 0);
        while at < tokens.len() {
            // What the model itself writes is of no image.
            let grid = (tokens[at] == self.token).then(|| grids.next()).flatten();
            let &[rows, columns] = grid.unwrap_or(&[1, 1]);
            for place in 0..(rows * columns).min(tokens.len() - at) {
                let offsets = [0, place / columns, place % columns];
                for (axis, offset) in axes.iter_mut().zip(offsets) {
                    axis.push((next + offset) as i64);
                }
            }
            (next, at) = (next + rows.max(columns), at + rows * columns);
        }
        Some(axes.iter().flat_map(|axis| &axis[past.min(axis.len())..]).copied().collect())
    }

    /// Returns the number of tokens of `left` to read, at least `tokens`.
    ///
    /// It is larger than `tokens` if the tokens of one image would be split.
    pub(super) fn whole_image(&self, left: &[i64], mut tokens: usize) -> usize {
        if self.is_one_run {
            return left.len();
        }
        while tokens > 0 && left.get(tokens - 1..=tokens) == Some(&[self.token; 2]) {
            tokens += 1;
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: i64 = 9;

    fn rows(count: usize) -> TokenRows {
        let values = (0..count).map(|row| row as f32).collect::<Vec<_>>();
        let rows = Tensor::new(vec![count, 1], values).expect("a tensor");
        TokenRows { input: "rows".to_owned(), token: IMAGE, rows, grids: None, is_one_run: false }
    }

    #[test]
    fn a_run_gets_the_rows_of_its_own_tokens() {
        let of = |past: &[i64], tokens: &[i64]| {
            let rows = rows(3).behind(past, tokens).expect("rows");
            rows.floats().expect("floats").to_vec()
        };
        assert_eq!(of(&[], &[1, IMAGE, 2, IMAGE]), [0.0, 1.0]);
        assert_eq!(of(&[IMAGE, 1, IMAGE], &[3, IMAGE, 4]), [2.0]);
        assert!(of(&[1, 2], &[3]).is_empty());
        // What the model itself writes is of no image.
        assert!(of(&[IMAGE; 3], &[IMAGE]).is_empty());
        assert_eq!(of(&[IMAGE; 2], &[IMAGE; 4]), [2.0]);
    }

    #[test]
    fn positions_of_an_image_are_its_rows_and_columns() {
        let of = |grids, text: &[i64], past| {
            TokenRows { grids: Some(grids), ..rows(6) }.positions(text, past).expect("three axes")
        };
        let text = [1, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, 2, IMAGE];
        let time = [0, 1, 1, 1, 1, 1, 1, 4, 5];
        let row = [0, 1, 1, 1, 2, 2, 2, 4, 5];
        let column = [0, 1, 2, 3, 1, 2, 3, 4, 5];
        assert_eq!(of(vec![[2, 3]], &text, 0), [time, row, column].concat());
        assert_eq!(of(vec![[2, 3]], &text, 7), [4, 5, 4, 5, 4, 5]);
        assert_eq!(of(vec![[2, 3]], &text[..3], 1), [1, 1, 1, 1, 1, 2]);
        assert_eq!(of(vec![[0, 3], [1, 1]], &[IMAGE], 0), [0, 0, 0]);
        assert_eq!(rows(6).positions(&text, 0), None);
    }

    #[test]
    fn an_image_is_read_in_one_run() {
        let text = [1, IMAGE, IMAGE, IMAGE, 2, IMAGE];
        let whole = |tokens| rows(4).whole_image(&text, tokens);
        assert_eq!([1, 2, 3, 4, 5, 6].map(whole), [1, 4, 4, 4, 5, 6]);
        let whole = TokenRows { is_one_run: true, ..rows(4) };
        assert_eq!(whole.whole_image(&text, 1), 6);
    }
}
