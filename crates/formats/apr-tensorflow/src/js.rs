//! TensorFlow.js: a JSON that lists weights, and shards that their bytes are in, one after the
//! other.
//!
//! ```text
//! model.json          "weightsManifest": [ { "paths": ["group1-shard1of2.bin", ..],
//!                       "weights": [ { "name", "shape", "dtype", "quantization" }, .. ] }, .. ]
//! group1-shard1of2.bin   bytes; a weight may begin in one shard and end in the next
//! ```

use std::sync::Arc;

use apr_core::{
    DType, Error, Escaped, Limits, Result, SourceSet, StoredRange, Table, TensorBytes,
    relative_path,
};
use serde_json::{Map, Value, json};

use crate::JS;
use crate::bytes::Found;
use crate::open::Opened;

/// The key that a model of TensorFlow.js has.
const MANIFEST: &str = "weightsManifest";

/// Keys of the file that are stored as metadata. The topology can be as large as a graph.
const KEPT: [&str; 4] = ["format", "generatedBy", "convertedBy", "signature"];

/// Returns `true` if a JSON file is a model of TensorFlow.js.
#[must_use]
pub fn is_js(json: &[u8]) -> bool {
    let has_key = json.windows(MANIFEST.len()).any(|bytes| bytes == MANIFEST.as_bytes());
    has_key
        && serde_json::from_slice::<Value>(json)
            .is_ok_and(|model| model.get(MANIFEST).is_some_and(Value::is_array))
}

/// Opens a model of TensorFlow.js with the shards in its folder. No weights are read.
///
/// # Errors
/// E001 for what is none, E002 where shards are shorter than their weights, E003 for texts, E007
/// where a shard is missing.
pub fn open_js(json: &[u8], name: &str, set: &dyn SourceSet, limits: &Limits) -> Result<Table> {
    let located = |error: Error| if error.file().is_some() { error } else { error.in_file(name) };
    read(json, name, set, limits).map_err(located)
}

fn read(json: &[u8], name: &str, set: &dyn SourceSet, limits: &Limits) -> Result<Table> {
    let damaged = || Error::format("the manifest of weights is not as TensorFlow.js writes it");
    let model: Value = serde_json::from_slice(json)
        .map_err(|error| Error::format(format!("invalid JSON: {}", apr_core::foreign(&error))))?;
    let file = Table::of_file(&JS, name, Arc::new(json.to_vec()));
    let mut opened = Opened::new(file, limits);
    let mut quantized = Map::new();
    for group in model.get(MANIFEST).and_then(Value::as_array).ok_or_else(damaged)? {
        // Where each shard starts within the group.
        let mut shards = Vec::new();
        let mut len = 0_u64;
        for path in group.get("paths").and_then(Value::as_array).ok_or_else(damaged)? {
            let path = relative_path(path.as_str().ok_or_else(damaged)?)?;
            let file = opened.add_file(set, path.to_owned())?;
            shards.push((len, file));
            len = len.checked_add(opened.file_len(file)).ok_or_else(damaged)?;
        }
        let mut at = 0_u64;
        for weight in group.get("weights").and_then(Value::as_array).ok_or_else(damaged)? {
            let own = weight.get("name").and_then(Value::as_str).ok_or_else(damaged)?;
            let located = |error: Error| error.for_tensor(Escaped::short(own));
            let (dtype, dims) = describe(weight).map_err(located)?;
            let elements = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
            let size = elements.and_then(|count| count.checked_mul(dtype.block_bytes()));
            let end = size.and_then(|size| at.checked_add(size)).filter(|&end| end <= len);
            let end = end.ok_or_else(|| {
                let message = format!("it ends past the {len} bytes of its shards");
                located(Error::corrupt(message))
            })?;
            let bytes = TensorBytes::pieces(pieces(&shards, (at, end), len));
            opened.found.push(Found { name: own.to_owned(), dtype, dims, bytes });
            if let Some(scale) = weight.get("quantization").filter(|_| !dtype.is_float()) {
                quantized.insert(own.to_owned(), scale.clone());
            }
            at = end;
        }
    }

    for key in KEPT {
        if let Some(value) = model.get(key).filter(|value| !value.is_null()) {
            opened.fields.insert(key.to_owned(), value.clone());
        }
    }
    if !quantized.is_empty() {
        opened.fields.insert("quantized".to_owned(), json!(quantized));
    }
    opened.table.left_out.extend(model.get("modelTopology").map(|_| "modelTopology".to_owned()));
    opened.finish()
}

/// Returns the dtype and sizes of a weight as stored. A quantized weight has other elements.
fn describe(weight: &Value) -> Result<(DType, Vec<u64>)> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let stored = text(weight.get("quantization").and_then(|own| own.get("dtype")));
    let name = if stored.is_empty() { text(weight.get("dtype")) } else { stored };
    let dtype = match name.as_str() {
        "float32" => DType::F32,
        "float16" => DType::F16,
        "int32" => DType::I32,
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "bool" => DType::BOOL,
        "complex64" => DType::C64,
        _ => {
            let name = Escaped::short(&name);
            return Err(Error::version(format!("no format here holds elements of {name}")));
        }
    };
    let dims = weight.get("shape").and_then(Value::as_array);
    let dims: Option<Vec<u64>> = dims.and_then(|dims| dims.iter().map(Value::as_u64).collect());
    Ok((dtype, dims.ok_or_else(|| Error::format("its shape must be a list of sizes"))?))
}

/// The ranges of the shards that a range of the group is.
fn pieces(shards: &[(u64, usize)], (start, end): (u64, u64), len: u64) -> Vec<StoredRange> {
    let ends = shards.iter().skip(1).map(|shard| shard.0).chain([len]);
    let parts = shards.iter().zip(ends).filter_map(|(&(first, file), last)| {
        let (from, to) = (start.max(first), end.min(last));
        let range =
            StoredRange { file, offset: from - first.min(from), len: to.checked_sub(from)? };
        (range.len > 0).then_some(range)
    });
    parts.collect()
}
