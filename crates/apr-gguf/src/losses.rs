//! What of a checkpoint's metadata a GGUF file can't hold.

use apr_core::{Loss, Metadata, TensorInfo, keys};
use serde_json::{Map, Value as Json};

use crate::derived::derived;
use crate::open_file::is_tied;
use crate::value::KeyValue;

/// Hyperparameters that a loss names.
const NAMED: usize = 8;

/// Every key that the pairs don't imply and that is not the project's own note.
pub(crate) fn losses(metadata: &Metadata, pairs: &[KeyValue], tensors: &[TensorInfo]) -> Vec<Loss> {
    // The model's type is in the pairs, be it under another spelling; `names` says what tensors were once called. The
    // caller stores files elsewhere.
    const CARED_FOR: [&str; 9] = [
        keys::APR_VERSION,
        keys::FILES,
        keys::GGUF,
        keys::LOSS,
        keys::MODEL_TYPE,
        keys::SOURCE,
        keys::TIED,
        keys::VIOLATIONS,
        "names",
    ];
    let derived = derived(pairs);
    let mut losses = Vec::new();
    for (key, value) in metadata.iter().filter(|(key, _)| !CARED_FOR.contains(key)) {
        let what = match value {
            Json::Object(network) if key == keys::ARCHITECTURE => {
                let Some(what) = lost_hyperparameters(network, derived.object(key), is_tied(tensors)) else {
                    continue;
                };
                what
            }
            Json::Object(header) if key == keys::SAFETENSORS && is_format(header) => continue,
            value if derived.get(key).is_some_and(|held| is_same(held, value)) => continue,
            _ => "metadata".to_owned(),
        };
        let why = "the key-value pairs of the file don't say so".into();
        losses.push(Loss { name: key.into(), what, why });
    }
    losses
}

/// The names of the first few that the pairs don't imply.
fn lost_hyperparameters(network: &Map<String, Json>, held: Option<&Map<String, Json>>, tied: bool) -> Option<String> {
    let is_held = |name: &str, value: &Json| {
        let held = held.and_then(|held| held.get(name));
        name == "tie_word_embeddings" && value.as_bool() == Some(tied) || held.is_some_and(|held| is_same(held, value))
    };
    let lost: Vec<&str> =
        network.iter().filter(|(name, value)| !is_held(name, value)).map(|(name, _)| name.as_str()).collect();
    let more = if lost.len() > NAMED { ", ..." } else { "" };
    let named = lost.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    (!lost.is_empty()).then(|| format!("hyperparameters: {named}{more}"))
}

/// Equal, where 1 and 1.0 are.
fn is_same(left: &Json, right: &Json) -> bool {
    left == right || left.is_number() && left.as_f64() == right.as_f64()
}

/// Whether a safetensors header's text says no more than that the file is a model.
fn is_format(header: &Map<String, Json>) -> bool {
    let text = header.get("metadata").and_then(Json::as_object);
    text.is_none_or(|text| text.keys().all(|key| key == "format"))
}
