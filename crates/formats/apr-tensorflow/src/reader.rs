//! A checkpoint, a SavedModel or a graph as tensors.

use std::fmt;
use std::sync::{Arc, OnceLock};

use apr_core::{
    ByteSource, CheckpointReader, Companion, ContainerFacts, Crc32c, DType, Error, FileInfo,
    Format, Metadata, Result, Shape, Stored, StoredRange, TensorInfo, Unlisted, check_range,
    has_own,
};
use apr_skeleton::Cut;
use serde_json::{Map, Value, json};

use crate::METADATA;

/// A source that readers share.
pub(crate) type Shared = Arc<dyn ByteSource>;

/// Bytes that are checked at a time.
const PIECE: u64 = 1 << 20;

/// A checkpoint, SavedModel or graph opened for reading; [`open`](crate::open) and
/// [`open_in`](crate::open_in) make it.
pub struct TensorflowReader {
    pub(crate) format: &'static Format,
    /// One for each of `files`.
    pub(crate) sources: Vec<Shared>,
    pub(crate) files: Vec<FileInfo>,
    pub(crate) tensors: Vec<TensorInfo>,
    /// One for each tensor.
    pub(crate) weights: Vec<Weight>,
    pub(crate) metadata: Metadata,
    pub(crate) unlisted: Vec<Unlisted>,
    pub(crate) left_out: Vec<String>,
    pub(crate) warnings: Vec<String>,
    /// File around the constants, if it has a graph that can be stored with them.
    pub(crate) cut: Option<Cut>,
    pub(crate) companions: Vec<Companion>,
}

/// Location of a tensor's bytes.
#[derive(Debug)]
pub(crate) enum Weight {
    /// Ranges of files, which follow each other. A partitioned variable has several.
    Parts(Vec<Part>),
    /// Bytes whose last element repeats, with their range in the file.
    Repeated { bytes: Vec<u8>, element: usize, range: StoredRange },
}

/// Bytes of a file.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) range: StoredRange,
    /// The masked CRC-32C of the bytes, if the file has one.
    pub(crate) sum: Option<u32>,
    /// Result of the comparison, after the bytes were read.
    checked: OnceLock<std::result::Result<(), Error>>,
}

impl Part {
    pub(crate) fn new(range: StoredRange, sum: Option<u32>) -> Self {
        Self { range, sum, checked: OnceLock::new() }
    }

    /// Compares the checksum when the part is first read, all of it.
    fn check(&self, source: &dyn ByteSource) -> Result<()> {
        let Some(expected) = self.sum else { return Ok(()) };
        let check = || {
            let mut sum = Crc32c::new();
            let StoredRange { offset, len, .. } = self.range;
            if let Some(bytes) = source.slice_at(offset, len) {
                sum.update(bytes);
            } else {
                let mut piece = vec![0; usize::try_from(len.min(PIECE)).unwrap_or_default()];
                let mut at = 0;
                while at < len {
                    let count = usize::try_from((len - at).min(PIECE)).unwrap_or_default();
                    source.read_at(offset + at, &mut piece[..count])?;
                    sum.update(&piece[..count]);
                    at += count as u64;
                }
            }
            if sum.masked() == expected {
                return Ok(());
            }
            Err(Error::checksum("its checksum (CRC-32C) does not match its bytes").at(offset))
        };
        self.checked.get_or_init(check).clone()
    }
}

impl TensorflowReader {
    fn locate(&self, tensor: usize, error: Error) -> Error {
        let file = match &self.weights[tensor] {
            Weight::Parts(parts) => parts.first().map_or(0, |part| part.range.file),
            Weight::Repeated { range, .. } => range.file,
        };
        error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[file].name)
    }

    fn read(&self, weight: &Weight, offset: u64, buf: &mut [u8]) -> Result<()> {
        match weight {
            Weight::Parts(parts) => {
                let (mut start, mut at, mut rest) = (0, offset, buf);
                for part in parts {
                    let end = start + part.range.len;
                    if at < end && !rest.is_empty() {
                        let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(rest.len());
                        let (head, tail) = rest.split_at_mut(count);
                        let source = &self.sources[part.range.file];
                        part.check(source)?;
                        source.read_at(part.range.offset + (at - start), head)?;
                        at += count as u64;
                        rest = tail;
                    }
                    start = end;
                }
                Ok(())
            }
            Weight::Repeated { bytes, element, .. } => {
                let last = &bytes[bytes.len().saturating_sub(*element)..];
                for (at, out) in (offset..).zip(buf) {
                    let at = usize::try_from(at).unwrap_or(usize::MAX);
                    *out = *bytes.get(at).unwrap_or_else(|| &last[at % element]);
                }
                Ok(())
            }
        }
    }
}

impl ContainerFacts for TensorflowReader {
    fn header_fields(&self) -> Value {
        let own = self.metadata.object(METADATA).cloned();
        let mut fields: Map<String, Value> = own.unwrap_or_default();
        // There is a name for each variable, and an operator for each step.
        fields.remove("full_names");
        fields.remove("operators");
        let mut all = json!({ "container": self.format.id });
        all.as_object_mut().into_iter().for_each(|all| all.append(&mut fields));
        all
    }

    fn unlisted(&self) -> &[Unlisted] {
        &self.unlisted
    }
}

impl CheckpointReader for TensorflowReader {
    has_own!(metadata, tensors, container, files, left_out, warnings);

    fn format(&self) -> &'static Format {
        self.format
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match &self.weights[tensor] {
            Weight::Parts(parts) => match parts.as_slice() {
                [part] => Stored::plain(part.range),
                parts => {
                    let first = parts.first().map(|part| part.range);
                    let none = StoredRange { file: 0, offset: 0, len: 0 };
                    Stored::derived(first.unwrap_or(none))
                }
            },
            Weight::Repeated { range, .. } => Stored::derived(*range),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let available = self.tensors[tensor].byte_len()?;
        check_range(offset, buf.len(), available).map_err(|error| self.locate(tensor, error))?;
        let read = self.read(&self.weights[tensor], offset, buf);
        read.map_err(|error| self.locate(tensor, error))
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let cut = self.cut.as_ref().filter(|_| companion == 0);
        let cut = cut.ok_or_else(|| Companion::absent(companion))?;
        cut.read(&self.sources[0]).map_err(|error| error.in_file(&self.files[0].name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let Weight::Parts(parts) = self.weights.get(tensor)? else { return None };
        let [part] = parts.as_slice() else { return None };
        let source = &self.sources[part.range.file];
        // A wrong checksum is an error, which reading the tensor gives.
        part.check(source).ok()?;
        source.slice_at(part.range.offset, part.range.len)
    }
}

impl fmt::Debug for TensorflowReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorflowReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}

/// A tensor that was found, with the bytes that it is made of.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) weight: Weight,
}

impl Found {
    pub(crate) fn info(&self) -> TensorInfo {
        let shape = Shape::from(self.dims.clone());
        TensorInfo { name: self.name.clone(), dtype: self.dtype, shape }
    }

    /// Returns the file and offset of the start, which determine the order of tensors.
    pub(crate) fn place(&self) -> (usize, u64) {
        match &self.weight {
            Weight::Parts(parts) => {
                parts.first().map_or((0, 0), |part| (part.range.file, part.range.offset))
            }
            Weight::Repeated { range, .. } => (range.file, range.offset),
        }
    }
}
