//! What headers of HTTP say.

use std::ops::Range;

use ureq::http::HeaderMap;

/// Maximum accepted length of a file: 1 EiB, for which offsets can be computed without overflow.
pub(crate) const LONGEST_FILE: u64 = 1 << 60;

/// A header as text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the range and the length in a header such as `bytes 0-9/100`.
pub(crate) fn parse_content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, len) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let len: u64 = len.trim().parse().ok().filter(|&len| len <= LONGEST_FILE)?;
    if range.trim() == "*" {
        return Some((0..0, len));
    }
    let (first, last) = range.trim().split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < len).then_some((first..last + 1, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_is_read_or_rejected() {
        assert_eq!(parse_content_range("bytes 0-9/100"), Some((0..10, 100)));
        assert_eq!(parse_content_range("bytes */0"), Some((0..0, 0)));
        for wrong in
            ["bytes 9-0/100", "bytes 0-100/100", "bytes 0-9/*", "items 0-1/2", "bytes -1/2", ""]
        {
            assert_eq!(parse_content_range(wrong), None, "{wrong}");
        }
    }
}
