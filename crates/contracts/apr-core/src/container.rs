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

/// Content of a part of a file.
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
    /// Content of the part.
    pub kind: ExtentKind,
    /// Offset from the start of the file, in bytes.
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
    /// Creates the checksum of the file up to the byte `end`.
    ///
    /// `parts` may be in any order. The bytes between them are padding.
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

    /// Returns the covered bytes as a part that every tensor of the file `source` is made of.
    ///
    /// For a tensor without a checksum of its own, the tensor is intact if the file is.
    #[must_use]
    pub fn part<'a>(&self, source: &'a dyn ByteSource) -> StoredPart<'a> {
        let len = self.extents.last().map_or(0, |last| last.offset + last.len);
        StoredPart::of_file(source, StoredRange { file: 0, offset: 0, len }, Sum::Crc32(self.crc32))
    }
}

/// The signatures over a checkpoint, and the digest that they sign.
///
/// Blocks are complete, with head and padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// BLAKE3-256 of everything that is signed.
    pub digest: Digest,
    /// The SIGN block, if there is one.
    pub signatures: Option<Vec<u8>>,
    /// The LICN block, if there is one.
    pub licence: Option<Vec<u8>>,
}

/// Layout properties of a file of the native container. Other formats have none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Tensors are encrypted, even if a key was given that opens them.
    pub encrypted: bool,
    /// `true` if there is a signature or a licence, which may be invalid.
    pub signed: bool,
    /// `true` if tensors are in the order of their first use, and the front is near the beginning.
    pub streaming: bool,
    /// Bytes that tensors are aligned to.
    pub alignment: Option<u64>,
}

/// Key in [`ContainerFacts::header_fields`] for the part of a training checkpoint with the weights.
///
/// The reader removes this part from the names of the weights, but a prefix that contains it still
/// selects them.
pub const WEIGHTS_KEY: &str = "weights_key";

/// Data of a file that is not a tensor of its checkpoint: the numbers and texts of a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unlisted {
    /// Description of the data, in the plural.
    pub what: String,
    /// Names of the data in the file.
    pub names: Vec<String>,
}

/// Shards of a model whose tensors are not among those of its checkpoint.
#[derive(Debug, Clone)]
pub struct Absence {
    /// Error of opening the first of these shards.
    pub error: Error,
    /// Number of tensors in these shards; 0 if it is not known.
    pub tensors: u64,
}

/// Facts that only the reader of a format can provide.
///
/// Readers over other readers do not implement this trait: they pass on the [`Container`]. The
/// defaults are for formats without the respective feature.
pub trait ContainerFacts: Send + Sync {
    /// Returns header fields that only this format has, as an object for display.
    ///
    /// Returns null if there are none.
    fn header_fields(&self) -> Value {
        Value::Null
    }

    /// Returns data that is not among the tensors, grouped by description.
    fn unlisted(&self) -> &[Unlisted] {
        &[]
    }

    /// Returns the layout properties of the file.
    fn features(&self) -> Features {
        Features::default()
    }

    /// Returns `true` if tensors are encrypted and no key was given. Reading them fails with E005.
    fn is_locked(&self) -> bool {
        false
    }

    /// Returns the checksum over the file, if the format has one.
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

    /// Returns the signatures in the file and the digest that they sign, without verifying them.
    ///
    /// Returns `None` if the format has no signatures, or there is nothing to sign.
    ///
    /// # Errors
    /// E007 when reading fails.
    fn signed(&self) -> Result<Option<Signed>> {
        Ok(None)
    }

    /// Verifies a signature that is not a SIGN block and returns its key.
    ///
    /// Returns `None` if there is no such signature.
    ///
    /// # Errors
    /// E006 when the signature does not match these bytes, E007 when reading fails.
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

    /// Returns the shards that can't be opened, if the checkpoint lacks their tensors.
    ///
    /// Such a checkpoint is for reports. Reading its tensors fails.
    fn absence(&self) -> Option<Absence> {
        None
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

/// The container of a checkpoint, as seen through the readers over it.
#[derive(Clone, Copy, Default)]
pub struct Container<'a> {
    facts: Option<&'a dyn ContainerFacts>,
    altered: bool,
    undecoded: Option<&'a Arc<dyn CheckpointReader>>,
}

impl<'a> Container<'a> {
    /// Returns the container of the reader of a format.
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

    /// Returns the container as seen through a reader that decodes weights of this one.
    ///
    /// Facts about the file as a whole still hold. Positions of tensors in a
    /// [`checksum`](Self::checksum) are those of the [`undecoded`](Self::undecoded) checkpoint,
    /// which is also used for shards.
    #[must_use]
    pub fn decoded(self, undecoded: &'a Arc<dyn CheckpointReader>) -> Self {
        Self { undecoded: Some(undecoded), ..self }
    }

    /// Returns the checkpoint with the tensors of the file, if weights are decoded from several of
    /// them.
    #[must_use]
    pub fn undecoded(self) -> Option<&'a Arc<dyn CheckpointReader>> {
        self.undecoded.filter(|_| !self.altered)
    }

    /// The facts about checkpoints of their own, which have tensors of the file.
    fn of_shards(self) -> Option<&'a dyn ContainerFacts> {
        self.whole().filter(|_| self.undecoded.is_none())
    }

    /// Returns the facts that only hold for exactly the tensors of the file.
    fn whole(self) -> Option<&'a dyn ContainerFacts> {
        self.facts.filter(|_| !self.altered)
    }

    /// Returns [`ContainerFacts::header_fields`].
    #[must_use]
    pub fn header_fields(self) -> Value {
        self.facts.map_or(Value::Null, ContainerFacts::header_fields)
    }

    /// Returns [`ContainerFacts::unlisted`].
    #[must_use]
    pub fn unlisted(self) -> &'a [Unlisted] {
        self.facts.map_or(&[], ContainerFacts::unlisted)
    }

    /// Returns [`ContainerFacts::features`].
    #[must_use]
    pub fn features(self) -> Features {
        self.facts.map(ContainerFacts::features).unwrap_or_default()
    }

    /// Returns [`ContainerFacts::is_locked`].
    #[must_use]
    pub fn is_locked(self) -> bool {
        self.facts.is_some_and(ContainerFacts::is_locked)
    }

    /// Returns [`ContainerFacts::checksum`].
    #[must_use]
    pub fn checksum(self) -> Option<FileChecksum> {
        self.whole()?.checksum()
    }

    /// Reads bytes like [`ContainerFacts::read_raw`].
    ///
    /// # Errors
    /// E002 past the end of the file and when there are no raw parts, E007 when reading fails.
    pub fn read_raw(self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.whole() {
            Some(facts) => facts.read_raw(offset, buf),
            None => Err(Error::corrupt("this checkpoint has no raw parts").at(offset)),
        }
    }

    /// Returns [`ContainerFacts::signed`].
    ///
    /// # Errors
    /// E007 when reading fails.
    pub fn signed(self) -> Result<Option<Signed>> {
        self.whole().map_or(Ok(None), ContainerFacts::signed)
    }

    /// Returns [`ContainerFacts::signed_by`].
    ///
    /// # Errors
    /// Returns the same errors as [`ContainerFacts::signed_by`].
    pub fn signed_by(self) -> Result<Option<[u8; 32]>> {
        self.whole().map_or(Ok(None), ContainerFacts::signed_by)
    }

    /// Checks bytes like [`ContainerFacts::check_uncovered`].
    ///
    /// # Errors
    /// Returns the same errors as [`ContainerFacts::check_uncovered`].
    pub fn check_uncovered(self) -> Result<()> {
        self.whole().map_or(Ok(()), ContainerFacts::check_uncovered)
    }

    /// Returns [`ContainerFacts::shard_count`].
    #[must_use]
    pub fn shard_count(self) -> usize {
        self.of_shards().map_or(0, ContainerFacts::shard_count)
    }

    /// Checks that a model can be computed from, which takes the tensors of all shards.
    ///
    /// # Errors
    /// The error of the first shard whose tensors are not in the checkpoint.
    pub fn check_shards(self) -> Result<()> {
        self.absence().map_or(Ok(()), |absence| Err(absence.error))
    }

    /// Returns [`ContainerFacts::absence`].
    #[must_use]
    pub fn absence(self) -> Option<Absence> {
        self.facts.and_then(ContainerFacts::absence)
    }

    /// Returns [`ContainerFacts::shard`].
    ///
    /// # Errors
    /// E001 when there is no such shard, otherwise the errors of [`ContainerFacts::shard`].
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

/// The checkpoint with the tensors [of the files](of_files), also below readers that change, rename
/// or drop tensors.
#[must_use]
pub fn below_changes(reader: &dyn CheckpointReader) -> &dyn CheckpointReader {
    reader.container().undecoded.map_or(reader, |undecoded| &**undecoded)
}

impl fmt::Debug for Container<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Container").field("altered", &self.altered).finish_non_exhaustive()
    }
}
