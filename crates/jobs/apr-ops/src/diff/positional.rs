//! What graphs encode positions with, and modules compute: slopes of ALiBi, inverse frequencies and
//! tables of rotary embeddings.

use apr_registry::{CheckpointReader, DType, Result};
use apr_tensor::element::widen_f64;

/// Bytes of the largest table that is looked at.
const TABLE: u64 = 64 << 20;
/// Elements of the shortest vector that is taken for frequencies: two are always a progression.
const LEAST: usize = 3;
/// Relative error allowed for values in half precision. Single precision has a smaller error.
const ERROR: f64 = 2e-3;

/// Describes a tensor of floats by its values; `None` for a tensor that may be a weight.
///
/// # Errors
/// E002 and E007 when it can't be read.
pub(super) fn described(
    reader: &dyn CheckpointReader,
    tensor: usize,
) -> Result<Option<&'static str>> {
    let info = &reader.tensors()[tensor];
    let len = info.byte_len()?;
    let is_plain = matches!(info.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    if !is_plain || len > TABLE {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    reader.read_tensor(tensor, 0, &mut bytes)?;
    let mut values = Vec::new();
    widen_f64(info.dtype, &bytes, &mut values);

    let dims: Vec<u64> = info.shape.dims().iter().copied().filter(|dim| *dim > 1).collect();
    Ok(match dims[..] {
        [_] if are_slopes(&values) => Some("the slopes of ALiBi, which modules compute"),
        [_] if are_inverse_frequencies(&values) => {
            Some("the inverse frequencies of rotary embeddings, which modules compute")
        }
        [.., width] if are_sines(&values, usize::try_from(width).unwrap_or_default()) => {
            Some("the table of rotary embeddings, which modules compute")
        }
        _ => None,
    })
}

fn is_near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= ERROR * expected.abs()
}

/// Returns `true` if the values are ALiBi slopes (Press et al. 2022, "Train Short, Test Long").
///
/// For a number of heads that is not a power of two, their code adds every second slope of twice as
/// many heads.
fn are_slopes(values: &[f64]) -> bool {
    let power = 1_usize << values.len().max(1).ilog2();
    let slope = |heads: usize, at: usize| (-8.0 * at as f64 / heads as f64).exp2();
    let expected = (1..=power)
        .map(|at| slope(power, at))
        .chain((0..power).map(|at| slope(2 * power, 2 * at + 1)));
    values.len() > 1 && values.iter().zip(expected).all(|(value, slope)| is_near(*value, slope))
}

/// Returns `true` if the values are inverse frequencies (Su et al. 2021, "RoFormer").
///
/// These are powers of the base. They are divided by a factor if the context is extended linearly.
fn are_inverse_frequencies(values: &[f64]) -> bool {
    let &[first, second, ..] = values else { return false };
    let ratio = second / first;
    let is_decreasing = first > 0.0 && first <= 1.0 && ratio > 0.0 && ratio < 1.0;
    let is_progression = || values.windows(2).all(|pair| is_near(pair[1], ratio * pair[0]));
    values.len() >= LEAST && is_decreasing && is_progression()
}

/// Rows of the sines and cosines of the same angles: one half behind the other.
fn are_sines(values: &[f64], width: usize) -> bool {
    let half = width / 2;
    if half == 0 || !width.is_multiple_of(2) || values.len() <= width {
        return false;
    }
    values.chunks_exact(width).all(|row| {
        let (one, two) = row.split_at(half);
        one.iter().zip(two).all(|(one, two)| is_near(one * one + two * two, 1.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `build_alibi_tensor` of transformers 5.23 with 4 and 6 heads.
    #[test]
    fn slopes_for_head_counts_that_are_not_powers_of_two_are_detected() {
        let four = [0.25, 0.0625, 0.015_625, 0.003_906_25];
        assert!(are_slopes(&four));
        assert!(are_slopes(&[&four[..], &[0.5, 0.125]].concat()));
        assert!(!are_slopes(&[0.25, 0.0625, 0.015_625, 0.01]));
        assert!(!are_slopes(&[0.25]));
    }

    #[test]
    fn frequencies_are_a_decreasing_progression() {
        let of_base = |base: f64| (0..4).map(move |at| base.powf(-f64::from(at) / 4.0));
        assert!(are_inverse_frequencies(&of_base(10_000.0).collect::<Vec<_>>()));
        assert!(are_inverse_frequencies(&of_base(1e6).map(|it| it / 8.0).collect::<Vec<_>>()));
        for other in [&[1.0, 0.1][..], &[1.0, 1.0, 1.0], &[1.0, 0.1, 0.02], &[-1.0, -0.1, -0.01]] {
            assert!(!are_inverse_frequencies(other), "{other:?}");
        }
    }

    #[test]
    fn a_table_has_the_sines_and_cosines_of_the_same_angles() {
        let angles = [[0.0, 0.0], [1.0, 0.01], [2.0, 0.02_f64]];
        let mut table: Vec<f64> = angles
            .iter()
            .flat_map(|row| row.map(f64::sin).into_iter().chain(row.map(f64::cos)))
            .collect();
        assert!(are_sines(&table, 4));
        table[9] += 0.1;
        assert!(!are_sines(&table, 4));
        assert!(!are_sines(&[0.0, 1.0], 2), "a vector is no table");
    }
}
