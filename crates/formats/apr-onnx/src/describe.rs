//! What the model's file says beside tensors and graph.

use std::collections::{BTreeMap, HashSet};

use apr_core::protobuf::{Span, Walker};
use apr_core::{ByteSource, Limits, Metadata, Result, Table};
use serde_json::{Map, Value, json};

use crate::names::Revealed;
use crate::proto::{Model, Property};

/// Key in the checkpoint's metadata.
pub const METADATA: &str = "onnx";

/// Entry of [`METADATA`]: tensor to its `name` in the ONNX file, and whether it is `transposed`
/// there; its `shape` there, where it has dimensions of 1 behind the first.
pub const TENSORS: &str = "tensors";

/// Entry of [`METADATA`]: counts of file content that a graph cannot represent, by kind.
pub const UNSAID: &str = "unsaid";

/// Key of a model property: JSON list of the matrices that are stored transposed.
///
/// `apr` writes this property. ONNX multiplies by `[inputs, outputs]`, and checkpoints have
/// `[outputs, inputs]`.
pub const TRANSPOSED: &str = "apr.transposed";

/// Key of a pair of the model: a JSON list of the floats that the graph computes with and that are
/// no weights, in files that `apr` writes.
pub const CONSTANTS: &str = "apr.constants";

/// Longest value of a pair that is kept as metadata. The file around the tensors has all of it.
const LONGEST: u64 = 64 << 10;

/// Producer, versions and free pairs of the model.
pub(crate) fn metadata(
    model: &Model,
    source: &dyn ByteSource,
    limits: &Limits,
) -> Result<Metadata> {
    let mut walker = Walker::new(source, limits);
    let mut entry = Map::new();
    for (key, text) in [
        ("producer_name", &model.producer_name),
        ("producer_version", &model.producer_version),
        ("domain", &model.domain),
    ] {
        if !text.is_empty() {
            entry.insert(key.into(), text.clone().into());
        }
    }

    if let Some(version) = model.ir_version {
        entry.insert("ir_version".into(), version.into());
    }
    if let Some(version) = model.model_version.filter(|version| *version != 0) {
        entry.insert("model_version".into(), version.into());
    }

    entry.insert("opsets".into(), opsets(model));
    if let Some(graph) = &model.graph {
        if !graph.name.is_empty() {
            entry.insert("graph".into(), graph.name.clone().into());
        }
        add(&mut entry, "graph_metadata", pairs(&graph.properties, &mut walker)?);
        add_text(&mut entry, "graph_doc", graph.doc, &mut walker)?;
    }

    add(&mut entry, UNSAID, unsaid(model));
    add_text(&mut entry, "doc", model.doc, &mut walker)?;
    add(&mut entry, "metadata", pairs(&model.properties, &mut walker)?);
    let mut metadata = Metadata::new();
    metadata.set(METADATA, entry);
    Ok(metadata)
}

/// Adds the names that tensors have in the file: name to name there, with whether it is the
/// transpose there.
pub(crate) fn note_names(metadata: &mut Metadata, revealed: &BTreeMap<String, Revealed>) {
    if revealed.is_empty() {
        return;
    }
    let mut entry = metadata.object(METADATA).cloned().unwrap_or_default();
    let names = revealed.iter().map(|(stored, found)| {
        let mut place = json!({ "name": stored, "transposed": found.transposed });
        if let (Some(shape), Some(place)) = (&found.stored_shape, place.as_object_mut()) {
            place.insert("shape".into(), shape.clone().into());
        }
        (found.name.clone(), place)
    });
    entry.insert(TENSORS.into(), Value::Object(names.collect()));
    metadata.set(METADATA, entry);
}

fn add(entry: &mut Map<String, Value>, key: &str, pairs: Map<String, Value>) {
    if !pairs.is_empty() {
        entry.insert(key.into(), pairs.into());
    }
}

fn add_text(
    entry: &mut Map<String, Value>,
    key: &str,
    span: Option<Span>,
    walker: &mut Walker<'_>,
) -> Result<()> {
    if let Some(span) = span.filter(|span| (1..=LONGEST).contains(&span.len)) {
        entry.insert(key.into(), String::from_utf8_lossy(&walker.bytes(span)?).into());
    }
    Ok(())
}

fn pairs(properties: &[Property], walker: &mut Walker<'_>) -> Result<Map<String, Value>> {
    let mut pairs = Map::new();
    for property in properties.iter().filter(|property| property.value.len <= LONGEST) {
        pairs.insert(property.key.clone(), property.text(walker)?.into());
    }
    Ok(pairs)
}

/// Returns the names that a model property ([`TRANSPOSED`] or [`CONSTANTS`]) lists.
///
/// The set is empty if the property is missing or its value is not a list of strings.
pub(crate) fn noted(model: &Model, key: &str, walker: &mut Walker<'_>) -> Result<HashSet<String>> {
    let Some(found) = model.properties.iter().find(|property| property.key == key) else {
        return Ok(HashSet::new());
    };
    Ok(serde_json::from_str(&found.text(walker)?).unwrap_or_default())
}

/// Counts the file's content that a graph cannot represent, by kind.
fn unsaid(model: &Model) -> Map<String, Value> {
    let main = model.graph.iter();
    let main_nodes = || model.graph.iter().flat_map(|graph| &graph.nodes);
    let counts = [
        ("training information", model.training.len()),
        ("device configurations", model.devices.len()),
        ("quantization annotations", main.clone().map(|graph| graph.quantization.len()).sum()),
        ("notes of the graph", main.map(|graph| graph.properties.len()).sum()),
        ("notes of nodes", main_nodes().filter(|node| !node.properties.is_empty()).count()),
        ("devices of nodes", main_nodes().filter(|node| !node.devices.is_empty()).count()),
    ];
    let some = counts.into_iter().filter(|(_, count)| *count > 0);
    some.map(|(what, count)| (what.to_owned(), count.into())).collect()
}

/// Domain to version; ONNX's own is `ai.onnx`.
fn opsets(model: &Model) -> Value {
    let name =
        |domain: &str| if domain.is_empty() { "ai.onnx".to_owned() } else { domain.to_owned() };
    let opsets = model.opsets.iter().map(|set| (name(&set.domain), set.version.into()));
    Value::Object(opsets.collect())
}

/// Shows fields of the file.
pub(crate) fn show(model: &Model, table: &mut Table) {
    table.show("ir_version", model.ir_version);
    table.show("opsets", opsets(model));
    table.show("nodes", model.graph.as_ref().map_or(0, |graph| graph.nodes.len()));
    table.show("functions", model.functions.len());
    if !model.producer_name.is_empty() {
        let producer = format!("{} {}", model.producer_name, model.producer_version);
        table.show("producer", producer.trim_end());
    }
}
