//! A model as a checkpoint.

use std::fmt;

use apr_core::{
    ByteSource, CheckpointReader, Companion, ContainerFacts, Error, Escaped, FileInfo, Format,
    Limits, Metadata, Result, Shape, Stored, StoredRange, TensorInfo, check_range, counted, has_no,
    has_own,
};
use apr_skeleton::Cut;
use apr_tflite::flatbuffer::Flatbuffer;
use serde_json::{Value, json};

use crate::ort::model::Model;
use crate::ort::{FORMAT, METADATA};

/// A model opened for reading; [`open`] makes it.
pub struct OrtReader {
    source: Box<dyn ByteSource>,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    /// One for each tensor.
    ranges: Vec<StoredRange>,
    metadata: Metadata,
    fields: Value,
    /// File around the weights, if it can be stored with them.
    cut: Option<Cut>,
    companions: Vec<Companion>,
    left_out: Vec<String>,
}

/// Opens a model. Tables are read, no weights.
///
/// # Errors
/// E001 for what is no model, E002 for a damaged file, E003 for one whose weights no format here
/// holds, E007 when reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<OrtReader> {
    open_boxed(Box::new(source), name, limits).map_err(|error| error.in_file(name))
}

fn open_boxed(source: Box<dyn ByteSource>, name: &str, limits: &Limits) -> Result<OrtReader> {
    let mut head = [0; 8];
    if source.read_at(0, &mut head).is_err() || !(FORMAT.recognises)(&head) {
        return Err(Error::format("not a model in onnxruntime's own format"));
    }
    let model = Model::read(&Flatbuffer::new(&*source, limits).root()?)?;
    let Model { weights, fields, operators, mut refused, .. } = model;
    if weights.is_empty() && !refused.is_empty() {
        return Err(refused.swap_remove(0));
    }

    let mut left_out: Vec<String> = refused
        .iter()
        .map(|error| {
            let name = Escaped::short(error.tensor().unwrap_or_default());
            format!("{name} ({})", error.message())
        })
        .collect();
    let nodes: u64 = operators.values().sum();
    let data = weights.iter().map(|weight| (weight.range.offset, weight.range.len));
    let cut = Cut::new(FORMAT.id, name, source.len(), data);
    let (cut, companions) = match cut.companion(limits) {
        Ok(companion) => (Some(cut), vec![companion]),
        Err(_) => {
            left_out.push(format!("the graph of {}", counted(nodes, "operator")));
            (None, Vec::new())
        }
    };
    let mut metadata = Metadata::new();
    metadata.set(METADATA, fields.clone());
    let mut shown = json!({ "container": "ort" });
    shown.as_object_mut().into_iter().for_each(|all| {
        all.extend(fields.clone().into_iter().filter(|(key, _)| key != "operators"));
    });
    let mut tensors = Vec::with_capacity(weights.len());
    let mut ranges = Vec::with_capacity(weights.len());
    for weight in weights {
        let shape = Shape::from(weight.dims);
        tensors.push(TensorInfo { name: weight.name, dtype: weight.dtype, shape });
        ranges.push(weight.range);
    }
    Ok(OrtReader {
        files: vec![FileInfo { name: name.to_owned(), len: source.len() }],
        tensors,
        ranges,
        metadata,
        fields: shown,
        cut,
        companions,
        left_out,
        source,
    })
}

impl OrtReader {
    fn locate(&self, tensor: usize, error: Error) -> Error {
        error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name)
    }
}

impl ContainerFacts for OrtReader {
    fn header_fields(&self) -> Value {
        self.fields.clone()
    }
}

impl CheckpointReader for OrtReader {
    has_own!(metadata, tensors, container, files, left_out);
    has_no!(warnings);

    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        Stored::plain(self.ranges[tensor])
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let range = self.ranges[tensor];
        check_range(offset, buf.len(), range.len).map_err(|error| self.locate(tensor, error))?;
        let read = self.source.read_at(range.offset + offset, buf);
        read.map_err(|error| self.locate(tensor, error))
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let cut = self.cut.as_ref().filter(|_| companion == 0);
        let cut = cut.ok_or_else(|| Companion::absent(companion))?;
        cut.read(&self.source).map_err(|error| error.in_file(&self.files[0].name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let range = self.ranges.get(tensor)?;
        self.source.slice_at(range.offset, range.len)
    }
}

impl fmt::Debug for OrtReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrtReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
