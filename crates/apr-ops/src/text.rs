/// A number with its noun: `1 tensor`, `1,200 tensors`.
///
/// ```
/// assert_eq!(apr_ops::counted(1, "tensor"), "1 tensor");
/// assert_eq!(apr_ops::counted(39_000_000, "parameter"), "39,000,000 parameters");
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
