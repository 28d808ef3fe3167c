//! Opening a model in its folder: the XML file, and the file of weights beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, DType, Error, Escaped, FileInfo, Limits, Result, Shape,
    SharedSource, SourceSet, StoredRange, Table, TensorBytes, TensorInfo, counted, read_vec,
};
use serde_json::{Map, Value, json};

use crate::openvino::element::Kind;
use crate::openvino::model::{Layer, Model, Net};
use crate::openvino::packed::PackedDecoder;
use crate::openvino::{FORMAT, METADATA};

/// Opens a model by itself, which works for one without constants alone.
///
/// # Errors
/// E001 for what is no model, and for one with constants, whose data are in another file; E002 for
/// a damaged file, E003 for another version, E007 when reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    let source: SharedSource = Arc::new(source);
    let (model, _) = parsed(&source, limits).map_err(|error| error.in_file(name))?;
    finish(&model, source, name, None, limits)
}

/// Opens a model of a folder, with the file of its weights: `model.bin` for `model.xml`. Data are
/// not read.
///
/// # Errors
/// Those of [`open`]; E007 where the file of weights is missing.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Table> {
    let source: SharedSource = set.open(name).map_err(|error| error.in_file(name))?.into();
    let (model, has_data) = parsed(&source, limits).map_err(|error| error.in_file(name))?;
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let weights = format!("{stem}.bin");
    let data: Option<(SharedSource, String)> = match has_data || set.has(&weights) {
        true => {
            let source = set.open(&weights).map_err(|error| error.in_file(&weights))?;
            Some((source.into(), weights))
        }
        false => None,
    };
    finish(&model, source, name, data, limits)
}

/// The model, and `true` if there are data of constants.
fn parsed(source: &SharedSource, limits: &Limits) -> Result<(Model, bool)> {
    if source.len() > limits.max_program() {
        return Err(limits.beyond_program());
    }
    let model = Model::parse(&read_vec(source, 0, source.len())?)?;
    let mut has_data = false;
    model.net.constants(&mut |layer| {
        has_data |= layer.constant()?.size > 0;
        Ok(())
    })?;
    Ok((model, has_data))
}

/// Adds a constant of a model, whose data are in the second file of the table.
fn add_constant(table: &mut Table, layer: &Layer) -> Result<()> {
    let constant = layer.constant()?;
    let bad = |what: String| Error::corrupt(what).for_tensor(&layer.tensor);
    let shape = Shape::from(constant.dims.clone());
    let count = constant.count();
    let needed = count.and_then(|count| constant.kind.stored_len(count));
    let Some(dtype) = constant.dtype() else {
        let type_name = Escaped::short(&constant.type_name);
        let why = match constant.kind {
            Kind::Packed(_) => format!("{type_name} that do not fill their bytes"),
            _ => format!("elements of type {type_name}"),
        };
        table.left_out.push(format!("{} ({why})", Escaped::short(&layer.tensor)));
        return Ok(());
    };
    let Some(needed) = needed else {
        return Err(bad("the shape has more elements than a file can have".to_owned()));
    };
    let data = table.files().get(1);
    let available = data.map_or(0, |file| file.len);
    let end = constant.offset.checked_add(constant.size);
    if needed > constant.size {
        return Err(bad(format!(
            "the shape needs {}, and the file states {}",
            counted(needed, "byte"),
            constant.size
        )));
    }
    if needed > 0 && data.is_none() {
        let message = "the weights are in the .bin file next to the .xml: open the model in \
                       their folder";
        return Err(Error::format(message));
    }
    if needed > 0 && end.is_none_or(|end| end > available) {
        return Err(bad(format!(
            "the data at {} have {}, beyond the end of the file of weights at {available}",
            constant.offset,
            counted(constant.size, "byte"),
        )));
    }
    let file = usize::from(needed > 0);
    let offset = if needed > 0 { constant.offset } else { 0 };
    let range = StoredRange { file, offset, len: needed };
    let bytes = match constant.kind {
        Kind::Packed(packed) => TensorBytes::decoded(PackedDecoder { packed, range }),
        Kind::Plain(_) | Kind::Other => TensorBytes::Plain(range),
    };
    table.add(TensorInfo { name: layer.tensor.clone(), dtype, shape }, bytes)
}

fn finish(
    model: &Model,
    source: SharedSource,
    name: &str,
    data: Option<(SharedSource, String)>,
    limits: &Limits,
) -> Result<Table> {
    let mut table = Table::of_file(&FORMAT, name, source);
    if let Some((source, name)) = data {
        table.add_file(FileInfo { name, len: source.len() }, source);
    }
    let added = model.net.constants(&mut |layer| add_constant(&mut table, layer));
    added.map_err(|error| error.in_file(name))?;
    if apr_skeleton::offer(&mut table, [], limits).is_err() {
        let what = format!("the graph of {}", counted(operators(&model.net), "layer"));
        table.left_out.push(what);
    }
    table.describe(METADATA, described(model));
    // There is one for each kind of step.
    table.fields.swap_remove("operators");
    Ok(table)
}

fn operators(net: &Net) -> u64 {
    let inner = net.layers.iter().flat_map(|layer| &layer.bodies);
    inner.map(|(_, inner)| operators(inner)).sum::<u64>() + net.layers.len() as u64
}

/// What the file says besides its constants: for reports and for metadata.
fn described(model: &Model) -> Map<String, Value> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    count(&model.net, &mut counts);
    let end = |layer: &Layer, is_input: bool| {
        let port = if is_input { layer.outputs.first() } else { layer.inputs.first() };
        let kind = port.and_then(|port| port.precision).and_then(Kind::dtype).map(DType::name);
        let dims = port.and_then(|port| port.dims.as_ref());
        let name = port.and_then(|port| port.names.first()).unwrap_or(&layer.name);
        json!({ "name": name, "type": kind, "shape": dims })
    };
    let ends = |kind: &str, is_input: bool| -> Vec<Value> {
        let layers = model.net.layers.iter().filter(|layer| layer.kind == kind);
        layers.map(|layer| end(layer, is_input)).collect()
    };
    let mut fields = Map::new();
    fields.insert("name".to_owned(), model.name.as_str().into());
    fields.insert("version".to_owned(), model.version.into());
    fields.insert("inputs".to_owned(), ends("Parameter", true).into());
    fields.insert("outputs".to_owned(), ends("Result", false).into());
    fields.insert("operators".to_owned(), json!(counts));
    fields.extend(model.notes.clone());
    fields
}

/// Counts the operators of a net and of its bodies by their types.
fn count<'n>(net: &'n Net, counts: &mut BTreeMap<&'n str, u64>) {
    for layer in &net.layers {
        layer.bodies.iter().for_each(|(_, inner)| count(inner, counts));
        if !["Const", "Parameter", "Result"].contains(&layer.kind.as_str()) {
            *counts.entry(&layer.kind).or_default() += 1;
        }
    }
}
