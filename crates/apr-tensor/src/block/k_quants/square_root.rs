//! The square root of `f32`, which `core` does not offer.

/// Correctly rounded, hence equal on every target.
#[cfg(feature = "std")]
#[inline(always)]
pub(super) fn square_root(value: f32) -> f32 {
    value.sqrt()
}

/// Correctly rounded, hence equal on every target.
#[cfg(not(feature = "std"))]
pub(super) fn square_root(value: f32) -> f32 {
    square_root_by_integers(value)
}

/// Correctly rounded; NaN below zero.
#[cfg(any(test, not(feature = "std")))]
#[expect(clippy::cast_possible_truncation, reason = "the root has 32 bits")]
fn square_root_by_integers(value: f32) -> f32 {
    if value.is_nan() || value < 0.0 {
        return f32::NAN;
    }
    if value == 0.0 || value.is_infinite() {
        return value;
    }
    // value = significand * 2^exponent, with an even exponent and a significand of at least 62 bits, so that the
    // integer root has 31 or 32 bits: more than the 24 of the result.
    let bits = value.to_bits();
    let (fraction, biased) = (bits & 0x007f_ffff, (bits >> 23) as i32);
    let (integer, exponent) = if biased == 0 { (fraction, -149) } else { (fraction | 0x0080_0000, biased - 150) };
    let zeros = u64::from(integer).leading_zeros() as i32;
    let shift = zeros - ((exponent - zeros) & 1);
    let significand = u64::from(integer) << shift;
    let root = significand.isqrt();
    // A set last bit stands for what follows it, so that the conversion rounds as the whole root would.
    let sticky = u32::from(root * root != significand);
    let half = (exponent - shift) / 2;
    (root as u32 | sticky) as f32 * f32::from_bits(((127 + half) as u32) << 23)
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn roots_equal_the_processors() {
        let special = [0.0, -0.0, 1.0, 2.0, 4.0, 0.1, f32::MAX, f32::MIN_POSITIVE, 1e-45, 1e-40, f32::INFINITY];
        let every_so_often = (0..0x7f80_0000_u32).step_by(4099).map(f32::from_bits);
        for value in special.into_iter().chain(every_so_often) {
            assert_eq!(square_root_by_integers(value).to_bits(), value.sqrt().to_bits(), "{value:e}");
        }
        assert!(square_root_by_integers(-1.0).is_nan() && square_root_by_integers(f32::NAN).is_nan());
    }
}
