//! A model as a checkpoint.

use std::sync::Arc;

use apr_core::{
    ByteSource, Error, Limits, Result, Shape, SharedSource, Table, TensorInfo, counted,
};
use apr_tflite::flatbuffer::Flatbuffer;

use crate::ort::model::{Model, Weight};
use crate::ort::{FORMAT, METADATA};

/// Opens a model. Tables are read, no weights.
///
/// # Errors
/// E001 for what is no model, E002 for a damaged file, E003 for one whose weights no format here
/// holds, E007 when reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    open_shared(Arc::new(source), name, limits).map_err(|error| error.in_file(name))
}

fn open_shared(source: SharedSource, name: &str, limits: &Limits) -> Result<Table> {
    let mut head = [0; 8];
    if source.read_at(0, &mut head).is_err() || !(FORMAT.recognises)(&head) {
        return Err(Error::format("not a model in onnxruntime's own format"));
    }
    let model = Model::read(&Flatbuffer::new(&*source, limits).root()?)?;
    let Model { weights, fields, operators, refused, .. } = model;
    let mut table = Table::of_file(&FORMAT, name, source);
    let data: Vec<_> =
        weights.iter().map(|weight| (weight.range.offset, weight.range.len)).collect();
    for Weight { name, dtype, dims, range } in weights {
        table.add(TensorInfo { name, dtype, shape: Shape::from(dims) }, range)?;
    }
    table.leave_out(refused)?;
    if apr_skeleton::offer(&mut table, data, limits).is_err() {
        let nodes: u64 = operators.values().sum();
        table.left_out.push(format!("the graph of {}", counted(nodes, "operator")));
    }
    table.metadata.set(METADATA, fields.clone());
    table.show("container", FORMAT.id);
    table.fields.extend(fields.into_iter().filter(|(key, _)| key != "operators"));
    Ok(table)
}
