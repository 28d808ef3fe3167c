//! Jobs that write and scan files.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use apr::job::{NamedShape, parse_filter, parse_selection};
use apr::run::RunError;
use apr::{Compression, DType, Error, Format, Scheme};
use apr_quantize::{Quantization, TensorType, parse_dtype};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{Failure, of_python};
use crate::model::options;
use crate::supervised::supervised;

/// Returns the format with a name or an extension.
fn format_named(name: &str) -> PyResult<&'static Format> {
    let named = || apr::format::writable().find(|format| format.id.eq_ignore_ascii_case(name));
    named().or_else(|| apr::format::target_by_extension(name)).ok_or_else(|| {
        let known: Vec<&str> = apr::format::writable().map(|format| format.id).collect();
        PyValueError::new_err(format!("no format '{name}' is written: {}", known.join(", ")))
    })
}

fn unknown(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Returns the names of the formats that can be written.
#[pyfunction]
pub(crate) fn writable_formats() -> Vec<&'static str> {
    apr::format::writable().map(|format| format.id).collect()
}

/// Returns the names of types and mixes for quantization.
#[pyfunction]
pub(crate) fn schemes() -> Vec<&'static str> {
    Scheme::names().map(|(name, _)| name).collect()
}

/// Options of a conversion, with the names of Python's keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Wishes {
    format: Option<String>,
    quantize: Option<String>,
    tensor_types: Vec<String>,
    requantize: bool,
    dequantize: Option<String>,
    precision: Option<String>,
    simplify: bool,
    shapes: Vec<String>,
    from_nodes: Vec<String>,
    to_nodes: Vec<String>,
    keep_io: bool,
    exclude_ops: Vec<String>,
    exclude_nodes: Vec<String>,
    prefix: Option<String>,
    compress: Option<String>,
    license: Option<String>,
    shard_size: Option<u64>,
    alignment: Option<u32>,
    companions: bool,
    replace: bool,
    threads: Option<usize>,
    max_memory: Option<u64>,
    password: Option<String>,
}

/// Converts a model; returns the report as JSON.
#[pyfunction]
#[pyo3(signature = (source, output, wishes, progress=None))]
pub(crate) fn convert(
    py: Python<'_>,
    source: PathBuf,
    output: PathBuf,
    wishes: Wishes,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let format = wishes.format.as_deref().map(format_named).transpose()?;
    let scheme = wishes.quantize.as_deref().map(Scheme::parse).transpose().map_err(unknown)?;
    let quantization = scheme.map(|scheme| quantization(scheme, &wishes)).transpose()?;
    let is_idle = wishes.requantize || !wishes.tensor_types.is_empty();
    if quantization.is_none() && is_idle {
        let message = "tensor_types and requantize have no effect without quantize";
        return Err(PyValueError::new_err(message));
    }
    let dtype = |name: &Option<String>| name.as_deref().map(parse_dtype).transpose();
    let dequantize = dtype(&wishes.dequantize).map_err(unknown)?;
    let precision = dtype(&wishes.precision).map_err(unknown)?;
    let compress = wishes.compress.as_deref().map(compression).transpose()?;
    let shapes = wishes.shapes.iter().map(|text| NamedShape::parse(text));
    let shapes: Vec<_> = shapes.collect::<Result<_, _>>().map_err(PyValueError::new_err)?;
    let patterns = wishes.exclude_nodes.iter().map(|text| parse_filter(text));
    let patterns: Vec<_> = patterns.collect::<Result<_, _>>().map_err(unknown)?;
    supervised(py, progress.as_ref(), |watch| {
        let teller = watch.clone();
        let mut job = apr::convert(source)
            .open_with(options(wishes.password.as_deref(), None))
            .interrupt(watch.interrupt.clone())
            .on_progress(move |step| teller.tell(step));
        if let Some(format) = format {
            job = job.format(format);
        }
        if let Some(quantization) = quantization {
            job = job.quantize(quantization);
        }
        if let Some(dtype) = dequantize {
            job = job.dequantize(dtype);
        }
        if let Some(dtype) = precision {
            job = job.precision(dtype);
        }
        if wishes.simplify {
            job = job.simplify();
        }
        job = shapes.into_iter().fold(job, apr::Convert::shape);
        let [from, to]: [Vec<&str>; 2] = [&wishes.from_nodes, &wishes.to_nodes]
            .map(|names| names.iter().map(String::as_str).collect());
        job = job.part(&from, &to);
        if wishes.keep_io {
            job = job.keep_io();
        }
        job = wishes.exclude_ops.iter().fold(job, |job, op| job.exclude_op(op));
        job = patterns.into_iter().fold(job, apr::Convert::exclude_node);
        if let Some(prefix) = wishes.prefix {
            job = job.prefix(prefix);
        }
        if let Some(choice) = compress {
            job = job.compress(choice);
        }
        if let Some(license) = wishes.license {
            job = job.license(license);
        }
        if let Some(bytes) = wishes.shard_size {
            job = job.shard_size(bytes);
        }
        if let Some(bytes) = wishes.alignment {
            job = job.align(bytes);
        }
        if wishes.companions {
            job = job.with_companions();
        }
        if wishes.replace {
            job = job.replace();
        }
        if let Some(threads) = wishes.threads.and_then(NonZeroUsize::new) {
            job = job.threads(threads);
        }
        if let Some(bytes) = wishes.max_memory {
            job = job.max_memory(bytes);
        }
        Ok(apr_core::json::to_string(&job.write(output)?)?)
    })
}

/// Returns the quantization to a scheme, with the types of single tensors.
fn quantization(scheme: Scheme, wishes: &Wishes) -> PyResult<Quantization> {
    let mut found = Quantization::to(scheme);
    found.choices.requantize = wishes.requantize;
    for rule in &wishes.tensor_types {
        let invalid = |what: &str| PyValueError::new_err(format!("tensor_types: {rule}: {what}"));
        let (pattern, name) = rule.rsplit_once('=').ok_or_else(|| invalid("not PATTERN=TYPE"))?;
        let pattern = parse_selection(pattern).map_err(unknown)?;
        let wanted = TensorType::parse(name).map_err(unknown)?;
        found.choices.overrides.push((pattern, wanted));
    }
    Ok(found)
}

fn compression(name: &str) -> PyResult<Compression> {
    match name {
        "auto" => Ok(Compression::Auto),
        _ => Err(PyValueError::new_err(format!("compress is 'auto' or None, not '{name}'"))),
    }
}

/// A tensor to write: name, dtype, shape, length in bytes.
type Entry = (String, String, Vec<u64>, u64);

/// Options of a written file, with the names of Python's keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SaveWishes {
    metadata: Vec<(String, String)>,
    format: Option<String>,
    replace: bool,
    adds_metadata: bool,
}

/// Writes tensors, whose bytes `read(position, offset, length)` returns in pieces. Returns the
/// length of the file, and the losses.
#[pyfunction]
pub(crate) fn save(
    py: Python<'_>,
    path: PathBuf,
    tensors: Vec<Entry>,
    wishes: SaveWishes,
    read: Py<PyAny>,
) -> PyResult<(u64, Vec<String>)> {
    let (format, dtypes) = wishes.checked(&tensors)?;
    let write = || writer(path, format, wishes, tensors.into_iter().zip(dtypes), &read).finish();
    let report = py.detach(write).map_err(|error| Failure::from(error).raised(py))?;
    let lost = |loss: apr::Loss| format!("{}: {}: {}", loss.name, loss.what, loss.why);
    let losses = report.losses.into_iter().map(lost).chain(report.warnings);
    Ok((report.bytes, losses.collect()))
}

/// Returns the bytes of the file that [`save`] would write.
#[pyfunction]
pub(crate) fn pack<'py>(
    py: Python<'py>,
    tensors: Vec<Entry>,
    wishes: SaveWishes,
    read: Py<PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (format, dtypes) = wishes.checked(&tensors)?;
    let entries = tensors.into_iter().zip(dtypes);
    let write = || writer(PathBuf::new(), format, wishes, entries, &read).into_bytes();
    let bytes = py.detach(write).map_err(|error| Failure::from(error).raised(py))?;
    Ok(PyBytes::new(py, &bytes))
}

impl SaveWishes {
    /// Returns the format, if one is named, and the dtypes of the tensors.
    fn checked(&self, tensors: &[Entry]) -> PyResult<(Option<&'static Format>, Vec<DType>)> {
        let format = self.format.as_deref().map(format_named).transpose()?;
        let dtypes = tensors.iter().map(|(_, dtype, _, _)| stored_dtype(dtype));
        Ok((format, dtypes.collect::<PyResult<_>>()?))
    }
}

/// Returns a writer of tensors. It works without the interpreter, and acquires it for each piece.
fn writer<'a>(
    path: PathBuf,
    format: Option<&'static Format>,
    wishes: SaveWishes,
    tensors: impl Iterator<Item = (Entry, DType)>,
    read: &'a Py<PyAny>,
) -> apr::ModelWriter<'a> {
    let mut writer = apr::write(path);
    if let Some(format) = format {
        writer = writer.format(format);
    }
    if wishes.replace {
        writer = writer.replace();
    }
    if !wishes.adds_metadata {
        writer = writer.only_metadata();
    }
    for (key, value) in wishes.metadata {
        writer = writer.metadata(key, value);
    }
    for (position, ((name, _, shape, len), dtype)) in tensors.enumerate() {
        writer = writer.tensor_read(name, dtype, shape, len, move |offset, piece| {
            Python::attach(|py| {
                let bytes = read.call1(py, (position, offset, piece.len()))?;
                let bytes = bytes.cast_bound::<PyBytes>(py)?.as_bytes();
                if bytes.len() != piece.len() {
                    return Err(PyValueError::new_err("the array changed while it was written"));
                }
                piece.copy_from_slice(bytes);
                py.check_signals()
            })
            .map_err(|error| of_python(&error))
        });
    }
    writer
}

/// Returns the dtype with a name, of all dtypes that a file can have.
fn stored_dtype(name: &str) -> PyResult<DType> {
    let found = DType::ALL.iter().find(|dtype| dtype.name() == name);
    found.copied().ok_or_else(|| PyValueError::new_err(format!("no dtype is called '{name}'")))
}

/// Finds code that loading a file, or the files of a folder, would run, and runs none of it.
/// Returns the report as JSON.
#[pyfunction]
pub(crate) fn scan(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    supervised(py, None, |_| Ok(apr_core::json::to_string(&apr::scan::scan(&path)?)?))
}

/// Returns an error about the request.
pub(crate) fn refused(message: &str) -> Failure {
    RunError::request(message).into()
}

/// Returns an error about the value of an argument.
pub(crate) fn no_value(name: &str) -> Failure {
    Error::format(format!("unknown value '{name}'")).into()
}
