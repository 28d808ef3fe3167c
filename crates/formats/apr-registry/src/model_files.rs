//! The files of a model's folder, by their names.

use apr_core::Companion;

use crate::formats::FORMATS;
use crate::in_folder::{extension, is_index, shard_number};
use crate::weights::{CONFIGS, WEIGHTS};

/// A file of a model's folder, as programs of the field name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFile {
    /// Weights, a shard of them, or the index of the shards.
    Weights,
    /// A configuration, a tokenizer, a model card, a licence.
    Companion,
}

/// Names of weights without extensions and shard numbers.
const STEMS: [&str; 12] = [
    "model",
    "adapter_model",
    // The graphs of models with an encoder and a decoder, as Optimum names them.
    "decoder_model",
    "decoder_model_merged",
    "decoder_with_past_model",
    "diffusion_pytorch_model",
    "encoder_model",
    "flax_model",
    "pytorch_model",
    "rust_model",
    "tf_model",
    "weights",
];

/// Names of companions.
///
/// Copying accepts any `.json` as a companion. The files that are replaced together with a folder,
/// however, must be known by name.
const COMPANIONS: [&str; 41] = [
    "README.md",
    "added_tokens.json",
    "artifact.metadata",
    "chat_template.jinja",
    "chat_template.json",
    "config_sentence_transformers.json",
    "configuration.json",
    "feature_extractor_config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "image_processor_config.json",
    "merges.txt",
    "model.graph",
    "model.onnx.graph",
    "model_index.json",
    "modules.json",
    "normalizer.json",
    "params.json",
    "preprocessor_config.json",
    "processor_config.json",
    "quant_config.json",
    "quantize_config.json",
    "scales.json",
    "sentence_bert_config.json",
    "sentencepiece.bpe.model",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "target.spm",
    "tekken.json",
    "tiktoken.model",
    "tokenization_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.tiktoken",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
    "vocab.bpe",
    "vocab.json",
    "vocab.txt",
];

/// Returns what a file of a model's folder is by its name, which has `/` between folders; `None`
/// for a name that no program gives such a file.
///
/// ```
/// use apr_registry::{ModelFile, model_file};
///
/// assert_eq!(model_file("model-00001-of-00002.safetensors"), Some(ModelFile::Weights));
/// assert_eq!(model_file("2_Dense/model.safetensors"), Some(ModelFile::Weights));
/// assert_eq!(model_file("tokenizer.json"), Some(ModelFile::Companion));
/// assert_eq!(model_file("results.json"), None);
/// ```
#[must_use]
pub fn model_file(name: &str) -> Option<ModelFile> {
    let file = match name.split_once('/') {
        None => name,
        Some((folder, file)) if is_module(folder) && !file.contains('/') => file,
        Some(("additional_chat_templates", file)) => {
            return (extension(file) == "jinja").then_some(ModelFile::Companion);
        }
        Some(_) => return None,
    };
    if is_weights(file) {
        return Some(ModelFile::Weights);
    }
    let is_companion = CONFIGS.contains(&file)
        || COMPANIONS.contains(&file)
        || Companion::TERMS.iter().any(|prefix| is_terms(file, prefix));
    is_companion.then_some(ModelFile::Companion)
}

/// Returns `true` if a folder is named like a module of sentence-transformers: `2_Dense`.
fn is_module(folder: &str) -> bool {
    folder.split_once('_').is_some_and(|(number, name)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty()
    })
}

/// Returns `true` if a name is the name of terms: `LICENSE`, `LICENSE.txt`.
fn is_terms(file: &str, prefix: &str) -> bool {
    file.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || [".txt", ".md"].contains(&rest))
}

fn is_weights(file: &str) -> bool {
    if FORMATS.iter().any(|entry| {
        let in_folder = &entry.in_folder;
        in_folder.whole == Some(file)
            || in_folder.names.contains(&file)
            || in_folder.adapters.contains(&file)
    }) {
        return true;
    }
    let file = if is_index(file) { file.trim_end_matches(".index.json") } else { file };
    let extension = extension(file);
    let of_onnx = extension.strip_suffix("_data").unwrap_or(extension);
    if !WEIGHTS.contains(&of_onnx) {
        return false;
    }
    let stem = file.strip_suffix(extension).unwrap_or(file).trim_end_matches('.');
    let is_shard = shard_number(file).is_some();
    STEMS.iter().any(|known| {
        stem.strip_prefix(known)
            .is_some_and(|rest| rest.is_empty() || (is_shard && rest.starts_with('-')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_companions_of_every_layout_are_recognized_by_name() {
        let weights = [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin",
            "pytorch_model-00001-of-00002.bin",
            "pytorch_model.bin.index.json",
            "model.onnx",
            "model.onnx_data",
            "encoder_model.onnx",
            "decoder_model.onnx_data",
            "decoder_model_merged.onnx",
            "decoder_with_past_model.onnx",
            "model.pt",
            "adapter_model.safetensors",
            "2_Dense/model.safetensors",
        ];
        let companions = [
            "config.json",
            "adapter_config.json",
            "tokenizer.json",
            "LICENSE",
            "LICENSE.md",
            "1_Pooling/config.json",
            "additional_chat_templates/tool_use.jinja",
        ];
        let others = [
            "results.json",
            "notes.txt",
            "LICENSES",
            "mine.safetensors",
            "model-best.safetensors",
            "optimizer.pt",
            ".gitattributes",
            "checkpoint-500/model.safetensors",
            "1_Pooling/deeper/config.json",
        ];
        for (names, expected) in [
            (&weights[..], Some(ModelFile::Weights)),
            (&companions, Some(ModelFile::Companion)),
            (&others, None),
        ] {
            for name in names {
                assert_eq!(model_file(name), expected, "{name}");
            }
        }
    }
}
