//! A value by its rows (positions) and columns (channels).

use apr_infer::Value;
use serde::Serialize;

/// Channels that are zero for all inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadNeurons {
    /// Path of the value.
    pub path: String,
    /// Number of channels that are exactly zero at all positions of all inputs.
    pub dead: usize,
    /// Number of all channels.
    pub of: usize,
    /// Positions that were looked at.
    #[serde(rename = "input_count")]
    pub inputs: usize,
}

/// Properties of the positions and channels of a value.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Profile {
    /// Root mean square of each row along the last dimension.
    rows: Vec<f32>,
    /// Size of the dimension before the last.
    positions: usize,
    /// Size of the last dimension.
    pub(crate) width: usize,
    /// Channels that are zero in every row.
    pub(crate) dead: usize,
}

impl Profile {
    /// Returns the profile of floats with at least two dimensions, or `None` for other values.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        let tensor = value.tensor().ok().filter(|tensor| tensor.element().is_float())?;
        let &[.., positions, width] = tensor.shape() else { return None };
        let values = tensor.floats().ok()?;
        if width == 0 || values.is_empty() {
            return None;
        }
        let mut is_zero = vec![true; width];
        let rms = |row: &[f32]| {
            let squares: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
            (squares / width as f64).sqrt()
        };
        #[expect(clippy::cast_possible_truncation, reason = "a magnitude needs no more")]
        let rows = values.chunks_exact(width).map(|row| {
            for (is_zero, value) in is_zero.iter_mut().zip(row) {
                *is_zero &= *value == 0.0;
            }
            rms(row) as f32
        });
        let rows = rows.collect();
        Some(Self { rows, positions, width, dead: is_zero.iter().filter(|it| **it).count() })
    }

    /// Returns the number of rows.
    pub(crate) fn inputs(&self) -> usize {
        self.rows.len()
    }

    /// The median of the rows' magnitudes. Few positions of healthy models, such as the first
    /// token, have values thousands of times those of others (Sun et al. 2024, "Massive
    /// Activations").
    pub(crate) fn typical(&self) -> f64 {
        let mut rows = self.rows.clone();
        rows.sort_by(f32::total_cmp);
        rows.get(rows.len().saturating_sub(1) / 2).map_or(0.0, |rms| f64::from(*rms))
    }

    /// The first and last position whose magnitude is above a bound.
    pub(crate) fn above(&self, bound: f64) -> Option<(usize, usize)> {
        let positions = self.positions.max(1);
        let above = self.rows.iter().enumerate().filter(|(_, rms)| f64::from(**rms) > bound);
        let above = above.map(|(row, _)| row % positions);
        above.fold(None, |range, at| match range {
            None => Some((at, at)),
            Some((from, to)) => Some((at.min(from), at.max(to))),
        })
    }
}

/// Correlation of elements with the next one along the last dimension: near 0 for white noise,
/// above 0.5 for pictures and sounds. `None` for what is no long signal, or constant.
pub(crate) fn correlation(value: &Value) -> Option<f64> {
    const LEAST: usize = 1000;
    let tensor = value.tensor().ok().filter(|tensor| tensor.element().is_float())?;
    let width = tensor.shape().last().copied().filter(|width| *width > 8)?;
    let values = tensor.floats().ok().filter(|values| values.len() >= LEAST)?;
    let count = values.len() as f64;
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    let (mut squares, mut products) = (0.0, 0.0);
    for row in values.chunks_exact(width) {
        for pair in row.windows(2) {
            let (one, two) = (f64::from(pair[0]) - mean, f64::from(pair[1]) - mean);
            squares += one * one;
            products += one * two;
        }
    }
    (squares > 1e-9 * count).then(|| products / squares)
}

#[cfg(test)]
mod tests {
    use apr_infer::Tensor;

    use super::*;

    #[test]
    fn rows_and_channels_are_measured() {
        let values = vec![3.0_f32, 0.0, 4.0, 0.0, 0.0, 0.0, 30.0, 0.0, 40.0];
        let tensor = Tensor::new(vec![1, 3, 3], values).expect("nine values");
        let profile = Profile::of(&tensor.into()).expect("floats");
        assert_eq!((profile.inputs(), profile.width, profile.dead), (3, 3, 1));
        assert!((profile.typical() - (25.0_f64 / 3.0).sqrt()).abs() < 1e-6);
        assert_eq!(profile.above(10.0), Some((2, 2)));
        assert_eq!(profile.above(100.0), None);
    }

    #[test]
    fn a_value_without_rows_has_no_profile() {
        let tensor = Tensor::new(vec![2], vec![1.0_f32, 2.0]).expect("two values");
        assert!(Profile::of(&tensor.into()).is_none());
        assert!(
            Profile::of(&Tensor::new(vec![2, 2], vec![1_i64; 4]).expect("four").into()).is_none()
        );
    }
}
