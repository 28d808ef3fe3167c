//! Opening: a model by itself, one in a folder, and a package.

use std::sync::Arc;

use apr_core::protobuf::Walker;
use apr_core::{
    ByteSource, Error, Escaped, FileInfo, Format, HEAD_LEN, Limits, Metadata, Result, Shape,
    SourceSet, TensorInfo, UniqueNames, Unlisted, read_vec, relative_path,
};
use apr_skeleton::Cut;
use serde_json::{Map, Value};

use crate::blob::Files;
use crate::model::{Contents, Found};
use crate::program::Context;
use crate::reader::{CoremlReader, Shared};
use crate::{METADATA, MODEL, PACKAGE};

/// Opens a model by itself. A program may have its weights in other files, which [`open_in`] finds.
///
/// # Errors
/// E001 for what is no model, and for a program whose weights are in other files; E002 for a
/// damaged file, E003 for one whose weights no format here holds, E007 when reading fails, E008
/// over a limit.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<CoremlReader> {
    let source: Shared = Arc::new(source);
    open_shared(&source, name, None, limits, &MODEL).map_err(|error| located(error, name))
}

/// Opens a model of a folder, with the files that its weights are in. No weights are read.
///
/// # Errors
/// Those of [`open`]; E007 where a file is missing.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<CoremlReader> {
    open_named(set, name, limits, &MODEL)
}

fn open_named(
    set: &dyn SourceSet,
    name: &str,
    limits: &Limits,
    format: &'static Format,
) -> Result<CoremlReader> {
    let source: Shared = set.open(name).map_err(|error| error.in_file(name))?.into();
    open_shared(&source, name, Some(set), limits, format).map_err(|error| located(error, name))
}

fn located(error: Error, name: &str) -> Error {
    if error.file().is_some() { error } else { error.in_file(name) }
}

/// Returns `true` if a JSON file is the manifest of a package.
///
/// ```
/// assert!(apr_coreml::is_package(br#"{"rootModelIdentifier": "A", "itemInfoEntries": {}}"#));
/// assert!(!apr_coreml::is_package(b"{}"));
/// ```
#[must_use]
pub fn is_package(json: &[u8]) -> bool {
    let manifest = serde_json::from_slice::<Map<String, Value>>(json);
    manifest.is_ok_and(|manifest| manifest.get("itemInfoEntries").is_some_and(Value::is_object))
}

/// Opens a package by its manifest, `Manifest.json`: the model that this names, in the folder
/// `Data` beside it.
///
/// # Errors
/// E001 for a manifest that names no model, or one outside the package; those of [`open_in`].
pub fn open_package(
    json: &[u8],
    name: &str,
    set: &dyn SourceSet,
    limits: &Limits,
) -> Result<CoremlReader> {
    let folder = name.rfind('/').map_or("", |slash| &name[..=slash]);
    let model = root_model(json).map_err(|error| error.in_file(name))?;
    let mut reader = open_named(set, &format!("{folder}Data/{model}"), limits, &PACKAGE)?;
    reader.files.push(FileInfo { name: name.to_owned(), len: json.len() as u64 });
    reader.sources.push(Arc::new(json.to_vec()));
    Ok(reader)
}

/// Returns the path of the model that a manifest declares as the one to load.
fn root_model(json: &[u8]) -> Result<String> {
    let manifest = Metadata::parse(json)?;
    let root = manifest.text("rootModelIdentifier").unwrap_or_default();
    let entry = manifest.object("itemInfoEntries").and_then(|entries| entries.get(root));
    let path = entry.and_then(|entry| entry.get("path")).and_then(Value::as_str);
    let Some(path) = path else {
        return Err(Error::format("the manifest of the package names no model"));
    };
    let inside = relative_path(path).map_err(|_| {
        let path = Escaped::short(path);
        Error::format(format!("the manifest names '{path}', which leads out of the package"))
    })?;
    Ok(inside.to_owned())
}

fn open_shared(
    source: &Shared,
    name: &str,
    set: Option<&dyn SourceSet>,
    limits: &Limits,
    format: &'static Format,
) -> Result<CoremlReader> {
    let head = read_vec(source, 0, source.len().min(HEAD_LEN))?;
    if !(MODEL.recognises)(&head) {
        return Err(Error::format("not a Core ML model").at(0));
    }
    let mut files = Files::new(Arc::clone(source), name, set);
    let mut contents = Contents::default();
    let mut walker = Walker::new(source, limits);
    let message = walker.message();
    let mut context = Context { walker: &mut walker, files: &mut files, limits };
    contents.fields = contents.add(&mut context, message, "", 0)?;
    let Files { sources, infos, .. } = files;
    finish(contents, sources, infos, format, limits)
}

fn finish(
    contents: Contents,
    sources: Vec<Shared>,
    files: Vec<FileInfo>,
    format: &'static Format,
    limits: &Limits,
) -> Result<CoremlReader> {
    let Contents { mut weights, mut fields, settings, mut refused, mut left_out, .. } = contents;
    if weights.is_empty() && !refused.is_empty() {
        return Err(refused.swap_remove(0));
    }
    weights.sort_by_key(|found| {
        let range = found.tensor.range();
        (range.file, range.offset)
    });
    UniqueNames::tell_apart(weights.iter_mut().map(|found| &mut found.name));

    left_out.extend(refused.iter().map(|error| {
        let name = Escaped::short(error.tensor().unwrap_or_default());
        format!("{name} ({})", error.message())
    }));
    let compressed = weights.iter().filter_map(|Found { name, made_by, .. }| {
        let made_by = made_by.as_deref()?;
        let made_by = made_by.strip_prefix(crate::constexpr::PREFIX).unwrap_or(made_by);
        Some((name.clone(), made_by.into()))
    });
    let compressed: Map<String, Value> = compressed.collect();
    if !compressed.is_empty() {
        fields.insert("compressed".into(), compressed.into());
    }
    let mut metadata = Metadata::new();
    metadata.set(METADATA, fields);
    let mut unlisted = Vec::new();
    if !settings.is_empty() {
        let what = "numbers, texts and shapes of the program".to_owned();
        unlisted.push(Unlisted { what, names: settings });
    }
    let info = |found: &Found| TensorInfo {
        name: found.name.clone(),
        dtype: found.tensor.dtype,
        shape: Shape::from(found.tensor.dims.clone()),
    };
    let (mut cut, mut companions) = (None, Vec::new());
    if !contents.graphs.is_empty() {
        let data = weights.iter().filter_map(|found| found.tensor.data());
        let own = data.filter(|range| range.file == 0).map(|range| (range.offset, range.len));
        let skeleton = Cut::new(format.id, &files[0].name, files[0].len, own);
        match skeleton.companion(limits) {
            Ok(companion) => {
                cut = Some(skeleton);
                companions.push(companion);
            }
            Err(_) => left_out.extend(contents.graphs),
        }
    }
    Ok(CoremlReader {
        format,
        sources,
        files,
        tensors: weights.iter().map(info).collect(),
        weights: weights.into_iter().map(|found| found.tensor).collect(),
        metadata,
        unlisted,
        left_out,
        warnings: contents.warnings,
        cut,
        companions,
    })
}
