//! A model as a checkpoint.

use std::sync::Arc;

use apr_core::{
    ByteSource, FileInfo, Format, Limits, Result, StoredRange, Table, TensorBytes, read_vec,
};
use serde_json::{Map, Value};

use crate::trees::columns::Columns;

/// Reads a whole file.
///
/// # Errors
/// E007 when reading fails, E008 over the limit.
pub(crate) fn whole(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<u8>> {
    limits.check_metadata(source.len())?;
    read_vec(source, 0, source.len())
}

/// Returns the table of a model whose lists are in memory.
pub(crate) fn table(
    format: &'static Format,
    (name, len): (&str, u64),
    columns: Columns,
    fields: Map<String, Value>,
) -> Result<Table> {
    let mut table = Table::new(format);
    // The whole file was read, so it need not be kept.
    table.add_file(FileInfo { name: name.to_owned(), len }, Arc::new(Vec::new()));
    table.metadata.set(format.id, fields);
    table.show("container", format.id);
    let range = StoredRange { file: 0, offset: 0, len };
    for (info, bytes) in columns.tensors.into_iter().zip(columns.bytes) {
        table.add(info, TensorBytes::in_memory(range, bytes))?;
    }
    Ok(table)
}
