//! Scales and zero points of integers, as `DequantizeLinear` has them.

/// Scales and zero points of the integers in a matrix: `(integer - zero) * scale`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scaling {
    scales: Vec<f32>,
    /// Zero points, one for each scale.
    zeros: Vec<f32>,
    rows: Steps,
    columns: Steps,
}

/// Layout of the scales along a dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Steps {
    /// Elements in a row that share a scale.
    pub(crate) block: usize,
    /// Distance between neighbouring scales; 0 if there is only one.
    pub(crate) step: usize,
}

impl Steps {
    /// One scale, whatever the place.
    pub(crate) const NONE: Self = Self { block: 1, step: 0 };

    fn at(self, place: usize) -> usize {
        place / self.block * self.step
    }
}

impl Scaling {
    pub(crate) fn new(scales: Vec<f32>, zeros: Vec<f32>, rows: Steps, columns: Steps) -> Self {
        Self { scales, zeros, rows, columns }
    }

    /// Returns the scaling of the transposed matrix.
    pub(crate) fn turned(&self) -> Self {
        Self { rows: self.columns, columns: self.rows, ..self.clone() }
    }

    /// Returns `true` if all elements of a matrix of this size have scales.
    pub(crate) fn fits(&self, rows: usize, columns: usize) -> bool {
        let last =
            self.rows.at(rows.saturating_sub(1)) + self.columns.at(columns.saturating_sub(1));
        last < self.scales.len() && self.scales.len() == self.zeros.len()
    }

    /// Changes a piece of a row, from a column on.
    pub(crate) fn apply(&self, row: usize, first_column: usize, values: &mut [f32]) {
        let start = self.rows.at(row);
        if self.columns.step == 0 {
            let (scale, zero) = (self.scales[start], self.zeros[start]);
            values.iter_mut().for_each(|value| *value = (*value - zero) * scale);
            return;
        }

        let (mut values, mut column) = (values, first_column);
        while !values.is_empty() {
            let block = self.columns.block;
            let len = (block - column % block).min(values.len());
            let at = start + self.columns.at(column);
            let (scale, zero) = (self.scales[at], self.zeros[at]);
            let (piece, rest) = values.split_at_mut(len);
            piece.iter_mut().for_each(|value| *value = (*value - zero) * scale);
            (values, column) = (rest, column + len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_has_the_scale_of_its_block() {
        let scaling = Scaling::new(
            vec![1.0, 10.0, 100.0, 1000.0],
            vec![0.0, 1.0, 0.0, 1.0],
            Steps { block: 1, step: 2 },
            Steps { block: 3, step: 1 },
        );
        let mut row = [5.0; 4];
        scaling.apply(1, 1, &mut row);
        assert_eq!(row, [500.0, 500.0, 4000.0, 4000.0]);
        assert!(scaling.fits(2, 6) && !scaling.fits(3, 6) && !scaling.fits(2, 7));
        let mut column = [5.0; 2];
        scaling.turned().apply(4, 0, &mut column);
        assert_eq!(column, [40.0, 4000.0]);
    }
}
