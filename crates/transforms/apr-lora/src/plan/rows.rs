//! Rows of embeddings that were trained as such.

use std::collections::HashMap;

use apr_core::{Error, Result, TensorInfo};

use super::{PARAMETER, Slot};
use crate::adapter::Contents;
use crate::form::rows_and_columns;

/// Returns the map from rows of a weight to its trained rows.
pub(super) fn trained_rows(
    contents: &Contents,
    module: &str,
    trained: &TensorInfo,
    slot: &Slot,
) -> Result<HashMap<u64, u64>> {
    let all = &contents.configuration.token_rows;
    contents.configuration.work.spend((all.len() as u64).saturating_mul(PARAMETER))?;
    let is_of =
        |name: &str| name.is_empty() || module == name || module.ends_with(&format!(".{name}"));
    let rows = all.iter().find(|(name, _)| is_of(name)).map(|(_, rows)| rows.as_slice());
    let rows = rows.unwrap_or_default();
    let (count, columns) = rows_and_columns(&slot.info.shape).unwrap_or_default();
    let fits = rows_and_columns(&trained.shape) == Some((rows.len() as u64, columns))
        && rows.iter().all(|row| *row < count);
    if !fits {
        let message = format!(
            "{} rows of {} do not fit the base's {}",
            rows.len(),
            trained.shape,
            slot.info.shape
        );
        return Err(Error::format(message).for_tensor(&trained.name));
    }
    Ok(rows.iter().copied().zip(0..).collect())
}
