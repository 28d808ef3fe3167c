//! The front of a file as bytes, the notes that it takes at the end, and the signature over it.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;

use apr_core::{Error, Notes, Result, keys};
use serde_json::{Value, json};

use super::Apr2Writer;
use crate::apr2::header::{Flags, Header, VERSION_MAJOR};
use crate::apr2::index::CODEC;
#[cfg(feature = "signing")]
use crate::apr2::trailer::signed_digest;

/// The front as bytes, and where its sections end.
pub(super) struct Front {
    /// Header, metadata, index, zeros up to the data section, and the ENCR block.
    pub(super) bytes: Vec<u8>,
    #[cfg(feature = "signing")]
    metadata_end: usize,
    #[cfg(feature = "signing")]
    index_end: usize,
}

impl Apr2Writer {
    /// Everything before the tensors; `None` when it does not fit before the data section.
    pub(super) fn encode_front(&self) -> Result<Option<Front>> {
        let mut bytes = self.metadata.to_json();
        let mut index = Vec::new();
        let count = u32::try_from(self.entries.len())
            .map_err(|_| Error::format(format!("{} tensors; an index holds 2^32 - 1", self.entries.len())))?;
        index.extend_from_slice(&count.to_le_bytes());
        index.extend_from_slice(&[0; 4]);
        for &entry in &self.by_name {
            self.entries[entry].encode(&mut index)?;
        }
        let metadata_len = bytes.len();
        let len = u64::from(Header::LEN) + (metadata_len + index.len()) as u64;
        if len > self.data_offset.into() {
            return Ok(None);
        }
        let word = |value: usize| u32::try_from(value).map_err(|_| Error::memory("the front exceeds 4 GiB"));
        let metadata_end = Header::LEN as usize + metadata_len;
        let compressed = self.entries.iter().any(|entry| entry.flags & CODEC != 0);
        let header = Header {
            version_major: VERSION_MAJOR,
            version_minor: 0,
            flags: if compressed { self.flags.union(Flags::COMPRESSED) } else { self.flags },
            metadata_offset: Header::LEN,
            metadata_size: word(metadata_len)?,
            index_offset: word(metadata_end)?,
            index_size: word(index.len())?,
            data_offset: self.data_offset,
        };
        let encr_block = self.encoder.encr_block(&header.encode(), [&bytes, &index]);
        // In place: metadata may be as large as a vocabulary.
        drop(bytes.splice(0..0, header.encode()));
        bytes.extend_from_slice(&index);
        bytes.resize(self.data_offset as usize, 0);
        bytes.extend_from_slice(&encr_block);
        Ok(Some(Front {
            bytes,
            #[cfg(feature = "signing")]
            metadata_end,
            #[cfg(feature = "signing")]
            index_end: metadata_end + index.len(),
        }))
    }

    /// Writes the notes down where the front has room, in full or as a count.
    pub(super) fn take_notes(&mut self, notes: &Notes) -> Result<()> {
        let losses = notes.losses.iter().filter_map(|loss| serde_json::to_value(loss).ok()).collect();
        for (key, name, new) in [(keys::LOSS, "name", losses), (keys::VIOLATIONS, "tensor", notes.violations.clone())] {
            self.note(key, name, new)?;
        }
        let before = self.metadata.get(keys::QUANTIZATION).cloned();
        if let (Some(degradation), Some(before)) = (&notes.degradation, before)
            && self.metadata.note_degradation(degradation.clone())
            && self.encode_front()?.is_none()
        {
            self.metadata.set(keys::QUANTIZATION, before);
        }
        Ok(())
    }

    /// Adds to the list under `key`, whose entries name what they are about under `name`.
    fn note(&mut self, key: &str, name: &str, new: Vec<Value>) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        // A conversion of a converted file adds to what is already noted.
        let before = self.metadata.get(key).cloned();
        let mut full = before.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        full.extend(new);
        let names: BTreeSet<_> = full.iter().filter_map(|entry| entry.get(name)?.as_str()).collect();
        let what = format!("{} entries", names.len());
        let summary = json!([{ name: "*", "what": what, "why": "see the conversion's report" }]);
        for value in [Value::Array(full), summary] {
            self.metadata.set(key, value);
            if self.encode_front()?.is_some() {
                return Ok(());
            }
        }
        match before {
            Some(before) => self.metadata.set(key, before),
            None => drop(self.metadata.remove(key)),
        }
        Ok(())
    }

    /// The SIGN block; empty without signers.
    #[cfg(feature = "signing")]
    pub(super) fn sign(&mut self, front: &Front, digests: &[u8]) -> Result<Vec<u8>> {
        if self.signers.is_empty() {
            return Ok(Vec::new());
        }
        let (header, rest) = front.bytes[..front.index_end].split_at(Header::LEN as usize);
        let (metadata, index) = rest.split_at(front.metadata_end - Header::LEN as usize);
        let digest = signed_digest([header, metadata, index, &front.bytes[self.data_offset as usize..], digests]);
        self.signed_digest = Some(digest);
        let mut block = crate::crypto::SignBlock::default();
        self.signers.iter().try_for_each(|key| block.sign(key, &digest))?;
        Ok(block.encode())
    }

    #[cfg(not(feature = "signing"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with the feature")]
    pub(super) fn sign(&mut self, _front: &Front, _digests: &[u8]) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}
