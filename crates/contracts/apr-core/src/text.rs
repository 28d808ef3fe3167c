//! Numbers as messages show them.

use alloc::format;
use alloc::string::{String, ToString};

/// A number with its noun: `1 tensor`, `1,200 tensors`.
///
/// ```
/// assert_eq!(apr_core::counted(1, "tensor"), "1 tensor");
/// assert_eq!(apr_core::counted(39_000_000, "parameter"), "39,000,000 parameters");
/// ```
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number to four significant digits: `11.2`, `-0.003125`, `1.5e-7`.
///
/// ```
/// assert_eq!(apr_core::number(11.0), "11");
/// assert_eq!(apr_core::number(0.000_312_54), "0.0003125");
/// assert_eq!(apr_core::number(1.0e12), "1e12");
/// ```
#[must_use]
pub fn number(value: f64) -> String {
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    let plain = rounded == 0.0 || !rounded.is_finite() || (1e-4..1e7).contains(&rounded.abs());
    if plain { format!("{rounded}") } else { format!("{rounded:e}") }
}
