//! Opening an APR2 file: the front, the trailer, and nothing in between.

mod facts;

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use apr_core::digest::Digest;
use apr_core::{
    ByteSource, CheckpointReader, Code, Companion, ContainerFacts, DType, Encoded, Error, FileInfo,
    Format, Limits, Metadata, ReadEncoded, Result, Stored, StoredPart, StoredRange, Sum,
    TensorInfo, has_no, has_own, keys, read_vec,
};

use super::companion::{CompanionBytes, find_companions};
use super::header::{Flags, Header};
use super::index::{CODEC, Index, IndexEntry, decode_index};
use super::layout::{
    BLOCK_ALIGNMENT, EntryRange, align, alignment_warning, check_overlaps, data_end, place_entries,
    sort_by_place,
};
use super::pool::Pool;
use super::seal::{Encryption, Keys, Seal};
use super::stored::{Access, Scratch, StoredTensor};
use super::trailer::{Footer, Trailer, read_trailer};

/// An APR2 file opened for reading.
pub struct Apr2Reader {
    source: Box<dyn ByteSource>,
    header: Header,
    footer: Footer,
    trailer: Trailer,
    trailer_offset: u64,
    metadata: Metadata,
    /// Tensors in stored order, without those that hold companions or metadata.
    tensors: Vec<TensorInfo>,
    /// Position in the index of each of `tensors`.
    entries: Vec<usize>,
    /// Stored tensors, in index order.
    stored: Vec<StoredTensor>,
    /// Bytes of padding after each; in index order.
    gaps: Vec<u32>,
    /// Positions in `tensors`, sorted by name.
    by_name: Vec<usize>,
    companions: Vec<Companion>,
    companion_bytes: Vec<CompanionBytes>,
    encryption: Encryption,
    hidden_metadata: bool,
    scratch: Pool<Scratch>,
    files: [FileInfo; 1],
    limits: Limits,
    warnings: Vec<String>,
}

/// Opens an APR2 file. Reads header, metadata, index and trailer, and no tensor bytes.
///
/// # Errors
/// E001 when it is not an APR2 file or breaks a rule of the format, E002 when parts are missing or
/// contradict each other, E003 for versions and encodings this crate does not read, E008 beyond
/// `limits`; each names `name`.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Apr2Reader> {
    open_with_keys(source, name, limits, &Keys::default())
}

/// Opens an APR2 file that may be encrypted. Without keys, an encrypted file opens too, but only
/// its unencrypted parts are readable.
///
/// # Errors
/// The errors of [`open`]; E005 when no key fits, or header, metadata or index are not those that
/// were encrypted, E008 for a password that costs more to try than [`crypto`](crate::crypto)
/// allows.
pub fn open_with_keys<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
    keys: &Keys,
) -> Result<Apr2Reader> {
    Apr2Reader::open(Box::new(source), name, limits, keys).map_err(|error| error.in_file(name))
}

impl Apr2Reader {
    fn open(source: Box<dyn ByteSource>, name: &str, limits: &Limits, keys: &Keys) -> Result<Self> {
        let header = read_header(&source)?;
        limits.check_metadata(header.metadata_size.into()).map_err(|error| error.at(16))?;
        limits.check_index(header.index_size.into()).map_err(|error| error.at(24))?;
        let metadata_bytes =
            read_vec(&source, header.metadata_offset.into(), header.metadata_size.into())?;
        let index_bytes = read_vec(&source, header.index_offset.into(), header.index_size.into())?;
        let count = index_bytes.first_chunk().map_or(0, |count| u32::from_le_bytes(*count));
        limits.check_tensors(count.into()).map_err(|error| error.at(header.index_offset.into()))?;
        let metadata = Metadata::parse(&metadata_bytes)
            .map_err(|error| error.at(header.metadata_offset.into()))?;
        let Index { entries, warnings: index_warnings } = decode_index(&index_bytes, &header)?;

        let places = place_entries(&entries, &metadata, &header, source.len())?;
        let order = sort_by_place(&entries);
        check_overlaps(&entries, &places, &order)?;
        let encryption = Encryption::open(&source, &header, [&metadata_bytes, &index_bytes], keys)?;
        drop((metadata_bytes, index_bytes));
        check_room(&entries, &encryption)?;
        let data_end =
            data_end(&entries, &header).max(u64::from(header.data_offset) + encryption.block_len);
        let trailer_offset = align(data_end, BLOCK_ALIGNMENT);
        let trailer_offset = trailer_offset
            .ok_or_else(|| Error::corrupt("the data section ends past 2^64").at(28))?;
        let mut trailer = read_trailer(&source, &header, trailer_offset, entries.len())?;

        let mut warnings = header.warnings();
        warnings.extend(index_warnings);
        warnings.extend(alignment_warning(&places, &header));
        warnings.extend(compression_warning(&entries, &header));
        warnings.extend(required_keys_warning(&metadata));
        warnings.append(&mut trailer.warnings);

        let gaps = gaps(&places, &order, trailer_offset);
        let first = places.iter().filter(|place| place.len > 0).map(|place| place.offset).min();
        let encrypted = header.flags.contains(Flags::ENCRYPTED);
        let stored = places.into_iter().map(|place| {
            let owner = &entries[place.owner];
            let sealed_as = if encrypted { owner.info.name.as_str() } else { "" };
            StoredTensor::new(place, owner.form(), sealed_as)
        });
        let mut reader = Self {
            stored: stored.collect(),
            gaps,
            header,
            footer: trailer.footer,
            trailer,
            trailer_offset,
            metadata,
            tensors: Vec::new(),
            entries: Vec::new(),
            by_name: Vec::new(),
            companions: Vec::new(),
            companion_bytes: Vec::new(),
            encryption,
            hidden_metadata: false,
            scratch: Pool::default(),
            files: [FileInfo { name: name.to_string(), len: source.len() }],
            limits: *limits,
            warnings,
            source,
        };

        if !matches!(reader.encryption.seal, Seal::None | Seal::Locked) {
            let found = reader.first_nonzero_padding(0..first.unwrap_or(trailer_offset))?;
            found.map_or(Ok(()), |at| Err(unsealed(at)))?;
        }
        let hidden = reader.reveal_metadata(&entries)?;
        reader.hidden_metadata = hidden.is_some();
        reader.list_tensors(entries, &order, hidden)?;
        Ok(reader)
    }

    /// Adds the metadata that an encrypted file stores in a tensor, if a key is available. Returns
    /// the position of that tensor.
    fn reveal_metadata(&mut self, entries: &[IndexEntry]) -> Result<Option<usize>> {
        if !self.header.flags.contains(Flags::ENCRYPTED) {
            return Ok(None);
        }

        let found = entries
            .binary_search_by(|entry| entry.info.name.as_str().cmp(keys::HIDDEN_TENSOR))
            .ok();
        let Some(at) = found.filter(|&at| entries[at].info.dtype == DType::U8) else {
            return Ok(None);
        };
        if matches!(self.encryption.seal, Seal::Locked) {
            self.warnings
                .push("most metadata are also encrypted; a key or a password shows them".into());
            return Ok(Some(at));
        }

        let len = entries[at].info.byte_len()?;
        self.limits.check_metadata(len)?;
        let mut json = zeros(len)?;
        let name = |error: Error| error.for_tensor(keys::HIDDEN_TENSOR);
        self.stored[at].read(self.access(), &entries[at].info, 0, &mut json).map_err(name)?;
        let hidden = Metadata::parse(&json).map_err(name)?;
        self.metadata.complete(hidden);
        Ok(Some(at))
    }

    /// Separates tensors from companions.
    fn list_tensors(
        &mut self,
        entries: Vec<IndexEntry>,
        order: &[usize],
        metadata: Option<usize>,
    ) -> Result<()> {
        let found = find_companions(&self.metadata, &entries);
        (self.companions, self.companion_bytes) =
            found.map_err(|error| error.at(self.header.metadata_offset.into()))?;
        let mut hidden = vec![false; entries.len()];
        for bytes in &self.companion_bytes {
            if let CompanionBytes::Tensor(at, _) = bytes {
                hidden[*at] = true;
            }
        }

        metadata.into_iter().for_each(|at| hidden[at] = true);
        if self.is_locked() {
            // Nobody can read them, and what is in the metadata is there anyway.
            let is_text = |at: &usize| matches!(self.companion_bytes[*at], CompanionBytes::Text(_));
            let readable: Vec<usize> = (0..self.companions.len()).filter(is_text).collect();
            self.companions = readable.iter().map(|&at| self.companions[at].clone()).collect();
            self.companion_bytes.retain(|bytes| matches!(bytes, CompanionBytes::Text(_)));
        }

        self.entries = order.iter().copied().filter(|&index| !hidden[index]).collect();
        let mut infos: Vec<_> = entries.into_iter().map(|entry| Some(entry.info)).collect();
        self.tensors = self.entries.iter().filter_map(|&index| infos[index].take()).collect();
        self.by_name = (0..self.tensors.len()).collect();
        self.by_name.sort_unstable_by_key(|&tensor| self.entries[tensor]);
        Ok(())
    }

    fn access(&self) -> Access<'_> {
        Access { source: &*self.source, seal: &self.encryption.seal, scratch: &self.scratch }
    }

    fn of(&self, tensor: usize) -> &StoredTensor {
        &self.stored[self.entries[tensor]]
    }

    /// Rejects padding after an encrypted tensor that is not zero, once its last bytes are read,
    /// because no key covers it. In other files it is a warning of `validate`.
    fn check_gap(&self, stored: &StoredTensor, reaches_end: bool) -> Result<()> {
        let gap = self.gaps[stored.place.owner];
        if !reaches_end || gap == 0 || !self.header.flags.contains(Flags::ENCRYPTED) {
            return Ok(());
        }
        let start = stored.place.offset + stored.place.len;
        match self.first_nonzero_in(start, start + u64::from(gap))? {
            Some(at) => Err(unsealed(at)),
            None => Ok(()),
        }
    }

    /// Adds the names of the tensor and of the file to an error.
    fn blame<T>(&self, tensor: usize, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name)
        })
    }

    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the footer.
    #[must_use]
    pub fn footer(&self) -> Footer {
        self.footer
    }

    /// Adds a warning about how the file is used.
    pub fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Returns the position of a tensor in [`tensors`](CheckpointReader::tensors).
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        let found =
            self.by_name.binary_search_by(|&tensor| self.tensors[tensor].name.as_str().cmp(name));
        found.ok().map(|at| self.by_name[at])
    }

    pub(super) fn source(&self) -> &dyn ByteSource {
        &*self.source
    }

    /// Returns the digests, in index order.
    pub(super) fn digests(&self) -> Option<&[Digest]> {
        self.trailer.digests.as_deref()
    }

    /// The SIGN block.
    pub(super) fn signatures(&self) -> Option<&[u8]> {
        self.trailer.signatures.as_deref()
    }

    /// The LICN block.
    pub(super) fn licence(&self) -> Option<&[u8]> {
        self.trailer.licence.as_deref()
    }

    /// Returns the offsets at which the trailer blocks and the footer start.
    pub(super) fn tail_range(&self) -> (u64, u64) {
        (self.trailer_offset, self.trailer.footer_offset)
    }

    /// Returns `true` if most metadata are in an encrypted tensor.
    pub(super) fn has_hidden_metadata(&self) -> bool {
        self.hidden_metadata
    }

    /// The ENCR block over another front; empty in a plain file.
    pub(super) fn revised_encr(
        &self,
        header: &Header,
        metadata: &[u8],
        index: &[u8],
        changed: bool,
    ) -> Result<Vec<u8>> {
        let block =
            read_vec(&self.source, self.header.data_offset.into(), self.encryption.block_len)?;
        if !changed || block.is_empty() {
            return Ok(block);
        }
        self.encryption.seal.opened()?.authenticate(&block, header, [metadata, index])
    }

    /// Returns all bytes of a tensor. They are borrowed if they are in memory unencoded, and read
    /// into a vector otherwise.
    ///
    /// # Errors
    /// E001 when there is no such tensor, E002 when its blocks don't decode, E005 when it can't be
    /// decrypted, E007 when reading fails, E008 when it exceeds the address space.
    pub fn tensor_bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let Some(tensor) = self.position(name) else {
            return Err(Error::format("no such tensor")
                .for_tensor(name)
                .in_file(&self.files[0].name));
        };
        if let Some(bytes) = self.tensor_slice(tensor) {
            return Ok(Cow::Borrowed(bytes));
        }
        let len = self.tensors[tensor].byte_len()?;
        let mut bytes = self.blame(tensor, zeros(len))?;
        self.read_tensor(tensor, 0, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}

impl ReadEncoded for Apr2Reader {
    fn read_form(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let stored = self.of(tensor);
        let read = stored.read_stored(self.access(), offset, buf).and_then(|()| {
            let end = offset + buf.len() as u64;
            self.check_gap(stored, end == stored.len(self.access()))
        });
        self.blame(tensor, read)
    }

    fn read_verbatim(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.blame(tensor, self.of(tensor).read_verbatim(self.access(), offset, buf))
    }

    fn piece_len(&self, tensor: usize) -> Option<u64> {
        self.of(tensor).piece_len()
    }

    fn read_both(
        &self,
        tensor: usize,
        offset: u64,
        buf: &mut [u8],
        verbatim: &mut Vec<u8>,
    ) -> Result<u64> {
        let (info, stored) = (&self.tensors[tensor], self.of(tensor));
        let read = stored.read_both(self.access(), info, offset, buf, verbatim);
        let checked = read.and_then(|start| {
            let end = start + verbatim.len() as u64;
            self.check_gap(stored, end == stored.place.len).map(|()| start)
        });
        self.blame(tensor, checked)
    }
}

impl CheckpointReader for Apr2Reader {
    has_own!(metadata, tensors, container, files, warnings);
    has_no!(left_out);

    fn format(&self) -> &'static Format {
        &super::FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let stored = self.of(tensor);
        let EntryRange { offset, len, tied, index, .. } = stored.place;
        let range = StoredRange { file: 0, offset, len: if tied { 0 } else { len } };
        // A tied tensor stores nothing of its own; its digest in the file is that of no bytes.
        let digest = self.trailer.digests.as_ref().filter(|_| !tied).map(|digests| digests[index]);
        let bytes = match stored.is_encoded() {
            true => Stored::encoded_as(range, Encoded::new(self, tensor, stored.form())),
            false => Stored::plain(range),
        };
        // Without digests, there is the CRC-32 of the file.
        let file = self.trailer.digests.is_none().then(|| {
            let range = StoredRange { file: 0, offset: 0, len: self.trailer.footer_offset };
            StoredPart::of_file(&*self.source, range, Sum::Crc32(self.footer.crc32))
        });
        bytes.with_digest(digest).with_parts(file.into_iter().collect())
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (info, stored) = (&self.tensors[tensor], self.of(tensor));
        let read = stored.read(self.access(), info, offset, buf).and_then(|()| {
            let end = offset + buf.len() as u64;
            self.check_gap(stored, info.byte_len().is_ok_and(|len| len == end))
        });
        self.blame(tensor, read)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let stored = self.of(tensor);
        if stored.is_encoded() {
            return None;
        }
        self.source.slice_at(stored.place.offset, stored.place.len)
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let read = match &self.companion_bytes[companion] {
            CompanionBytes::Text(text) => Ok(text.as_bytes().to_vec()),
            CompanionBytes::Tensor(entry, info) => {
                self.read_companion_tensor(&self.stored[*entry], info)
            }
        };
        read.map_err(|error| error.in_file(&self.files[0].name))
    }
}

/// Returns the number of padding bytes after each entry's range, at most `u32::MAX`. Writers never
/// write longer padding; checking it is left to `validate`.
fn gaps(places: &[EntryRange], order: &[usize], trailer_offset: u64) -> Vec<u32> {
    let mut gaps = alloc::vec![0; places.len()];
    let mut next = trailer_offset;
    for &index in order.iter().rev() {
        let EntryRange { offset, len, tied, .. } = places[index];
        if len > 0 && !tied {
            gaps[index] = u32::try_from(next.saturating_sub(offset + len)).unwrap_or(u32::MAX);
            next = offset;
        }
    }
    gaps
}

/// Returns the error for changed bytes between encrypted ranges.
fn unsealed(offset: u64) -> Error {
    let message = "the padding is not zero, and no key covers these bytes: the encrypted file was \
                   changed";
    Error::new(Code::Signature, message).at(offset)
}

impl Apr2Reader {
    fn read_companion_tensor(&self, stored: &StoredTensor, info: &TensorInfo) -> Result<Vec<u8>> {
        let len = info.byte_len()?;
        self.limits.check_companion(len).map_err(|error| error.at(stored.place.offset))?;
        let mut bytes = zeros(len)?;
        stored
            .read(self.access(), info, 0, &mut bytes)
            .map_err(|error| error.for_tensor(&info.name))?;
        Ok(bytes)
    }
}

/// Returns a warning if the flag for compressed tensors is wrong. Readers do not need the flag.
fn compression_warning(entries: &[IndexEntry], header: &Header) -> Option<String> {
    let compressed = entries.iter().any(|entry| entry.flags & CODEC != 0);
    match (header.flags.contains(Flags::COMPRESSED), compressed) {
        (true, false) => {
            Some("the header flags compressed tensors, but no tensor is compressed".into())
        }
        (false, true) => Some("tensors are compressed, which the header does not flag".into()),
        _ => None,
    }
}

/// Checks that no tensor overlaps the ENCR block.
fn check_room(entries: &[IndexEntry], encryption: &Encryption) -> Result<()> {
    let inside = entries.iter().find(|entry| entry.size > 0 && entry.offset < encryption.block_len);
    match inside {
        Some(entry) => {
            Err(Error::corrupt("it starts inside the ENCR block").for_tensor(&entry.info.name))
        }
        None => Ok(()),
    }
}

/// Returns a buffer of `len` zeros, or an error if that exceeds the memory. An encoded tensor can
/// be much longer than its file.
fn zeros(len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reserved = usize::try_from(len).ok().filter(|&len| bytes.try_reserve_exact(len).is_ok());
    bytes.resize(
        reserved.ok_or_else(|| Error::memory(format!("{len} bytes do not fit in memory")))?,
        0,
    );
    Ok(bytes)
}

fn read_header(source: &dyn ByteSource) -> Result<Header> {
    let mut bytes = [0; Header::LEN as usize];
    let available = source.len().min(Header::LEN.into());
    source.read_at(0, &mut bytes[..usize::try_from(available).unwrap_or_default()])?;
    if available < Header::LEN.into() && bytes[..4] == super::MAGIC {
        return Err(
            Error::corrupt("the file is truncated: it ends inside the header").at(source.len())
        );
    }
    Header::decode(&bytes, source.len())
}

fn required_keys_warning(metadata: &Metadata) -> Option<String> {
    let required = [keys::APR_VERSION, keys::MODEL_TYPE, keys::ARCHITECTURE];
    let missing: Vec<&str> =
        required.into_iter().filter(|key| metadata.get(key).is_none()).collect();
    (!missing.is_empty())
        .then(|| format!("the metadata lacks the required keys {}", missing.join(", ")))
}
