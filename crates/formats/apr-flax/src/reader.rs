//! A file as a checkpoint.

use std::sync::Arc;

use apr_core::{
    ByteSource, Limits, Result, Shape, SharedSource, Table, TensorBytes, TensorInfo, counted,
};

use crate::FORMAT;
use crate::messagepack::Cursor;
use crate::tree::{Array, Tree};

/// Opens a file. Its tree is read, no weights.
///
/// # Errors
/// E001 for what is no map of variables, E002 for a damaged file, E003 for one whose values no
/// format here holds, E007 when reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    open_shared(&(Arc::new(source) as SharedSource), name, limits)
        .map_err(|error| error.in_file(name))
}

fn open_shared(source: &SharedSource, name: &str, limits: &Limits) -> Result<Table> {
    let mut cursor = Cursor::new(source, limits);
    let Tree { mut arrays, refused } = Tree::read(&mut cursor)?;
    let mut table = Table::of_file(&FORMAT, name, Arc::clone(source));
    table.show("container", FORMAT.id);
    if cursor.at() < source.len() {
        let rest = source.len() - cursor.at();
        table.warnings.push(format!("{rest} bytes follow the variables"));
    }

    // A training state has the optimizer's beside the parameters.
    let all = arrays.len();
    if arrays.iter().any(|array| array.path.starts_with("params/")) {
        arrays.retain(|array| !array.path.starts_with("opt_state/"));
        if all > arrays.len() {
            let count = counted((all - arrays.len()) as u64, "array");
            table.left_out.push(format!("the optimizer's state ({count})"));
        }
    }
    for Array { path, dtype, dims, parts } in arrays {
        let info = TensorInfo { name: path, dtype, shape: Shape::from(dims) };
        table.add(info, TensorBytes::pieces(parts))?;
    }
    table.leave_out(refused)?;
    // A map may have a key twice.
    table.tell_apart();
    Ok(table)
}
