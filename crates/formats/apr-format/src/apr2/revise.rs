//! Changing a file without moving its tensors: other metadata, other names, signatures, a licence.
//!
//! Only the front and what follows the tensors are made anew. The CRC-32 of the whole follows from
//! the old one, so that the time does not depend on the model's size.
//!
//! # How a file is changed in place
//!
//! `apr2/revise.rs` makes a new front and a new tail (digests, signatures, licence, footer) for
//! changes that move no tensor. The slack in the front exists for this. CRC-32 is linear, so the
//! new CRC follows from the old one: the difference of the ends is shifted over the length between
//! them. `sign` therefore takes as long for 100 GB as for 1 MB.
//!
//! `LockedFile` holds the file's lock from before the file is read until the change is on disk. It
//! first writes the bytes to be overwritten and their replacement to a hidden undo file
//! (`apr-io/undo.rs`) and syncs it. Then it writes the tail, then the front. After a crash, the
//! undo file remains. The next change of the file uses it to restore the old state, once every
//! block has proved to belong to this change. Readers reject the file until then. If the front
//! does not fit, or tensors are dropped, `edit` streams a new file under the same lock.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use apr_core::digest::{Digest, crc32_with_other_ends};
use apr_core::{CheckpointReader, ContainerFacts, Error, Metadata, Result, keys, read_vec};

use super::header::{Flags, Header};
use super::index::{INDEX_HEADER_LEN, IndexEntry, check_info, decode_index};
use super::layout::FOOTER_LEN;
use super::reader::Apr2Reader;
use super::seals::Seals;
use super::signing::{Licence, SigningKey, revised_seals};
use super::trailer::{Footer, encode_digests, signed_digest};

/// Changes to a file.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// The metadata, as they shall be.
    pub metadata: Option<Metadata>,
    /// New names of tensors, by the old ones.
    pub renames: BTreeMap<String, String>,
    /// Keys that sign the file.
    pub signers: Vec<SigningKey>,
    /// A licence, and the key of its issuer, which also signs the model.
    pub licence: Option<(Licence, SigningKey)>,
}

impl Changes {
    fn touch_content(&self) -> bool {
        self.metadata.is_some() || !self.renames.is_empty()
    }

    /// Returns `true` if the changes sign or license the file.
    fn seal(&self) -> bool {
        !self.signers.is_empty() || self.licence.is_some()
    }
}

/// The changed parts of a file. The bytes between them are unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// Bytes from the start of the file on.
    pub front: Vec<u8>,
    /// Offset of the tail in the file, in bytes.
    pub tail_offset: u64,
    /// Bytes from there on; the file ends with them.
    pub tail: Vec<u8>,
    /// Bytes that the front replaces; as long as the front.
    pub old_front: Vec<u8>,
    /// Bytes that the tail replaces, up to the end of the file.
    pub old_tail: Vec<u8>,
    /// Signatures that the file then has.
    pub signatures: usize,
    /// Signatures that no longer hold and are left out.
    pub dropped_signatures: usize,
    /// `true` if a licence is no longer valid and is dropped.
    pub dropped_licence: bool,
}

impl Apr2Reader {
    /// Returns the bytes to write for `changes`, or `None` if the file must be written again.
    ///
    /// That is the case if the tensors would have to move, because the front is longer than the
    /// space before them, or would have to be encrypted again.
    ///
    /// # Errors
    /// E001 when a tensor to be renamed is not there, or two would have one name; E005 when the
    /// file is encrypted and no key was given; E006 when there are no digests to sign, or the
    /// padding between tensors that shall be signed is not zero.
    pub fn revise(&self, changes: &Changes) -> Result<Option<Revision>> {
        self.revised(changes).map_err(|error| error.in_file(&self.files()[0].name))
    }

    fn revised(&self, changes: &Changes) -> Result<Option<Revision>> {
        if self.must_seal_anew(changes)? {
            return Ok(None);
        }

        let (old, source) = (self.header(), self.source());
        let metadata = self.revised_metadata(changes)?;
        let mut index = read_vec(source, old.index_offset.into(), old.index_size.into())?;
        let mut digests = self.digests().map(<[Digest]>::to_vec);
        if !changes.renames.is_empty() {
            (index, digests) =
                renamed_index(decode_index(&index, old)?.entries, &changes.renames, digests)?;
        }

        let flags = self.revised_flags(changes);
        let index_offset = Header::LEN as usize + metadata.len();
        let word = |value: usize| {
            u32::try_from(value).map_err(|_| Error::memory("the front exceeds 4 GiB"))
        };
        let header = Header {
            flags,
            metadata_size: word(metadata.len())?,
            index_offset: word(index_offset)?,
            index_size: word(index.len())?,
            ..*old
        };

        let sections = [&header.encode()[..], &metadata, &index].concat();
        if sections.len() > old.data_offset as usize {
            return Ok(None);
        }

        let encr = self.revised_encr(&header, &metadata, &index, changes.touch_content())?;
        let mut front = sections.clone();
        front.resize(old.data_offset as usize, 0);
        front.extend_from_slice(&encr);

        let mut tail = digests.as_deref().map(encode_digests).unwrap_or_default();
        let digest = digests.is_some().then(|| signed_digest([&sections, &[], &[], &encr, &tail]));
        let keeps = !changes.touch_content() && flags == old.flags;
        let Seals { blocks, signatures, dropped_signatures, dropped_licence } =
            revised_seals(self, &changes.signers, changes.licence.as_ref(), digest, keeps)?;
        tail.extend_from_slice(&blocks);

        let (tail_offset, footer_offset) = self.tail_range();
        if changes.seal() {
            // The front and the tail are made anew; what is between them stays.
            let stays = self.first_nonzero_padding(front.len() as u64..tail_offset)?;
            stays.map_or(Ok(()), |at| Err(self.uncovered("the padding is not zero", at)))?;
        }

        let old_front = read_vec(source, 0, front.len() as u64)?;
        let old_tail = read_vec(source, tail_offset, source.len() - tail_offset)?;
        let summed = usize::try_from(footer_offset - tail_offset)
            .map_or(&old_tail[..], |len| &old_tail[..len]);
        let middle = tail_offset - front.len() as u64;
        let crc32 = crc32_with_other_ends(
            self.footer().crc32,
            middle,
            [&old_front, summed],
            [&front, &tail],
        );
        let file_size = tail_offset + tail.len() as u64 + u64::from(FOOTER_LEN);
        tail.extend_from_slice(&Footer { crc32, file_size }.encode());
        Ok(Some(Revision {
            front,
            tail_offset,
            tail,
            old_front,
            old_tail,
            signatures,
            dropped_signatures,
            dropped_licence,
        }))
    }

    /// Returns `true` if the changes affect encrypted content that can't be changed in place.
    ///
    /// # Errors
    /// E005 when they could be, but there is no key.
    fn must_seal_anew(&self, changes: &Changes) -> Result<bool> {
        if !(self.header().flags.contains(Flags::ENCRYPTED) && changes.touch_content()) {
            return Ok(false);
        }
        if !changes.renames.is_empty() || self.has_hidden_metadata() {
            return Ok(true);
        }
        if self.is_locked() { Err(super::seal::locked()) } else { Ok(false) }
    }

    /// Returns the metadata section, unchanged if the changes do not affect it.
    fn revised_metadata(&self, changes: &Changes) -> Result<Vec<u8>> {
        let old = self.header();
        match &changes.metadata {
            Some(changed) => Ok(renamed_metadata(changed, &changes.renames).to_json()),
            None if changes.renames.is_empty() => {
                read_vec(self.source(), old.metadata_offset.into(), old.metadata_size.into())
            }
            None => Ok(renamed_metadata(self.metadata(), &changes.renames).to_json()),
        }
    }

    fn revised_flags(&self, changes: &Changes) -> Flags {
        let seals = Flags::SIGNED.union(Flags::LICENSED);
        let old = self.header().flags;
        let mut flags = if changes.touch_content() { Flags(old.0 & !seals.0) } else { old };
        if !changes.signers.is_empty() {
            flags = flags.union(Flags::SIGNED);
        }
        match changes.licence {
            Some(_) => flags.union(seals),
            // A licence is of one signed state of the file.
            None if flags != old => Flags(flags.0 & !Flags::LICENSED.0),
            None => flags,
        }
    }
}

/// Returns the metadata with renamed tensors.
fn renamed_metadata(metadata: &Metadata, renames: &BTreeMap<String, String>) -> Metadata {
    let mut metadata = metadata.clone();
    let renamed = |name: &str| renames.get(name).map_or_else(|| name.into(), Clone::clone);
    if let Some(tied) = metadata.object(keys::TIED) {
        let tied: serde_json::Map<_, _> = tied
            .iter()
            .map(|(name, target)| {
                (
                    renamed(name),
                    target.as_str().map_or_else(|| target.clone(), |to| renamed(to).into()),
                )
            })
            .collect();
        metadata.set(keys::TIED, tied);
    }

    metadata
}

/// Returns the index with renamed tensors, sorted again, and the digests in its order.
fn renamed_index(
    mut entries: Vec<IndexEntry>,
    renames: &BTreeMap<String, String>,
    digests: Option<Vec<Digest>>,
) -> Result<(Vec<u8>, Option<Vec<Digest>>)> {
    let known: BTreeSet<&str> = entries.iter().map(|entry| entry.info.name.as_str()).collect();
    if let Some(unknown) = renames.keys().find(|name| !known.contains(name.as_str())) {
        return Err(Error::format("no such tensor to rename").for_tensor(unknown));
    }

    for entry in &mut entries {
        if let Some(name) = renames.get(&entry.info.name) {
            entry.info.name.clone_from(name);
            check_info(&entry.info)?;
        }
    }

    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|&a, &b| entries[a].info.name.cmp(&entries[b].info.name));
    if let Some(pair) =
        order.windows(2).find(|pair| entries[pair[0]].info.name == entries[pair[1]].info.name)
    {
        return Err(Error::format("two tensors would have this name")
            .for_tensor(&entries[pair[0]].info.name));
    }
    let mut index = Vec::with_capacity(INDEX_HEADER_LEN);
    let count = u32::try_from(entries.len())
        .map_err(|_| Error::format(format!("{} tensors", entries.len())))?;
    index.extend_from_slice(&count.to_le_bytes());
    index.extend_from_slice(&[0; 4]);
    order.iter().try_for_each(|&entry| entries[entry].encode(&mut index))?;
    Ok((index, digests.map(|digests| order.iter().map(|&entry| digests[entry]).collect())))
}
