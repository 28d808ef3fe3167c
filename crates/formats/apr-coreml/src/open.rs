//! Opening: a model by itself, one in a folder, and a package.

use std::sync::Arc;

use apr_core::protobuf::Walker;
use apr_core::{
    ByteSource, CheckpointReader, Error, Escaped, FileInfo, Format, HEAD_LEN, Limits, Metadata,
    Result, Shape, SharedSource, SourceSet, Table, TensorInfo, Unlisted, read_vec, relative_path,
};
use serde_json::{Map, Value};

use crate::blob::Files;
use crate::model::{Contents, Found};
use crate::program::Context;
use crate::tensor::Tensor;
use crate::{METADATA, MODEL, PACKAGE};

/// Opens a model by itself. A program may have its weights in other files, which [`open_in`] finds.
///
/// # Errors
/// E001 for what is no model, and for a program whose weights are in other files; E002 for a
/// damaged file, E003 for one whose weights no format here holds, E007 when reading fails, E008
/// over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    let source: SharedSource = Arc::new(source);
    open_shared(&source, name, None, limits, &MODEL).map_err(|error| located(error, name))
}

/// Opens a model of a folder, with the files that its weights are in. No weights are read.
///
/// # Errors
/// Those of [`open`]; E007 where a file is missing.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Table> {
    open_named(set, name, limits, &MODEL)
}

fn open_named(
    set: &dyn SourceSet,
    name: &str,
    limits: &Limits,
    format: &'static Format,
) -> Result<Table> {
    let source: SharedSource = set.open(name).map_err(|error| error.in_file(name))?.into();
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
) -> Result<Table> {
    let folder = name.rfind('/').map_or("", |slash| &name[..=slash]);
    let model = root_model(json).map_err(|error| error.in_file(name))?;
    let mut table = open_named(set, &format!("{folder}Data/{model}"), limits, &PACKAGE)?;
    let manifest = FileInfo { name: name.to_owned(), len: json.len() as u64 };
    table.add_file(manifest, Arc::new(json.to_vec()));
    Ok(table)
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
    source: &SharedSource,
    name: &str,
    set: Option<&dyn SourceSet>,
    limits: &Limits,
    format: &'static Format,
) -> Result<Table> {
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
    let mut table = Table::new(format);
    files.infos.into_iter().zip(files.sources).for_each(|(file, source)| {
        table.add_file(file, source);
    });
    finish(contents, table, limits)
}

fn finish(contents: Contents, mut table: Table, limits: &Limits) -> Result<Table> {
    let Contents { mut weights, mut fields, settings, refused, left_out, .. } = contents;
    weights.sort_by_key(|found| {
        let range = found.tensor.range();
        (range.file, range.offset)
    });
    for Found { name, tensor, .. } in &weights {
        let shape = Shape::from(tensor.dims.clone());
        let info = TensorInfo { name: name.clone(), dtype: tensor.dtype, shape };
        table.add(info, Tensor::bytes(tensor))?;
    }
    table.tell_apart();
    table.left_out = left_out;
    table.leave_out(refused)?;
    table.warnings = contents.warnings;
    let compressed = weights.iter().zip(table.tensors()).filter_map(|(found, info)| {
        let made_by = found.made_by.as_deref()?;
        let made_by = made_by.strip_prefix(crate::constexpr::PREFIX).unwrap_or(made_by);
        Some((info.name.clone(), made_by.into()))
    });
    let compressed: Map<String, Value> = compressed.collect();
    if !compressed.is_empty() {
        fields.insert("compressed".into(), compressed.into());
    }
    table.describe(METADATA, fields);
    // There is one for each weight, and for each kind of step.
    table.fields.swap_remove("compressed");
    table.fields.swap_remove("operators");
    // What reports show as the format's version, and not the model's own.
    table.fields.swap_remove("version");
    if let Some(version) = table.fields.swap_remove("specification") {
        table.show("version", version);
    }
    if !settings.is_empty() {
        let what = "numbers, texts and shapes of the program".to_owned();
        table.unlisted.push(Unlisted { what, names: settings });
    }
    if !contents.graphs.is_empty() {
        let data = weights.iter().filter_map(|found| found.tensor.data());
        let own = data.filter(|range| range.file == 0).map(|range| (range.offset, range.len));
        if apr_skeleton::offer(&mut table, own, limits).is_err() {
            table.left_out.extend(contents.graphs);
        }
    }
    Ok(table)
}
