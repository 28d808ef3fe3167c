//! UBJSON (draft 12), as far as XGBoost writes it.
//!
//! ```text
//! Z T F                     nothing, true, false
//! i U I l L                 integers of 8 (signed, unsigned), 16, 32 and 64 bits
//! d D                       floats of 32 and 64 bits
//! C S                       a character; a text: a number of bytes, then the bytes
//! [ ... ]   { ... }         a list; an object: keys without a mark of their type
//! [ $ type # count ...      a list of one type, without marks and without an end
//! ```
//!
//! Numbers are big-endian.

use apr_core::{Error, Result};

use crate::trees::document::{Item, MAX_DEPTH};
use crate::trees::numbers::count;

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// Reads a document.
///
/// # Errors
/// E001 for one that is too deep, E002 for one that is malformed.
pub(crate) fn read(bytes: &[u8]) -> Result<Item> {
    let mut reader = Reader { bytes, at: 0 };
    let mark = reader.mark()?;
    let item = reader.item(mark, 0)?;
    match reader.at == bytes.len() {
        true => Ok(item),
        false => Err(reader.bad("has bytes after its end")),
    }
}

impl Reader<'_> {
    fn bad(&self, what: &str) -> Error {
        Error::corrupt(format!("the UBJSON {what}")).at(self.at as u64)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        let taken = *taken.ok_or_else(|| self.bad("is cut off"))?;
        self.at += N;
        Ok(taken)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The mark of a type; `N` stands for none at all.
    fn mark(&mut self) -> Result<u8> {
        loop {
            let [mark] = self.take()?;
            if mark != b'N' {
                return Ok(mark);
            }
        }
    }

    fn number(&mut self, mark: u8) -> Result<Option<f64>> {
        Ok(Some(match mark {
            b'i' => f64::from(i8::from_be_bytes(self.take()?)),
            b'U' => f64::from(u8::from_be_bytes(self.take()?)),
            b'I' => f64::from(i16::from_be_bytes(self.take()?)),
            b'l' => f64::from(i32::from_be_bytes(self.take()?)),
            b'L' => i64::from_be_bytes(self.take()?) as f64,
            b'd' => f64::from(f32::from_be_bytes(self.take()?)),
            b'D' => f64::from_be_bytes(self.take()?),
            _ => return Ok(None),
        }))
    }

    /// A count: a whole number that is not negative.
    fn count(&mut self) -> Result<usize> {
        let mark = self.mark()?;
        let number = self.number(mark)?.and_then(count);
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| self.bad("has a count that is no number"))
    }

    fn text(&mut self) -> Result<String> {
        let len = self.count()?;
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| self.bad("is cut off in a text"))?;
        let text = std::str::from_utf8(&self.bytes[self.at..end]);
        let text = text.map_err(|_| self.bad("has a text that is not UTF-8"))?.to_owned();
        self.at = end;
        Ok(text)
    }

    fn item(&mut self, mark: u8, depth: usize) -> Result<Item> {
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} lists and objects are in each other");
            return Err(Error::format(message).at(self.at as u64));
        }
        if let Some(number) = self.number(mark)? {
            return Ok(Item::Number(number));
        }
        Ok(match mark {
            b'Z' => Item::Nothing,
            b'T' => Item::Truth(true),
            b'F' => Item::Truth(false),
            b'C' => {
                let [character] = self.take()?;
                Item::Text(char::from(character).to_string())
            }
            b'S' | b'H' => Item::Text(self.text()?),
            b'[' => self.list(depth)?,
            b'{' => self.object(depth)?,
            _ => return Err(self.bad("has a type that is not known")),
        })
    }

    /// The type of all items and their number, as far as they are given in front of them.
    fn header(&mut self) -> Result<(Option<u8>, Option<usize>)> {
        let kind = match self.peek() {
            Some(b'$') => {
                self.at += 1;
                let [kind] = self.take()?;
                Some(kind)
            }
            _ => None,
        };
        let count = match self.peek() {
            Some(b'#') => {
                self.at += 1;
                Some(self.count()?)
            }
            _ if kind.is_some() => return Err(self.bad("has a type of items without their number")),
            _ => None,
        };
        // Items without bytes could be any number of them.
        let left = self.bytes.len() - self.at;
        let is_empty = kind.is_some_and(|kind| b"ZTFN".contains(&kind));
        if count.is_some_and(|count| count > left || is_empty && count > 0) {
            return Err(self.bad("has fewer items than it states"));
        }
        Ok((kind, count))
    }

    fn list(&mut self, depth: usize) -> Result<Item> {
        let (kind, count) = self.header()?;
        let mut all = Item::Numbers(Vec::new());
        let mut left = count;
        loop {
            match left {
                Some(0) => return Ok(all),
                Some(count) => left = Some(count - 1),
                None if self.peek() == Some(b']') => {
                    self.at += 1;
                    return Ok(all);
                }
                None => {}
            }
            let mark = match kind {
                Some(kind) => kind,
                None => self.mark()?,
            };
            let item = self.item(mark, depth + 1)?;
            all.push(item);
        }
    }

    fn object(&mut self, depth: usize) -> Result<Item> {
        let (kind, count) = self.header()?;
        let (mut all, mut left) = (Vec::new(), count);
        loop {
            match left {
                Some(0) => return Ok(Item::Object(all)),
                Some(count) => left = Some(count - 1),
                None if self.peek() == Some(b'}') => {
                    self.at += 1;
                    return Ok(Item::Object(all));
                }
                None => {}
            }
            let key = self.text()?;
            let mark = match kind {
                Some(kind) => kind,
                None => self.mark()?,
            };
            all.push((key, self.item(mark, depth + 1)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_texts_lists_and_objects_are_read() {
        let bytes = b"{i\x01a[$d#i\x02\x3f\x80\0\0\xc0\0\0\0i\x01b[U\xffTZSi\x02xy]i\x01c{#i\x01\
            U\x01dL\0\0\0\0\0\0\x01\0}";
        let item = read(bytes).expect("well-formed");
        assert_eq!(item.at("a").and_then(Item::numbers), Some(&[1.0, -2.0][..]));
        let list = item.at("b").and_then(Item::list).expect("a list");
        assert_eq!(list[3], Item::Text("xy".into()));
        assert_eq!(item.under(&["c", "d"]), Some(&Item::Number(256.0)));
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn counts_beyond_the_file_are_errors() {
        for bad in [
            &b"[$Z#l\x7f\xff\xff\xff"[..],
            b"[$U#l\x7f\xff\xff\xff\0",
            b"[$U\0",
            b"SL\x7f\xff\xff\xff\xff\xff\xff\xff",
            b"[#i\xff",
            b"[][",
            b"?",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        assert!(read(&[b'['; 200]).is_err_and(|error| error.message().contains("in each other")));
    }
}
