//! Bytes that are written as text, as a source that is read at any place.
//!
//! Pickle has an opcode for bytes since protocol 3. Before, a program of Python 3 writes the text
//! that has each byte as a character (Latin-1), in UTF-8, and a call that turns it into bytes:
//! those above 127 take two bytes in the file. Where a byte of an array lies is found by counting,
//! at its first read; the places counted so far are kept, one for each page.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use apr_core::{ByteSource, Error, Result};

use crate::view::Range;

/// Decoded bytes from one place that is kept to the next. Some 130,000 places serve 1 GB.
const PAGE: u64 = 1 << 13;

/// Bytes of text that are read at a time.
const WINDOW: u64 = 1 << 14;

/// An array whose bytes are text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayText {
    /// Range of the text in the file.
    pub(crate) text: Range,
    /// Range of the decoded bytes in a [`Latin1Source`].
    pub(crate) decoded: Range,
}

/// A file, and after its end the bytes of texts in it.
pub(crate) struct Latin1Source {
    file: Box<dyn ByteSource>,
    /// Texts in order. Their decoded bytes follow each other from the end of the file on.
    texts: Vec<(ArrayText, Pages)>,
    len: u64,
}

/// Offsets in the file of the first pages of a text, as far as they are known.
type Pages = Mutex<Vec<u64>>;

impl Latin1Source {
    /// Creates the source.
    ///
    /// The texts must be inside the file; their bytes follow its end without gaps.
    pub(crate) fn new(file: Box<dyn ByteSource>, texts: Vec<ArrayText>) -> Self {
        let end = texts.last().map(|text| text.decoded.offset + text.decoded.len);
        let len = end.unwrap_or_else(|| file.len());
        let texts = texts.into_iter().map(|text| (text, Mutex::new(vec![text.text.offset])));
        Self { texts: texts.collect(), len, file }
    }

    /// Returns the offset of a page in the file. Finds the earlier pages first.
    fn page(&self, text: &ArrayText, pages: &Pages, page: u64) -> Result<u64> {
        let mut pages = pages.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let known = pages.get(usize::try_from(page).unwrap_or(usize::MAX));
            if let Some(&start) = known {
                return Ok(start);
            }
            let last = pages.last().copied().unwrap_or(text.text.offset);
            pages.push(self.past(text, last, PAGE)?);
        }
    }

    /// Returns the offset in the file of the character that is `characters` after `at`.
    fn past(&self, text: &ArrayText, at: u64, characters: u64) -> Result<u64> {
        let (mut left, mut at) = (characters, at);
        let mut window = Vec::new();
        loop {
            self.fill(&mut window, text, at)?;
            let starts = window.iter().filter(|&&byte| starts_character(byte)).count() as u64;
            // The character after the last one that is counted starts the next page.
            if starts > left {
                let mut places = (0..).zip(&window).filter(|&(_, &byte)| starts_character(byte));
                let place = places.nth(usize::try_from(left).unwrap_or(usize::MAX));
                return Ok(at + place.map_or(0, |(place, _): (u64, _)| place));
            }
            left -= starts;
            at += window.len() as u64;
        }
    }

    /// The next bytes of a text; an error at its end.
    fn fill(&self, window: &mut Vec<u8>, text: &ArrayText, at: u64) -> Result<()> {
        let len = (text.text.offset + text.text.len - at).min(WINDOW);
        if len == 0 {
            return Err(Error::corrupt("an array's text has fewer bytes than its shape").at(at));
        }
        window.resize(usize::try_from(len).unwrap_or_default(), 0);
        self.file.read_at(at, window)
    }

    /// Fills `buf` with bytes of a text from `offset` on.
    fn decode(
        &self,
        text: &ArrayText,
        pages: &Pages,
        offset: u64,
        mut buf: &mut [u8],
    ) -> Result<()> {
        let is_last = offset + buf.len() as u64 == text.decoded.len;
        let mut at = self.page(text, pages, offset / PAGE)?;
        at = self.past(text, at, offset % PAGE)?;
        let mut window = Vec::new();
        let mut high = None;
        while !buf.is_empty() {
            self.fill(&mut window, text, at)?;
            let mut used = 0;
            for &byte in &window {
                if buf.is_empty() {
                    break;
                }
                used += 1;
                let character = match (high.take(), byte) {
                    (None, 0..=0x7f) => byte,
                    (None, 0xc2 | 0xc3) => {
                        high = Some(byte << 6);
                        continue;
                    }
                    (Some(high), 0x80..=0xbf) => high | (byte & 0x3f),
                    _ => {
                        let message = "an array's bytes are text that is not Latin-1";
                        return Err(Error::corrupt(message).at(at + used - 1));
                    }
                };
                if let Some((first, rest)) = std::mem::take(&mut buf).split_first_mut() {
                    *first = character;
                    buf = rest;
                }
            }
            at += used;
        }

        if is_last && at != text.text.offset + text.text.len {
            return Err(Error::corrupt("an array's text has more bytes than its shape").at(at));
        }
        Ok(())
    }
}

/// Returns `true` if a byte of UTF-8 begins a character.
fn starts_character(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

impl ByteSource for Latin1Source {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if offset < self.file.len() {
            return self.file.read_at(offset, buf);
        }
        let (mut offset, mut buf) = (offset, buf);
        while !buf.is_empty() {
            let at = self.texts.partition_point(|(text, _)| text.decoded.offset <= offset);
            let found = at.checked_sub(1).and_then(|at| self.texts.get(at));
            let (text, pages) =
                found.ok_or_else(|| Error::corrupt("a range past the last array").at(offset))?;
            let within = offset - text.decoded.offset;
            let left = text.decoded.len.saturating_sub(within);
            let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
            if len == 0 {
                return Err(Error::corrupt("a range past the last array").at(offset));
            }
            let (head, tail) = buf.split_at_mut(len);
            self.decode(text, pages, within, head)?;
            offset += len as u64;
            buf = tail;
        }
        Ok(())
    }

    fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        // Decoded bytes lie past the end of the file, where it has no slice to give.
        self.file.slice_at(offset, len)
    }
}

impl fmt::Debug for Latin1Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latin1Source").field("texts", &self.texts).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(bytes: &[u8], declared: u64) -> Latin1Source {
        let text: String = bytes.iter().copied().map(char::from).collect();
        let text = [b"head", text.as_bytes(), b"tail"].concat();
        let lies = Range { offset: 4, len: text.len() as u64 - 8 };
        let decoded = Range { offset: text.len() as u64, len: declared };
        Latin1Source::new(Box::new(text), vec![ArrayText { text: lies, decoded }])
    }

    #[test]
    fn bytes_are_read_at_any_place_in_any_order() {
        let bytes: Vec<u8> =
            (0_u32..40_000).map(|at| (at * at % 251 + at % 5).to_le_bytes()[0]).collect();
        let source = source(&bytes, bytes.len() as u64);
        let start = source.file.len();
        for (at, len) in [(39_999, 1), (8_191, 2), (0, 40_000), (16_384, 8_192), (20_001, 17)] {
            let mut read = vec![0; len];
            source.read_at(start + at as u64, &mut read).expect("in range");
            assert_eq!(read, bytes[at..at + len], "{at}");
        }
        let mut head = [0; 4];
        source.read_at(0, &mut head).expect("in range");
        assert_eq!(&head, b"head");
    }

    #[test]
    fn a_text_of_another_length_is_an_error_where_that_shows() {
        for (declared, message) in [(9_usize, "more bytes"), (11, "fewer bytes")] {
            let source = source(&[200; 10], declared as u64);
            let start = source.file.len();
            source.read_at(start, &mut [0; 4]).expect("the first bytes are there");
            let error = source.read_at(start, &mut [0; 11][..declared]).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        let wide = "12\u{100}".as_bytes().to_vec();
        let lies =
            ArrayText { text: Range { offset: 0, len: 4 }, decoded: Range { offset: 4, len: 3 } };
        let source = Latin1Source::new(Box::new(wide), vec![lies]);
        let error = source.read_at(4, &mut [0; 3]).unwrap_err();
        assert!(error.to_string().contains("not Latin-1"), "{error}");
    }
}
