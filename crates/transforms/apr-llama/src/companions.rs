//! What one format keeps in files beside the weights and the other in key-value pairs, put in its
//! place.

use apr_arch::{Families, GGUF};
use apr_core::counted;
use apr_gguf::{derived, key_values};
use apr_registry::{CheckpointReader, DType, Result, keys};
use apr_source::naming::{NAMES, original};
use apr_source::{Architecture, Source};
use apr_tokenizer::gguf::{self as tokenizer, tokenizer_files, tokenizer_key_values};

use super::{GgufExport, Restored, export, restore_to};

/// Files whose content the pairs of a GGUF file have.
const IN_PAIRS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
];

/// Metadata that a model card has, and no configuration.
const MODEL_CARD: &[&str] = &["author", "description", "license", "model_name", "url", "version"];

/// Returns `true` if tensors have llama.cpp's layout: those of a GGUF file, or of an import from
/// one.
#[must_use]
pub fn is_in_gguf_layout(reader: &dyn CheckpointReader) -> bool {
    let names = reader.metadata().object(NAMES);
    let convention = names.and_then(|names| names.get("convention")?.as_str());
    // Without a record, an import left the names of the source as they were.
    reader.metadata().get(keys::GGUF).is_some()
        && convention.is_none_or(|convention| convention == GGUF)
}

/// A checkpoint for a GGUF file: tensors, hyperparameters, and the tokenizer of its companions.
///
/// # Errors
/// Those of [`export`](export()), and E001 for a tokenizer that llama.cpp lacks.
pub fn to_gguf<'a>(source: &Source<'a>) -> Result<GgufExport<'a>> {
    let reader = source.reader();
    let model = source.family()?;
    if is_in_gguf_layout(reader) && model.is_none() {
        // Whatever llama.cpp has tensors of comes back as it was.
        let view = original(source, &apr_registry::gguf::FORMAT)?;
        let dtypes = vec![None; view.tensors().len()];
        return Ok(from_pairs(GgufExport {
            view,
            dtypes,
            losses: Vec::new(),
            warnings: Vec::new(),
        }));
    }

    let mut pairs = Vec::new();
    let mut warnings = Vec::new();
    // Tokens are the language model's.
    let is_part = model.is_some_and(|model| model.family().is_for_images());
    if let Some(model) = model.filter(|model| !is_part && !model.is_in_gguf_layout()) {
        let files = companions(reader)?;
        let architecture = model.gguf_architecture().unwrap_or_default();
        let rows = model.dimension("vocab");
        let tokenizer =
            tokenizer_key_values(architecture, &files, rows, &tokenizer::Options::default())?;
        (pairs, warnings) = (tokenizer.key_values, tokenizer.warnings);
    }

    let replaces_tokens = is_part || !pairs.is_empty();
    if is_in_gguf_layout(reader) {
        return export(source, pairs).map(from_pairs);
    }

    let mut result = export(source, pairs)?;
    result.view.keep_companions(|name| !IN_PAIRS.contains(&name));

    // The pairs say what these keys say, in other words.
    let metadata = result.view.metadata_mut();
    let in_pairs =
        |key: &str| key == keys::QUANTIZATION || (replaces_tokens && key.starts_with("tokenizer."));
    metadata.retain(|key| !in_pairs(key));
    result.warnings.extend(warnings);
    Ok(result)
}

/// Removes metadata that only repeat the key-value pairs.
fn from_pairs(mut export: GgufExport<'_>) -> GgufExport<'_> {
    export.view.metadata_mut().retain(|key| key != keys::ARCHITECTURE);
    export
}

/// A checkpoint in GGUF's layout for Hugging Face's libraries: names, layout, `config.json` and the
/// files of the tokenizer; with what the user should know. Blocks that can't stay become
/// `decode_to`.
///
/// # Errors
/// Those of [`restore`](super::restore()).
pub fn from_gguf<'a>(
    reader: &'a dyn CheckpointReader,
    families: &Families,
    architecture: &Architecture,
    decode_to: DType,
) -> Result<(Restored<'a>, Vec<String>)> {
    let mut restored = restore_to(reader, families, architecture, decode_to)?;
    restored.view.add_companion("config.json", restored.config.clone());
    let pairs = key_values(reader.metadata())?.unwrap_or_default();
    let of_tokenizer: Vec<_> = pairs
        .iter()
        .filter(|pair| pair.key.starts_with("tokenizer."))
        .map(|pair| pair.unpack())
        .collect();

    // What the pairs led to is in these files, except for the lines of a model card.
    let derived = derived(&pairs);
    let in_files = |key: &str| derived.get(key).is_some() && !MODEL_CARD.contains(&key);
    restored.view.metadata_mut().retain(|key| !in_files(key));
    // Weights are of use without a tokenizer, so its failure only warns.
    let mut warnings = match tokenizer_files(&of_tokenizer) {
        Ok((files, warnings)) => {
            files.into_iter().for_each(|(name, bytes)| restored.view.add_companion(&name, bytes));
            warnings
        }
        Err(error) => vec![format!("without tokenizer files: {}", error.message())],
    };

    if let Some(first) = restored.decoded.first() {
        let count = counted(restored.decoded.len() as u64, "quantized tensor");
        warnings.push(format!(
            "{count} become {decode_to} ({first} first): llama.cpp orders their elements \
             otherwise, within blocks"
        ));
    }

    Ok((restored, warnings))
}

fn companions(reader: &dyn CheckpointReader) -> Result<Vec<(String, Vec<u8>)>> {
    let companions = reader.companions().iter().enumerate();
    companions
        .map(|(position, companion)| Ok((companion.name.clone(), reader.read_companion(position)?)))
        .collect()
}
