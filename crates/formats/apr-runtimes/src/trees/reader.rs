//! A model as a checkpoint.

use std::fmt;

use apr_core::{
    ByteSource, CheckpointReader, Companion, ContainerFacts, Error, FileInfo, Format, Limits,
    Metadata, Result, Stored, StoredRange, TensorInfo, check_range, has_own, read_vec,
};
use serde_json::{Map, Value, json};

use crate::trees::columns::Columns;

/// A model opened for reading: its lists are in memory.
pub struct TreesReader {
    format: &'static Format,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    bytes: Vec<Vec<u8>>,
    metadata: Metadata,
}

/// Reads a whole file.
///
/// # Errors
/// E007 when reading fails, E008 over the limit.
pub(crate) fn whole(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<u8>> {
    limits.check_metadata(source.len())?;
    read_vec(source, 0, source.len())
}

impl TreesReader {
    pub(crate) fn new(
        format: &'static Format,
        (name, len): (&str, u64),
        columns: Columns,
        fields: Map<String, Value>,
    ) -> Self {
        let mut metadata = Metadata::new();
        metadata.set(format.id, fields);
        Self {
            format,
            files: vec![FileInfo { name: name.to_owned(), len }],
            tensors: columns.tensors,
            bytes: columns.bytes,
            metadata,
        }
    }
}

impl ContainerFacts for TreesReader {
    fn header_fields(&self) -> Value {
        json!({ "container": self.format.id })
    }
}

impl CheckpointReader for TreesReader {
    has_own!(metadata, tensors, container, files);

    fn format(&self) -> &'static Format {
        self.format
    }

    fn stored(&self, _: usize) -> Stored<'_> {
        Stored::derived(StoredRange { file: 0, offset: 0, len: self.files[0].len })
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bytes = &self.bytes[tensor];
        let located = |error: Error| {
            error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name)
        };
        check_range(offset, buf.len(), bytes.len() as u64).map_err(located)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        buf.copy_from_slice(&bytes[start..start + buf.len()]);
        Ok(())
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        self.bytes.get(tensor).map(Vec::as_slice)
    }

    fn companions(&self) -> &[Companion] {
        &[]
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        Err(Companion::absent(companion))
    }

    fn left_out(&self) -> &[String] {
        &[]
    }

    fn warnings(&self) -> &[String] {
        &[]
    }
}

impl fmt::Debug for TreesReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreesReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
