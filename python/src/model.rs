//! An opened model.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use apr::run::{ArrayFile, Facts, InputKind, Reranker, RunOptions, TextEncoder, Tokenizer};
use apr::{ByteSource, Error, Keys, OpenOptions};
use apr_io::{MappedFile, NativeHost};
use apr_run::{array_inputs, arrays_of};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use serde::Serialize;

use crate::errors::{Failure, of_python};
use crate::generation::{Asked, Generation};
use crate::jobs::{no_value, refused};
use crate::supervised::supervised;

/// Returns the options for opening a model with a password, within a budget of memory in bytes.
pub(crate) fn options(password: Option<&str>, max_memory: Option<u64>) -> OpenOptions {
    let mut options = OpenOptions::default();
    if let Some(password) = password {
        let unlock = vec![apr::seal::Unlock::Password(password.as_bytes().to_vec().into())];
        options.keys = Keys { unlock, ..Keys::default() };
    }
    match max_memory {
        Some(bytes) => options.within(bytes),
        None => options,
    }
}

/// Name, dtype, shape and length in bytes of a tensor.
type Entry<'m> = (&'m str, &'static str, Vec<u64>, u64);

/// A model whose header was read.
#[pyclass(frozen, module = "apr._apr")]
pub(crate) struct Model {
    model: Arc<apr::Model>,
    /// Path of the model, if it is a file or folder on this machine.
    path: Option<PathBuf>,
    flat: OnceLock<Vec<Option<(PathBuf, u64)>>>,
}

#[pymethods]
impl Model {
    /// Opens the model at a path or location.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        password: Option<&str>,
        max_memory: Option<u64>,
    ) -> PyResult<Self> {
        let options = options(password, max_memory);
        let local = path.exists().then(|| path.clone());
        let open = || Ok(apr::Model::open_with(&path, &options)?);
        let model = match &local {
            // The header of a local file is there at once; a server may take its time.
            Some(_) => py.detach(open).map_err(|failure: Failure| failure.raised(py))?,
            None => supervised(py, None, |_| open())?,
        };
        Ok(Self { model: Arc::new(model), path: local, flat: OnceLock::new() })
    }

    /// Opens a file object of `len` bytes, which `read(offset, length)` reads.
    #[staticmethod]
    fn open_file(
        py: Python<'_>,
        read: Py<PyAny>,
        len: u64,
        name: String,
        password: Option<&str>,
        max_memory: Option<u64>,
    ) -> PyResult<Self> {
        let (options, source) = (options(password, max_memory), PythonFile { read, len });
        let model = py.detach(|| apr::Model::from_source(source, name, &options));
        let model = model.map_err(|error| Failure::from(error).raised(py))?;
        Ok(Self { model: Arc::new(model), path: None, flat: OnceLock::new() })
    }

    /// Returns the name of the format.
    #[getter]
    fn format(&self) -> &'static str {
        self.model.reader().format().id
    }

    /// Returns the name of the family, if it is known.
    #[getter]
    fn family(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let family = py.detach(|| {
            let source = self.model.source();
            let family = source.family()?;
            Ok(family.map(|model| model.family().name().to_owned()))
        });
        family.map_err(|error: Error| Failure::from(error).raised(py))
    }

    /// Returns the names of the tensors, in the order in which they are stored.
    fn names(&self) -> Vec<&str> {
        self.model.tensors().iter().map(|info| info.name.as_str()).collect()
    }

    /// Returns name, dtype, shape and length in bytes of the tensor at a position.
    fn entry(&self, position: usize) -> PyResult<Entry<'_>> {
        let info = self.model.tensors().get(position);
        let info = info.ok_or_else(|| PyKeyError::new_err(position))?;
        let len = info.byte_len().unwrap_or_default();
        Ok((&info.name, info.dtype.name(), info.shape.dims().to_vec(), len))
    }

    /// Returns `length` bytes of the tensor at a position, from `offset` on.
    fn read<'py>(
        &self,
        py: Python<'py>,
        position: usize,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let info = self.model.tensors().get(position);
        let info = info.ok_or_else(|| PyKeyError::new_err(position))?;
        let fits = |len: u64| offset.checked_add(length as u64).is_some_and(|end| end <= len);
        if !info.byte_len().is_ok_and(fits) {
            let error = Error::corrupt("the range is past the tensor's end").for_tensor(&info.name);
            return Err(Failure::from(error).raised(py));
        }
        let reader = self.model.reader();
        PyByteArray::new_with(py, length, |buf| {
            let read = py.detach(|| reader.read_tensor(position, offset, buf));
            read.map_err(|error| Failure::from(error).raised(py))
        })
    }

    /// Returns the elements `start` to `end` of a tensor as `f32`, dequantized.
    fn floats<'py>(
        &self,
        py: Python<'py>,
        position: usize,
        start: u64,
        end: u64,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let info = self.model.tensors().get(position);
        let name = &info.ok_or_else(|| PyKeyError::new_err(position))?.name;
        let values = py.detach(|| self.model.values(name, start..end));
        let values = values.map_err(|error| Failure::from(error).raised(py))?;
        let len = values.len().saturating_mul(size_of::<f32>());
        PyByteArray::new_with(py, len, |buf| {
            #[expect(clippy::cast_possible_truncation, reason = "what is read fits, or was f64")]
            let singles = values.iter().map(|&value| value as f32);
            let places = buf.chunks_exact_mut(size_of::<f32>());
            places.zip(singles).for_each(|(place, value)| {
                place.copy_from_slice(&value.to_ne_bytes());
            });
            Ok(())
        })
    }

    /// Returns the file and the offset at which the bytes of a tensor are stored unchanged.
    fn flat(&self, py: Python<'_>, position: usize) -> Option<(OsString, u64)> {
        let path = self.path.as_deref()?;
        let found = py.detach(|| self.flat.get_or_init(|| flat_tensors(&self.model, path)));
        let (path, offset) = found.get(position)?.as_ref()?;
        Some((path.as_os_str().to_owned(), *offset))
    }

    /// Returns the metadata as JSON.
    fn metadata(&self) -> Vec<u8> {
        self.model.reader().metadata().to_json()
    }

    /// Returns the names of the companion files.
    fn companions(&self) -> Vec<String> {
        self.model.reader().companions().iter().map(|file| file.name.clone()).collect()
    }

    /// Returns the bytes of a companion file.
    fn companion<'py>(&self, py: Python<'py>, position: usize) -> PyResult<Bound<'py, PyBytes>> {
        if position >= self.model.reader().companions().len() {
            return Err(PyKeyError::new_err(position));
        }
        let bytes = py.detach(|| self.model.reader().read_companion(position));
        let bytes = bytes.map_err(|error| Failure::from(error).raised(py))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Describes the model, as JSON.
    fn inspect(&self, py: Python<'_>) -> PyResult<String> {
        supervised(py, None, |_| Ok(apr_core::json::to_string(&self.model.inspect()?)?))
    }

    /// Validates the model. Returns JSON.
    #[pyo3(signature = (progress=None))]
    fn validate(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<String> {
        supervised(py, progress.as_ref(), |watch| {
            let options = apr::report::ValidateOptions::default();
            let (threads, progress) = (watch.threads()?, watch.progress());
            let report = self.model.session().validate(options, &threads, &progress)?;
            self.model.check_unchanged()?;
            Ok(apr_core::json::to_string(&report)?)
        })
    }

    /// Checks best practices. Returns JSON.
    fn lint(&self, py: Python<'_>) -> PyResult<String> {
        supervised(py, None, |_| Ok(apr_core::json::to_string(&self.model.lint()?)?))
    }

    /// Compares two models. Returns JSON.
    #[pyo3(signature = (other, tolerance, progress=None))]
    fn diff(
        &self,
        py: Python<'_>,
        other: &Self,
        tolerance: f64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        supervised(py, progress.as_ref(), |watch| {
            let options = apr::report::DiffOptions { tolerance, ..Default::default() };
            let (left, right) = (self.model.session(), other.model.session());
            let (threads, progress) = (watch.threads()?, watch.progress());
            let report = left.beside(&right).diff(&options, &threads, &progress)?;
            self.model.check_unchanged()?;
            other.model.check_unchanged()?;
            Ok(apr_core::json::to_string(&report)?)
        })
    }

    /// Returns the tokens of a text.
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<i64>> {
        self.with_tokenizer(py, |tokenizer| Ok(tokenizer.encode(text, special)?))
    }

    /// Returns the text of tokens.
    fn decode(&self, py: Python<'_>, ids: Vec<i64>, special: bool) -> PyResult<String> {
        self.with_tokenizer(py, |tokenizer| Ok(tokenizer.decode(&ids, special)?))
    }

    /// Returns the results of the model's head for each text, as a list of JSON documents.
    fn read_texts(&self, py: Python<'_>, texts: Vec<String>, top: usize) -> PyResult<Vec<String>> {
        supervised(py, None, |watch| {
            let mut options = RunOptions::reading();
            options.top = top;
            let warn = |message: &str, _| watch.warn(message);
            let made = self.model.run_until(&options, watch.interrupt.clone(), warn, |runner| {
                TextEncoder::of_part(runner.prepare()?)?.read_all(&texts)
            })?;
            made.iter().map(|task| Ok(apr_core::json::to_string(task)?)).collect()
        })
    }

    /// Returns documents in the order of their scores for a query, as a JSON document.
    fn rank(
        &self,
        py: Python<'_>,
        query: &str,
        documents: Vec<String>,
        top: Option<usize>,
    ) -> PyResult<String> {
        supervised(py, None, |watch| {
            let mut options = RunOptions::default();
            // A language model that scores reads the pair as it would to continue it.
            options.keeps_past = options.generates(&Facts::of_source(&self.model.source())?);
            let warn = |message: &str, _| watch.warn(message);
            let ranking =
                self.model.run_until(&options, watch.interrupt.clone(), warn, |runner| {
                    Reranker::of_part(runner.prepare()?)?.rank(query, &documents, top)
                })?;
            Ok(apr_core::json::to_string(&ranking)?)
        })
    }

    /// Returns one vector for each text, as the bytes of `f32`.
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<String>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let vectors = supervised(py, None, |watch| {
            let warn = |message: &str, _| watch.warn(message);
            let options = RunOptions::reading();
            let run = |runner: &apr::run::Runner<'_>| {
                TextEncoder::of_part(runner.prepare()?)?.read_all(&texts)
            };
            let made = self.model.run_until(&options, watch.interrupt.clone(), warn, run)?;
            let vector = |task| match task {
                apr::run::TextTask::Embedding { vector, .. } => Ok(vector),
                _ => Err(refused("the model's head does not return embeddings")),
            };
            made.into_iter().map(vector).collect::<Result<Vec<_>, _>>()
        })?;
        let bytes = |vector: Vec<f32>| {
            PyBytes::new(py, &vector.into_iter().flat_map(f32::to_ne_bytes).collect::<Vec<_>>())
        };
        Ok(vectors.into_iter().map(bytes).collect())
    }

    /// Runs the graph with the arrays of an `.npz` file. Returns the wanted values as another one.
    fn run<'py>(
        &self,
        py: Python<'py>,
        npz: Vec<u8>,
        want: Vec<String>,
        part: Option<String>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = supervised(py, None, |watch| {
            let reader = apr::open(npz, "inputs.npz", &apr::Limits::default())?;
            let arrays = arrays_of(&*reader)?;
            let mut options = RunOptions::reading();
            options.part = part;
            let warn = |message: &str, _| watch.warn(message);
            self.model.run_until(&options, watch.interrupt.clone(), warn, |runner| {
                let part = match options.part {
                    Some(_) => runner.prepare()?,
                    None => runner.prepared(runner.part_taking(InputKind::Arrays)?)?,
                };
                run_part(&part, arrays, &want)
            })?
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Generates text for each prompt. Returns the reports as JSON.
    fn generate_all(
        &self,
        py: Python<'_>,
        asked: Asked,
        prompts: Vec<String>,
        batch: usize,
    ) -> PyResult<String> {
        supervised(py, None, |watch| {
            let warn = |message: &str, _| watch.warn(message);
            let interrupt = watch.interrupt.clone();
            let made = self.model.run_until(&asked.run_options(), interrupt, warn, |runner| {
                asked.write_all(runner, &prompts, batch)
            })?;
            Ok(apr_core::json::to_string(&made)?)
        })
    }

    /// Starts to generate text.
    fn generate(&self, asked: Asked) -> Generation {
        Generation::begin(Arc::clone(&self.model), asked)
    }

    /// Transcribes an audio file with a Whisper model. Returns the transcription as JSON.
    fn transcribe(
        &self,
        py: Python<'_>,
        name: String,
        bytes: Vec<u8>,
        asked: Speech,
    ) -> PyResult<String> {
        supervised(py, None, |watch| {
            let warn = |message: &str, _| watch.warn(message);
            let mut options = apr::run::TranscriptionOptions {
                language: asked.language,
                translate: asked.translate,
                timestamps: asked.timestamps,
                words: asked.word_timestamps,
                fallback: asked.fallback,
                ..Default::default()
            };
            options.sampling.beams = asked.beams;
            options.sampling.max_tokens = asked.max_tokens;
            let run = RunOptions::default();
            let made = self.model.run_until(&run, watch.interrupt.clone(), warn, |runner| {
                apr::run::Transcriber::of(runner, options)?.transcribe(&name, bytes)
            })?;
            Ok(apr_core::json::to_string(&Heard {
                srt: made.to_srt(),
                vtt: made.to_vtt(),
                transcription: made,
            })?)
        })
    }
}

/// Options of a transcription, with the names of Python's keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Speech {
    language: Option<String>,
    translate: bool,
    timestamps: bool,
    word_timestamps: bool,
    fallback: bool,
    beams: Option<usize>,
    max_tokens: Option<usize>,
}

/// A transcription, also as subtitles.
#[derive(Serialize)]
struct Heard {
    #[serde(flatten)]
    transcription: apr::run::Transcription,
    srt: String,
    vtt: String,
}

impl Model {
    fn with_tokenizer<T: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&Tokenizer<'_>) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        supervised(py, None, |watch| {
            let warn = |message: &str, _| watch.warn(message);
            let one = std::num::NonZeroUsize::MIN;
            let host = NativeHost::new(one, watch.interrupt.clone(), warn);
            then(&Tokenizer::of(self.model.reader(), &host)?)
        })
    }
}

/// Runs a part of the model. Returns the wanted values as an `.npz` file.
fn run_part(
    part: &apr::run::Prepared<'_>,
    arrays: Vec<(String, apr_infer::Tensor)>,
    want: &[String],
) -> apr::run::RunResult<Result<Vec<u8>, Failure>> {
    let body = &part.graph().body;
    let given: Vec<_> = arrays
        .into_iter()
        .map(|(name, tensor)| apr_run::GivenArray {
            name: Some(name),
            value: apr_run::Given::Array(tensor),
            file: "inputs".to_owned(),
        })
        .collect();
    let mut inputs = array_inputs(body, &given, true)?;
    let outputs = body.outputs.iter().map(|id| body.value(*id).name.as_str());
    let wanted: Vec<&str> =
        if want.is_empty() { outputs.collect() } else { want.iter().map(String::as_str).collect() };
    let session = part.session();
    if let Some(name) = wanted.iter().find(|name| !session.has(name)) {
        return Ok(Err(no_value(name)));
    }
    let absent = session.absent(&inputs, &wanted)?;
    let assumed = apr_run::assumed(body, &inputs, &absent)?;
    inputs.extend(assumed.into_iter().map(|(input, value)| (input.name, value)));
    let missing = session.missing(&inputs, &wanted)?;
    if !missing.is_empty() {
        return Ok(Err(refused(&format!("missing inputs: {}", missing.join(", ")))));
    }
    let outcome = part.run(inputs, &wanted)?;
    let named = wanted.iter().map(|name| (*name).to_owned()).zip(outcome.outputs);
    Ok(Ok(ArrayFile::Npz.bytes(&named.collect::<Vec<_>>())?))
}

/// Location of each tensor that is stored flat in a file. Each file is opened again over a map of
/// it, whose reader states which tensors are a slice of the map.
fn flat_tensors(model: &apr::Model, path: &Path) -> Vec<Option<(PathBuf, u64)>> {
    let mut found = vec![None; model.tensors().len()];
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let files = model.reader().files().iter().filter_map(|file| {
        let beside = folder?.join(&file.name);
        if path.is_file() && model.reader().files().len() == 1 {
            return Some(path.to_path_buf());
        }
        beside.is_file().then_some(beside)
    });
    for file in files {
        let Ok(map) = MappedFile::open(&file) else { continue };
        let Some(start) = map.slice_at(0, map.len()).map(|bytes| bytes.as_ptr().addr()) else {
            continue;
        };
        let end = start.saturating_add(usize::try_from(map.len()).unwrap_or(usize::MAX));
        let name = file.display().to_string();
        let Ok(reader) = apr::open(map, &name, &apr::Limits::default()) else { continue };
        for (at, info) in reader.tensors().iter().enumerate() {
            let Some(slice) = reader.tensor_slice(at) else { continue };
            let address = slice.as_ptr().addr();
            let is_whole = info.byte_len().is_ok_and(|len| len == slice.len() as u64);
            if !is_whole || !(start..=end).contains(&address) {
                continue;
            }
            // A file alone has them in the model's order.
            let same = |mine: &apr::TensorInfo| mine == info;
            let here = model.tensors().get(at).filter(|mine| same(mine)).map(|_| at);
            if let Some(position) = here.or_else(|| model.tensors().iter().position(same)) {
                found[position] = Some((file.clone(), (address - start) as u64));
            }
        }
    }
    found
}

/// A file object of Python.
struct PythonFile {
    read: Py<PyAny>,
    len: u64,
}

impl ByteSource for PythonFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> apr::Result<()> {
        Python::attach(|py| {
            let bytes = self.read.call1(py, (offset, buf.len()))?;
            let bytes = bytes.cast_bound::<PyBytes>(py)?.as_bytes();
            if bytes.len() != buf.len() {
                return Err(pyo3::exceptions::PyEOFError::new_err("the file object ended early"));
            }
            buf.copy_from_slice(bytes);
            Ok(())
        })
        .map_err(|error: PyErr| of_python(&error))
    }

    fn slice_at(&self, _offset: u64, _len: u64) -> Option<&[u8]> {
        None
    }
}
