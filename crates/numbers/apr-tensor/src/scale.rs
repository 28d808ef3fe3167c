//! Bins of one width, a power of two.

/// Exponent of the smallest positive `f64`.
pub(crate) const MIN_EXPONENT: i32 = -1074;

/// Finds the bins of values at one width.
pub(crate) struct Scale {
    /// Two factors whose product is `1 / width`, which itself may exceed `f64`.
    factors: [f64; 2],
    width: f64,
}

impl Scale {
    pub(crate) fn new(exponent: i32) -> Self {
        let half = -exponent / 2;
        Self { factors: [half, -exponent - half].map(power_of_two), width: power_of_two(exponent) }
    }

    /// The largest integer that is not above `value / width`, for quotients below 2^51.
    #[inline(always)]
    pub(crate) fn floor(&self, value: f64) -> f64 {
        // Sums near this number have no room for a fraction.
        const ROUNDER: f64 = (3_u64 << 51) as f64;
        // Scaling is exact, or its result so small that it rounds to zero. What was rounded up goes
        // one down again; compared before scaling, since a tiny negative value may have become zero
        // by it.
        let nearest = (value * self.factors[0] * self.factors[1] + ROUNDER) - ROUNDER;
        if value < nearest * self.width { nearest - 1.0 } else { nearest }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the floor is an integer of 52 bits at most"
    )]
    pub(crate) fn index(&self, value: f64) -> i64 {
        self.floor(value) as i64
    }
}

/// `2^exponent`, for exponents that `f64` has.
pub(crate) fn power_of_two(exponent: i32) -> f64 {
    match u64::try_from(exponent + 1023) {
        Ok(biased) if biased > 0 => f64::from_bits(biased << 52),
        _ => f64::from_bits(1 << (exponent - MIN_EXPONENT)),
    }
}

/// The exponent of the largest power of two that is not above `magnitude`, which is not negative.
pub(crate) fn exponent_of(magnitude: f64) -> i32 {
    let bits = magnitude.to_bits();
    match (bits >> 52) as i32 {
        // The product with 2^54 is normal.
        0 if bits > 0 => exponent_of(magnitude * power_of_two(54)) - 54,
        0 => MIN_EXPONENT,
        biased => biased - 1023,
    }
}
