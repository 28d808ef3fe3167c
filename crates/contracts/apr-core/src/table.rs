//! The table of a model's files: everything that the reader of a format gives.
//!
//! A format is a function from bytes to a [`Table`]. It parses headers, adds each tensor with the
//! way in which its bytes are stored, and fills in metadata, companions, and data that it leaves
//! out. Reading, checks of ranges, and the file and tensor in each error are here, once for all
//! formats.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde_json::{Map, Value};

use crate::{
    ByteSource, CheckpointReader, Companion, Container, ContainerFacts, Error, Escaped,
    FileChecksum, FileInfo, Format, Metadata, Result, SharedSource, Stored, StoredRange,
    TensorInfo, UniqueNames, Unlisted, check_range, read_pieces,
};

/// Function that reads a companion from the sources of the table.
type ReadCompanion = dyn Fn(&[SharedSource]) -> Result<Vec<u8>> + Send + Sync;

/// A checkpoint as its files describe it.
///
/// Positions passed to the methods of [`CheckpointReader`] must be below the number of tensors.
///
/// ```
/// use std::sync::Arc;
///
/// use apr_core::{CheckpointReader, DType, Format, StoredRange, Table, TensorInfo};
///
/// static FORMAT: Format = Format { id: "pair", name: "Pairs", ..Format::READ_ONLY };
///
/// /// A file of two bytes is a tensor.
/// fn open(source: Vec<u8>, name: &str) -> apr_core::Result<Table> {
///     let mut table = Table::of_file(&FORMAT, name, Arc::new(source));
///     let info = TensorInfo { name: "pair".into(), dtype: DType::U8, shape: [2].into() };
///     table.add(info, StoredRange { file: 0, offset: 0, len: 2 })?;
///     Ok(table)
/// }
///
/// assert_eq!(open(vec![1, 2], "a.pair")?.tensor_slice(0), Some(&[1, 2][..]));
/// let error = open(vec![1], "a.pair").unwrap_err();
/// assert_eq!((error.tensor(), error.file()), (Some("pair"), Some("a.pair")));
/// # Ok::<(), apr_core::Error>(())
/// ```
pub struct Table {
    format: &'static Format,
    /// One for each of `files`.
    sources: Vec<SharedSource>,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    /// One for each of `tensors`.
    bytes: Vec<TensorBytes>,
    companions: Vec<Companion>,
    /// One for each of `companions`.
    contents: Vec<Box<ReadCompanion>>,
    /// Metadata under the keys of [`keys`](crate::keys).
    pub metadata: Metadata,
    /// Header fields that only this format has, for display.
    pub fields: Map<String, Value>,
    /// Checksum over the first file, which holds for all tensors.
    pub checksum: Option<FileChecksum>,
    /// Data that are not among the tensors.
    pub unlisted: Vec<Unlisted>,
    /// Data of the files that a conversion does not keep.
    pub left_out: Vec<String>,
    /// Warnings about the files, which are readable nevertheless.
    pub warnings: Vec<String>,
}

/// The way in which the bytes of a tensor are stored.
pub enum TensorBytes {
    /// The bytes are a range of a file.
    Plain(StoredRange),
    /// The bytes are several ranges, one after the other.
    Pieces(Box<[StoredRange]>),
    /// The bytes are decoded from others.
    Decoded(Box<dyn TensorDecoder>),
}

/// A tensor whose bytes are not simply ranges of files.
///
/// Its elements are in another order or number of bits, it is compressed, its values are in
/// memory, or its bytes have a checksum. Errors need neither file nor tensor, which the [`Table`]
/// adds.
pub trait TensorDecoder: Send + Sync {
    /// Returns the range in the file that errors and reports point to.
    fn range(&self) -> StoredRange;

    /// Fills `buf` with bytes of the tensor, from `offset` within it on.
    ///
    /// `buf` is not empty, and within the tensor. `sources` are those of the table.
    ///
    /// # Errors
    /// E002 if the stored bytes can't be decoded, E004 if they do not match their checksum, E007
    /// when reading fails.
    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Returns how the tensor is stored.
    fn stored<'a>(&'a self, sources: &'a [SharedSource]) -> Stored<'a> {
        let _ = sources;
        Stored::derived(self.range())
    }

    /// Returns all bytes of the tensor, if they are contiguous in memory.
    fn slice<'a>(&'a self, sources: &'a [SharedSource]) -> Option<&'a [u8]> {
        let _ = sources;
        None
    }
}

/// Values in memory, made from bytes about there.
struct InMemory {
    range: StoredRange,
    bytes: Vec<u8>,
}

impl TensorDecoder for InMemory {
    fn range(&self) -> StoredRange {
        self.range
    }

    fn read(&self, _: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        self.bytes.read_at(offset, buf)
    }

    fn slice(&self, _: &[SharedSource]) -> Option<&[u8]> {
        Some(&self.bytes)
    }
}

impl TensorBytes {
    /// Returns ranges that are one after the other; a single one is plain.
    #[must_use]
    pub fn pieces(pieces: Vec<StoredRange>) -> Self {
        match pieces[..] {
            [piece] => Self::Plain(piece),
            _ => Self::Pieces(pieces.into()),
        }
    }

    /// Returns bytes in memory that were made from a range of a file.
    #[must_use]
    pub fn in_memory(range: StoredRange, bytes: Vec<u8>) -> Self {
        Self::decoded(InMemory { range, bytes })
    }

    /// Returns bytes that are decoded from others.
    #[must_use]
    pub fn decoded(decoder: impl TensorDecoder + 'static) -> Self {
        Self::Decoded(Box::new(decoder))
    }

    /// Returns the range in the file that errors and reports point to.
    ///
    /// For several pieces, it is the first.
    #[must_use]
    pub fn range(&self) -> StoredRange {
        match self {
            Self::Plain(range) => *range,
            Self::Pieces(pieces) => {
                pieces.first().copied().unwrap_or(StoredRange { file: 0, offset: 0, len: 0 })
            }
            Self::Decoded(decoder) => decoder.range(),
        }
    }

    /// Returns the ranges whose bytes are those of the tensor; none for decoded ones.
    fn own_ranges(&self) -> Option<&[StoredRange]> {
        match self {
            Self::Plain(range) => Some(core::slice::from_ref(range)),
            Self::Pieces(pieces) => Some(pieces),
            Self::Decoded(_) => None,
        }
    }
}

impl From<StoredRange> for TensorBytes {
    fn from(range: StoredRange) -> Self {
        Self::Plain(range)
    }
}

impl Table {
    /// Creates a table without files and tensors.
    #[must_use]
    pub fn new(format: &'static Format) -> Self {
        Self {
            format,
            sources: Vec::new(),
            files: Vec::new(),
            tensors: Vec::new(),
            bytes: Vec::new(),
            companions: Vec::new(),
            contents: Vec::new(),
            metadata: Metadata::new(),
            fields: Map::new(),
            checksum: None,
            unlisted: Vec::new(),
            left_out: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Creates a table of one file, without tensors.
    ///
    /// `name` appears in errors and in [`CheckpointReader::files`], and may be empty.
    #[must_use]
    pub fn of_file(format: &'static Format, name: &str, source: SharedSource) -> Self {
        let mut table = Self::new(format);
        table.add_file(FileInfo { name: name.into(), len: source.len() }, source);
        table
    }

    /// Adds a file.
    ///
    /// Tensors are read from `source`. Its offsets may be other ones than those of the file, if
    /// entries of an archive are decompressed.
    pub fn add_file(&mut self, file: FileInfo, source: SharedSource) {
        self.files.push(file);
        self.sources.push(source);
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// E002 for ranges past the end of their file, or of another length than the tensor; the error
    /// of [`TensorInfo::byte_len`]. Formats check both earlier, in words of their own.
    pub fn add(&mut self, info: TensorInfo, bytes: impl Into<TensorBytes>) -> Result<()> {
        let bytes = bytes.into();
        let checked = self.check(&info, &bytes);
        self.tensors.push(info);
        self.bytes.push(bytes);
        checked.map_err(|error| self.locate(self.tensors.len() - 1, error))
    }

    fn check(&self, info: &TensorInfo, bytes: &TensorBytes) -> Result<()> {
        let Some(ranges) = bytes.own_ranges() else { return Ok(()) };
        let mut total = 0_u64;
        // An empty range may be anywhere.
        for range in ranges.iter().filter(|range| range.len > 0) {
            let available = self.sources[range.file].len();
            if range.offset.checked_add(range.len).is_none_or(|end| end > available) {
                let message = format!("it ends past the {available} bytes of the file");
                return Err(Error::corrupt(message).at(range.offset));
            }
            total = total.saturating_add(range.len);
        }
        let expected = info.byte_len()?;
        if total != expected {
            let TensorInfo { dtype, shape, .. } = info;
            return Err(Error::corrupt(format!(
                "the shape {shape} of {dtype} takes {expected} bytes, but the file has {total}"
            )));
        }
        Ok(())
    }

    /// Adds a companion, and the function that reads it.
    pub fn offer(
        &mut self,
        companion: Companion,
        read: impl Fn(&[SharedSource]) -> Result<Vec<u8>> + Send + Sync + 'static,
    ) {
        self.companions.push(companion);
        self.contents.push(Box::new(read));
    }

    /// Adds a header field for display.
    pub fn show(&mut self, key: &str, value: impl Into<Value>) {
        self.fields.insert(key.into(), value.into());
    }

    /// Sets the file's description of the model in the metadata, and shows it in the header fields
    /// after the name of the format.
    pub fn describe(&mut self, key: &'static str, description: Map<String, Value>) {
        self.metadata.set(key, description);
        self.show("container", self.format.id);
        self.fields.extend(self.metadata.object(key).cloned().unwrap_or_default());
    }

    /// Leaves tensors out that can't be read, by their errors.
    ///
    /// # Errors
    /// The first of them, if there are no other tensors.
    pub fn leave_out(&mut self, mut refused: Vec<Error>) -> Result<()> {
        if self.tensors.is_empty() && !refused.is_empty() {
            return Err(refused.swap_remove(0));
        }
        self.left_out.extend(refused.iter().map(|error| {
            let name = Escaped::short(error.tensor().unwrap_or_default());
            format!("{name} ({})", error.message())
        }));
        Ok(())
    }

    /// Gives each tensor a name of its own, by [`UniqueNames::tell_apart`].
    pub fn tell_apart(&mut self) {
        UniqueNames::tell_apart(self.tensors.iter_mut().map(|info| &mut info.name));
    }

    /// Returns the sources, one for each file.
    #[must_use]
    pub fn sources(&self) -> &[SharedSource] {
        &self.sources
    }

    /// Returns how the bytes of a tensor are stored.
    ///
    /// # Panics
    /// If there is no such tensor.
    #[must_use]
    pub fn bytes(&self, tensor: usize) -> &TensorBytes {
        &self.bytes[tensor]
    }

    fn first_name(&self) -> &str {
        self.files.first().map_or("", |file| &file.name)
    }

    fn locate(&self, tensor: usize, error: Error) -> Error {
        let error = error.for_tensor(&self.tensors[tensor].name);
        match self.files.get(self.bytes[tensor].range().file) {
            Some(file) => error.in_file(&file.name),
            None => error,
        }
    }

    fn read(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(offset, buf.len(), self.tensors[tensor].byte_len()?)?;
        if buf.is_empty() {
            return Ok(());
        }
        match &self.bytes[tensor] {
            TensorBytes::Plain(range) => {
                self.sources[range.file].read_at(range.offset + offset, buf)
            }
            TensorBytes::Pieces(pieces) => {
                let lens = pieces.iter().map(|piece| piece.len);
                read_pieces(lens, offset, buf, |piece, within, buf| {
                    let range = pieces[piece];
                    self.sources[range.file].read_at(range.offset + within, buf)
                })
            }
            TensorBytes::Decoded(decoder) => decoder.read(&self.sources, offset, buf),
        }
    }
}

impl ContainerFacts for Table {
    fn header_fields(&self) -> Value {
        if self.fields.is_empty() { Value::Null } else { self.fields.clone().into() }
    }

    fn unlisted(&self) -> &[Unlisted] {
        &self.unlisted
    }

    fn checksum(&self) -> Option<FileChecksum> {
        self.checksum.clone()
    }

    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let read = match &self.sources[..] {
            [source, ..] if self.checksum.is_some() => source.read_at(offset, buf),
            _ => Err(Error::corrupt("this format has no raw parts").at(offset)),
        };
        read.map_err(|error| error.in_file(self.first_name()))
    }
}

impl CheckpointReader for Table {
    fn format(&self) -> &'static Format {
        self.format
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let stored = match &self.bytes[tensor] {
            TensorBytes::Plain(range) => Stored::plain(*range),
            bytes @ TensorBytes::Pieces(_) => Stored::derived(bytes.range()),
            TensorBytes::Decoded(decoder) => decoder.stored(&self.sources),
        };
        match &self.checksum {
            Some(checksum) => stored.with_parts([checksum.part(&*self.sources[0])].into()),
            None => stored,
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read(tensor, offset, buf).map_err(|error| self.locate(tensor, error))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        match self.bytes.get(tensor)? {
            TensorBytes::Plain(range) => self.sources[range.file].slice_at(range.offset, range.len),
            TensorBytes::Pieces(_) => None,
            TensorBytes::Decoded(decoder) => decoder.slice(&self.sources),
        }
    }

    fn container(&self) -> Container<'_> {
        Container::of(self)
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let read = self.contents.get(companion).ok_or_else(|| Companion::absent(companion))?;
        read(&self.sources).map_err(|error| error.in_file(self.first_name()))
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("format", &self.format.id)
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec;

    use super::*;
    use crate::{Code, DType};

    static FORMAT: Format = Format { id: "test", ..Format::READ_ONLY };

    fn table() -> Table {
        let mut table = Table::of_file(&FORMAT, "a.bin", Arc::new(vec![0, 1, 2, 3, 4, 5, 6, 7]));
        let more: SharedSource = Arc::new(vec![10, 11, 12]);
        table.add_file(FileInfo { name: "b.bin".into(), len: 3 }, more);
        table
    }

    fn info(name: &str, count: u64) -> TensorInfo {
        TensorInfo { name: name.into(), dtype: DType::U8, shape: [count].into() }
    }

    fn range(file: usize, offset: u64, len: u64) -> StoredRange {
        StoredRange { file, offset, len }
    }

    /// Bits turned around, which refuses the byte 7.
    struct Inverted(StoredRange);

    impl TensorDecoder for Inverted {
        fn range(&self) -> StoredRange {
            self.0
        }

        fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
            sources[self.0.file].read_at(self.0.offset + offset, buf)?;
            if buf.contains(&7) {
                return Err(Error::corrupt("a seven"));
            }
            buf.iter_mut().for_each(|byte| *byte = !*byte);
            Ok(())
        }
    }

    #[test]
    fn every_part_of_every_kind_of_tensor_is_read() -> Result<()> {
        let mut table = table();
        table.add(info("plain", 3), range(0, 2, 3))?;
        let pieces = vec![range(0, 6, 2), range(1, 0, 0), range(1, 1, 2), range(0, 0, 1)];
        table.add(info("pieces", 5), TensorBytes::pieces(pieces))?;
        table.add(info("one", 2), TensorBytes::pieces(vec![range(1, 0, 2)]))?;
        table.add(info("made", 4), TensorBytes::in_memory(range(0, 0, 8), vec![9, 8, 7, 6]))?;
        table.add(info("decoded", 3), TensorBytes::decoded(Inverted(range(0, 0, 3))))?;
        table.add(info("empty", 0), range(1, 99, 0))?;
        let expected: [&[u8]; 6] =
            [&[2, 3, 4], &[6, 7, 11, 12, 0], &[10, 11], &[9, 8, 7, 6], &[255, 254, 253], &[]];
        for (tensor, expected) in expected.into_iter().enumerate() {
            for start in 0..=expected.len() {
                for end in start..=expected.len() {
                    let mut buf = vec![0; end - start];
                    table.read_tensor(tensor, start as u64, &mut buf)?;
                    assert_eq!(buf, expected[start..end], "{tensor} {start} {end}");
                }
            }
            let beyond = table.read_tensor(tensor, expected.len() as u64, &mut [0]);
            assert_eq!(beyond.map_err(|error| error.code()), Err(Code::Corrupt), "{tensor}");
        }
        let slices: Vec<_> = (0..7).map(|tensor| table.tensor_slice(tensor)).collect();
        assert_eq!(slices[..3], [Some(&[2, 3, 4][..]), None, Some(&[10, 11][..])]);
        assert_eq!(slices[3..], [Some(&[9, 8, 7, 6][..]), None, None, None]);
        assert_eq!(table.stored(1).range, range(0, 6, 2));
        assert_eq!(table.stored(3).range, range(0, 0, 8));
        Ok(())
    }

    #[test]
    fn errors_name_the_tensor_and_its_file() -> Result<()> {
        let mut table = table();
        table.add(info("decoded", 2), TensorBytes::decoded(Inverted(range(0, 6, 2))))?;
        table.add(info("other", 1), range(1, 0, 1))?;
        let error = table.read_tensor(0, 0, &mut [0; 2]).unwrap_err();
        assert_eq!((error.message(), error.tensor()), ("a seven", Some("decoded")));
        assert_eq!(error.file(), Some("a.bin"));
        let error = table.read_tensor(1, 1, &mut [0]).unwrap_err();
        assert_eq!((error.tensor(), error.file()), (Some("other"), Some("b.bin")));
        Ok(())
    }

    #[test]
    fn ranges_outside_of_the_file_or_of_another_length_are_refused() {
        let refused = [
            (info("past", 4), range(1, 0, 4)),
            (info("far", 1), range(0, u64::MAX, 1)),
            (info("short", 4), range(0, 0, 3)),
            (info("long", 2), range(0, 0, 3)),
        ];
        for (info, range) in refused {
            let name = info.name.clone();
            let error = table().add(info, range).unwrap_err();
            assert_eq!((error.code(), error.tensor()), (Code::Corrupt, Some(&*name)));
            assert!(error.file().is_some(), "{error}");
        }
    }

    #[test]
    fn companions_are_read_from_the_sources() -> Result<()> {
        let mut table = table();
        let companion = Companion { name: "words.txt".into(), len: 3 };
        table.offer(companion, |sources| crate::read_vec(&*sources[1], 0, 3));
        let broken = Companion { name: "broken.txt".into(), len: 9 };
        table.offer(broken, |sources| crate::read_vec(&*sources[1], 0, 9));
        assert_eq!(table.read_companion(0)?, [10, 11, 12]);
        assert_eq!(table.read_companion(1).unwrap_err().file(), Some("a.bin"));
        assert_eq!(table.read_companion(2).unwrap_err(), Companion::absent(2));
        Ok(())
    }

    #[test]
    fn refused_tensors_are_left_out_unless_nothing_is_left() -> Result<()> {
        let refused = || vec![Error::version("a list").for_tensor("x"), Error::version("a text")];
        assert_eq!(table().leave_out(refused()).unwrap_err().tensor(), Some("x"));
        let mut table = table();
        table.add(info("a", 1), range(0, 0, 1))?;
        table.add(info("a", 1), range(0, 1, 1))?;
        table.leave_out(refused())?;
        assert_eq!(table.left_out(), ["x (a list)", " (a text)"]);
        table.tell_apart();
        assert_eq!(
            table.tensors().iter().map(|info| &*info.name).collect::<Vec<_>>(),
            ["a", "a#2"]
        );
        Ok(())
    }

    #[test]
    fn a_plain_tensor_takes_no_more_than_its_range_and_a_tag() {
        assert!(size_of::<TensorBytes>() <= size_of::<StoredRange>() + size_of::<u64>());
    }
}
