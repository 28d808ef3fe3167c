//! The square root of `f64`, which `core` does not offer.

/// Correctly rounded, hence equal to the processor's instruction on every target; NaN below zero.
#[expect(clippy::cast_possible_truncation, reason = "exponents have 11 bits, the root has 64")]
pub(crate) fn square_root(value: f64) -> f64 {
    if value.is_nan() || value < 0.0 {
        return f64::NAN;
    }
    if value == 0.0 || value.is_infinite() {
        return value;
    }
    // value = significand * 2^exponent, with an even exponent and a significand of at least 126 bits,
    // so that the integer root has 63 or 64 bits: more than the 53 of the result.
    let bits = value.to_bits();
    let (fraction, biased) = (bits & ((1 << 52) - 1), bits >> 52);
    let (integer, exponent) = if biased == 0 { (fraction, -1074) } else { (fraction | 1 << 52, biased as i32 - 1075) };
    let zeros = u128::from(integer).leading_zeros() as i32;
    let shift = zeros - ((exponent - zeros) & 1);
    let significand = u128::from(integer) << shift;
    let root = significand.isqrt();
    // A set last bit stands for what follows it, so that the conversion rounds as the whole root would.
    let sticky = u128::from(root * root != significand);
    let nearest = (root | sticky) as u64 as f64;
    let half = (exponent - shift) / 2;
    nearest * f64::from_bits(((1023 + half) as u64) << 52)
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn roots_equal_the_processors() {
        let special = [0.0, -0.0, 1.0, 2.0, 4.0, 0.1, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1e-310, f64::INFINITY];
        let mut state = 7_u64;
        let noise = (0..200_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from_bits(state ^ state >> 31).abs()
        });
        for value in special.into_iter().chain(noise).filter(|value| !value.is_nan()) {
            assert_eq!(square_root(value).to_bits(), value.sqrt().to_bits(), "{value:e}");
        }
        assert!(square_root(-1.0).is_nan() && square_root(f64::NAN).is_nan());
    }
}
