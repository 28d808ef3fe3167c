//! Generated text as it grows.

use apr_inputs::text::TextStream;
use apr_registry::Result;

/// Receives the bytes of a text, piece by piece.
pub(crate) type ByteSink<'s> = dyn FnMut(&[u8]) -> Result<()> + 's;

/// Passes pieces on as texts. Bytes that are not UTF-8 become replacement characters.
pub(crate) fn as_texts(
    sink: &mut dyn FnMut(&str) -> Result<()>,
) -> impl FnMut(&[u8]) -> Result<()> {
    |piece| sink(&String::from_utf8_lossy(piece))
}

/// Text that grows and is passed on in whole characters.
pub(crate) struct GrowingText<'a> {
    /// Decoder of the tokens; `None` if tokens are written as their ids.
    stream: Option<TextStream<'a>>,
    /// Texts before which it ends.
    stops: Vec<String>,
    sink: Option<&'a mut ByteSink<'a>>,
    text: Vec<u8>,
    shown: usize,
}

impl<'a> GrowingText<'a> {
    /// Creates an empty text. `stream` is `None` if tokens are written as their ids.
    pub(crate) fn new(
        stream: Option<TextStream<'a>>,
        stops: Vec<String>,
        sink: Option<&'a mut ByteSink<'a>>,
    ) -> Self {
        Self { stream, stops, sink, text: Vec::new(), shown: 0 }
    }

    /// Adds a token. Returns `true` if the text has reached a stop text.
    pub(crate) fn add(&mut self, token: i64) -> Result<bool> {
        let stop = match &mut self.stream {
            Some(stream) => {
                self.text.extend(stream.push(token)?);
                self.stops.iter().filter_map(|stop| find(&self.text, stop.as_bytes())).min()
            }
            None => {
                let space = if self.text.is_empty() { "" } else { " " };
                self.text.extend(format!("{space}{token}").as_bytes());
                self.stops.iter().any(|stop| *stop == token.to_string()).then_some(self.text.len())
            }
        };

        if let Some(at) = stop {
            self.text.truncate(at);
        }

        self.show(false)?;
        Ok(stop.is_some())
    }

    /// The bytes so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text
    }

    /// Hands on the rest, and returns the bytes of the text.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        self.show(true)?;
        Ok(self.text)
    }

    /// Passes on new text. An incomplete character, or the possible beginning of a stop text, is
    /// held back until the end.
    fn show(&mut self, all: bool) -> Result<()> {
        let mut end = self.text.len();
        if !all {
            let held = self.stops.iter().map(|stop| stop.len().saturating_sub(1)).max();
            end = whole(&self.text, end.saturating_sub(held.unwrap_or(0)));
        }
        let end = end.max(self.shown.min(self.text.len()));
        let start = self.shown.min(end);
        self.shown = end;
        let new = &self.text[start..end];
        match &mut self.sink {
            Some(sink) => sink(new),
            None => Ok(()),
        }
    }
}

/// Returns the end of the last character before `end` that is not cut there.
fn whole(text: &[u8], end: usize) -> usize {
    // A character has four bytes at most, and begins with one that is no continuation.
    let tail = &text[end.saturating_sub(4)..end];
    let begin = tail.iter().rposition(|byte| byte & 0xc0 != 0x80);
    let cut = begin
        .map(|begin| &tail[begin..])
        .filter(|last| std::str::from_utf8(last).is_err_and(|error| error.error_len().is_none()));
    end - cut.map_or(0, <[u8]>::len)
}

/// Returns the position of a text in another.
fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len().max(1)).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_not_cut() {
        for (text, expected) in [
            (&b"abc"[..], 3),
            (b"", 0),
            ("a\u{e9}".as_bytes(), 3),
            (b"a\xc3", 1),
            (b"a\xf0\x9f\x98", 1),
            ("\u{1f600}".as_bytes(), 4),
            (b"a\xff", 2),
            (b"\x80\x80\x80\x80\x80", 5),
        ] {
            assert_eq!(whole(text, text.len()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_part_is_found_where_it_begins() {
        assert_eq!(find(b"abcabc", b"ca"), Some(2));
        assert_eq!(find(b"abc", b"x"), None);
        assert_eq!(find(b"a", b"abc"), None);
    }
}
