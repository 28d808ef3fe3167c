//! Changing the properties of a model (`metadata_props`), with its graph left as it is.

use apr_core::protobuf::{Span, Walker};
use apr_core::{ByteSource, Error, Limits, Result};

use crate::proto::Property;
use crate::write::message::{Message, Piece};

/// Field of the properties in `ModelProto`.
const PROPERTIES: u32 = 14;

/// Changes of a model's properties.
#[derive(Debug, Clone, Default)]
pub struct PropertyEdits {
    /// Keys that are removed.
    pub unset: Vec<String>,
    /// Keys and their new texts. A key that is there keeps its place.
    pub set: Vec<(String, String)>,
}

/// A part of the changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EditedPiece {
    /// Bytes of the file as it was.
    Kept(Span),
    /// New bytes that replace bytes of the file.
    New(Vec<u8>),
}

/// Returns the parts of a model's file with changed properties. Only the keys of the outermost
/// message are read.
///
/// # Errors
/// E001 for a key to remove that does not exist, E001 and E002 for an invalid file, E007 when
/// reading fails, E008 over the limits.
pub fn edited(
    source: &dyn ByteSource,
    edits: &PropertyEdits,
    limits: &Limits,
) -> Result<Vec<EditedPiece>> {
    let mut walker = Walker::new(source, limits);
    let mut message = walker.message();
    let mut pieces = Pieces::default();
    let mut unset: Vec<&str> = edits.unset.iter().map(String::as_str).collect();
    let mut written: Vec<&str> = Vec::new();
    while let Some(field) = message.next(&mut walker)? {
        if field.number != PROPERTIES {
            pieces.keep(field.span);
            continue;
        }
        let property = Property::read(&mut walker, field.message()?)?;
        let key = property.key.as_str();
        if edits.unset.iter().any(|other| other == key) {
            unset.retain(|other| *other != key);
        } else if let Some((key, text)) = edits.set.iter().rev().find(|(other, _)| other == key) {
            // A key that is there twice is there once afterwards.
            if !written.contains(&key.as_str()) {
                written.push(key);
                pieces.write(key, text);
            }
        } else {
            pieces.keep(field.span);
        }
    }
    if let Some(key) = unset.first() {
        return Err(Error::format(format!("no metadata property '{key}'")));
    }
    for (at, (key, _)) in edits.set.iter().enumerate() {
        let is_first = edits.set[..at].iter().all(|(other, _)| other != key);
        let last = edits.set.iter().rev().find(|(other, _)| other == key);
        if let Some((key, text)) = last.filter(|_| is_first && !written.contains(&key.as_str())) {
            pieces.write(key, text);
        }
    }
    Ok(pieces.0)
}

#[derive(Default)]
struct Pieces(Vec<EditedPiece>);

impl Pieces {
    fn keep(&mut self, span: Span) {
        match self.0.last_mut() {
            Some(EditedPiece::Kept(last)) if last.end() == span.offset => last.len += span.len,
            _ => self.0.push(EditedPiece::Kept(span)),
        }
    }

    fn write(&mut self, key: &str, text: &str) {
        let mut property = Message::default();
        property.text(1, key);
        property.text(2, text);
        let mut field = Message::default();
        field.message(PROPERTIES, property);
        let bytes = field.into_pieces().into_iter().flat_map(|piece| match piece {
            Piece::Bytes(bytes) => bytes,
            _ => Vec::new(),
        });
        self.0.push(EditedPiece::New(bytes.collect()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ir_version` 8, the property a=1, a graph of one byte, the property b=2.
    const MODEL: &[u8] = b"\x08\x08\x72\x06\x0a\x01a\x12\x011\x3a\x01x\x72\x06\x0a\x01b\x12\x012";

    fn changed(unset: &[&str], set: &[(&str, &str)]) -> Result<Vec<u8>> {
        let own = |text: &str| text.to_owned();
        let edits = PropertyEdits {
            unset: unset.iter().copied().map(own).collect(),
            set: set.iter().map(|(key, text)| (own(key), own(text))).collect(),
        };
        let mut file = Vec::new();
        for piece in edited(&MODEL, &edits, &Limits::default())? {
            match piece {
                EditedPiece::Kept(span) => {
                    file.extend(apr_core::read_vec(&MODEL, span.offset, span.len)?);
                }
                EditedPiece::New(bytes) => file.extend(bytes),
            }
        }
        Ok(file)
    }

    #[test]
    fn a_property_keeps_its_place_and_a_new_one_comes_last() {
        assert_eq!(changed(&[], &[]).expect("a model"), MODEL);
        assert_eq!(
            changed(&[], &[("a", "3"), ("c", "4")]).expect("a model"),
            b"\x08\x08\x72\x06\x0a\x01a\x12\x013\x3a\x01x\x72\x06\x0a\x01b\x12\x012\
              \x72\x06\x0a\x01c\x12\x014"
        );
        assert_eq!(changed(&["a", "b"], &[]).expect("a model"), b"\x08\x08\x3a\x01x");
        assert_eq!(changed(&[], &[("a", "3"), ("a", "1")]).expect("a model"), MODEL);
    }

    #[test]
    fn a_key_that_is_not_there_is_not_removed() {
        assert!(changed(&["x"], &[]).expect_err("a refusal").message().contains("'x'"));
    }

    #[test]
    fn a_file_that_is_cut_off_is_refused_at_every_length() {
        for len in 0..MODEL.len() {
            let edits = PropertyEdits { set: vec![("a".into(), "2".into())], ..Default::default() };
            let cut = &MODEL[..len];
            let whole = [0, 2, 10, 13].contains(&len);
            assert_eq!(edited(&cut, &edits, &Limits::default()).is_ok(), whole, "{len}");
        }
    }
}
