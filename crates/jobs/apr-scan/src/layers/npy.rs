//! Headers of NumPy's arrays: whether the values are a pickle.
//!
//! A header is a Python dictionary, which NumPy evaluates as a literal. It may then be written in
//! ways in which NumPy never writes it: with escapes, with keys that occur twice.

use apr_core::{Error, Result, read_vec};

use super::ScannedBytes;

/// Maximum length of an array's header in bytes.
///
/// NumPy reads 10,000, or more if the caller trusts the file.
const MAX_HEADER: u64 = 1 << 16;

/// Content of an array's header.
pub(super) struct Array {
    /// Offset of the values.
    pub(super) values: u64,
    /// Type of the values.
    pub(super) holds: Holds,
    /// Warning about the header, if it is unusual.
    pub(super) odd: Option<&'static str>,
}

/// Type of an array's values.
pub(super) enum Holds {
    /// Objects, stored as a pickle.
    Objects,
    /// Numbers or texts, with their total number of bytes.
    Numbers(u64),
    /// Fields, or what is not known.
    Unknown,
}

/// Reads the header of an array, which starts with `head`.
///
/// # Errors
/// E002 for a damaged header, E007 when reading fails.
pub(super) fn read(place: &ScannedBytes<'_>, head: &[u8]) -> Result<Array> {
    let damaged = || Error::corrupt("the array's header is damaged").at(place.start);
    let (len, first) = match *head {
        [_, _, _, _, _, _, 1, _, a, b, ..] => (u64::from(u16::from_le_bytes([a, b])), 10),
        [_, _, _, _, _, _, 2..=3, _, a, b, c, d, ..] => {
            (u64::from(u32::from_le_bytes([a, b, c, d])), 12)
        }
        _ => return Err(damaged()),
    };

    // Headers of a hundred bytes are usual; the bytes may be what a small file decodes to.
    if len > MAX_HEADER {
        return Err(damaged());
    }
    let header =
        read_vec(place.source, place.start + first, len.min(place.len())).map_err(|_| damaged())?;
    let header = String::from_utf8_lossy(&header);
    if !header.contains("descr") {
        return Err(damaged());
    }

    let values = place.start + first + len;
    if !is_usual(&header) {
        let odd = Some("the header of the array is not written as NumPy writes it");
        return Ok(Array { values, holds: Holds::Unknown, odd });
    }
    Ok(Array { values, holds: holds(&header), odd: None })
}

/// Returns `true` if a header has each key once, and texts without escapes or prefixes.
fn is_usual(header: &str) -> bool {
    let parts: Vec<&str> = header.split(['\'', '"']).collect();
    // Between two texts is a comma, a colon or a bracket; adjacent texts would be one.
    let between = |part: &str| {
        let rest = part.replace("False", "").replace("True", "");
        !part.trim().is_empty() && !rest.contains(|c: char| c.is_ascii_alphabetic() && c != 'L')
    };
    let once = |key: &str| parts.iter().filter(|part| **part == key).count() == 1;
    !header.contains('\\')
        && parts.len() % 2 == 1
        && parts.iter().step_by(2).skip(1).all(|part| between(part))
        && ["descr", "fortran_order", "shape"].into_iter().all(once)
}

fn holds(header: &str) -> Holds {
    let descr = header.split_once("descr").and_then(|(_, rest)| rest.split_once(':'));
    let descr = descr.map_or("", |(_, rest)| rest.trim_start());
    if let Some(text) = descr.strip_prefix(['\'', '"']) {
        let dtype = text.split(['\'', '"']).next().unwrap_or_default();
        if is_objects(dtype) {
            return Holds::Objects;
        }
        return size(dtype, header).map_or(Holds::Unknown, Holds::Numbers);
    }

    // Fields, whose names may have any letters.
    let descr = descr.split("fortran_order").next().unwrap_or(descr);
    let mut texts = descr.split(['\'', '"']);
    if texts.any(is_objects) { Holds::Objects } else { Holds::Unknown }
}

fn is_objects(dtype: &str) -> bool {
    let dtype = dtype.trim_start_matches(['|', '<', '>', '=']);
    matches!(dtype, "O" | "O4" | "O8" | "object" | "object_")
}

/// The bytes of an array of a plain dtype.
fn size(dtype: &str, header: &str) -> Option<u64> {
    let (kind, digits) = dtype.trim_start_matches(['|', '<', '>', '=']).split_at_checked(1)?;
    let digits = digits.split('[').next().unwrap_or(digits);
    let width: u64 = digits.parse().ok()?;
    let width = match kind {
        "U" => width.checked_mul(4)?,
        "b" | "i" | "u" | "f" | "c" | "S" | "V" | "M" | "m" => width,
        _ => return None,
    };
    let shape = header.split_once("shape")?.1.split_once('(')?.1.split_once(')')?.0;
    shape
        .split(',')
        .map(|dim| dim.trim().trim_end_matches('L'))
        .filter(|dim| !dim.is_empty())
        .try_fold(width, |size, dim| size.checked_mul(dim.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_usual_only_as_numpy_writes_them() {
        for (header, usual) in [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", true),
            ("{'descr': '<M8[ns]', 'fortran_order': True, 'shape': (3, 4), }", true),
            (
                "{'descr': [('a', '<f4'), ('b', '<i8', (2,))], 'fortran_order': False, \
                 'shape': ()}",
                true,
            ),
            ("{'descr': '\\x4f', 'fortran_order': False, 'shape': (3,)}", false),
            ("{'descr': '' 'O', 'fortran_order': False, 'shape': (3,)}", false),
            ("{'descr': u'O', 'fortran_order': False, 'shape': (3,)}", false),
            ("{'descr': 'f4', 'fortran_order': False, 'shape': (3,), 'descr': 'O'}", false),
        ] {
            assert_eq!(is_usual(header), usual, "{header}");
        }
        let header = "'shape': (2, 3)";
        assert_eq!(size("<f4", header), Some(24));
        assert_eq!(size("<U5", header), Some(120));
        assert_eq!(size("f4,O", header), None);
    }
}
