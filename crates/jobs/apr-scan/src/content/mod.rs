//! Files that are not pickles: their kind, and the code that loading them would run.

pub(crate) mod coreml;
mod document;
mod dotted;
mod executable;
pub(crate) mod hdf5;
mod importers;
pub(crate) mod jinja;
mod json;
mod keras;
mod media;
pub(crate) mod msgpack;
pub(crate) mod onnx;
mod program;
mod python;
mod servers;
mod symbolic;
pub(crate) mod tensorflow;
mod tensorflow_names;
mod tensorflow_paths;
pub(crate) mod text;
mod textproto;
pub(crate) mod tflite;
pub(crate) mod torch_ops;
mod torchscript;
mod xml;
mod yaml;

use apr_registry::coreml::MODEL;
use apr_registry::{
    ByteSource, Code, Convention, Format, HEAD_LEN, Limits, may_hold_code, read_vec, recognise,
};

use crate::leaf::{Examine, Judgement, Leaf};
use crate::report::FileVerdict;

/// Message for bytes of an unknown format.
pub(crate) const UNKNOWN: &str = "unknown format";

/// Findings in one file. Empty if the file was examined and is harmless.
pub(crate) type ContentRemarks = Vec<(FileVerdict, String)>;

/// An examiner that judges files by their bytes, and by their names if loaders depend on them.
pub(crate) struct Examiner<'a> {
    pub(crate) limits: &'a Limits,
}

impl Examine for Examiner<'_> {
    fn is_text(&self, leaf: &Leaf<'_>) -> bool {
        let head = read_vec(leaf.source, 0, leaf.source.len().min(HEAD_LEN));
        head.is_ok_and(|head| text::has_kind(leaf.name, &head))
    }

    fn examine(&self, leaf: &Leaf<'_>) -> Judgement {
        let mut kind = UNKNOWN.to_owned();
        let found = self.judge(leaf, &mut kind);
        let found = found.unwrap_or_else(|error| not_examined(&error.to_string()));
        Judgement { kind, found }
    }
}

impl Examiner<'_> {
    /// Examines a file, and sets its kind as soon as it is detected.
    fn judge(&self, leaf: &Leaf<'_>, kind: &mut String) -> apr_registry::Result<ContentRemarks> {
        let mut is = |detected: &str| detected.clone_into(kind);
        let source = leaf.source;
        if source.is_empty() {
            is("empty file");
            return Ok(Vec::new());
        }
        if leaf.is_torchscript {
            is("TorchScript code");
            return Ok(torchscript::judge(&self.read(source)?));
        }

        let head = read_vec(source, 0, source.len().min(HEAD_LEN))?;
        if let Some(found) = executable::judge(leaf.name, &head, leaf.within) {
            is("program");
            return Ok(found);
        }
        if let Some(found) = hdf5::judge(source, self.limits)? {
            is("HDF5");
            return Ok(found);
        }
        let is_media = media::is_media(&head) && !executable::is_model(leaf.name);
        if is_media && !text::is_text(leaf.name, &head) {
            if let Some((detected, found)) = graph_behind(leaf, self.limits)? {
                is(detected);
                return Ok(found);
            }
            is("image or audio");
            return Ok(Vec::new());
        }

        let format = recognise(&head);
        if let Some(format) = format {
            is(format.name);
        }
        match format {
            Some(format) if may_hold_code(format) => {
                return Ok(not_examined(&format!("{} is not unpacked", format.name)));
            }
            Some(format) if *format == MODEL => return coreml::judge(source, self.limits),
            Some(format) if format.id == "flax" => return msgpack::judge(source),
            Some(format) if format.id == "tflite" => return tflite::judge(source, self.limits),
            Some(_) if tensorflow::is_graph(&head) => {}
            Some(format) if format.id == "onnx" => {
                // TensorFlow's graphs are messages of the same kind of fields.
                if let Ok(Some(found)) = tensorflow::judge(leaf, self.limits) {
                    is("TensorFlow");
                    return Ok(found);
                }
                return onnx::judge(source, self.limits);
            }
            Some(format) if !text::is_text(leaf.name, &head) => {
                let mut found = self.judge_format(format, leaf)?;
                found.extend(by_name(format, leaf, self.limits)?);
                return Ok(found);
            }
            _ => {}
        }
        if executable::is_onnx(leaf.name) {
            is("ONNX model");
            return onnx::judge(source, self.limits);
        }
        if coreml::is_weights(&head) {
            is("Core ML weights");
            return Ok(Vec::new());
        }
        if let Some(found) = tensorflow::judge(leaf, self.limits)? {
            is("TensorFlow");
            return Ok(found);
        }

        let bytes = self.read(source)?;
        // Short messages of protocol buffers can be letters and control characters alone.
        if !text::is_plain(&bytes)
            && let Some((detected, found)) = graph_behind(leaf, self.limits)?
        {
            is(detected);
            return Ok(found);
        }
        is(text::kind_of(leaf.name, &bytes).unwrap_or(UNKNOWN));
        let found = text::judge(leaf.name, &bytes, leaf.within.is_some())?;
        Ok(found.unwrap_or_else(|| not_examined(UNKNOWN)))
    }

    /// Examines a file of a format that holds no code beside templates and operators.
    ///
    /// # Errors
    /// E007 when reading fails, E008 for a long file of a format with templates.
    fn judge_format(
        &self,
        format: &Format,
        leaf: &Leaf<'_>,
    ) -> apr_registry::Result<ContentRemarks> {
        match format.convention {
            _ if format.id == "ort" => onnx::judge_ort(leaf.source, self.limits),
            Convention::LlamaCpp | Convention::Canonical => {
                let bytes = self.read(leaf.source)?;
                crate::templates(bytes, leaf.name, format, self.limits)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The bytes of a small file.
    ///
    /// # Errors
    /// E007 when reading fails, E008 for a long one.
    fn read(&self, source: &dyn ByteSource) -> apr_registry::Result<Vec<u8>> {
        self.limits.check_companion(source.len())?;
        read_vec(source, 0, source.len())
    }
}

/// Examines a file of one format as the format that its name has.
///
/// Some loaders go by the name, and find their fields between those of another format.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn by_name(
    format: &Format,
    leaf: &Leaf<'_>,
    limits: &Limits,
) -> apr_registry::Result<ContentRemarks> {
    let mut found = match tensorflow::judge(leaf, limits) {
        Ok(found) => found.unwrap_or_default(),
        Err(error) if error.code() == Code::Io => return Err(error),
        Err(error) => not_examined(&format!("it is named like a graph: {error}")),
    };
    if executable::is_onnx(leaf.name) {
        found.extend(onnx::judge(leaf.source, limits)?);
    }
    for (_, message) in &mut found {
        *message = format!("read by its name, not as {}: {message}", format.name);
    }
    Ok(found)
}

/// Examines bytes that begin like an image or a text as a graph of TensorFlow or ONNX.
///
/// Returns `None` if they are not a graph that reaches something.
///
/// # Errors
/// E007 when reading fails.
fn graph_behind(
    leaf: &Leaf<'_>,
    limits: &Limits,
) -> apr_registry::Result<Option<(&'static str, ContentRemarks)>> {
    if let Some(found) = tensorflow::by_content(leaf, limits)? {
        return Ok(Some(("TensorFlow graph", found)));
    }
    let mut found = onnx::judge(leaf.source, limits)?;
    found.retain(|(verdict, _)| *verdict > FileVerdict::NotExamined);
    Ok((!found.is_empty()).then_some(("ONNX model", found)))
}

pub(crate) fn not_examined(why: &str) -> ContentRemarks {
    vec![(FileVerdict::NotExamined, why.to_owned())]
}

/// Returns the finding for a file that is not run when a model is loaded, with a description of it.
pub(crate) fn not_run(what: &str) -> ContentRemarks {
    vec![(FileVerdict::NotRun, format!("{what}; loading the model does not run it"))]
}

/// Keeps the first remarks of each verdict, so that many harmless ones hide none that is dangerous.
pub(crate) fn bounded(found: &mut ContentRemarks) {
    /// Remarks of one verdict.
    const MOST: usize = 50;

    if found.len() <= MOST {
        return;
    }
    let mut counts = std::collections::HashMap::new();
    found.retain(|(verdict, _)| {
        let count = counts.entry(*verdict).or_insert(0_usize);
        *count += 1;
        *count <= MOST
    });
}
