//! What a quantized file says about its quantization.

use apr::{CheckpointReader, DType, Result, TargetFormat, keys};
use apr_gguf::{KeyValue, Value, key_values};
use serde_json::{Map, json};

use super::{Quantization, Weighting, category};
use crate::view::View;

/// The metadata key of containers other than GGUF.
pub const QUANTIZATION: &str = "quantization";

/// GGUF's key for what most of the tensors are.
const FILE_TYPE: &str = "general.file_type";

/// ggml's version of the block layouts.
const QUANTIZATION_VERSION: u32 = 2;

/// Writes down how a checkpoint is quantized: in the pairs of a GGUF file, where llama-quantize writes it and in its order,
/// and for other formats under [`QUANTIZATION`].
///
/// # Errors
/// E001 when the metadata hold malformed pairs.
pub fn record(view: &mut View<'_>, quantization: &Quantization, target: TargetFormat) -> Result<()> {
    let scheme = quantization.choices.scheme;
    let mut entry = Map::new();
    entry.insert("type".to_owned(), scheme.name().into());
    if let Some(original) = original_dtype(view) {
        entry.insert("original_dtype".to_owned(), json!(original));
    }
    let mut pairs = vec![KeyValue::new("general.quantization_version", QUANTIZATION_VERSION)];
    pairs.extend(scheme.file_type().map(|number| KeyValue::new(FILE_TYPE, number)));
    match &quantization.weighting {
        None => {}
        Some(Weighting::Matrix { matrix, file }) => {
            entry.insert("calibration_method".to_owned(), "imatrix".into());
            entry.insert("calibration_samples".to_owned(), matrix.chunk_count.into());
            pairs.extend(matrix.gguf_keys(file));
        }
        Some(Weighting::Columns(columns)) => {
            entry.insert("calibration_method".to_owned(), "column mean squares".into());
            entry.insert("calibration_samples".to_owned(), columns.samples.into());
        }
    }
    if target != TargetFormat::Gguf {
        view.metadata_mut().set(QUANTIZATION, entry);
    }
    set_pairs(view, pairs)
}

/// Writes down in the pairs of a GGUF file that its tensors are floats again.
///
/// # Errors
/// E001 when the metadata hold malformed pairs.
pub fn record_dequantized(view: &mut View<'_>, dtype: DType) -> Result<()> {
    view.metadata_mut().remove(QUANTIZATION);
    set_pairs(view, vec![KeyValue::new(FILE_TYPE, file_type(dtype))])
}

/// Writes down in the pairs of a GGUF file, where they state a type already, that its matrices are cast to another float.
///
/// # Errors
/// E001 when the metadata hold malformed pairs.
pub fn record_cast(view: &mut View<'_>, dtype: DType) -> Result<()> {
    let Some(mut pairs) = key_values(view.metadata())? else { return Ok(()) };
    pairs.iter_mut().filter(|pair| pair.key == FILE_TYPE).for_each(|pair| pair.value = Value::U32(file_type(dtype)));
    store(view, &pairs);
    Ok(())
}

/// llama.cpp's number of a file of floats.
fn file_type(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::BF16 => 32,
        _ => 1,
    }
}

/// The dtype that most of the elements have.
fn original_dtype(view: &View<'_>) -> Option<DType> {
    let mut elements = std::collections::BTreeMap::<DType, u64>::new();
    for info in view.tensors() {
        let count = elements.entry(info.dtype).or_default();
        *count = count.saturating_add(info.shape.elements().unwrap_or_default());
    }
    elements.into_iter().max_by_key(|&(_, count)| count).map(|(dtype, _)| dtype)
}

/// Sets pairs as llama.cpp does: what was there goes, what is new comes last.
fn set_pairs(view: &mut View<'_>, new: Vec<KeyValue>) -> Result<()> {
    let Some(mut pairs) = key_values(view.metadata())? else { return Ok(()) };
    pairs.retain(|pair| new.iter().all(|other| other.key != pair.key));
    pairs.extend(new);
    store(view, &pairs);
    Ok(())
}

fn store(view: &mut View<'_>, pairs: &[KeyValue]) {
    let json: Vec<serde_json::Value> = pairs.iter().map(KeyValue::to_json).collect();
    let mut gguf = view.metadata().object(keys::GGUF).cloned().unwrap_or_default();
    gguf.insert("kv".to_owned(), json.into());
    view.metadata_mut().set(keys::GGUF, gguf);
}

/// The place of a tensor in the files that llama-quantize writes: by layer, then by name.
#[must_use]
pub fn place(name: &str) -> (Option<u32>, String) {
    (category::layer(name), name.to_owned())
}

/// llama.cpp's name of the file type that a GGUF file states.
#[must_use]
pub fn file_type_name(pairs: &[KeyValue]) -> Option<&'static str> {
    let pair = pairs.iter().find(|pair| pair.key == FILE_TYPE)?;
    let Value::U32(number) = pair.value else { return None };
    super::Scheme::ALL.iter().find(|scheme| scheme.file_type() == Some(number)).map(|scheme| scheme.name())
}
