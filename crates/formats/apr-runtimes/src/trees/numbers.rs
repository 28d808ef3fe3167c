//! Numbers of documents in the types of lists.

/// A number in single precision.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded, as the programs round what they read"
)]
pub(crate) fn single(number: f64) -> f32 {
    number as f32
}

/// A whole number, or `None` for another one, and for one that a double may not have exactly.
#[expect(clippy::cast_possible_truncation, reason = "it has no fraction, and is in range")]
pub(crate) fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

/// A count, or `None` for a number that is none.
pub(crate) fn count(number: f64) -> Option<u64> {
    u64::try_from(whole(number)?).ok()
}
