//! Quantiles of the normal distribution.

/// Returns the number that a standard normal variable is below with a probability between 0 and 1,
/// for which it is infinite.
///
/// The rational approximations are Acklam's (2003), with a relative error below 1.2e-9.
#[must_use]
pub fn normal_quantile(probability: f64) -> f64 {
    let polynomial = |factors: &[f64], x: f64| factors.iter().fold(0.0, |sum, a| sum * x + a);
    const TAIL: f64 = 0.02425;
    const TAIL_ABOVE: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const TAIL_BELOW: [f64; 5] =
        [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0];
    const ABOVE: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const BELOW: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    if probability == 0.0 || probability == 1.0 {
        return if probability == 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let tail = |share: f64| {
        let root = (-2.0 * share.ln()).sqrt();
        polynomial(&TAIL_ABOVE, root) / polynomial(&TAIL_BELOW, root)
    };
    if probability < TAIL {
        return tail(probability);
    }
    if probability > 1.0 - TAIL {
        return -tail(1.0 - probability);
    }
    let middle = probability - 0.5;
    let square = middle * middle;
    middle * polynomial(&ABOVE, square) / polynomial(&BELOW, square)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        for (share, quantile) in [
            (0.5, 0.0),
            (0.95, 1.6448536269514722),
            (0.999, 3.090232306167813),
            (0.01, -2.32634787),
        ] {
            assert!((normal_quantile(share) - quantile).abs() < 1e-7, "{share}");
        }
    }
}
