//! A model as a checkpoint.

use std::fmt;
use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, Companion, ContainerFacts, Error, FileInfo, Format, Metadata,
    Result, Stored, StoredRange, TensorInfo, check_range, has_own,
};
use apr_skeleton::Cut;
use serde_json::{Map, Value, json};

use crate::openvino::element::Kind;
use crate::openvino::{FORMAT, METADATA, packed};

/// A source that the model's parts share.
pub(crate) type Shared = Arc<dyn ByteSource>;

/// A model opened for reading; [`open`](crate::openvino::open) and
/// [`open_in`](crate::openvino::open_in) make it.
pub struct OpenvinoReader {
    /// One for each of `files`: the XML file, and the file of weights.
    pub(crate) sources: Vec<Shared>,
    pub(crate) files: Vec<FileInfo>,
    pub(crate) tensors: Vec<TensorInfo>,
    /// One for each of `tensors`.
    pub(crate) weights: Vec<Weight>,
    pub(crate) metadata: Metadata,
    pub(crate) left_out: Vec<String>,
    /// The XML file, if it can be stored with the tensors.
    pub(crate) cut: Option<Cut>,
    pub(crate) companions: Vec<Companion>,
}

/// The data of a constant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weight {
    pub(crate) range: StoredRange,
    pub(crate) kind: Kind,
}

impl OpenvinoReader {
    fn locate(&self, tensor: usize, error: Error) -> Error {
        let file = self.weights[tensor].range.file;
        error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[file].name)
    }
}

impl ContainerFacts for OpenvinoReader {
    fn header_fields(&self) -> Value {
        let own = self.metadata.object(METADATA).cloned();
        let mut fields: Map<String, Value> = own.unwrap_or_default();
        // There is one for each kind of step.
        fields.remove("operators");
        let mut all = json!({ "container": FORMAT.id });
        all.as_object_mut().into_iter().for_each(|all| all.append(&mut fields));
        all
    }
}

impl CheckpointReader for OpenvinoReader {
    has_own!(metadata, tensors, container, files, left_out);

    fn warnings(&self) -> &[String] {
        &[]
    }

    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let Weight { range, kind } = self.weights[tensor];
        match kind {
            Kind::Packed(_) => Stored::derived(range),
            Kind::Plain(_) | Kind::Other => Stored::plain(range),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let available = self.tensors[tensor].byte_len()?;
        check_range(offset, buf.len(), available).map_err(|error| self.locate(tensor, error))?;
        if buf.is_empty() {
            return Ok(());
        }
        let Weight { range, kind } = self.weights[tensor];
        let source = &*self.sources[range.file];
        let read = match kind {
            Kind::Packed(packed) => packed::read(packed, (source, range.offset), offset, buf),
            Kind::Plain(_) | Kind::Other => source.read_at(range.offset + offset, buf),
        };
        read.map_err(|error| self.locate(tensor, error))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let Weight { range, kind } = self.weights.get(tensor)?;
        matches!(kind, Kind::Plain(_)).then_some(())?;
        self.sources[range.file].slice_at(range.offset, range.len)
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let cut = self.cut.as_ref().filter(|_| companion == 0);
        let cut = cut.ok_or_else(|| Companion::absent(companion))?;
        cut.read(&self.sources[0]).map_err(|error| error.in_file(&self.files[0].name))
    }
}

impl fmt::Debug for OpenvinoReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenvinoReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
