//! How alike the rows of a router are.

/// Sweeps of rotations: off-diagonal elements shrink quadratically, so that ten are more than
/// enough.
const SWEEPS: usize = 30;

/// Returns the ratio of the largest and the smallest singular value of rows, or `None`.
///
/// It is the square root of the ratio of the eigenvalues of the rows' products, computed with
/// Jacobi rotations. The result is `None` if the rows are linearly dependent.
pub(super) fn condition(rows: &[&[f32]]) -> Option<f64> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    let count = rows.len();
    let mut products: Vec<Vec<f64>> =
        rows.iter().map(|a| rows.iter().map(|b| dot(a, b)).collect()).collect();
    for _ in 0..SWEEPS {
        let mut rotated = false;
        for p in 0..count {
            for q in p + 1..count {
                rotated |= rotate(&mut products, p, q);
            }
        }
        if !rotated {
            break;
        }
    }
    let values = || (0..count).map(|at| products[at][at]);
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    // What is left of products of single precision is rounding.
    (least > most * 1e-13).then(|| libm::sqrt(most / least))
}

/// Rotates rows and columns `p` and `q` to make their element zero.
///
/// Returns `false` if the element already is zero.
fn rotate(matrix: &mut [Vec<f64>], p: usize, q: usize) -> bool {
    let off = matrix[p][q];
    if off.abs() <= 1e-15 * libm::sqrt((matrix[p][p] * matrix[q][q]).abs()) {
        return false;
    }
    let theta = (matrix[q][q] - matrix[p][p]) / (2.0 * off);
    let t = theta.signum() / (theta.abs() + libm::sqrt(theta * theta + 1.0));
    let c = 1.0 / libm::sqrt(t * t + 1.0);
    let s = t * c;
    for row in matrix.iter_mut() {
        let (x, y) = (row[p], row[q]);
        (row[p], row[q]) = (c * x - s * y, s * x + c * y);
    }
    let (x, y) = (matrix[p].clone(), matrix[q].clone());
    matrix[p] = x.iter().zip(&y).map(|(x, y)| c * x - s * y).collect();
    matrix[q] = x.iter().zip(&y).map(|(x, y)| s * x + c * y).collect();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_match_known_matrices() {
        let near = |found: Option<f64>, expected: f64| {
            assert!((found.expect("independent rows") - expected).abs() < 1e-6 * expected);
        };
        near(condition(&[&[1.0, 0.0], &[0.0, 1.0]]), 1.0);
        near(condition(&[&[3.0, 0.0, 0.0], &[0.0, 0.0, 0.5]]), 6.0);
        // Two unit vectors at an angle: cot(angle / 2).
        let angle = 0.3_f32;
        let expected = 1.0 / f64::from(angle / 2.0).tan();
        let rows = [[1.0, 0.0], [angle.cos(), angle.sin()]];
        let found = condition(&[&rows[0], &rows[1]]);
        assert!((found.expect("independent") - expected).abs() < 1e-4 * expected);
        assert_eq!(condition(&[&[1.0, 2.0], &[1.0, 2.0]]), None);
        assert_eq!(condition(&[&[0.0, 0.0]]), None);
    }
}
