//! The text arguments of protocol 0: decimal numbers and quoted strings.

use apr_core::{Error, Result};

use super::value::Node;

/// Longest decimal number that is read as one; Python has the same limit.
const MAX_DIGITS: usize = 4300;

/// Parses the argument of `I` and `L`: a decimal number, or the booleans `01` and `00`.
pub(super) fn integer(line: &[u8]) -> Result<Node> {
    match line {
        b"01" => return Ok(Node::Bool(true)),
        b"00" => return Ok(Node::Bool(false)),
        _ => {}
    }

    let digits = line.strip_suffix(b"L").unwrap_or(line);
    let text = std::str::from_utf8(digits).unwrap_or_default().trim();
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned.is_empty()
        || unsigned.len() > MAX_DIGITS
        || !unsigned.bytes().all(|b| b.is_ascii_digit())
    {
        return Err(Error::format("a number that is not decimal"));
    }
    Ok(text.parse().map_or(Node::BigInt, Node::Int))
}

/// Parses the argument of `GET` and `PUT`. Like Python, accepts underscores between digits.
pub(super) fn memo_key(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.trim().replace('_', "").parse().ok()
}

/// `LONG1` and `LONG4`: two's complement, little-endian.
pub(super) fn long(bytes: &[u8]) -> Node {
    if bytes.len() > 16 {
        return Node::BigInt;
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    Node::Int(i128::from_le_bytes(wide))
}

/// `F`: a decimal fraction.
pub(super) fn float(line: &[u8]) -> Result<Node> {
    let text = std::str::from_utf8(line).unwrap_or_default().trim();
    text.parse().map(Node::Float).map_err(|_| Error::format("a number that is not a fraction"))
}

/// `S`: a string as Python 2 shows it, in quotes.
pub(super) fn quoted(line: &[u8]) -> Result<Vec<u8>> {
    let line = line.trim_ascii();
    let ([b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"']) = line else {
        return Err(Error::format("a string without its quotes"));
    };
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }

        let [escape, tail @ ..] = rest else {
            return Err(Error::format("a string that ends in a backslash"));
        };
        rest = tail;
        match escape {
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'r' => bytes.push(b'\r'),
            b'\\' | b'\'' | b'"' => bytes.push(*escape),
            b'x' => {
                let code = rest.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
                let code = code.and_then(|hex| u8::from_str_radix(hex, 16).ok());
                bytes.push(code.ok_or_else(|| Error::format("a string with a bad \\x escape"))?);
                rest = &rest[2..];
            }
            b'0'..=b'7' => {
                // Up to three digits, of which Python keeps eight bits.
                let len = 1 + rest.iter().take(2).take_while(|b| matches!(b, b'0'..=b'7')).count();
                let digits = std::iter::once(escape).chain(&rest[..len - 1]);
                let code = digits.fold(0_u32, |code, digit| code << 3 | u32::from(digit - b'0'));
                bytes.push((code & 0xff) as u8);
                rest = &rest[len - 1..];
            }
            b'a' => bytes.push(7),
            b'b' => bytes.push(8),
            b'v' => bytes.push(11),
            b'f' => bytes.push(12),
            // Python keeps the backslash of an escape that it does not know.
            other => bytes.extend([b'\\', *other]),
        }
    }

    Ok(bytes)
}

/// `V`: Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
pub(super) fn raw_unicode(line: &[u8]) -> Result<String> {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let [first, tail @ ..] = rest {
        let digits = match tail {
            [b'u', ..] if *first == b'\\' => 4,
            [b'U', ..] if *first == b'\\' => 8,
            // Of two backslashes, the second begins no escape.
            [b'\\', tail @ ..] if *first == b'\\' => {
                text.push_str(r"\\");
                rest = tail;
                continue;
            }
            _ => {
                text.push(char::from(*first));
                rest = tail;
                continue;
            }
        };

        let code = tail.get(1..1 + digits).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = code.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let code = code.ok_or_else(|| Error::format("a string with a bad \\u escape"))?;

        // Python's strings may hold half a surrogate pair, Rust's may not.
        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        rest = &tail[1 + digits..];
    }

    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_arguments_mean_what_python_reads() {
        assert!(matches!(integer(b"01"), Ok(Node::Bool(true))));
        assert!(matches!(integer(b"-12L"), Ok(Node::Int(-12))));
        assert!(integer(b"0x10").is_err() && integer(b"").is_err() && integer(b"--1").is_err());
        assert!(matches!(long(&[0xff]), Node::Int(-1)));
        assert!(matches!(long(&[0xff, 0]), Node::Int(255)));
        assert!(matches!(long(&[]), Node::Int(0)));
        assert_eq!(quoted(br"'a\x41\n\q'"), Ok(b"aA\n\\q".to_vec()));
        assert_eq!(quoted(br"'\157\163\0\x41\f'"), Ok(b"os\0A\x0c".to_vec()));
        assert_eq!(raw_unicode(br"\\u0041\u0041").as_deref(), Ok(r"\\u0041A"));
        assert!(quoted(b"'a").is_err() && quoted(br"'\x4'").is_err() && quoted(b"'").is_err());
        assert_eq!(
            raw_unicode("a\\u00e9\u{e9}".as_bytes()).map(|s| s.starts_with("a\u{e9}")),
            Ok(true)
        );
    }
}
