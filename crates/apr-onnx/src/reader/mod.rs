//! ONNX models as checkpoints.

mod build;
mod content;
mod external;
mod numbers;
mod paths;
mod sparse;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, Container, ContainerFacts, Error, Escaped, FileInfo, Format, HEAD_LEN, Limits,
    Metadata, Result, SourceSet, Stored, TensorInfo, has_no, read_vec,
};
use serde_json::Value;

use crate::describe;
use crate::proto::{Model, Tensor};
use build::Built;
pub(crate) use content::Content;
use content::Source;
use external::Files;
use paths::Found;
pub(crate) use paths::Scope;

/// Bytes of all tensors together: so much from any file, and so many times its length. Sparse tensors, and several that
/// share their data, may claim any size.
const FREE_BYTES: u64 = 1 << 30;
const MAX_GROWTH: u64 = 16;

/// An ONNX model opened for reading; [`open`] and [`open_in`] make it.
pub struct OnnxReader {
    content: Message,
    sources: Vec<Source>,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    /// One for each tensor.
    contents: Vec<Content>,
    metadata: Metadata,
    fields: Value,
    warnings: Vec<String>,
    limits: Limits,
}

/// What a file holds.
#[derive(Debug)]
enum Message {
    Model(Model),
    /// A tensor alone.
    Tensor(Tensor),
}

/// Opens a model whose data are all in its file. No data are read.
///
/// # Errors
/// E001 for what is not an ONNX model, E002 for a damaged one, E003 for elements of unknown types, E007 when reading fails
/// or data are in another file, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<OnnxReader> {
    read(Arc::new(source), name, None, limits)
}

/// Opens a model in a folder, where other files may have its data.
///
/// # Errors
/// Those of [`open`]; E001 for data that are said to lie outside the folder, E007 for a file that is not there.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<OnnxReader> {
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    read(Arc::from(source), name, Some(set), limits)
}

fn read(source: Source, name: &str, set: Option<&dyn SourceSet>, limits: &Limits) -> Result<OnnxReader> {
    let in_file = |error: Error| if name.is_empty() { error } else { error.in_file(name) };
    let head = read_vec(&source, 0, source.len().min(HEAD_LEN)).map_err(in_file)?;
    let content = if (crate::TENSOR.recognises)(&head) {
        Message::Tensor(Tensor::read_file(&source, limits).map_err(in_file)?)
    } else {
        Message::Model(Model::read(&source, limits).map_err(in_file)?)
    };
    let mut collected = Collected::new(Files::new(source, name, set), limits);
    collected.add(&content).map_err(in_file)?;
    let Collected { files, tensors, contents, mut left_out, narrow, .. } = collected;
    let mut warnings = Vec::new();
    left_out.sort_by_key(|(what, _)| *what);
    for group in left_out.chunk_by(|(one, _), (other, _)| one == other) {
        warnings.push(left_out_warning(group));
    }
    if let [first, ..] = narrow.as_slice() {
        let count = apr_core::counted(narrow.len() as u64, "tensor");
        warnings.push(format!(
            "{count} of integers of 4 or 2 bits are read as integers of 8 bits, the first is '{}'",
            Escaped::short(first)
        ));
    }
    let Files { sources, infos: files, .. } = files;
    let (mut metadata, mut fields) = (Metadata::new(), Value::Null);
    if let Message::Model(model) = &content {
        metadata = describe::metadata(model, &sources[0], limits).map_err(in_file)?;
        fields = describe::fields(model);
    }
    Ok(OnnxReader { content, sources, files, tensors, contents, metadata, fields, warnings, limits: *limits })
}

fn left_out_warning(group: &[(&'static str, String)]) -> String {
    let (what, first) = &group[0];
    let count = apr_core::counted(group.len() as u64, "tensor");
    let verb = if group.len() == 1 { "is" } else { "are" };
    let first = Escaped::short(first);
    format!("{count} of {what} {verb} not read, the first is '{first}'")
}

/// The tensors of a model so far.
struct Collected<'a> {
    files: Files<'a>,
    tensors: Vec<TensorInfo>,
    contents: Vec<Content>,
    names: HashSet<String>,
    /// Why, and which.
    left_out: Vec<(&'static str, String)>,
    /// Those that become wider.
    narrow: Vec<String>,
    /// Bytes that names may still take.
    names_budget: u64,
    /// Bytes that tensors may still have.
    budget: u64,
}

impl<'a> Collected<'a> {
    fn new(files: Files<'a>, limits: &Limits) -> Self {
        let budget = files.infos[0].len.saturating_mul(MAX_GROWTH).saturating_add(FREE_BYTES);
        Self {
            files,
            tensors: Vec::new(),
            contents: Vec::new(),
            names: HashSet::new(),
            left_out: Vec::new(),
            narrow: Vec::new(),
            names_budget: limits.max_index,
            budget,
        }
    }

    fn add(&mut self, content: &Message) -> Result<()> {
        match content {
            Message::Model(model) if model.graph.is_none() && model.functions.is_empty() => {
                Err(Error::format("this is not an ONNX model, or one without a graph"))
            }
            Message::Model(model) => paths::tensors(model, &mut |name, found| self.take(name, found)),
            Message::Tensor(tensor) => {
                let name = if tensor.name.is_empty() { "tensor" } else { &tensor.name };
                self.take(name.to_owned(), Found::Dense(tensor))
            }
        }
    }

    fn take(&mut self, name: String, found: Found<'_>) -> Result<()> {
        let names = self.names_budget.checked_sub(name.len() as u64);
        self.names_budget = names.ok_or_else(|| Error::memory("the names of all tensors take too much memory"))?;
        let files = self.files.infos.len();
        let built = match found {
            Found::Dense(tensor) => build::dense(tensor, &mut self.files),
            Found::Sparse(tensor) => build::sparse(tensor, &mut self.files),
        };
        let built = built.map_err(|error| error.for_tensor(&name))?;
        let more: u64 = self.files.infos[files..].iter().map(|file| file.len.saturating_mul(MAX_GROWTH)).sum();
        self.budget = self.budget.saturating_add(more);
        if !self.names.insert(name.clone()) {
            return Err(Error::format("the model has two tensors of this name").for_tensor(name));
        }
        match built {
            Built::LeftOut(why) => self.left_out.push((why, name)),
            Built::Tensor(dtype, shape, content) => {
                self.budget = self.budget.checked_sub(content.len).ok_or_else(|| {
                    let message =
                        "the tensors up to this one take more than 16 times the file's length, and over 1 GiB";
                    Error::memory(message).for_tensor(&name)
                })?;
                if content.is_narrow() {
                    self.narrow.push(name.clone());
                }
                self.tensors.push(TensorInfo { name, dtype, shape });
                self.contents.push(content);
            }
        }
        Ok(())
    }
}

impl OnnxReader {
    /// The model as the file has it, without the data of tensors; `None` where the file is a tensor alone.
    #[must_use]
    pub fn model(&self) -> Option<&Model> {
        match &self.content {
            Message::Model(model) => Some(model),
            Message::Tensor(_) => None,
        }
    }

    /// The model's file, and those that have data.
    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn in_own_file(&self, error: Error) -> Error {
        if self.files[0].name.is_empty() { error } else { error.in_file(&self.files[0].name) }
    }

    /// The `len` bytes of a tensor as `raw_data` would have them. Its data must be found already.
    pub(crate) fn packed(&self, tensor: &Tensor, len: u64) -> Result<Vec<u8>> {
        let mut files = Files::opened(&self.sources, &self.files);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        let packed = build::packed_of(tensor, &mut files)?;
        packed.check_len(len)?;
        packed.read(&self.sources, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn locate(&self, tensor: usize, error: Error) -> Error {
        let file = self.contents[tensor].near().file;
        let (error, file) = (error.for_tensor(&self.tensors[tensor].name), &self.files[file].name);
        if file.is_empty() { error } else { error.in_file(file) }
    }
}

impl ContainerFacts for OnnxReader {
    fn header_fields(&self) -> Value {
        self.fields.clone()
    }
}

impl CheckpointReader for OnnxReader {
    has_no!(companions, left_out);

    fn format(&self) -> &'static Format {
        match self.content {
            Message::Model(_) => &crate::FORMAT,
            Message::Tensor(_) => &crate::TENSOR,
        }
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let content = &self.contents[tensor];
        content.flat().map_or_else(|| Stored::derived(content.near()), Stored::plain)
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let content = &self.contents[tensor];
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > content.len) {
            let message = format!("{} bytes from byte {offset} on, but it has {}", buf.len(), content.len);
            return Err(self.locate(tensor, Error::corrupt(message)));
        }
        content.read(&self.sources, offset, buf).map_err(|error| self.locate(tensor, error))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let range = self.contents.get(tensor)?.flat()?;
        self.sources[range.file].slice_at(range.offset, range.len)
    }

    fn container(&self) -> Container<'_> {
        Container::of(self)
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl fmt::Debug for OnnxReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnnxReader").field("files", &self.files).field("tensors", &self.tensors).finish_non_exhaustive()
    }
}
