//! How far the values of two runs are apart.

use apr_tensor::drift::Drift;

/// Returns the relative L2 distance of `b` from `a` and their cosine.
///
/// Values in `b` that are not finite make the distance infinite.
pub(crate) fn l2_and_cosine(a: &[f32], b: &[f32]) -> (f64, f64) {
    let drift = Drift::of(a, b);
    if drift.non_finite > 0 {
        return (f64::INFINITY, 0.0);
    }
    // The root of a square may be off by one bit.
    let cosine = match drift.sum_squared_error == 0.0 {
        true => 1.0,
        false => drift.cosine().unwrap_or(0.0),
    };
    (drift.relative_error().unwrap_or(f64::INFINITY), cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_relative_to_the_first() {
        // numpy: norm([3, 4] - [3, 5]) / norm([3, 4]) == 0.2; cosine 29 / (5 * sqrt(34))
        let (l2, cosine) = l2_and_cosine(&[3.0, 4.0], &[3.0, 5.0]);
        assert!((l2 - 0.2).abs() < 1e-12);
        assert!((cosine - 29.0 / (5.0 * 34.0_f64.sqrt())).abs() < 1e-12);
        assert_eq!(l2_and_cosine(&[1.0, 2.0], &[1.0, 2.0]), (0.0, 1.0));
        assert_eq!(l2_and_cosine(&[1.0, 2.0], &[f32::NAN, 2.0]), (f64::INFINITY, 0.0));
        assert_eq!(l2_and_cosine(&[0.0, 0.0], &[0.0, 1.0]), (f64::INFINITY, 0.0));
    }
}
