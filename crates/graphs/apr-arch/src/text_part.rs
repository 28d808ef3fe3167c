//! The language model of a checkpoint that has parts for images, video or sound as well.
//!
//! transformers keeps a configuration for each part of such a model. The language model's is
//! `text_config`, and it names the family (`model_type`); its tensors are those of the family under
//! another prefix, such as `model.language_model.`. So the family's table describes it, computed
//! over that configuration. Before transformers 4.52, Qwen2-VL had the language model's entries
//! beside `vision_config`.
//!
//! Tensors of the other parts are known by the modules that they are in. A text alone passes none
//! of them.

use serde_json::Value as Json;

use crate::dimensions::Config;

/// The language model's configuration.
const TEXT: &str = "text_config";

/// Configurations of the other parts.
const OTHERS: [&str; 3] = [VISION, "audio_config", "encoder_config"];
const VISION: &str = "vision_config";

/// Entries about the whole model, even if the language model's configuration has them.
///
/// They are the model's class, and the tying of the head to the token table.
const ARCHITECTURES: &str = "architectures";
const TIED: &str = "tie_word_embeddings";

/// Words in the module names of the other parts.
const MODULES: [&str; 11] = [
    "vision",
    "visual",
    "image",
    "video",
    "audio",
    "multi_modal",
    "multimodal",
    "projector",
    "connector",
    "aligner",
    "qformer",
];

/// Returns the language model's configuration within the configuration of a model with other parts.
#[must_use]
pub fn text_part(config: &Config) -> Option<&Config> {
    config.get(TEXT).and_then(Json::as_object)
}

/// The `model_type` of the language model within a model which has other parts. A configuration
/// without one is of no part: it repeats an entry or two.
pub(crate) fn text_type(config: &Config) -> Option<&str> {
    text_part(config)?.get("model_type")?.as_str()
}

/// Returns `true` if the configuration is of a model with other parts than a language model.
pub(crate) fn has_others(config: &Config) -> bool {
    text_type(config).is_some() || OTHERS.iter().any(|part| config.get(*part).is_some())
}

/// Returns `true` if the configuration describes a model with a part for images.
pub(crate) fn sees(config: &Config) -> bool {
    config.get(VISION).is_some_and(Json::is_object)
}

/// Returns `true` if a tensor belongs to a part for images, video or audio, judged by its module
/// names.
///
/// Modules within layers are not considered.
#[must_use]
pub fn is_of_others(name: &str) -> bool {
    let modules = name.split('.').take(2);
    modules.into_iter().any(|module| MODULES.iter().any(|word| module.contains(word)))
}

/// Returns the task of the language model's head.
///
/// The class of a model with other parts is named `ForConditionalGeneration`, and its language
/// model generates text.
#[must_use]
pub fn text_task(task: &str) -> &str {
    if task == "ConditionalGeneration" { "CausalLM" } else { task }
}

/// Returns an entry of the whole model that also applies to the language model.
///
/// Returns `None` for an entry that the language model's own configuration has.
pub(crate) fn of_whole<'c>(whole: &'c Config, text: &'c Config, key: &str) -> Option<&'c Json> {
    let stated = |config: &'c Config| config.get(key).filter(|json| !json.is_null());
    match key {
        ARCHITECTURES => stated(whole).or_else(|| stated(text)),
        // Before transformers 5, the language model's configuration alone stated it.
        TIED => [whole, text]
            .into_iter()
            .find_map(|config| stated(config).filter(|json| **json == Json::Bool(true)))
            .or_else(|| stated(whole))
            .or_else(|| stated(text)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses names as written by transformers 4 and 5.
    #[test]
    fn parts_for_images_are_known_by_their_modules() {
        for name in [
            "visual.blocks.0.attn.qkv.weight",
            "model.visual.patch_embed.proj.weight",
            "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
            "model.vision_tower.transformer.layers.0.attention.q_proj.weight",
            "multi_modal_projector.linear_1.weight",
            "model.multi_modal_projector.mm_input_projection_weight",
            "model.connector.modality_projection.proj.weight",
            "image_newline",
            "model.image_newline",
            "audio_tower.conv1.weight",
        ] {
            assert!(is_of_others(name), "{name}");
        }
        for name in [
            "model.language_model.layers.0.self_attn.q_proj.weight",
            "language_model.model.layers.0.cross_attn_vision.q_proj.weight",
            "model.text_model.embed_tokens.weight",
            "language_model.lm_head.weight",
            "lm_head.weight",
        ] {
            assert!(!is_of_others(name), "{name}");
        }
    }
}
