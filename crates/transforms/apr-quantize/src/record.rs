//! What a quantized file says about its quantization.

use std::sync::Arc;

use apr_core::keys;
use apr_gguf::{KeyValue, KeyValues, Value, key_values};
use apr_registry::{CheckpointReader, Convention, DType, Format, Metadata, Result};
use apr_view::View;
use serde_json::{Map, json};

use super::{Quantization, Weighting, category};

/// Name of the scheme in upper case: `Q4_K_M`.
const METHOD: &str = "method";

/// GGUF key for the dtype of most tensors.
const FILE_TYPE: &str = "general.file_type";

/// ggml's version of the block layouts.
const QUANTIZATION_VERSION: u32 = 2;

/// Writes down how a checkpoint is quantized, with the bits that an element of the quantized
/// tensors takes, scales included, where it is known: in the pairs of a GGUF file, where
/// llama-quantize writes it and in its order, and for other formats under [`keys::QUANTIZATION`],
/// with the keys of `docs/format/apr2.md`, "Metadata".
///
/// # Errors
/// E001 when the metadata hold malformed pairs.
pub fn record(
    view: &mut View<'_>,
    quantization: &Quantization,
    bits_per_weight: Option<f64>,
    target: &'static Format,
) -> Result<()> {
    let scheme = quantization.choices.scheme;
    let mut entry = Map::new();
    entry.insert("type".to_owned(), scheme.name().into());
    entry.insert(METHOD.to_owned(), scheme.name().to_uppercase().into());
    if let Some(bits) = bits_per_weight {
        entry.insert("bits_per_weight".to_owned(), json!((bits * 1e4).round() / 1e4));
    }
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

    if target.convention != Convention::LlamaCpp {
        view.metadata_mut().set(keys::QUANTIZATION, entry);
    }

    set_pairs(view.metadata_mut(), &pairs)
}

/// Name of the scheme that the metadata record, in lower case: under our key, or under the
/// specification's `method`.
#[must_use]
pub fn recorded_scheme(metadata: &Metadata) -> Option<String> {
    let entry = metadata.object(keys::QUANTIZATION)?;
    let name = ["type", METHOD].iter().find_map(|key| entry.get(*key)?.as_str());
    name.map(str::to_ascii_lowercase)
}

/// Writes down in the pairs of a GGUF file that its tensors are floats again.
///
/// # Errors
/// E001 when the metadata hold malformed pairs.
pub fn record_dequantized(metadata: &mut Metadata, dtype: DType) -> Result<()> {
    metadata.remove(keys::QUANTIZATION);
    set_pairs(metadata, &[KeyValue::new(FILE_TYPE, file_type(dtype))])
}

/// Records that the matrices of a GGUF file are cast to another float dtype.
///
/// Changes only key-value pairs that already declare a type.
///
/// # Errors
/// E001 when the metadata hold malformed pairs.
pub fn record_cast(view: &mut View<'_>, dtype: DType) -> Result<()> {
    let Some(pairs) = key_values(view.metadata())? else { return Ok(()) };
    if pairs.find(FILE_TYPE).is_some() {
        let mut pairs = Arc::unwrap_or_clone(pairs);
        pairs.set(&KeyValue::new(FILE_TYPE, file_type(dtype)))?;
        view.metadata_mut().set_key_values(pairs);
    }
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

/// Sets pairs in the way llama.cpp does: old pairs are removed, new pairs are appended.
fn set_pairs(metadata: &mut Metadata, new: &[KeyValue]) -> Result<()> {
    let Some(pairs) = key_values(metadata)? else { return Ok(()) };
    let mut pairs = Arc::unwrap_or_clone(pairs);
    new.iter().try_for_each(|pair| pairs.push(pair))?;
    metadata.set_key_values(pairs);
    Ok(())
}

/// The place of a tensor in the files that llama-quantize writes: by layer, then by name.
#[must_use]
pub fn place(name: &str) -> (Option<u32>, String) {
    (category::layer(name), name.to_owned())
}

/// llama.cpp's name of the file type that a GGUF file states.
#[must_use]
pub fn file_type_name(pairs: &KeyValues) -> Option<&'static str> {
    let Some(Value::U32(number)) = pairs.get(FILE_TYPE) else { return None };
    super::Scheme::ALL
        .iter()
        .find(|scheme| scheme.file_type() == Some(number))
        .map(|scheme| scheme.name())
}
