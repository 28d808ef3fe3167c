//! Canonical names on the way in, the source's names on the way out (`docs/families.md`).
//!
//! What is needed to give the names back is written under the metadata key `names`: `family`,
//! `convention`, `prefix`, `wrapper`, and under `exceptions` the names that those three don't lead
//! back to.

use std::collections::{HashMap, HashSet};

use apr_arch::{CANONICAL, Families, Family, FamilyModel, GGUF, HUGGING_FACE, Naming, ONNX};
use apr_registry::{CheckpointReader, Convention, Format, Result, keys, onnx};
use apr_view::View;
use serde_json::{Map, Value, json};

use crate::Source;
use crate::companions::Learnt;

/// The metadata key.
pub const NAMES: &str = "names";

/// Returns the checkpoint under the canonical names of its family. Tensors that the family does not
/// know keep their names.
#[must_use]
pub fn canonical<'a>(reader: &'a dyn CheckpointReader, model: &FamilyModel<'_>) -> View<'a> {
    let mut view = View::new(reader);
    let naming = model.naming();
    view.metadata_mut().set(keys::MODEL_TYPE, family_name(reader, model));
    if naming.convention == CANONICAL {
        return view;
    }

    let names = canonical_names(reader, model);

    // A family that the user brought may not be there when the names are wanted back.
    let is_builtin = Families::is_builtin(model.family());
    let mut exceptions = Map::new();
    for (info, canonical) in reader.tensors().iter().zip(&names) {
        let Some(canonical) = canonical else { continue };
        let derived = model.family().source_name(canonical, naming).filter(|_| is_builtin);
        if derived.as_deref() != Some(&info.name) {
            exceptions.insert(canonical.clone(), info.name.clone().into());
        }
    }

    view.rename(|position, _| names[position].clone());
    let mut record = json!({
        "family": model.family().name(),
        "convention": naming.convention,
        "prefix": naming.prefix,
    });
    if let (false, Some(record)) = (naming.wrapper.is_empty(), record.as_object_mut()) {
        record.insert("wrapper".to_owned(), naming.wrapper.clone().into());
    }
    if let (false, Some(record)) = (exceptions.is_empty(), record.as_object_mut()) {
        record.insert("exceptions".to_owned(), exceptions.into());
    }

    view.metadata_mut().set(NAMES, record);
    view
}

/// Returns the `model_type` of a related family, which is more specific, or the name of the family.
fn family_name(reader: &dyn CheckpointReader, model: &FamilyModel<'_>) -> String {
    let told =
        reader.metadata().text(keys::MODEL_TYPE).filter(|told| model.family().is_called(told));
    told.unwrap_or(model.family().name()).to_owned()
}

/// Returns canonical names by position, or `None` for a tensor whose canonical name is already
/// taken.
fn canonical_names(reader: &dyn CheckpointReader, model: &FamilyModel<'_>) -> Vec<Option<String>> {
    let unknown = reader
        .tensors()
        .iter()
        .enumerate()
        .filter(|(position, _)| model.canonical(*position).is_none());
    let mut taken: HashSet<&str> = unknown.map(|(_, info)| info.name.as_str()).collect();
    (0..reader.tensors().len())
        .map(|position| {
            model.canonical(position).filter(|name| taken.insert(name)).map(str::to_owned)
        })
        .collect()
}

/// Returns the checkpoint under the names of its source, or under the target's own convention if it
/// has one. Leaves out additions that an import made for `.apr` alone.
///
/// # Errors
/// E007 and E008 when a companion can't be read.
pub fn original<'a>(source: &Source<'a>, target: &'static Format) -> Result<View<'a>> {
    let reader = source.reader();
    let mut view = View::new(reader);
    if target.convention == Convention::Canonical {
        return Ok(view);
    }
    if let Some(names) = source_names(source, target)? {
        view.rename(|_, name| names.get(name).cloned());
    }
    if let Some(auxiliary) = reader.metadata().auxiliary_tensor() {
        view.drop_tensors(|name| name == auxiliary);
    }

    view.metadata_mut().remove(NAMES);
    for key in derived_keys(reader, source.learnt()?) {
        view.metadata_mut().remove(key);
    }

    Ok(view)
}

/// Returns the metadata keys that only repeat facts in the companions. They are not lost if the
/// companions are copied.
pub fn derived_keys<'l>(
    reader: &'l dyn CheckpointReader,
    learnt: &'l Learnt,
) -> impl Iterator<Item = &'l str> {
    let learnt = learnt.metadata.iter();
    learnt
        .filter(move |(key, value)| reader.metadata().get(key) == Some(value))
        .map(|(key, _)| key.as_str())
}

/// Returns the source name of each canonical name, or `None` if the checkpoint already has the
/// names of its source.
fn source_names(
    source: &Source<'_>,
    target: &'static Format,
) -> Result<Option<HashMap<String, String>>> {
    let reader = source.reader();
    let record = reader.metadata().object(NAMES);

    // An ONNX file that apr exported has canonical names: it gets them back, and a folder those
    // that transformers loads.
    let is_of_onnx = reader.metadata().object(onnx::METADATA).is_some();
    let is_canonical = reader.format().convention == Convention::Canonical;
    let has_own_names = if is_of_onnx { target.always_computes() } else { !is_canonical };
    if record.is_none() && has_own_names {
        return Ok(None);
    }

    let exceptions = record.and_then(|record| record.get("exceptions")?.as_object());
    let rule = match record {
        Some(record) => recorded_rule(record, source.families()),
        None => canonical_rule(source)?,
    };
    let source_name = |canonical: &str| {
        let exception = exceptions
            .and_then(|exceptions| exceptions.get(canonical)?.as_str())
            .map(str::to_owned);
        exception.or_else(|| {
            rule.as_ref().and_then(|(family, naming)| family.source_name(canonical, naming))
        })
    };

    let names = reader
        .tensors()
        .iter()
        .filter_map(|info| Some((info.name.clone(), source_name(&info.name)?)));
    Ok(Some(names.collect()))
}

/// Returns the family and naming that an import recorded.
fn recorded_rule<'f>(
    record: &Map<String, Value>,
    families: &'f Families,
) -> Option<(&'f Family, Naming)> {
    let text = |key: &str| record.get(key).and_then(Value::as_str);
    let family = families.find(text("family")?)?;
    let convention = text("convention")?;
    // The names of other formats are theirs alone.
    if [GGUF, ONNX].contains(&convention) {
        return Some((family, family.default_naming(HUGGING_FACE)?));
    }
    let wrapper = text("wrapper").unwrap_or_default().to_owned();
    Some((
        family,
        Naming { wrapper, ..Naming::new(convention, text("prefix").unwrap_or_default()) },
    ))
}

/// Returns the naming of a checkpoint that has canonical names but does not record their origin.
fn canonical_rule<'f>(source: &Source<'f>) -> Result<Option<(&'f Family, Naming)>> {
    let model = source.family()?.filter(|model| model.naming().convention == CANONICAL);
    let family = model.and_then(|model| source.families().find(model.family().name()));
    Ok(family.and_then(|family| Some((family, family.default_naming(HUGGING_FACE)?))))
}
