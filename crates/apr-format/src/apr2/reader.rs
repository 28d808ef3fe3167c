//! Opening an APR2 file: the front, the trailer, and nothing in between.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use apr_core::digest::Digest;
use apr_core::{
    ByteSource, CheckpointReader, Companion, Error, Extent, ExtentKind, FileChecksum, FileInfo, FormatId, Limits,
    Metadata, Result, StoredRange, TensorInfo, keys, read_vec,
};
use serde_json::{Value, json};

use super::companion::{CompanionBytes, find_companions};
use super::header::Header;
use super::index::{Index, decode_index};
use super::layout::{
    BLOCK_ALIGNMENT, Place, align, alignment_warning, check_overlaps, data_end, place_entries, sort_by_place,
};
use super::trailer::{Footer, Trailer, read_trailer};

/// An APR2 file opened for reading.
pub struct Apr2Reader {
    source: Box<dyn ByteSource>,
    header: Header,
    footer: Footer,
    trailer_offset: u64,
    footer_offset: u64,
    metadata: Metadata,
    /// In stored order, without the tensors that hold companions.
    tensors: Vec<TensorInfo>,
    /// For each of `tensors`: its place, and its position in the index.
    places: Vec<Place>,
    /// Positions in `tensors`, sorted by name.
    by_name: Vec<usize>,
    companions: Vec<Companion>,
    companion_bytes: Vec<CompanionBytes>,
    /// In index order.
    digests: Option<Vec<Digest>>,
    files: [FileInfo; 1],
    limits: Limits,
    warnings: Vec<String>,
}

/// Opens an APR2 file. Reads header, metadata, index and trailer, and no tensor bytes.
///
/// # Errors
/// E001 when it is not an APR2 file or breaks a rule of the format, E002 when parts are missing or contradict each
/// other, E003 for versions and encodings this crate does not read, E008 beyond `limits`; each names `name`.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Apr2Reader> {
    Apr2Reader::open(Box::new(source), name, limits).map_err(|error| error.in_file(name))
}

impl Apr2Reader {
    fn open(source: Box<dyn ByteSource>, name: &str, limits: &Limits) -> Result<Self> {
        let header = read_header(&source)?;
        limits.check_metadata(header.metadata_size.into()).map_err(|error| error.at(16))?;
        limits.check_index(header.index_size.into()).map_err(|error| error.at(24))?;
        let metadata = read_vec(&source, header.metadata_offset.into(), header.metadata_size.into())?;
        let metadata = Metadata::parse(&metadata).map_err(|error| error.at(header.metadata_offset.into()))?;
        let index = read_vec(&source, header.index_offset.into(), header.index_size.into())?;
        let Index { entries, warnings: index_warnings } = decode_index(&index, &header)?;

        let mut places = place_entries(&entries, &metadata, &header, source.len())?;
        let stored = sort_by_place(&entries);
        check_overlaps(&entries, &places, &stored)?;
        let trailer_offset = align(data_end(&entries, &header), BLOCK_ALIGNMENT);
        let trailer_offset = trailer_offset.ok_or_else(|| Error::corrupt("the data section ends past 2^64").at(28))?;
        let Trailer { digests, footer, footer_offset, warnings: trailer_warnings } =
            read_trailer(&source, &header, trailer_offset, entries.len())?;

        let mut warnings = header.warnings();
        warnings.extend(index_warnings);
        warnings.extend(alignment_warning(&places, &header));
        warnings.extend(required_keys_warning(&metadata));
        warnings.extend(trailer_warnings);

        let found = find_companions(&metadata, &entries, &places);
        let (companions, companion_bytes) = found.map_err(|error| error.at(header.metadata_offset.into()))?;
        let mut hidden = vec![false; entries.len()];
        for bytes in &companion_bytes {
            if let CompanionBytes::Tensor(place) = bytes {
                hidden[place.index] = true;
            }
        }
        let visible: Vec<usize> = stored.into_iter().filter(|&index| !hidden[index]).collect();
        places = visible.iter().map(|&index| places[index]).collect();
        let mut entries: Vec<_> = entries.into_iter().map(|entry| Some(entry.info)).collect();
        let tensors: Vec<_> = visible.iter().filter_map(|&index| entries[index].take()).collect();
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_unstable_by_key(|&tensor| places[tensor].index);

        let files = [FileInfo { name: name.to_string(), len: source.len() }];
        Ok(Self {
            source,
            header,
            footer,
            trailer_offset,
            footer_offset,
            metadata,
            tensors,
            places,
            by_name,
            companions,
            companion_bytes,
            digests,
            files,
            limits: *limits,
            warnings,
        })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The footer.
    #[must_use]
    pub fn footer(&self) -> Footer {
        self.footer
    }

    /// Position of a tensor in [`tensors`](CheckpointReader::tensors).
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        let found = self.by_name.binary_search_by(|&tensor| self.tensors[tensor].name.as_str().cmp(name));
        found.ok().map(|at| self.by_name[at])
    }

    /// All bytes of a tensor: borrowed where the source lies in memory, read into a vector elsewhere (seed 000,
    /// `tensor_slice`).
    ///
    /// # Errors
    /// E001 when there is no such tensor, E007 when reading fails, E008 when it exceeds the address space.
    pub fn tensor_bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let read = match self.position(name) {
            None => Err(Error::format("there is no such tensor")),
            Some(tensor) => match self.tensor_slice(tensor) {
                Some(bytes) => Ok(Cow::Borrowed(bytes)),
                None => read_vec(&self.source, self.places[tensor].offset, self.places[tensor].len).map(Cow::Owned),
            },
        };
        read.map_err(|error| error.for_tensor(name).in_file(&self.files[0].name))
    }
}

impl CheckpointReader for Apr2Reader {
    fn format(&self) -> FormatId {
        FormatId::Apr2
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> StoredRange {
        let Place { offset, len, tied, .. } = self.places[tensor];
        StoredRange { file: 0, offset, len: if tied { 0 } else { len } }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let place = self.places[tensor];
        let read = match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= place.len => self.source.read_at(place.offset + offset, buf),
            _ => Err(Error::corrupt(format!("{} bytes at {offset} end past its {} bytes", buf.len(), place.len))),
        };
        read.map_err(|error| error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        self.source.slice_at(self.places[tensor].offset, self.places[tensor].len)
    }

    fn digest(&self, tensor: usize) -> Option<Digest> {
        let place = self.places[tensor];
        // A tied tensor stores nothing of its own; its digest in the file is that of no bytes.
        self.digests.as_ref().filter(|_| !place.tied).map(|digests| digests[place.index])
    }

    fn checksum(&self) -> Option<FileChecksum> {
        let structure = |offset: u64, end: u64| Extent { kind: ExtentKind::Structure, offset, len: end - offset };
        let mut parts = vec![
            structure(0, self.header.metadata_end()),
            structure(self.header.index_offset.into(), self.header.index_end()),
        ];
        for (tensor, place) in self.places.iter().enumerate().filter(|(_, place)| !place.tied) {
            parts.push(Extent { kind: ExtentKind::Tensor(tensor), offset: place.offset, len: place.len });
        }
        for (companion, bytes) in self.companion_bytes.iter().enumerate() {
            if let CompanionBytes::Tensor(place) = bytes {
                parts.push(Extent { kind: ExtentKind::Companion(companion), offset: place.offset, len: place.len });
            }
        }
        parts.push(structure(self.trailer_offset, self.footer_offset));
        parts.sort_by_key(|part| (part.offset, part.len));

        let mut extents = Vec::with_capacity(2 * parts.len());
        let mut position = 0;
        for mut part in parts {
            if part.offset > position {
                extents.push(Extent { kind: ExtentKind::Padding, offset: position, len: part.offset - position });
            }
            // Only an empty tensor can start inside another one, and it covers nothing wherever it is.
            part.offset = part.offset.max(position);
            position = part.offset + part.len;
            extents.push(part);
        }
        Some(FileChecksum { crc32: self.footer.crc32, extents })
    }

    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.source.read_at(offset, buf).map_err(|error| error.in_file(&self.files[0].name))
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn header_fields(&self) -> Value {
        let Header { version_major, version_minor, flags, .. } = self.header;
        json!({
            "version": format!("{version_major}.{version_minor}"),
            "flags": flags.names(),
            "alignment": flags.alignment(),
            "metadata_offset": self.header.metadata_offset,
            "metadata_size": self.header.metadata_size,
            "index_offset": self.header.index_offset,
            "index_size": self.header.index_size,
            "data_offset": self.header.data_offset,
            "digests": self.digests.is_some(),
            "crc32": format!("{:#010x}", self.footer.crc32),
            "file_size": self.footer.file_size,
        })
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let read = match &self.companion_bytes[companion] {
            CompanionBytes::Text(text) => Ok(text.as_bytes().to_vec()),
            CompanionBytes::Tensor(place) => {
                let allowed = self.limits.check_companion(place.len).map_err(|error| error.at(place.offset));
                allowed.and_then(|()| read_vec(&self.source, place.offset, place.len))
            }
        };
        read.map_err(|error| error.in_file(&self.files[0].name))
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

fn read_header(source: &dyn ByteSource) -> Result<Header> {
    let mut bytes = [0; Header::LEN as usize];
    let available = source.len().min(Header::LEN.into());
    source.read_at(0, &mut bytes[..usize::try_from(available).unwrap_or_default()])?;
    if available < Header::LEN.into() && bytes[..4] == super::MAGIC {
        return Err(Error::corrupt("the file is truncated: it ends inside the header").at(source.len()));
    }
    Header::decode(&bytes, source.len())
}

fn required_keys_warning(metadata: &Metadata) -> Option<String> {
    let required = [keys::APR_VERSION, keys::MODEL_TYPE, keys::ARCHITECTURE];
    let missing: Vec<&str> = required.into_iter().filter(|key| metadata.get(key).is_none()).collect();
    (!missing.is_empty()).then(|| format!("the metadata lacks the required keys {}", missing.join(", ")))
}
