//! What the programs `apr` and `apr-qa` have in common: exit codes, and sizes as people write them.

use apr_core::{Code, Error, IoCause};

/// Exit code for an error without its own exit code.
pub const GENERAL: u8 = 1;
/// Exit code for invalid arguments.
pub const ARGUMENTS: u8 = 2;
/// Exit code for a missing file.
pub const NOT_FOUND: u8 = 3;
/// Exit code for an invalid file, or a file over the limits.
pub const FORMAT: u8 = 4;
/// Exit code for a failed check.
pub const VALIDATION: u8 = 5;
/// Exit code that shells report for a process that was ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Returns the exit code for a command that failed with this error; 0 for a broken pipe.
#[must_use]
pub fn exit_code(error: &Error) -> u8 {
    match (error.code(), error.cause()) {
        _ if error.not_finite().is_some() => VALIDATION,
        (_, Some(IoCause::NotFound)) => NOT_FOUND,
        (_, Some(IoCause::Interrupted)) => INTERRUPTED,
        (_, Some(IoCause::BrokenPipe)) => 0,
        (Code::Io, _) => GENERAL,
        (Code::Checksum | Code::Signature, _) => VALIDATION,
        _ => FORMAT,
    }
}

/// Parses a size: bytes, or a number with `KB MB GB TB` (powers of 1000) or
/// `K M G T KiB MiB GiB TiB` (powers of 1024).
///
/// # Errors
/// A sentence for people, where it is no size or too large.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(format!("'{text}' is below zero; try 512M, 2GB or 1073741824"));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1000_u64.pow(2),
        "gb" => 1000_u64.pow(3),
        "tb" => 1000_u64.pow(4),
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err(format!("'{unit}' is not a unit of size; try 512M, 2GB or 1073741824")),
    };

    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| format!("'{text}' is too large"));
    }

    let fraction: f64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a size; try 512M, 2GB or 1073741824"))?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "parsed digits are not negative; `as` saturates"
    )]
    Ok((fraction * factor as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected codes are listed in `docs/json.md`.
    #[test]
    fn every_code_has_an_exit_code() {
        let codes = [
            (Error::format(""), 4),
            (Error::corrupt(""), 4),
            (Error::version(""), 4),
            (Error::checksum(""), 5),
            (Error::new(Code::Decrypt, ""), 4),
            (Error::new(Code::Signature, ""), 5),
            (Error::io(IoCause::Other, ""), 1),
            (Error::io(IoCause::NotFound, ""), 3),
            (Error::io(IoCause::Interrupted, ""), 130),
            (Error::io(IoCause::BrokenPipe, ""), 0),
            (Error::memory(""), 4),
            (Error::memory("").in_file("m"), 4),
        ];
        for (error, code) in codes {
            assert_eq!(exit_code(&error), code, "{error}");
        }
    }

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        assert_eq!(parse_size("1073741824"), Ok(1 << 30));
        assert_eq!(parse_size("2GB"), Ok(2_000_000_000));
        assert_eq!(parse_size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse_size("64m"), Ok(64 << 20));
        assert!(parse_size("lots").is_err());
        assert!(parse_size("-1").is_err_and(|why| why.contains("below zero")));
        assert!(parse_size("5 parsecs").is_err());
        assert!(parse_size("99999999999G").is_err());
    }
}
