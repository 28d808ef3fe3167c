//! The header of an array: a Python dictionary of three entries.

use apr_core::{ByteSource, DType, Error, Escaped, Result, read_vec};

pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header. NumPy itself refuses over 10,000 bytes from files that are not trusted.
const MAX_LEN: u64 = 1 << 16;

/// Maximum number of dimensions, as in NumPy.
const MAX_DIMS: usize = 64;

/// Contents of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) dtype: DType,
    /// `true` if the most significant byte of an element is first.
    pub(crate) big_endian: bool,
    /// `true` if the first dimension is innermost (column-major order).
    pub(crate) by_columns: bool,
    pub(crate) shape: Vec<u64>,
    /// Bytes in front of the elements.
    pub(crate) len: u64,
}

/// Reads the header at the start of a source.
///
/// # Errors
/// E001 for what is not an array of NumPy's or holds objects, E002 for a truncated one, E003 for
/// dtypes and versions that are not read.
pub(crate) fn read(source: &dyn ByteSource) -> Result<Header> {
    let head = read_vec(source, 0, source.len().min(12))?;
    if !head.starts_with(MAGIC) {
        return Err(Error::format("this is not an array of NumPy's").at(0));
    }

    // The length has two bytes in version 1, and four in versions 2 and 3.
    let (first, len) = match *head {
        [_, _, _, _, _, _, 1, _, a, b, ..] => (10, u64::from(u16::from_le_bytes([a, b]))),
        [_, _, _, _, _, _, 2 | 3, _, a, b, c, d] => {
            (12, u64::from(u32::from_le_bytes([a, b, c, d])))
        }
        [_, _, _, _, _, _, 1..=3, ..] => {
            return Err(Error::corrupt("the array's header is cut off").at(6));
        }
        [_, _, _, _, _, _, version, ..] => {
            return Err(Error::version(format!(
                "this is version {version} of NumPy's format; 1 to 3 are read"
            ))
            .at(6));
        }
        _ => return Err(Error::corrupt("the array's header is cut off").at(0)),
    };

    if len > MAX_LEN {
        return Err(Error::format(format!(
            "the array's header claims {len} bytes, over {MAX_LEN}"
        ))
        .at(8));
    }

    let text = read_vec(source, first, len)?;
    let text = String::from_utf8(text)
        .map_err(|_| Error::format("the array's header is not text").at(first))?;
    let header = parse(&text, first + len).map_err(|error| error.at(first))?;
    Ok(header)
}

fn parse(text: &str, len: u64) -> Result<Header> {
    let bad = |what: &str| Error::format(format!("the array's header {what}"));

    // The header is a dict as Python prints it; its three keys are looked up in the text.
    let value = |key: &str| {
        let after = [format!("'{key}'"), format!("\"{key}\"")]
            .iter()
            .find_map(|key| text.split_once(key.as_str()));
        after.and_then(|(_, rest)| rest.trim_start().strip_prefix(':')).map(str::trim_start)
    };

    let order =
        value("fortran_order").ok_or_else(|| bad("does not state the order of the elements"))?;
    let by_columns = match order {
        _ if order.starts_with("True") => true,
        _ if order.starts_with("False") => false,
        _ => return Err(bad("has an order that is neither True nor False")),
    };
    let shape = value("shape").and_then(|shape| shape.strip_prefix('(')?.split_once(')'));
    let shape = shape.ok_or_else(|| bad("has no shape"))?.0;
    let sizes = shape
        .split(',')
        // Python 2 prints long integers as `3L`.
        .map(|size| size.trim().trim_end_matches('L'))
        .filter(|size| !size.is_empty());
    let shape: Option<Vec<u64>> = sizes.map(|size| size.parse().ok()).collect();
    let shape = shape.filter(|shape| shape.len() <= MAX_DIMS);
    let shape =
        shape.ok_or_else(|| bad(&format!("has a shape that is not up to {MAX_DIMS} sizes")))?;
    let descr = value("descr").ok_or_else(|| bad("has no dtype"))?;
    let (dtype, big_endian) = dtype(descr)?;
    Ok(Header { dtype, big_endian, by_columns, shape, len })
}

/// Returns the dtype at the start of this text, and whether it is big-endian.
fn dtype(descr: &str) -> Result<(DType, bool)> {
    let text = quoted(descr).ok_or_else(|| of_records(descr))?;
    let (big_endian, letters) = match text.split_at_checked(1) {
        Some((">", rest)) => (true, rest),
        Some(("<" | "|" | "=", rest)) => (false, rest),
        _ => (false, text),
    };
    let dtype = plain(letters).ok_or_else(|| match letters.starts_with('O') {
        true => objects_inside(),
        false => unsupported(&format!("dtype '{}'", Escaped::short(text))),
    })?;
    Ok((dtype, big_endian && dtype.block_bytes() > 1))
}

/// Returns the text in quotes of either kind at the start.
fn quoted(text: &str) -> Option<&str> {
    let within = |quote: char| text.strip_prefix(quote)?.split_once(quote);
    within('\'').or_else(|| within('"')).map(|(quoted, _)| quoted)
}

/// Returns the dtype of plain numbers with this NumPy name, without the byte order.
fn plain(letters: &str) -> Option<DType> {
    Some(match letters {
        "b1" => DType::BOOL,
        "i1" => DType::I8,
        "u1" => DType::U8,
        "i2" => DType::I16,
        "u2" => DType::U16,
        "i4" => DType::I32,
        "u4" => DType::U32,
        "i8" => DType::I64,
        "u8" => DType::U64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "c8" => DType::C64,
        _ => return None,
    })
}

/// Returns the error for an array whose elements have fields.
fn of_records(descr: &str) -> Error {
    let is_objects = |part: &str| matches!(part.trim_start_matches('|'), "O" | "O4" | "O8");
    let objects = descr.split(['\'', '"']).any(is_objects);
    if objects && descr.starts_with('[') { objects_inside() } else { unsupported("records") }
}

fn objects_inside() -> Error {
    Error::format(
        "object arrays are pickles and not supported; `apr scan` lists what they would execute",
    )
}

fn unsupported(what: &str) -> Error {
    Error::version(format!("this is an array of {what}, which no dtype of apr holds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apr_core::Code;

    fn parsed(descr: &str, rest: &str) -> Result<Header> {
        parse(&format!("{{'descr': {descr}, {rest}, }}"), 0)
    }

    #[test]
    fn files_written_by_numpy_are_read() {
        let rest = "'fortran_order': False, 'shape': (2, 3)";
        let header = parsed("'<f4'", rest).expect("a header");
        assert_eq!(
            (header.dtype, header.big_endian, header.by_columns),
            (DType::F32, false, false)
        );
        assert_eq!(header.shape, [2, 3]);
        let header = parsed("'>i8'", "'fortran_order': True, 'shape': (5,)").expect("a header");
        assert_eq!(
            (header.dtype, header.big_endian, header.by_columns, header.shape),
            (DType::I64, true, true, vec![5])
        );
        // Python 2 wrote its long numbers so.
        let header =
            parsed("'|u1'", "'fortran_order': False, 'shape': (3L, 4L)").expect("a header");
        assert_eq!(header.shape, [3, 4]);
        assert_eq!(
            parsed("'|b1'", "'fortran_order': False, 'shape': ()").expect("a header").shape,
            [0; 0]
        );
    }

    #[test]
    fn files_without_an_array_of_numbers_are_rejected() {
        let rest = "'fortran_order': False, 'shape': (2,)";
        for descr in ["'|O'", "'O8'", "[('a', '|O')]"] {
            assert_eq!(parsed(descr, rest).expect_err(descr).code(), Code::Format);
        }
        for descr in ["'<U4'", "'|S3'", "'<c16'", "'|V2'", "'<M8[ns]'", "[('O_', '<f4')]"] {
            assert_eq!(parsed(descr, rest).expect_err(descr).code(), Code::Version, "{descr}");
        }
        for rest in [
            "'shape': (2,)",
            "'fortran_order': 1, 'shape': (2,)",
            "'fortran_order': True, 'shape': (-1,)",
        ] {
            assert_eq!(parsed("'<f4'", rest).expect_err(rest).code(), Code::Format);
        }
    }
}
