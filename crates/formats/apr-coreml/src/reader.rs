//! A model as a checkpoint.

use std::fmt;
use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, Companion, ContainerFacts, Error, FileInfo, Format, Metadata,
    Result, Stored, TensorInfo, Unlisted, check_range, has_own,
};
use apr_skeleton::Cut;
use serde_json::{Map, Value, json};

use crate::METADATA;
use crate::tensor::{Bytes, Elements, Encoding, Tensor};

/// A source that readers share.
pub(crate) type Shared = Arc<dyn ByteSource>;

/// A model opened for reading; [`open`](crate::open), [`open_in`](crate::open_in) and
/// [`open_package`](crate::open_package) make it.
pub struct CoremlReader {
    pub(crate) format: &'static Format,
    /// One for each of `files`.
    pub(crate) sources: Vec<Shared>,
    pub(crate) files: Vec<FileInfo>,
    pub(crate) tensors: Vec<TensorInfo>,
    /// One for each of `tensors`.
    pub(crate) weights: Vec<Arc<Tensor>>,
    pub(crate) metadata: Metadata,
    pub(crate) unlisted: Vec<Unlisted>,
    pub(crate) left_out: Vec<String>,
    pub(crate) warnings: Vec<String>,
    /// Model file around the weights, if it has a graph that can be stored with them.
    pub(crate) cut: Option<Cut>,
    pub(crate) companions: Vec<Companion>,
}

impl CoremlReader {
    fn locate(&self, tensor: usize, error: Error) -> Error {
        let file = self.weights[tensor].range().file;
        error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[file].name)
    }
}

impl ContainerFacts for CoremlReader {
    fn header_fields(&self) -> Value {
        let own = self.metadata.object(METADATA).cloned();
        let mut fields: Map<String, Value> = own.unwrap_or_default();
        // There is one for each weight, and for each kind of step.
        fields.remove("compressed");
        fields.remove("operators");
        // What reports show as the format's version, and not the model's own.
        fields.remove("version");
        if let Some(version) = fields.remove("specification") {
            fields.insert("version".into(), version);
        }
        let mut all = json!({ "container": self.format.id });
        all.as_object_mut().into_iter().for_each(|all| all.append(&mut fields));
        all
    }

    fn unlisted(&self) -> &[Unlisted] {
        &self.unlisted
    }
}

impl CheckpointReader for CoremlReader {
    has_own!(metadata, tensors, container, files, left_out, warnings);

    fn format(&self) -> &'static Format {
        self.format
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let weight = &self.weights[tensor];
        match &weight.elements {
            Elements::Stored { bytes: Bytes::File(range), encoding: Encoding::Whole(_) } => {
                Stored::plain(*range)
            }
            _ => Stored::derived(weight.range()),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let available = self.tensors[tensor].byte_len()?;
        check_range(offset, buf.len(), available).map_err(|error| self.locate(tensor, error))?;
        let read = self.weights[tensor].read(&self.sources, offset, buf);
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
        match &self.weights.get(tensor)?.elements {
            Elements::Stored { bytes: Bytes::File(range), encoding: Encoding::Whole(_) } => {
                self.sources[range.file].slice_at(range.offset, range.len)
            }
            _ => None,
        }
    }
}

impl fmt::Debug for CoremlReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoremlReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
