//! What a format knows of its file beside tensors and metadata: checksum, signatures, shards.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::digest::Digest;
use crate::{ByteSource, CheckpointReader, Error, Result, StoredPart, StoredRange, Sum};

/// What a part of a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Header, metadata, index, trailer.
    Structure,
    /// Bytes of the tensor with this position in [`CheckpointReader::tensors`].
    Tensor(usize),
    /// Bytes of the companion with this position in [`CheckpointReader::companions`].
    Companion(usize),
    /// Bytes that align what follows; zero in a well-made file.
    Padding,
}

/// A part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// What it is for.
    pub kind: ExtentKind,
    /// From the start of the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A checksum over a file, and the parts that make up what it covers, in order and without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChecksum {
    /// CRC-32 (IEEE) that the file states.
    pub crc32: u32,
    /// Everything the checksum covers.
    pub extents: Vec<Extent>,
}

impl FileChecksum {
    /// Of the file up to the byte `end`, whose `parts` are given in any order: what is between them
    /// is padding.
    ///
    /// ```
    /// use apr_core::{Extent, ExtentKind, FileChecksum};
    ///
    /// let tensor = Extent { kind: ExtentKind::Tensor(0), offset: 64, len: 8 };
    /// let header = Extent { kind: ExtentKind::Structure, offset: 0, len: 40 };
    /// let padding = Extent { kind: ExtentKind::Padding, offset: 40, len: 24 };
    /// assert_eq!(
    ///     FileChecksum::over(1, vec![tensor, header], 72).extents,
    ///     [header, padding, tensor]
    /// );
    /// ```
    #[must_use]
    pub fn over(crc32: u32, mut parts: Vec<Extent>, end: u64) -> Self {
        parts.sort_by_key(|part| (part.offset, part.len));
        let mut extents = Vec::with_capacity(2 * parts.len() + 1);
        let mut position = 0;
        for mut part in parts {
            if part.offset > position {
                extents.push(Extent {
                    kind: ExtentKind::Padding,
                    offset: position,
                    len: part.offset - position,
                });
            }
            // Only an empty tensor can start inside another part, and it covers nothing wherever it
            // is.
            part.offset = part.offset.max(position);
            position = part.offset + part.len;
            extents.push(part);
        }

        if end > position {
            extents.push(Extent {
                kind: ExtentKind::Padding,
                offset: position,
                len: end - position,
            });
        }

        Self { crc32, extents }
    }

    /// All bytes that it covers, as what every tensor of the file `source` is made of: where
    /// nothing is stated about a tensor alone, it is sound if the file is.
    #[must_use]
    pub fn part<'a>(&self, source: &'a dyn ByteSource) -> StoredPart<'a> {
        let len = self.extents.last().map_or(0, |last| last.offset + last.len);
        StoredPart::of_file(source, StoredRange { file: 0, offset: 0, len }, Sum::Crc32(self.crc32))
    }
}

/// The signatures over a checkpoint, and what they sign; blocks are whole, with head and padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// BLAKE3-256 of everything that is signed.
    pub digest: Digest,
    /// The SIGN block, where there is one.
    pub signatures: Option<Vec<u8>>,
    /// The LICN block, where there is one.
    pub licence: Option<Vec<u8>>,
}

/// How a file of the native container is laid out; other formats have none of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Tensors are encrypted, even if a key was given that opens them.
    pub encrypted: bool,
    /// There is a signature or a licence; nothing says that it holds.
    pub signed: bool,
    /// Tensors lie in the order of their first use, and the front is near the beginning.
    pub streaming: bool,
    /// Bytes that tensors are aligned to.
    pub alignment: Option<u64>,
}

/// Of [`ContainerFacts::header_fields`]: the key of a training checkpoint that its reader took off
/// the names of the weights, so that a prefix with that key still selects them.
pub const WEIGHTS_KEY: &str = "weights_key";

/// Data of a file that are no tensors of its checkpoint: the numbers and texts of a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unlisted {
    /// What they are, in the plural.
    pub what: String,
    /// Their names in the file.
    pub names: Vec<String>,
}

/// What only the reader of a format can say. Readers over other readers have no business here: they
/// pass on the [`Container`]. A default is what holds for a format that has no such thing.
pub trait ContainerFacts: Send + Sync {
    /// Header fields that only this format has, as an object for display; null where there are
    /// none.
    fn header_fields(&self) -> Value {
        Value::Null
    }

    /// Data that are not among the tensors, by what they are.
    fn unlisted(&self) -> &[Unlisted] {
        &[]
    }

    /// How the file is laid out.
    fn features(&self) -> Features {
        Features::default()
    }

    /// Whether tensors are encrypted and nothing was given that opens them: reading them is E005.
    fn is_locked(&self) -> bool {
        false
    }

    /// The checksum over the file, where the format has one.
    fn checksum(&self) -> Option<FileChecksum> {
        None
    }

    /// Reads bytes of the main file that belong to no tensor; only formats with a
    /// [`checksum`](Self::checksum) need it.
    ///
    /// # Errors
    /// E002 past the end of the file, E007 when reading fails.
    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let _ = buf;
        Err(Error::corrupt("this format has no raw parts").at(offset))
    }

    /// The signatures that the file carries, and what they would sign; nothing is verified. `None`
    /// where the format has no signatures, or nothing that they could be of.
    ///
    /// # Errors
    /// E007 when reading fails.
    fn signed(&self) -> Result<Option<Signed>> {
        Ok(None)
    }

    /// The key that made a signature which is no SIGN block, once it holds under that key; `None`
    /// where there is none.
    ///
    /// # Errors
    /// E006 when the signature is not one of these bytes, E007 when reading fails.
    fn signed_by(&self) -> Result<Option<[u8; 32]>> {
        Ok(None)
    }

    /// Checks the bytes that no signature covers: padding, what follows the file's end, parts that
    /// nobody knows.
    ///
    /// # Errors
    /// E006 with the place of the first byte that is not zero padding, E007 when reading fails.
    fn check_uncovered(&self) -> Result<()> {
        Ok(())
    }

    /// Number of files that are checkpoints of their own, each with a [`checksum`](Self::checksum);
    /// 0 where the format has no such.
    fn shard_count(&self) -> usize {
        0
    }

    /// One of them, opened, with its own part of the tensors.
    ///
    /// # Errors
    /// E007 when it is absent, E002 and E004 when it is not the one that belongs here, otherwise as
    /// opening it.
    fn shard(&self, shard: usize) -> Result<&dyn CheckpointReader> {
        Err(Error::format(format!("no shard {shard}")))
    }
}

/// The container of a checkpoint, as it is seen through the readers over it.
#[derive(Clone, Copy, Default)]
pub struct Container<'a> {
    facts: Option<&'a dyn ContainerFacts>,
    altered: bool,
    undecoded: Option<&'a Arc<dyn CheckpointReader>>,
}

impl<'a> Container<'a> {
    /// That of a reader of a format.
    #[must_use]
    pub fn of(facts: &'a dyn ContainerFacts) -> Self {
        Self { facts: Some(facts), altered: false, undecoded: None }
    }

    /// Seen through a reader whose tensors are others than the file's, by number, name, order or
    /// bytes. What was said of the file as a whole (checksum, signatures, shards) does not hold for
    /// them.
    #[must_use]
    pub fn altered(self) -> Self {
        Self { altered: true, ..self }
    }

    /// Seen through a reader that decodes weights of this one. What was said of the file as a whole
    /// holds; positions of tensors, in a [`checksum`](Self::checksum), are those of the
    /// [`undecoded`](Self::undecoded), of which shards are asked, too.
    #[must_use]
    pub fn decoded(self, undecoded: &'a Arc<dyn CheckpointReader>) -> Self {
        Self { undecoded: Some(undecoded), ..self }
    }

    /// The checkpoint with the tensors of the file, where weights of it are decoded from several of
    /// them.
    #[must_use]
    pub fn undecoded(self) -> Option<&'a Arc<dyn CheckpointReader>> {
        self.undecoded.filter(|_| !self.altered)
    }

    /// The facts about checkpoints of their own, which have tensors of the file.
    fn of_shards(self) -> Option<&'a dyn ContainerFacts> {
        self.whole().filter(|_| self.undecoded.is_none())
    }

    /// The facts that are about the very tensors.
    fn whole(self) -> Option<&'a dyn ContainerFacts> {
        self.facts.filter(|_| !self.altered)
    }

    /// Those of [`ContainerFacts::header_fields`].
    #[must_use]
    pub fn header_fields(self) -> Value {
        self.facts.map_or(Value::Null, ContainerFacts::header_fields)
    }

    /// Those of [`ContainerFacts::unlisted`].
    #[must_use]
    pub fn unlisted(self) -> &'a [Unlisted] {
        self.facts.map_or(&[], ContainerFacts::unlisted)
    }

    /// Those of [`ContainerFacts::features`].
    #[must_use]
    pub fn features(self) -> Features {
        self.facts.map(ContainerFacts::features).unwrap_or_default()
    }

    /// As [`ContainerFacts::is_locked`].
    #[must_use]
    pub fn is_locked(self) -> bool {
        self.facts.is_some_and(ContainerFacts::is_locked)
    }

    /// That of [`ContainerFacts::checksum`].
    #[must_use]
    pub fn checksum(self) -> Option<FileChecksum> {
        self.whole()?.checksum()
    }

    /// As [`ContainerFacts::read_raw`].
    ///
    /// # Errors
    /// E002 past the end of the file and where there are no raw parts, E007 when reading fails.
    pub fn read_raw(self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.whole() {
            Some(facts) => facts.read_raw(offset, buf),
            None => Err(Error::corrupt("this checkpoint has no raw parts").at(offset)),
        }
    }

    /// Those of [`ContainerFacts::signed`].
    ///
    /// # Errors
    /// E007 when reading fails.
    pub fn signed(self) -> Result<Option<Signed>> {
        self.whole().map_or(Ok(None), ContainerFacts::signed)
    }

    /// As [`ContainerFacts::signed_by`].
    ///
    /// # Errors
    /// Those of [`ContainerFacts::signed_by`].
    pub fn signed_by(self) -> Result<Option<[u8; 32]>> {
        self.whole().map_or(Ok(None), ContainerFacts::signed_by)
    }

    /// As [`ContainerFacts::check_uncovered`].
    ///
    /// # Errors
    /// Those of [`ContainerFacts::check_uncovered`].
    pub fn check_uncovered(self) -> Result<()> {
        self.whole().map_or(Ok(()), ContainerFacts::check_uncovered)
    }

    /// That of [`ContainerFacts::shard_count`].
    #[must_use]
    pub fn shard_count(self) -> usize {
        self.of_shards().map_or(0, ContainerFacts::shard_count)
    }

    /// That of [`ContainerFacts::shard`].
    ///
    /// # Errors
    /// E001 where there is no such shard, otherwise those of [`ContainerFacts::shard`].
    pub fn shard(self, shard: usize) -> Result<&'a dyn CheckpointReader> {
        match self.of_shards() {
            Some(facts) => facts.shard(shard),
            None => Err(Error::format(format!("no shard {shard}"))),
        }
    }
}

/// The checkpoint with the tensors of the files: that which weights in codes and scales are decoded
/// from, or the same where none are. It is asked about shards.
#[must_use]
pub fn of_files(reader: &dyn CheckpointReader) -> &dyn CheckpointReader {
    reader.container().undecoded().map_or(reader, |undecoded| &**undecoded)
}

impl fmt::Debug for Container<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Container").field("altered", &self.altered).finish_non_exhaustive()
    }
}
