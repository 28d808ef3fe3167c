//! word2vec's binary form: a vector behind each word.

use std::sync::{Mutex, PoisonError};

use apr_core::{ByteSource, Error, Result};

use super::cursor::Cursor;

/// Digits of a count in the header.
const MAX_DIGITS: usize = 12;

/// Bytes of the first word, by which a file is recognized.
const MAX_FIRST_WORD: usize = 255;

/// Words from one place that is kept to the next.
const PAGE: u64 = 64;

/// Returns the numbers of words and dimensions, and the length of the line that states them.
pub(crate) fn header(head: &[u8]) -> Option<(u64, u64, usize)> {
    let number = |digits: &[u8]| {
        let is_number = (1..=MAX_DIGITS).contains(&digits.len());
        let is_number = is_number && digits.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse::<u64>().ok()
    };
    let head = &head[..head.len().min(2 * MAX_DIGITS + 3)];
    let end = head.iter().position(|&byte| byte == b'\n')?;
    let line = head[..end].strip_suffix(b"\r").unwrap_or(&head[..end]);
    let space = line.iter().position(|&byte| byte == b' ')?;
    Some((number(&line[..space])?, number(&line[space + 1..])?, end + 1))
}

/// Returns `true` if the bytes after the first word are not text. Other programs write vectors as
/// text.
pub(crate) fn recognises(head: &[u8]) -> bool {
    let Some((words, dims, len)) = header(head) else { return false };
    let rest = &head[len..];
    let word = rest.iter().take(MAX_FIRST_WORD + 1).position(|&byte| byte == b' ');
    let Some(word) = word.filter(|&word| word > 0 && words > 0 && dims > 0) else { return false };
    if rest[..word].iter().any(u8::is_ascii_control) {
        return false;
    }
    let vector = usize::try_from(dims.saturating_mul(4)).unwrap_or(usize::MAX);
    let is_text = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n');
    !rest[word + 1..].iter().take(vector).all(is_text)
}

/// The vectors of a file, one behind each word.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Offset of the first word; `end` is the end of the file.
    start: u64,
    end: u64,
    words: u64,
    /// Bytes of a vector.
    row: u64,
    /// `true` if each vector ends with a line feed, as the original program writes it.
    has_lines: bool,
    /// Offset of every [`PAGE`]th word, as far as known: all from the first on.
    pages: Mutex<Vec<u64>>,
}

impl Rows {
    /// Reads the first vector only.
    pub(crate) fn open(source: &dyn ByteSource, head: &[u8]) -> Result<(Self, [u64; 2])> {
        let header = header(head);
        let (words, dims, len) =
            header.ok_or_else(|| Error::format("not a word2vec header").at(0))?;
        let (start, end) = (len as u64, source.len());
        // No word is shorter than none; the space is always there.
        let row = dims.checked_mul(4);
        let least = row.and_then(|row| row.checked_add(1)?.checked_mul(words));
        let row = row.filter(|_| least.is_some_and(|least| least <= end - start));
        let row = row.ok_or_else(|| {
            let message = format!(
                "{words} vectors of {dims} numbers are declared, but the file has {end} bytes"
            );
            Error::corrupt(message).at(0)
        })?;
        let pages = Mutex::new(vec![start]);
        let mut rows = Self { start, end, words, row, has_lines: false, pages };
        if words > 0 {
            let mut cursor = Cursor::new(source, start);
            rows.next(&mut cursor, None)?;
            rows.has_lines = cursor.left() > 0 && cursor.byte()? == b'\n';
        }
        Ok((rows, [words, dims]))
    }

    /// Returns the length of all words in bytes, one line per word, or `None` if the file is too
    /// short for the vectors.
    pub(crate) fn words_len(&self) -> Option<u64> {
        // The line feed takes the place of the space.
        let vectors = self.words.checked_mul(self.row.checked_add(u64::from(self.has_lines))?)?;
        (self.end - self.start).checked_sub(vectors)
    }

    /// Skips a word and its vector. The line feed is not read.
    fn next(&self, cursor: &mut Cursor<'_>, text: Option<&mut Vec<u8>>) -> Result<()> {
        cursor.word(b' ', text)?;
        cursor.skip(self.row)
    }

    /// Skips the line feed of the previous word, if there are line feeds, and checks the end of the
    /// last vector.
    fn end_row(&self, cursor: &mut Cursor<'_>, word: u64) -> Result<()> {
        let at = cursor.at;
        if self.has_lines && cursor.byte()? != b'\n' {
            let message = format!("vector {word} does not end in a line feed, unlike the first");
            return Err(Error::corrupt(message).at(at));
        }
        if word + 1 == self.words && cursor.left() > 0 {
            let message = format!("{} bytes follow the last vector", cursor.left());
            return Err(Error::corrupt(message).at(cursor.at));
        }
        Ok(())
    }

    /// Returns the offset of a page, after skipping the words before it.
    fn page(&self, source: &dyn ByteSource, page: u64) -> Result<u64> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let last = pages.last().copied().unwrap_or(self.start);
        let mut cursor = Cursor::new(source, last);
        loop {
            if let Some(&start) = pages.get(usize::try_from(page).unwrap_or(usize::MAX)) {
                return Ok(start);
            }
            let first = (pages.len() as u64 - 1) * PAGE;
            for word in first..first + PAGE {
                self.next(&mut cursor, None)?;
                self.end_row(&mut cursor, word)?;
            }
            pages.push(cursor.at);
        }
    }

    /// Fills `buf` with bytes of the vectors from `offset` on, which must be there.
    pub(crate) fn read(&self, source: &dyn ByteSource, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(first) = offset.checked_div(self.row).filter(|_| !buf.is_empty()) else {
            return Ok(());
        };
        let page = first / PAGE;
        let mut cursor = Cursor::new(source, self.page(source, page)?);
        for word in page * PAGE..first {
            self.next(&mut cursor, None)?;
            self.end_row(&mut cursor, word)?;
        }

        let (mut word, mut within, mut rest) = (first, offset % self.row, buf);
        while !rest.is_empty() {
            cursor.word(b' ', None)?;
            cursor.skip(within)?;
            let len = usize::try_from(self.row - within).unwrap_or(usize::MAX).min(rest.len());
            let (head, tail) = rest.split_at_mut(len);
            cursor.read(head)?;
            if within + len as u64 == self.row {
                self.end_row(&mut cursor, word)?;
            }
            (word, within, rest) = (word + 1, 0, tail);
        }
        Ok(())
    }

    /// Returns all words, one per line. [`words_len`](Self::words_len) returns their length in
    /// bytes.
    pub(crate) fn read_words(&self, source: &dyn ByteSource) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut cursor = Cursor::new(source, self.start);
        for word in 0..self.words {
            self.next(&mut cursor, Some(&mut text))?;
            text.push(b'\n');
            self.end_row(&mut cursor, word)?;
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_distinguished_from_text_by_the_bytes_after_the_first_word() {
        for head in [&b"2 1\nking \0\0\x80\x3f"[..], b"20 300\r\n</s> \xc3\xf5\x28\xbd"] {
            assert!(recognises(head));
        }
        let text = b"2 3\nking 0.125 0.25 -1\nqueen 1 2 3\n";
        let heads = [&text[..], b"2 3\n", b"2 3\nking", b"2\nking \0\0\0\0", b"0 3\nking \0\0\0\0"];
        for head in heads {
            assert!(!recognises(head), "{head:?}");
        }
        assert!(!recognises(b"1234567890123 3\nking \0\0\0\0"));
    }
}
