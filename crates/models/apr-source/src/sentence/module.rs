//! What a module computes, by its class and its settings.

use apr_core::{CheckpointReader, Escaped, Result};
use serde_json::{Map, Value};

use super::{Module, PoolingMode, Slot, object};

/// PyLate's own class of dense modules, which compute the same as sentence-transformers' modules.
const DENSE_OF_PYLATE: &str = "pylate.models.Dense.Dense";

/// Flags of versions before 6, in the order in which their vectors are joined.
const FLAGS: [(&str, PoolingMode); 6] = [
    ("pooling_mode_cls_token", PoolingMode::First),
    ("pooling_mode_max_tokens", PoolingMode::Max),
    ("pooling_mode_mean_tokens", PoolingMode::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", PoolingMode::MeanSqrt),
    ("pooling_mode_weightedmean_tokens", PoolingMode::WeightedMean),
    ("pooling_mode_lasttoken", PoolingMode::Last),
];

/// Reads a module by its Python class.
///
/// `from` is the input of modules that do not state one.
pub(super) fn module(
    reader: &dyn CheckpointReader,
    class: &str,
    folder: &str,
    from: Slot,
) -> Result<Module> {
    let name = class.rsplit('.').next().unwrap_or(class);
    let path = |file: &str| match folder {
        "" => file.to_owned(),
        folder => format!("{folder}/{file}"),
    };
    let unsupported = |why: &str| {
        let why = if why.is_empty() { String::new() } else { format!(", {why}") };
        let (name, class) = (Escaped::short(name), Escaped::short(class));
        Ok(Module::Unsupported(format!(
            "the sentence-transformers module '{name}' ({class}{why}) is not supported"
        )))
    };
    // A class of other authors computes what their code says, whatever its name is.
    if !class.starts_with("sentence_transformers.") && class != DENSE_OF_PYLATE {
        return unsupported("the class is not part of sentence-transformers");
    }
    let settings = || Ok(object(reader, &path("config.json"))?.unwrap_or_default());
    let slots = |settings: &Map<String, Value>| {
        let slot = |key: &str| match settings.get(key).and_then(Value::as_str) {
            None => Ok(None),
            Some("token_embeddings") => Ok(Some(Slot::Tokens)),
            // Scores are what is made of the vector of a pair.
            Some("sentence_embedding" | "scores") => Ok(Some(Slot::Sentence)),
            Some(other) => Err(format!("with {key} '{}'", Escaped::short(other))),
        };
        let from = slot("module_input_name")?.unwrap_or(from);
        Ok::<_, String>((from, slot("module_output_name")?.unwrap_or(from)))
    };
    match name {
        // Until version 2, the model itself was in a folder of its own.
        "Transformer" | "MLMTransformer" if !folder.is_empty() => {
            unsupported("with its files in a folder")
        }
        "Transformer" | "MLMTransformer" => Ok(Module::Transformer),
        "SpladePooling" => {
            let settings = settings()?;
            let text = |key: &str, usual| match settings.get(key) {
                None => usual,
                Some(value) => value.as_str().unwrap_or_default(),
            };
            let sums = match text("pooling_strategy", "max") {
                "max" => false,
                "sum" => true,
                other => return unsupported(&format!("with '{}'", Escaped::short(other))),
            };
            match text("activation_function", "relu") {
                "relu" => Ok(Module::Splade { sums, twice: false }),
                "log1p_relu" => Ok(Module::Splade { sums, twice: true }),
                other => unsupported(&format!("with '{}'", Escaped::short(other))),
            }
        }
        "MultiVectorMask" => {
            let settings = settings()?;
            if settings.get("keep_only_token_ids").is_some_and(|ids| !ids.is_null()) {
                return unsupported("with keep_only_token_ids");
            }
            let texts = |key: &str| {
                let all = settings.get(key)?.as_array()?.iter();
                Some(all.filter_map(|text| text.as_str().map(str::to_owned)).collect())
            };
            let tasks = texts("skiplist_tasks").unwrap_or_else(|| vec!["document".to_owned()]);
            Ok(Module::TokenMask { skipped: texts("skiplist_words").unwrap_or_default(), tasks })
        }
        "StaticEmbedding" => Ok(Module::StaticEmbedding),
        "Dropout" => Ok(Module::Dropout),
        "LogitScore" => {
            let settings = settings()?;
            let token = |key: &str| settings.get(key).and_then(Value::as_u64);
            match token("true_token_id") {
                Some(yes) => Ok(Module::LogitScore { yes, no: token("false_token_id") }),
                None => unsupported("without 'true_token_id'"),
            }
        }
        "LayerNorm" => Ok(Module::LayerNorm { folder: folder.to_owned() }),
        "Normalize" => match slots(&settings()?) {
            Ok((from, to)) => Ok(Module::Normalize { from, to }),
            Err(why) => unsupported(&why),
        },
        "Pooling" => {
            let settings = settings()?;
            let include = settings.get("include_prompt").and_then(Value::as_bool);
            match pooling_modes(&settings) {
                Ok(modes) => Ok(Module::Pooling { modes, include_prompt: include.unwrap_or(true) }),
                Err(why) => unsupported(&why),
            }
        }
        "Dense" => {
            let settings = settings()?;
            let residual = settings.get("use_residual").and_then(Value::as_bool).unwrap_or(false);
            let (from, to) = match slots(&settings) {
                Ok(slots) => slots,
                Err(why) => return unsupported(&why),
            };
            match activation(&settings) {
                Ok(activation) => {
                    let folder = folder.to_owned();
                    Ok(Module::Dense { folder, from, to, activation, residual })
                }
                Err(why) => unsupported(&why),
            }
        }
        _ => unsupported(""),
    }
}

/// Returns the pooling modes in the settings of a module, or the reason why they are not known.
fn pooling_modes(settings: &Map<String, Value>) -> std::result::Result<Vec<PoolingMode>, String> {
    let named = |name: &Value| {
        let known = name.as_str().and_then(PoolingMode::named);
        known.ok_or_else(|| format!("with pooling_mode {}", Escaped::short(&name.to_string())))
    };
    match settings.get("pooling_mode") {
        Some(Value::Array(names)) if !names.is_empty() => names.iter().map(named).collect(),
        Some(name) if !name.is_null() => Ok(vec![named(name)?]),
        _ => {
            let is_set = |flag: &str| settings.get(flag).and_then(Value::as_bool) == Some(true);
            let set: Vec<PoolingMode> =
                FLAGS.iter().filter(|(flag, _)| is_set(flag)).map(|(_, mode)| *mode).collect();
            Ok(if set.is_empty() { vec![PoolingMode::Mean] } else { set })
        }
    }
}

/// Returns the activation of a dense module, by its torch class, or the reason why it is not known.
fn activation(settings: &Map<String, Value>) -> std::result::Result<Option<&'static str>, String> {
    let class = match settings.get("activation_function") {
        None => "torch.nn.modules.activation.Tanh",
        Some(class) => class.as_str().unwrap_or_default(),
    };
    let name = class.strip_prefix("torch.nn.").and_then(|path| path.rsplit('.').next());
    Ok(match name {
        Some("Identity") => None,
        Some("Tanh") => Some("tanh"),
        Some("ReLU") => Some("relu"),
        Some("GELU") => Some("gelu"),
        Some("Sigmoid") => Some("sigmoid"),
        Some("SiLU") => Some("silu"),
        _ => return Err(format!("with the activation '{}'", Escaped::short(class))),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn modes(settings: &Value) -> std::result::Result<Vec<PoolingMode>, String> {
        pooling_modes(settings.as_object().expect("an object"))
    }

    /// `_convert_legacy_pooling_kwargs` of sentence-transformers 6.2.
    #[test]
    fn older_and_newer_keys_name_the_way_to_pool() {
        use PoolingMode::{First, Last, Max, Mean, WeightedMean};
        assert_eq!(modes(&json!({ "pooling_mode": "lasttoken" })), Ok(vec![Last]));
        assert_eq!(modes(&json!({ "pooling_mode": ["max", "cls"] })), Ok(vec![Max, First]));
        let older = json!({
            "pooling_mode_weightedmean_tokens": true, "pooling_mode_mean_tokens": false,
            "pooling_mode_cls_token": true,
        });
        assert_eq!(modes(&older), Ok(vec![First, WeightedMean]));
        let both = json!({ "pooling_mode": "max", "pooling_mode_cls_token": true });
        assert_eq!(modes(&both), Ok(vec![Max]));
        assert_eq!(modes(&json!({ "pooling_mode_cls_token": false })), Ok(vec![Mean]));
        assert_eq!(modes(&json!({})), Ok(vec![Mean]));
        assert!(modes(&json!({ "pooling_mode": "median" })).is_err());
    }
}
