//! How a tensor is stored: one value, which readers over other readers pass on or replace as a
//! whole.

use core::fmt;
use core::ops::Range;

use serde::Serialize;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use crate::digest::Digest;
use crate::{ByteSource, CheckpointReader, DType, Result};

/// Place of a tensor in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct StoredRange {
    /// Index into [`CheckpointReader::files`](crate::CheckpointReader::files).
    pub file: usize,
    /// Offset from the start of that file, in bytes.
    pub offset: u64,
    /// Bytes stored; less than the decoded length for compressed tensors.
    pub len: u64,
}

/// Encoding of a tensor whose bytes are not stored plainly in the native container.
///
/// See `docs/format/apr2.md`, "Index".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct StoredForm {
    /// Codec, filter and layout, in the bits of the index entry's flags.
    pub flags: u32,
    /// Bytes after decoding; for sparse tensors and factors, the bytes of the layout.
    pub raw_len: u64,
    /// Bytes before encryption.
    pub len: u64,
}

impl StoredForm {
    /// Flags of a tensor that is stored as compressed sparse rows.
    pub const CSR: u32 = 1 << 8;
    /// Flags of a tensor that is stored as compressed sparse rows of square blocks.
    pub const BSR: u32 = 2 << 8;
    /// Flags of a tensor that is stored as two factors, whose product it is.
    pub const FACTORS: u32 = 3 << 8;
    /// The bits of the codec.
    pub const CODEC: u32 = 0xf;
    /// The bits of the layout.
    pub const LAYOUT: u32 = 0xf00;

    /// Returns `true` if the tensor is stored as two factors.
    #[must_use]
    pub const fn is_factors(&self) -> bool {
        self.flags & Self::LAYOUT == Self::FACTORS
    }
}

/// A checksum that a file gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    /// BLAKE3-256 digest.
    Digest(Digest),
    /// CRC-32 checksum (IEEE).
    Crc32(u32),
}

/// Bytes of the file that a tensor is made of, and their checksum stated by the file.
#[derive(Clone, Copy)]
pub struct StoredPart<'a> {
    /// Range of the bytes.
    pub range: StoredRange,
    /// Range that errors point to: the same, or the bytes that these are decoded from.
    pub place: StoredRange,
    /// Checksum of the bytes.
    pub sum: Sum,
    bytes: PartBytes<'a>,
}

#[derive(Clone, Copy)]
enum PartBytes<'a> {
    /// The bytes of a plainly stored tensor.
    Tensor(&'a dyn CheckpointReader, usize),
    Encoded(Encoded<'a>),
    File(&'a dyn ByteSource),
}

impl<'a> StoredPart<'a> {
    /// The part of a file that `source` is.
    #[must_use]
    pub fn of_file(source: &'a dyn ByteSource, range: StoredRange, sum: Sum) -> Self {
        Self { range, place: range, sum, bytes: PartBytes::File(source) }
    }

    /// Sets the place in the file, for a `range` of decoded bytes.
    #[must_use]
    pub fn lying_at(self, place: StoredRange) -> Self {
        Self { place, ..self }
    }

    /// Fills `buf` with its bytes from `offset` within [`range`](Self::range) on.
    ///
    /// # Errors
    /// E002 past its end, E007 when reading fails.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.bytes {
            PartBytes::Tensor(reader, tensor) => reader.read_tensor(tensor, offset, buf),
            PartBytes::Encoded(encoded) => encoded.read_verbatim(offset, buf),
            PartBytes::File(source) => source.read_at(self.range.offset + offset, buf),
        }
    }
}

impl fmt::Debug for StoredPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredPart")
            .field("range", &self.range)
            .field("sum", &self.sum)
            .finish_non_exhaustive()
    }
}

/// Storage of a tensor: its range, its bytes, and the file's statements about these bytes.
///
/// Digest and CRC belong to the bytes in the file. If these are not the tensor's own bytes,
/// [`encoded`](Self::encoded) reads them. If the tensor is made of other bytes,
/// [`parts`](Self::parts) contains the facts about those.
#[derive(Debug, Clone)]
pub struct Stored<'a> {
    /// Range of the bytes.
    pub range: StoredRange,
    digest: Option<Digest>,
    crc32: Option<u32>,
    encoded: Option<Encoded<'a>>,
    parts: Vec<StoredPart<'a>>,
    coding: Option<Coding<'a>>,
    /// Ranges of all bytes that the tensor is made of; empty if this is only `range`.
    sources: Vec<StoredRange>,
    before: Option<(DType, u64)>,
}

/// Storage of a weight in several tensors, as codes and scales.
///
/// The quantization method is not a dtype.
#[derive(Clone, Copy)]
pub struct Coding<'a> {
    /// The method, by a short name: `gptq`.
    pub kind: &'static str,
    /// The method for people: `GPTQ, 4 bits, groups of 128`.
    pub description: &'a str,
    /// Name of the weight according to the names of its parts.
    pub weight: &'a str,
    /// The weight that the tensor is, or that it is a part of: parts of a weight that can't be
    /// decoded are tensors of their own.
    pub whole: &'a str,
    /// The tensors that the weight is made of.
    pub parts: &'a [CodingPart],
    /// The checkpoint that has these tensors.
    pub base: &'a dyn CheckpointReader,
    /// Method of keeping the weight in memory without its values; `None` if that is not possible.
    pub in_memory: Option<&'a dyn KeepCodes>,
    /// Conversion of the codes to blocks of GGML types; `None` if they are not integers in groups.
    pub in_blocks: Option<&'a dyn CodesInBlocks>,
}

/// A weight of integers in groups, whose codes can become blocks of one of ggml's types without
/// being rounded.
pub trait CodesInBlocks: Send + Sync {
    /// Returns how blocks of a type hold the weight. Reads scales and zero points, but no codes.
    ///
    /// # Errors
    /// Those of reading the weight's values.
    fn fit(&self, base: &dyn CheckpointReader, dtype: DType) -> Result<BlockFit>;

    /// Fills `out` with whole blocks of a type that holds the weight exactly, from block number
    /// `first` of the weight on.
    ///
    /// # Errors
    /// E001 for a type without such blocks, otherwise those of reading the weight's values.
    fn read_blocks(
        &self,
        base: &dyn CheckpointReader,
        dtype: DType,
        first: u64,
        out: &mut [u8],
    ) -> Result<()>;
}

/// Accuracy with which the blocks of a type represent a weight of integers in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockFit {
    /// The blocks hold the weight's values bit for bit, before they are rounded to the weight's
    /// dtype.
    Exact,
    /// The blocks hold integers of as many bits, but not the weight's values.
    ///
    /// The text is the reason: `its zero points are not in the middle of the codes`.
    Rounded(&'static str),
    /// The blocks hold integers of fewer bits, or no integers.
    Narrower,
}

/// A weight whose codes can be kept in memory, to be decoded again and again.
pub trait KeepCodes: Send + Sync {
    /// Bytes that they take there.
    fn kept_len(&self) -> u64;

    /// Returns `true` if products with the decoded rows take longer than with values in memory.
    ///
    /// `base` is the checkpoint that has the weight's parts.
    fn is_slow(&self, base: &dyn CheckpointReader) -> bool;

    /// Reads the codes from the checkpoint that has the weight's parts.
    ///
    /// If these parts are already in memory, they may be used without a copy.
    ///
    /// # Errors
    /// Returns the same errors as reading the weight's values.
    fn keep(&self, base: &dyn CheckpointReader) -> Result<Box<dyn KeptCodes>>;
}

/// A matrix in codes that are in memory.
pub trait KeptCodes: Send + Sync {
    /// Fills `out` with the values of some rows, from `first_column` on: the same bits as of the
    /// weight that is read. `base` is the checkpoint that the codes were read from.
    ///
    /// # Errors
    /// E001 where codes are no longer in the memory of `base`.
    ///
    /// # Panics
    /// Where there are no such rows or columns.
    fn decode(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<usize>,
        first_column: usize,
        out: &mut [f32],
    ) -> Result<()>;
}

impl Coding<'_> {
    /// Names of the tensors that the weight is made of, as their file has them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| self.base.tensors()[part.tensor].name.as_str())
    }

    /// Bytes of these tensors.
    ///
    /// # Errors
    /// Those of [`TensorInfo::byte_len`](crate::TensorInfo::byte_len).
    pub fn byte_len(&self) -> Result<u64> {
        let lens = self.parts.iter().map(|part| self.base.tensors()[part.tensor].byte_len());
        lens.sum()
    }
}

impl fmt::Debug for Coding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coding").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// A tensor that is a part of a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodingPart {
    /// Position of the tensor in [`Coding::base`].
    pub tensor: usize,
    /// Suffix of the weight's name that the part's name replaces.
    ///
    /// `None` if the name of the part does not depend on the name of the weight.
    instead_of: Option<String>,
    /// The end that it has instead.
    end: String,
}

impl CodingPart {
    /// The part `name`, at this position, of the weight `weight`.
    ///
    /// ```
    /// let part = apr_core::CodingPart::of("layers.0.up.weight", 7, "layers.0.up.qweight");
    /// assert_eq!(part.name_of("blk.0.up.weight").as_deref(), Some("blk.0.up.qweight"));
    /// ```
    #[must_use]
    pub fn of(weight: &str, tensor: usize, name: &str) -> Self {
        let is_same = |((_, a), b): &((usize, char), char)| a == b;
        let same = weight.char_indices().zip(name.chars()).take_while(is_same);
        let mut common = same.last().map_or(0, |((at, letter), _)| at + letter.len_utf8());
        // `q.weight` and `q.weights`: what differs is the whole last name.
        if common < weight.len() {
            common = weight[..common].rfind('.').map_or(0, |dot| dot + 1);
        }
        let is_apart = common == 0 && weight.contains('.');
        let instead_of = (!is_apart).then(|| weight[common..].to_owned());
        Self { tensor, instead_of, end: name[common..].to_owned() }
    }

    /// Returns the name of the part for a weight of this name.
    ///
    /// Returns `None` if the name of the part can't be derived from it.
    #[must_use]
    pub fn name_of(&self, weight: &str) -> Option<String> {
        let stem = match &self.instead_of {
            Some(end) => weight.strip_suffix(&**end)?,
            None => "",
        };
        Some([stem, &self.end].concat())
    }
}

impl<'a> Stored<'a> {
    /// Describes a tensor that is stored plainly.
    ///
    /// Its bytes in the file are those that [`read_tensor`](crate::CheckpointReader::read_tensor)
    /// returns.
    #[must_use]
    pub fn plain(range: StoredRange) -> Self {
        let (digest, crc32, encoded, coding, before) = (None, None, None, None, None);
        let (parts, sources) = (Vec::new(), Vec::new());
        Self { range, digest, crc32, encoded, parts, coding, sources, before }
    }

    /// The bytes in the file are others, which `encoded` reads.
    #[must_use]
    pub fn encoded_as(range: StoredRange, encoded: Encoded<'a>) -> Self {
        Self { encoded: Some(encoded), ..Self::plain(range) }
    }

    /// Describes a tensor that a reader computes from bytes about there, without a known checksum.
    #[must_use]
    pub fn derived(range: StoredRange) -> Self {
        Self::plain(range)
    }

    /// Describes a tensor that a reader computes from tensors of `base`.
    ///
    /// Facts stated about those tensors still hold for them.
    #[must_use]
    pub fn derived_from(base: &'a dyn CheckpointReader, tensors: &[usize]) -> Self {
        let mut derived = Self::plain(StoredRange { file: 0, offset: 0, len: 0 });
        for (at, &tensor) in tensors.iter().enumerate() {
            let stored = base.stored(tensor);
            derived.range = if at == 0 { stored.range } else { derived.range };
            derived.sources.extend(stored.ranges());
            derived.parts.extend(stored.own_part(base, tensor));
            derived.parts.extend(stored.parts);
        }
        derived
    }

    /// Describes a tensor that a reader computes from tensors of several checkpoints.
    ///
    /// An input is a tensor's checkpoint, its position there, and the position of that checkpoint's
    /// first file among the [files](crate::CheckpointReader::files) of the result.
    #[must_use]
    pub fn derived_from_all(
        inputs: impl IntoIterator<Item = (&'a dyn CheckpointReader, usize, usize)>,
    ) -> Self {
        let mut derived = Self::derived(StoredRange { file: 0, offset: 0, len: 0 });
        for (at, (reader, tensor, first_file)) in inputs.into_iter().enumerate() {
            let stored = Self::derived_from(reader, &[tensor]).behind_files(first_file);
            derived.range = if at == 0 { stored.range } else { derived.range };
            derived.sources.extend(stored.sources);
            derived.parts.extend(stored.parts);
        }
        derived
    }

    /// Sets the tensor of `base` that a reader converted to another dtype or layout.
    ///
    /// If it is converted to several tensors, `counts` is `true` for one of them, for which its
    /// bytes count.
    #[must_use]
    pub fn converted_from(self, base: &dyn CheckpointReader, tensor: usize, counts: bool) -> Self {
        let info = &base.tensors()[tensor];
        let own = || (info.dtype, info.byte_len().unwrap_or_default());
        let (dtype, len) = base.stored(tensor).before.unwrap_or_else(own);
        Self { before: Some((dtype, if counts { len } else { 0 })), ..self }
    }

    /// Returns dtype and bytes of the tensor before a reader [converted](Self::converted_from) it.
    #[must_use]
    pub fn before(&self) -> Option<(DType, u64)> {
        self.before
    }

    /// Sets the parts of the file that the tensor is made of.
    #[must_use]
    pub fn with_parts(self, parts: Vec<StoredPart<'a>>) -> Self {
        Self { parts, ..self }
    }

    /// Sets the codes and scales that the weight is stored in.
    #[must_use]
    pub fn with_coding(self, coding: Coding<'a>) -> Self {
        Self { coding: Some(coding), ..self }
    }

    /// Returns how a weight is stored in codes and scales.
    #[must_use]
    pub fn coding(&self) -> Option<Coding<'a>> {
        self.coding
    }

    /// Returns the tensor's own bytes as a part, if the file states a checksum for them.
    ///
    /// The tensor has position `tensor` in `reader`.
    #[must_use]
    pub fn own_part(
        &self,
        reader: &'a dyn CheckpointReader,
        tensor: usize,
    ) -> Option<StoredPart<'a>> {
        let bytes = self.encoded.map_or(PartBytes::Tensor(reader, tensor), PartBytes::Encoded);
        self.sum().map(|sum| StoredPart { range: self.range, place: self.range, sum, bytes })
    }

    /// Sets the digest that the file states for these bytes, if it states one.
    #[must_use]
    pub fn with_digest(self, digest: Option<Digest>) -> Self {
        Self { digest, ..self }
    }

    /// Sets the CRC-32 that the file states for these bytes, if it states one.
    #[must_use]
    pub fn with_crc32(self, crc32: Option<u32>) -> Self {
        Self { crc32, ..self }
    }

    /// Moves all places behind `count` files, by their positions in
    /// [`CheckpointReader::files`](crate::CheckpointReader::files).
    #[must_use]
    pub fn behind_files(self, count: usize) -> Self {
        let moved = |range: StoredRange| StoredRange { file: range.file + count, ..range };
        let part = |part: StoredPart<'a>| StoredPart {
            range: moved(part.range),
            place: moved(part.place),
            ..part
        };
        let sources = self.sources.into_iter().map(moved).collect();
        let parts = self.parts.into_iter().map(part).collect();
        Self { range: moved(self.range), sources, parts, ..self }
    }

    /// Returns the ranges of all bytes that the tensor is made of.
    ///
    /// A tensor made of others has several ranges. The first is [`range`](Self::range).
    #[must_use]
    pub fn ranges(&self) -> &[StoredRange] {
        if self.sources.is_empty() { core::slice::from_ref(&self.range) } else { &self.sources }
    }

    /// Returns `true` if a reader computes the tensor from others of a file.
    #[must_use]
    pub fn is_derived(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Returns the checksum that the file states for the bytes in it.
    #[must_use]
    pub fn sum(&self) -> Option<Sum> {
        self.digest.map(Sum::Digest).or(self.crc32.map(Sum::Crc32))
    }

    /// Parts of the file that the tensor is made of and that something is stated about, other than
    /// the bytes at its range.
    #[must_use]
    pub fn parts(&self) -> &[StoredPart<'a>] {
        &self.parts
    }

    /// The BLAKE3-256 that the file gives for the bytes in it.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The CRC-32 that the file gives for the bytes in it.
    #[must_use]
    pub fn crc32(&self) -> Option<u32> {
        self.crc32
    }

    /// Returns the bytes in the file if they differ from the tensor's.
    ///
    /// They are then compressed, sparse, factors or encrypted.
    #[must_use]
    pub fn encoded(&self) -> Option<Encoded<'a>> {
        self.encoded
    }

    /// Returns `true` if the bytes in the file differ from the tensor's, and can be read.
    #[must_use]
    pub fn is_encoded(&self) -> bool {
        self.encoded.is_some()
    }

    /// Returns the stored form, if the bytes were encoded by a codec or a layout.
    #[must_use]
    pub fn form(&self) -> Option<StoredForm> {
        self.encoded?.form
    }
}

/// Reads the bytes of encoded tensors. Readers of formats with such tensors implement it.
pub trait ReadEncoded: Send + Sync {
    /// Fills `buf` with the tensor's bytes in their [`StoredForm`], decrypted but not decoded, from
    /// `offset` within them on.
    ///
    /// # Errors
    /// E002 past their end, E005 when they can't be decrypted, E007 when reading fails.
    fn read_form(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills `buf` with the tensor's stored bytes, starting at `offset` within them.
    ///
    /// # Errors
    /// E002 past their end, E007 when reading fails.
    fn read_verbatim(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// The length of the pieces of the tensor that have bytes of their own in the file, one after
    /// the other and with nothing between; the last may be shorter. `None` where there are no such
    /// pieces.
    fn piece_len(&self, tensor: usize) -> Option<u64>;

    /// Fills `buf` with the tensor's bytes, and `verbatim` with the stored bytes they are made of.
    ///
    /// The previous contents of `verbatim` are replaced.
    ///
    /// `buf` must be whole [pieces](Self::piece_len), starting at `offset` within the tensor.
    /// Returns the offset of `verbatim` within the tensor's stored bytes.
    ///
    /// # Errors
    /// E002 when it is not, or the bytes don't decode; E005 when they can't be decrypted, E007 when
    /// reading fails.
    fn read_both(
        &self,
        tensor: usize,
        offset: u64,
        buf: &mut [u8],
        verbatim: &mut Vec<u8>,
    ) -> Result<u64>;
}

/// The bytes of a tensor in the file, which are others than those it is read as.
#[derive(Clone, Copy)]
pub struct Encoded<'a> {
    reader: &'a dyn ReadEncoded,
    tensor: usize,
    form: Option<StoredForm>,
}

impl<'a> Encoded<'a> {
    /// Creates the encoded bytes of a tensor in `reader`. Without a form, it is only encrypted.
    #[must_use]
    pub fn new(reader: &'a dyn ReadEncoded, tensor: usize, form: Option<StoredForm>) -> Self {
        Self { reader, tensor, form }
    }

    /// Fills `buf` with bytes of the stored form, decrypted but not decoded, from `offset` within
    /// them on.
    ///
    /// # Errors
    /// Those of [`ReadEncoded::read_form`].
    pub fn read_form(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reader.read_form(self.tensor, offset, buf)
    }

    /// Fills `buf` with stored bytes, starting at `offset` within [`Stored::range`].
    ///
    /// # Errors
    /// Returns the same errors as [`ReadEncoded::read_verbatim`].
    pub fn read_verbatim(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reader.read_verbatim(self.tensor, offset, buf)
    }

    /// See [`ReadEncoded::piece_len`].
    #[must_use]
    pub fn piece_len(&self) -> Option<u64> {
        self.reader.piece_len(self.tensor)
    }

    /// Reads the tensor's bytes and the stored bytes that they are made of.
    ///
    /// # Errors
    /// Returns the same errors as [`ReadEncoded::read_both`].
    pub fn read_both(&self, offset: u64, buf: &mut [u8], verbatim: &mut Vec<u8>) -> Result<u64> {
        self.reader.read_both(self.tensor, offset, buf, verbatim)
    }
}

impl fmt::Debug for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded")
            .field("tensor", &self.tensor)
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}
