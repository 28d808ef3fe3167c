//! The companions a tokenizer is read from.

use apr_core::{Error, Result, counted, grouped};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::vocabulary::{self, wrong_json};

/// Bytes of a tokenizer file; the largest in use have half of it.
const MAX_FILE: usize = 64 << 20;

/// Names and contents.
#[derive(Clone, Copy)]
pub(super) struct Files<'a>(pub(super) &'a [(String, Vec<u8>)]);

impl<'a> Files<'a> {
    pub(super) fn bytes(self, name: &str) -> Option<&'a [u8]> {
        self.0.iter().find(|(there, _)| there == name).map(|(_, bytes)| bytes.as_slice())
    }

    /// A file of JSON.
    pub(super) fn json<T: Deserialize<'a>>(self, name: &str) -> Result<Option<T>> {
        self.text(name)?.map(|text| parse(name, text)).transpose()
    }

    /// An object of JSON.
    pub(super) fn object(self, name: &str) -> Result<Option<Map<String, Value>>> {
        self.json(name)
    }

    pub(super) fn text(self, name: &str) -> Result<Option<&'a str>> {
        let Some(bytes) = self.bytes(name) else { return Ok(None) };
        if bytes.len() > MAX_FILE {
            let size = counted(bytes.len() as u64, "byte");
            return Err(
                Error::format(format!("it has {size}, too many for a tokenizer")).in_file(name)
            );
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            Error::format("it is not UTF-8").in_file(name).at(error.valid_up_to() as u64)
        })?;
        Ok(Some(text.strip_prefix('\u{feff}').unwrap_or(text)))
    }

    /// Returns the SentencePiece model of the files.
    ///
    /// Some models have a list of ranks named `tokenizer.model`, which is another format.
    pub(super) fn sentencepiece(self) -> Option<&'a [u8]> {
        sentencepiece_file(self.0).map(|(_, bytes)| bytes)
    }
}

/// Returns the SentencePiece model among the files of a model, and its name.
#[must_use]
pub fn sentencepiece_file(files: &[(String, Vec<u8>)]) -> Option<(&'static str, &[u8])> {
    let of = |name| Some((name, Files(files).bytes(name)?));
    ["tokenizer.model", "spiece.model", "spm.model"]
        .into_iter()
        .find_map(|name| of(name).filter(|(_, bytes)| !vocabulary::is_ranks(bytes)))
}

/// # Errors
/// E001 at the byte where `text` is not JSON, or none of a `T`.
pub(super) fn parse<'a, T: Deserialize<'a>>(name: &str, text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::format(wrong_json(&error)).in_file(name))
}

/// Returns the number of tokens of a vocabulary with `entries` entries and ids up to `highest`.
///
/// `rows` is the number of rows of the embedding, if it is known.
///
/// # Errors
/// E001 if an id is far beyond the entries and the rows, or if there are more tokens than any model
/// has.
pub(super) fn size(file: &str, highest: u64, entries: usize, rows: Option<u64>) -> Result<usize> {
    // One large id could ask for padding of terabytes otherwise.
    let plausible = 4 * entries as u64 + 1024;
    let size = match rows {
        Some(rows) => rows,
        None if highest < plausible => highest + 1,
        None => {
            let entries = counted(entries as u64, "token");
            let message =
                format!("the token id {} is out of range for {entries}", grouped(highest));
            return Err(Error::format(message).in_file(file));
        }
    };

    match usize::try_from(size) {
        Ok(size) if size <= vocabulary::MAX_TOKENS => Ok(size),
        _ => Err(Error::format(format!("{} are too many", counted(size, "token"))).in_file(file)),
    }
}
