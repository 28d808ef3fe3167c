//! Which weights of a tensor go.

use std::sync::Arc;

use crate::cut::Cut;

/// Rule that decides which weights of a tensor are removed.
#[derive(Debug, Clone)]
pub(crate) enum Mask {
    /// Weights of smallest magnitude.
    Cut(Cut),
    /// All but the `keep` weights with the highest scores in every `of` weights of a row.
    Groups { keep: usize, of: usize, norms: Option<Norms> },
    /// Weights with the `count` lowest scores of each row.
    Rows { count: usize, norms: Norms },
    /// Another decides, of magnitudes that are weighed element by element.
    Weighed { weights: Arc<[f32]>, mask: Box<Mask> },
}

/// Norms of the inputs of a tensor's columns, by which magnitudes are weighed: of one matrix, or of
/// each of a stack.
#[derive(Debug, Clone)]
pub(crate) struct Norms {
    pub(crate) norms: Arc<[f32]>,
    pub(crate) row_len: usize,
    /// Rows of a matrix.
    pub(crate) rows: u64,
}

impl Norms {
    /// Returns the norms for the matrix of a row.
    fn of_row(&self, row: u64) -> &[f32] {
        let matrices = (self.norms.len() / self.row_len.max(1)).max(1);
        let matrix = usize::try_from(row / self.rows.max(1)).unwrap_or_default() % matrices;
        &self.norms[matrix * self.row_len..][..self.row_len]
    }
}

impl Mask {
    /// Returns the number of elements that are compared together. Ranges must begin at such a unit.
    pub(crate) fn unit(&self) -> u64 {
        match self {
            Self::Cut(_) => 1,
            Self::Groups { of, norms: None, .. } => *of as u64,
            Self::Groups { norms: Some(norms), .. } | Self::Rows { norms, .. } => {
                norms.row_len as u64
            }
            Self::Weighed { mask, .. } => mask.unit(),
        }
    }

    /// Calls `gone` with the index of each value to remove.
    ///
    /// The first value is the element at `start`, which must be the beginning of a unit.
    pub(crate) fn each_gone(&self, start: u64, values: &[f32], gone: &mut dyn FnMut(usize)) {
        match self {
            Self::Weighed { weights, mask } => {
                let first = usize::try_from(start).unwrap_or(usize::MAX).min(weights.len());
                let weighed: Vec<f32> =
                    values.iter().zip(&weights[first..]).map(|(value, by)| value * by).collect();
                mask.each_gone(start, &weighed, gone);
            }
            Self::Cut(cut) => {
                let places = values.iter().enumerate();
                places
                    .filter(|(place, value)| cut.takes(**value, start + *place as u64))
                    .for_each(|(place, _)| gone(place));
            }
            Self::Groups { keep, of, norms } => {
                let mut order = Vec::new();
                for (at, group) in values.chunks(*of).enumerate() {
                    let first = at * of;
                    let weigh = norms.as_ref().map(|norms| {
                        let element = start + first as u64;
                        let column = usize::try_from(element % norms.row_len as u64);
                        (norms.of_row(element / norms.row_len as u64), column.unwrap_or_default())
                    });
                    let score = |place: usize| {
                        let norm = weigh.map_or(1.0, |(norms, column)| norms[column + place]);
                        group[place].abs() * norm
                    };
                    let count = group.len().saturating_sub(*keep);
                    lowest(&mut order, group.len(), count, score);
                    order.iter().for_each(|place| gone(first + *place));
                }
            }
            Self::Rows { count, norms } => {
                let mut order = Vec::new();
                for (at, row) in values.chunks(norms.row_len).enumerate() {
                    let first = at * norms.row_len;
                    let own = norms.of_row(start / norms.row_len as u64 + at as u64);
                    lowest(&mut order, row.len(), *count, |place| row[place].abs() * own[place]);
                    order.iter().for_each(|place| gone(first + *place));
                }
            }
        }
    }
}

/// Finds the indices of the `count` lowest of `len` scores. Of equal scores, the earlier one is
/// taken.
fn lowest(order: &mut Vec<usize>, len: usize, count: usize, score: impl Fn(usize) -> f32) {
    order.clear();
    order.extend(0..len);
    if count == 0 || len == 0 {
        order.clear();
    } else if count < len {
        order.select_nth_unstable_by(count, |a, b| score(*a).total_cmp(&score(*b)).then(a.cmp(b)));
        order.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(mask: &Mask, start: u64, values: &[f32]) -> Vec<usize> {
        let mut places = Vec::new();
        mask.each_gone(start, values, &mut |place| places.push(place));
        places.sort_unstable();
        places
    }

    #[test]
    fn two_of_four_keeps_the_larger_two_and_the_later_of_equal_ones() {
        let mask = Mask::Groups { keep: 2, of: 4, norms: None };
        assert_eq!(gone(&mask, 0, &[1.0, -3.0, 2.0, 0.5, 1.0, 1.0, 1.0, 1.0]), [0, 3, 4, 5]);
    }

    #[test]
    fn norms_weigh_magnitudes_by_column_and_matrix() {
        let norms = Norms { norms: Arc::from([1.0, 10.0, 10.0, 1.0]), row_len: 2, rows: 1 };
        let mask = Mask::Rows { count: 1, norms: norms.clone() };
        assert_eq!(gone(&mask, 0, &[2.0, 1.0, 2.0, 1.0]), [0, 3]);
        // The second matrix alone.
        assert_eq!(gone(&mask, 2, &[2.0, 1.0]), [1]);
        let mask = Mask::Groups { keep: 1, of: 2, norms: Some(norms) };
        assert_eq!(gone(&mask, 2, &[2.0, 1.0]), [1]);
    }

    #[test]
    fn weights_of_elements_go_with_their_places() {
        let weights = Arc::from([1.0, 1.0, 0.5, 4.0]);
        let mask = Mask::Groups { keep: 1, of: 2, norms: None };
        let mask = Mask::Weighed { weights, mask: Box::new(mask) };
        assert_eq!(gone(&mask, 0, &[1.0, 2.0, 3.0, -1.0]), [0, 2]);
        // From the second group on.
        assert_eq!(gone(&mask, 2, &[3.0, -0.25]), [1]);
    }
}
