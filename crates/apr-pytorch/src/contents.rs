//! What every container comes down to: a pickle's values, and where each storage lies.

use std::collections::HashMap;

use apr_core::{Error, Escaped, Result};
use serde_json::{Map, Value};

use crate::pickle::{Heap, Id, Storage};

/// A part of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// An opened container.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) heap: Heap,
    pub(crate) root: Id,
    pub(crate) storages: HashMap<String, Range>,
    pub(crate) header_fields: Map<String, Value>,
    pub(crate) warnings: Vec<String>,
}

impl Contents {
    /// Where a storage's bytes lie, once its declared length is known to be there.
    pub(crate) fn locate(&self, storage: &Storage) -> Result<Range> {
        let Storage { key, element, len, view } = storage;
        let key = Escaped::short(key);
        let range = self.storages.get(&storage.key);
        let range = range.ok_or_else(|| Error::corrupt(format!("its storage '{key}' is not in the file")))?;
        let declared = len.checked_mul(element.width);
        if declared.is_none_or(|declared| declared > range.len) {
            let message = format!("its storage '{key}' has {} bytes, but {len} elements are declared", range.len);
            return Err(Error::corrupt(message).at(range.offset));
        }
        let Some((first, count)) = view else { return Ok(*range) };
        let part = first.checked_mul(element.width).zip(count.checked_mul(element.width));
        match part.filter(|(first, len)| first.checked_add(*len).is_some_and(|end| end <= range.len)) {
            Some((first, len)) => Ok(Range { offset: range.offset + first, len }),
            None => Err(Error::corrupt(format!("its view of storage '{key}' reaches past its end")).at(range.offset)),
        }
    }
}
