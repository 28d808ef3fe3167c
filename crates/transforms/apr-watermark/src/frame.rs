//! What is written into the weights: the id and a check of it.

use apr_core::{Error, Result};

use super::key::MarkKey;

/// Frames that there are, in bytes: short ids get more weights for each of their bytes.
pub(super) const LENGTHS: [usize; 3] = [16, 32, 64];

/// Bytes of the check.
const CHECK: usize = 4;

/// Bytes of the longest id.
pub const MAX_ID: usize = 64 - CHECK;

/// An id ready to be written: 4 bytes of a keyed hash over the id and the zeros that pad it, then
/// both, masked.
///
/// The mask is a keyed stream that the hash seeds. Ids that differ in one letter have frames that
/// differ everywhere, so that a mark with one of them does not look like the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame(Vec<u8>);

/// Checks that a text can be an id.
///
/// # Errors
/// E001 for an empty text, one of more than [`MAX_ID`] bytes of UTF-8, and control characters.
pub fn check_id(id: &str) -> Result<()> {
    if id.is_empty() || id.chars().any(char::is_control) {
        return Err(Error::format("an id is one line of text without control characters"));
    }
    if id.len() > MAX_ID {
        let message = format!("the id has {} bytes; a watermark holds {MAX_ID} at most", id.len());
        return Err(Error::format(message));
    }
    Ok(())
}

impl Frame {
    /// The shortest frame that holds an id.
    ///
    /// # Errors
    /// Those of [`check_id`].
    pub fn new(key: &MarkKey, id: &str) -> Result<Self> {
        check_id(id)?;
        let length = LENGTHS.into_iter().find(|length| id.len() + CHECK <= *length);
        let length = length.unwrap_or(MAX_ID + CHECK);
        let mut padded = id.as_bytes().to_vec();
        padded.resize(length - CHECK, 0);
        let check = check(key, &padded);
        mask(key, check, &mut padded);
        Ok(Self([&check[..], &padded].concat()))
    }

    /// The id of a frame that was read, if its check holds.
    pub(super) fn id_of(key: &MarkKey, bytes: &[u8]) -> Option<String> {
        let (found, masked) = bytes.split_first_chunk::<CHECK>()?;
        let mut padded = masked.to_vec();
        mask(key, *found, &mut padded);
        if check(key, &padded) != *found {
            return None;
        }

        // An id has no control characters, so zeros at the end are padding.
        let len = padded.iter().rposition(|&byte| byte != 0)? + 1;
        padded.truncate(len);
        String::from_utf8(padded).ok()
    }

    /// Returns the symbols of the frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn check(key: &MarkKey, padded: &[u8]) -> [u8; CHECK] {
    let hash = key.hasher("check").update(padded).finalize();
    let [a, b, c, d, ..] = *hash.as_bytes();
    [a, b, c, d]
}

fn mask(key: &MarkKey, check: [u8; CHECK], bytes: &mut [u8]) {
    let mut stream = vec![0; bytes.len()];
    key.hasher("mask").update(&check).finalize_xof().fill(&mut stream);
    bytes.iter_mut().zip(stream).for_each(|(byte, mask)| *byte ^= mask);
}
