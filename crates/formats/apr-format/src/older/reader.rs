//! A file of an older APR format, opened.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};

use alloc::vec::Vec;
use core::fmt;

use apr_core::{
    ByteSource, CheckpointReader, ContainerFacts, FileChecksum, FileInfo, Format, Metadata, Result,
    Stored, StoredRange, TensorInfo, check_range, has_no, has_own,
};
use serde_json::Value;

use super::{Encoding, Parts};

/// An APR1 file, or one of a v2 dialect, opened for reading.
///
/// Tensor positions given to its methods must be below the number of
/// [`tensors`](CheckpointReader::tensors).
pub struct OlderReader {
    source: Box<dyn ByteSource>,
    format: &'static Format,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    places: Vec<(StoredRange, Encoding)>,
    made: Vec<Vec<u8>>,
    checksum: Option<FileChecksum>,
    header: Value,
    files: [FileInfo; 1],
    warnings: Vec<String>,
}

impl OlderReader {
    /// Creates a reader, and checks the position of every part.
    ///
    /// # Errors
    /// See [`Parts::settle`].
    pub(crate) fn new(source: Box<dyn ByteSource>, name: &str, mut parts: Parts) -> Result<Self> {
        let checksum = parts.settle(&source)?;
        let Parts { format, metadata, tensors, header, warnings, made, .. } = parts;
        let places = tensors
            .iter()
            .map(|entry| {
                (StoredRange { file: 0, offset: entry.offset, len: entry.len }, entry.encoding)
            })
            .collect();
        let tensors = tensors.into_iter().map(|entry| entry.info).collect();
        let files = [FileInfo { name: name.to_string(), len: source.len() }];
        Ok(Self {
            source,
            format,
            metadata,
            tensors,
            places,
            made,
            checksum,
            header,
            files,
            warnings,
        })
    }
}

impl ContainerFacts for OlderReader {
    fn checksum(&self) -> Option<FileChecksum> {
        self.checksum.clone()
    }

    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.source.read_at(offset, buf).map_err(|error| error.in_file(&self.files[0].name))
    }

    fn header_fields(&self) -> Value {
        let mut header = self.header.clone();
        if let Some(fields) = header.as_object_mut() {
            let crc = self.checksum.as_ref().map(|checksum| format!("{:#010x}", checksum.crc32));
            fields.insert("crc32".into(), crc.into());
        }
        header
    }
}

impl CheckpointReader for OlderReader {
    has_own!(metadata, tensors, container, files, warnings);
    has_no!(companions, left_out);

    fn format(&self) -> &'static Format {
        self.format
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let (range, encoding) = self.places[tensor];
        let is_plain = encoding == Encoding::Plain;
        let stored = if is_plain { Stored::plain(range) } else { Stored::derived(range) };
        let file = self.checksum.as_ref().map(|checksum| checksum.part(&*self.source));
        stored.with_parts(file.into_iter().collect())
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (info, (range, encoding)) = (&self.tensors[tensor], self.places[tensor]);
        let mut read = || {
            check_range(offset, buf.len(), info.byte_len()?)?;
            match encoding {
                Encoding::Made(at) => self.made[at].as_slice().read_at(offset, buf),
                encoding => encoding.read(&self.source, range.offset, offset, buf),
            }
        };

        read().map_err(|error| error.for_tensor(&info.name).in_file(&self.files[0].name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let (range, encoding) = *self.places.get(tensor)?;
        (encoding == Encoding::Plain)
            .then(|| self.source.slice_at(range.offset, range.len))
            .flatten()
    }
}

impl fmt::Debug for OlderReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("OlderReader");
        debug
            .field("files", &self.files)
            .field("format", &self.format)
            .field("tensors", &self.tensors);
        debug.finish_non_exhaustive()
    }
}
