//! The front of a file as bytes, the notes that it takes at the end, and the signature over it.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use apr_core::digest::{Crc32, TensorDigest};
use apr_core::{Error, Notes, Result, keys};
use serde_json::{Value, json};

use super::Apr2Writer;
use crate::apr2::header::{Flags, Header, VERSION_MAJOR};
use crate::apr2::index::CODEC;
use crate::apr2::plan::json_len;
use crate::apr2::signing::sign_block;

/// The front without the metadata. Their JSON may be larger than everything else, so it is
/// generated again for each write.
pub(super) struct Front {
    header: [u8; Header::LEN as usize],
    index: Vec<u8>,
    /// Zeros up to the data section.
    padding: usize,
    encr_block: Vec<u8>,
}

impl Apr2Writer {
    /// Encodes everything before the tensors. Returns `None` if it does not fit before the data
    /// section.
    pub(super) fn encode_front(&self) -> Result<Option<Front>> {
        let index = self.encode_index()?;
        let metadata_len = json_len(&self.metadata);
        let metadata_end = u64::from(Header::LEN) + metadata_len;
        let index_end = metadata_end + index.len() as u64;
        let Some(padding) = u64::from(self.data_offset).checked_sub(index_end) else {
            return Ok(None);
        };
        let word =
            |value: u64| u32::try_from(value).map_err(|_| Error::memory("the front exceeds 4 GiB"));
        let compressed = self.entries.iter().any(|entry| entry.flags & CODEC != 0);
        let header = Header {
            version_major: VERSION_MAJOR,
            version_minor: 0,
            flags: if compressed { self.flags.union(Flags::COMPRESSED) } else { self.flags },
            metadata_offset: Header::LEN,
            metadata_size: word(metadata_len)?,
            index_offset: word(metadata_end)?,
            index_size: word(index.len() as u64)?,
            data_offset: self.data_offset,
        };

        let header = header.encode();
        let metadata = if self.encoder.encrypts() { self.metadata.to_json() } else { Vec::new() };
        let encr_block = self.encoder.encr_block(&header, [&metadata, &index]);
        Ok(Some(Front { header, index, padding: word(padding)? as usize, encr_block }))
    }

    fn encode_index(&self) -> Result<Vec<u8>> {
        let count = u32::try_from(self.entries.len()).map_err(|_| {
            Error::format(format!("{} tensors; an index holds 2^32 - 1", self.entries.len()))
        })?;
        let mut index = count.to_le_bytes().to_vec();
        index.extend_from_slice(&[0; 4]);
        for &entry in &self.by_name {
            self.entries[entry].encode(&mut index)?;
        }
        Ok(index)
    }

    /// Hands the bytes of the front on, in order; returns their CRC.
    pub(super) fn write_front(
        &self,
        front: &Front,
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Crc32> {
        let mut crc = Crc32::new();
        let mut take = |bytes: &[u8]| {
            crc.update(bytes);
            put(bytes)
        };
        take(&front.header)?;
        self.metadata.write_json(&mut take)?;
        take(&front.index)?;
        take(&vec![0; front.padding])?;
        take(&front.encr_block)?;
        Ok(crc)
    }

    /// Adds notes to the metadata if the front has space for them, in full or as a count.
    pub(super) fn take_notes(&mut self, notes: &Notes) -> Result<()> {
        let losses =
            notes.losses.iter().filter_map(|loss| serde_json::to_value(loss).ok()).collect();
        for (key, name, new) in
            [(keys::LOSS, "name", losses), (keys::VIOLATIONS, "tensor", notes.violations.clone())]
        {
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

    /// Adds to the list under `key`, whose entries have the name of their subject under `name`.
    fn note(&mut self, key: &str, name: &str, new: Vec<Value>) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }

        // A conversion of a converted file adds to what is already noted.
        let before = self.metadata.get(key).cloned();
        let mut full = before.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        full.extend(new);
        let names: BTreeSet<_> =
            full.iter().filter_map(|entry| entry.get(name)?.as_str()).collect();
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
    pub(super) fn sign(&mut self, front: &Front, digests: &[u8]) -> Result<Vec<u8>> {
        if self.signers.is_empty() {
            return Ok(Vec::new());
        }

        let mut digest = TensorDigest::new();
        digest.update(&front.header);
        self.metadata.write_json(&mut |json| {
            digest.update(json);
            Ok(())
        })?;
        [&front.index, &front.encr_block, digests].into_iter().for_each(|part| digest.update(part));
        let digest = digest.value();
        self.signed_digest = Some(digest);
        sign_block(&self.signers, &digest)
    }
}
