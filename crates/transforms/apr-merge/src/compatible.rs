//! Whether models are of one architecture, as far as their configurations say.

use apr_core::json::text;
use apr_core::{Error, Escaped, Result, keys};
use serde_json::{Map, Value};

use crate::beside::CONFIG;
use crate::plan::Model;
use crate::recipe::Recipe;
use crate::vocabulary;

/// Keys that determine how weights are used. Models with different values can't be merged.
const STRUCTURE: [&str; 15] = [
    "model_type",
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "activation_function",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "tie_word_embeddings",
];

/// Keys with effects on the results that do not make a merge meaningless.
const ODD: [&str; 5] =
    ["rms_norm_eps", "layer_norm_eps", "rope_theta", "rope_scaling", "sliding_window"];

/// Compares configurations with the configuration of the first model and returns warnings.
///
/// # Errors
/// E001 with the first difference that matters, unless `relaxed`.
pub(crate) fn check(recipe: &Recipe, models: &[Model<'_>], relaxed: bool) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let names = recipe.models();
    let is_named = |model: &&Model<'_>| names.contains(&model.name.as_str());
    let named: Vec<&Model<'_>> = models.iter().filter(is_named).collect();
    let Some((first, others)) = named.split_first() else { return Ok(warnings) };
    let expected = config(first)?;
    for other in others {
        let found = config(other)?;
        for (key, matters) in
            STRUCTURE.iter().map(|key| (*key, true)).chain(ODD.iter().map(|key| (*key, false)))
        {
            let (Some(a), Some(b)) = (expected.get(key), found.get(key)) else { continue };
            if a == b {
                continue;
            }
            let short = |value: &Value| Escaped::short(&text(value)).to_string();
            let message = format!("{key} is {}, but {} in {}", short(b), short(a), first.name);
            if matters && !relaxed {
                return Err(Error::format(message).in_file(&other.name));
            }
            warnings.push(format!("{}: {message}", other.name));
        }
    }
    warnings.extend(vocabulary::check(recipe, &named)?);
    Ok(warnings)
}

/// Returns the configuration from the companion file, or else from the metadata.
pub(crate) fn config(model: &Model<'_>) -> Result<Map<String, Value>> {
    let reader = &model.reader;
    let position = reader.companions().iter().position(|file| file.name == CONFIG);
    let bytes = position.map(|position| reader.read_companion(position)).transpose()?;
    let companion = bytes.and_then(|bytes| apr_core::json::from_python(&bytes).ok());
    let mut config: Map<String, Value> = companion
        .or_else(|| reader.metadata().object(keys::ARCHITECTURE).cloned())
        .unwrap_or_default();
    if let Some(kind) = reader.metadata().text(keys::MODEL_TYPE) {
        config.entry("model_type").or_insert_with(|| kind.into());
    }
    Ok(config)
}
