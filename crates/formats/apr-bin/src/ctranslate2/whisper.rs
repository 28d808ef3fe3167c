//! Whisper: names of `transformers` for the variables, and the configuration that they lead to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::variables::Variable;

/// Specification of these models.
pub(super) const SPECIFICATION: &str = "WhisperSpec";

/// A range of rows of a variable, as a tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    /// The rows, as one of `count` equal ranges.
    pub(super) place: u64,
    pub(super) count: u64,
}

impl Part {
    pub(super) fn whole(name: String) -> Self {
        Self { name, place: 0, count: 1 }
    }
}

/// Returns the tensors of `transformers` that a variable is, and `None` for a variable of another
/// kind.
pub(super) fn parts(variable: &str) -> Option<Vec<Part>> {
    let whole = |name: String| Some(vec![Part::whole(format!("model.{name}"))]);
    let path: Vec<&str> = variable.split('/').collect();
    match path[..] {
        ["decoder", "projection", kind] => Some(vec![Part::whole(format!("proj_out.{kind}"))]),
        ["decoder", "embeddings", kind] => whole(format!("decoder.embed_tokens.{kind}")),
        [side, "position_encodings", "encodings"] => {
            whole(format!("{side}.embed_positions.weight"))
        }
        [side, module @ ("conv1" | "conv2" | "layer_norm"), kind] => {
            whole(format!("{side}.{module}.{}", of_kind(kind)))
        }
        [side, layer, block, module, kind] => {
            let layer = layer.strip_prefix("layer_")?;
            let front = format!("{side}.layers.{layer}");
            let kind = of_kind(kind);
            let (attention, norm, joined) = match (block, module) {
                ("ffn", "layer_norm") => return whole(format!("{front}.final_layer_norm.{kind}")),
                ("ffn", "linear_0") => return whole(format!("{front}.fc1.{kind}")),
                ("ffn", "linear_1") => return whole(format!("{front}.fc2.{kind}")),
                ("self_attention", _) => {
                    ("self_attn", "self_attn_layer_norm", &[&["q", "k", "v"][..], &["out"]][..])
                }
                ("attention", _) => (
                    "encoder_attn",
                    "encoder_attn_layer_norm",
                    &[&["q"][..], &["k", "v"], &["out"]][..],
                ),
                _ => return None,
            };
            if module == "layer_norm" {
                return whole(format!("{front}.{norm}.{kind}"));
            }
            let place: usize = module.strip_prefix("linear_")?.parse().ok()?;
            let joined = joined.get(place)?;
            let part = |(place, one): (u64, &&str)| Part {
                name: format!("model.{front}.{attention}.{one}_proj.{kind}"),
                place,
                count: joined.len() as u64,
            };
            Some((0..).zip(*joined).map(part).collect())
        }
        _ => None,
    }
}

/// Returns `true` for a head that is the table of tokens, which `transformers` does not store.
///
/// CTranslate2 has it as an alias of the table.
pub(super) fn is_tied(name: &str, all: &BTreeMap<String, Variable>) -> bool {
    let table = |kind: &str| all.get(&format!("decoder/embeddings/{kind}"));
    let kind = name.strip_prefix("decoder/projection/");
    kind.and_then(table).zip(all.get(name)).is_some_and(|(table, head)| table.offset == head.offset)
}

/// Returns `true` for the bias of keys, in whose place are zeros.
pub(super) fn is_absent(tensor: &str) -> bool {
    tensor.ends_with(".k_proj.bias")
}

fn of_kind(kind: &str) -> &str {
    match kind {
        "gamma" => "weight",
        "beta" => "bias",
        other => other,
    }
}

/// Files beside the weights.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// CTranslate2's own configuration.
    pub(super) config: Map<String, Value>,
    /// Ids of the tokenizer's special tokens, by their texts.
    pub(super) tokens: BTreeMap<String, u64>,
}

/// Returns `config.json` of the model, by its settings, the shapes of its variables, and the
/// configuration beside the file.
pub(super) fn configuration(
    all: &BTreeMap<String, Variable>,
    settings: &Map<String, Value>,
    beside: &Beside,
) -> Map<String, Value> {
    let dim = |name: &str, dim: usize| all.get(name)?.shape.dims().get(dim).copied();
    let setting = |name: &str| settings.get(name).and_then(Value::as_i64);
    let layers = |side: &str| {
        let numbers = all.keys().filter_map(|name| {
            let rest = name.strip_prefix(side)?.strip_prefix("/layer_")?;
            rest.split('/').next()?.parse::<u64>().ok()
        });
        numbers.max().map(|last| last.saturating_add(1))
    };
    let mut config = Map::new();
    let mut set = |key: &str, value: Option<Value>| {
        config.extend(value.map(|value| (key.to_owned(), value)));
    };
    set("architectures", Some(json!(["WhisperForConditionalGeneration"])));
    set("model_type", Some("whisper".into()));
    set("activation_function", setting("decoder/activation").and_then(activation).map(Into::into));
    set("d_model", dim("decoder/embeddings/weight", 1).map(Into::into));
    for side in ["encoder", "decoder"] {
        set(&format!("{side}_layers"), layers(side).map(Into::into));
        let heads = setting(&format!("{side}/num_heads")).map(Into::into);
        set(&format!("{side}_attention_heads"), heads);
        let inner = dim(&format!("{side}/layer_0/ffn/linear_0/weight"), 0).map(Into::into);
        set(&format!("{side}_ffn_dim"), inner);
    }
    set("is_encoder_decoder", Some(true.into()));
    set("max_source_positions", dim("encoder/position_encodings/encodings", 0).map(Into::into));
    set("max_target_positions", dim("decoder/position_encodings/encodings", 0).map(Into::into));
    set("num_hidden_layers", layers("encoder").map(Into::into));
    set("num_mel_bins", dim("encoder/conv1/weight", 1).map(Into::into));
    set("scale_embedding", setting("decoder/scale_embeddings").map(|flag| (flag != 0).into()));
    set("tie_word_embeddings", Some(true.into()));
    let vocabulary = dim("decoder/embeddings/weight", 0);
    set("vocab_size", vocabulary.map(Into::into));
    if let Some((start, end)) = vocabulary.and_then(|size| bounds(size, beside)) {
        set("decoder_start_token_id", Some(start.into()));
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            set(key, Some(end.into()));
        }
    }
    config
}

/// Returns `generation_config.json` of the model.
pub(super) fn generation(config: &Map<String, Value>, beside: &Beside) -> Map<String, Value> {
    const NAMES: [(&str, &str); 3] = [
        ("suppress_ids", "suppress_tokens"),
        ("suppress_ids_begin", "begin_suppress_tokens"),
        ("alignment_heads", "alignment_heads"),
    ];
    /// The first timestamp is at most one second, as in OpenAI's program.
    const FIRST_TIMESTAMP: u64 = 50;

    let ids = config.iter().filter(|(key, _)| key.ends_with("_token_id"));
    let mut generation: Map<String, Value> =
        ids.map(|(key, id)| (key.clone(), id.clone())).collect();
    let stated = NAMES
        .iter()
        .filter_map(|(theirs, own)| Some(((*own).to_owned(), beside.config.get(*theirs)?.clone())));
    generation.extend(stated);
    let most = config.get("max_target_positions").cloned();
    generation.extend(most.map(|most| ("max_length".to_owned(), most)));
    let token = |text: &str| beside.tokens.get(text).copied();
    if let Some(id) = token("<|notimestamps|>") {
        generation.insert("no_timestamps_token_id".to_owned(), id.into());
        generation.insert("max_initial_timestamp_index".to_owned(), FIRST_TIMESTAMP.into());
    }
    let tasks = ["transcribe", "translate"].map(|task| (task, token(&format!("<|{task}|>"))));
    let is_multilingual = config.get("vocab_size").and_then(Value::as_u64) != Some(ENGLISH);
    if let ([(_, Some(_)), (_, Some(translate))], true) = (&tasks, is_multilingual)
        && let Some(start) = token(START)
    {
        // Tokens of languages are between that of the beginning and those of tasks.
        let languages =
            beside.tokens.iter().filter(|(_, id)| (start + 1..*translate).contains(*id));
        let languages: Map<String, Value> =
            languages.map(|(text, id)| (text.clone(), (*id).into())).collect();
        let tasks = tasks.iter().map(|(task, id)| ((*task).to_owned(), (*id).into()));
        generation.insert("lang_to_id".to_owned(), languages.into());
        generation.insert("task_to_id".to_owned(), tasks.collect::<Map<_, _>>().into());
    }
    generation.insert("is_multilingual".to_owned(), is_multilingual.into());
    generation
}

/// Returns `preprocessor_config.json` of the model: how audio becomes frames of mels.
///
/// Everything but two numbers is the same for all Whisper models.
pub(super) fn preprocessor(config: &Map<String, Value>) -> Map<String, Value> {
    /// Audio samples per second, and per frame.
    const RATE: u64 = 16_000;
    const HOP: u64 = 160;
    let number = |key: &str| config.get(key).and_then(Value::as_u64).unwrap_or_default();
    // The second convolution halves the number of frames.
    let frames = 2 * number("max_source_positions");
    let entries = [
        ("feature_extractor_type", "WhisperFeatureExtractor".into()),
        ("processor_class", "WhisperProcessor".into()),
        ("feature_size", number("num_mel_bins").into()),
        ("sampling_rate", RATE.into()),
        ("hop_length", HOP.into()),
        ("n_fft", 400.into()),
        ("chunk_length", (frames * HOP / RATE).into()),
        ("n_samples", (frames * HOP).into()),
        ("nb_max_frames", frames.into()),
        ("padding_side", "right".into()),
        ("padding_value", 0.0.into()),
        ("return_attention_mask", false.into()),
    ];
    entries.into_iter().map(|(key, value): (&str, Value)| (key.to_owned(), value)).collect()
}

/// Text of the token that begins a transcript.
const START: &str = "<|startoftranscript|>";

/// Number of tokens of OpenAI's models for English alone.
const ENGLISH: u64 = 51_864;

/// Returns the ids of the tokens that begin and end a transcript: the tokenizer's, or else those of
/// OpenAI's models, which have three sizes of vocabularies.
fn bounds(vocabulary: u64, beside: &Beside) -> Option<(u64, u64)> {
    let token = |text: &str| beside.tokens.get(text).copied();
    token(START).zip(token("<|endoftext|>")).or(match vocabulary {
        ENGLISH => Some((50_257, 50_256)),
        51_865 | 51_866 => Some((50_258, 50_257)),
        _ => None,
    })
}

/// Returns the activation function with this number, by its name in `transformers`.
fn activation(number: i64) -> Option<&'static str> {
    Some(match number {
        0 => "relu",
        1 => "gelu_new",
        2 => "silu",
        3 => "gelu",
        4 => "quick_gelu",
        5 => "tanh",
        6 => "sigmoid",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_projections_are_rows_of_queries_keys_and_values() {
        let names = |variable: &str| -> Vec<String> {
            let parts = parts(variable).expect("known").into_iter();
            parts.map(|part| format!("{} {}/{}", part.name, part.place, part.count)).collect()
        };
        assert_eq!(
            names("decoder/layer_3/attention/linear_1/bias"),
            [
                "model.decoder.layers.3.encoder_attn.k_proj.bias 0/2",
                "model.decoder.layers.3.encoder_attn.v_proj.bias 1/2",
            ]
        );
        assert_eq!(
            names("encoder/layer_0/self_attention/linear_0/weight"),
            [
                "model.encoder.layers.0.self_attn.q_proj.weight 0/3",
                "model.encoder.layers.0.self_attn.k_proj.weight 1/3",
                "model.encoder.layers.0.self_attn.v_proj.weight 2/3",
            ]
        );
        assert_eq!(names("encoder/layer_norm/beta"), ["model.encoder.layer_norm.bias 0/1"]);
        let head = Part::whole("proj_out.weight".to_owned());
        assert_eq!(parts("decoder/projection/weight"), Some(vec![head]));
        assert_eq!(parts("encoder/layer_0/self_attention/linear_7/weight"), None);
    }
}
