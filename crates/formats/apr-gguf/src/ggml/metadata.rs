//! Hyperparameters and vocabulary as metadata.

use apr_core::{Metadata, keys};
use serde_json::{Map, Value, json};

use super::METADATA_KEY;
use super::walk::Reading;

pub(super) fn metadata(reading: &Reading) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set(
        METADATA_KEY,
        json!({
            "magic": reading.container.magic,
            "version": reading.container.version,
            "ftype": reading.file_type(),
            "quantization_version": reading.quantization_version(),
            "hyperparameters": reading.hyperparameters,
        }),
    );
    metadata.set(keys::MODEL_TYPE, reading.layout.model_type);
    metadata.set(keys::ARCHITECTURE, architecture(reading));
    if let Some(filterbank) = reading.filterbank {
        metadata.set(keys::MEL_FILTERBANK, json!({ "tensor": keys::MEL_FILTERBANK_TENSOR }));
        metadata.set(keys::MEL_FILTERBANK_SHAPE, json!([filterbank.mels, filterbank.freqs]));
    }

    set_vocabulary(&mut metadata, reading);
    metadata
}

/// Returns the hyperparameters under Hugging Face's names, and the values that the family's program
/// computes from them.
fn architecture(reading: &Reading) -> Map<String, Value> {
    let named = reading.layout.fields.iter().filter(|field| !field.config.is_empty());
    let value = |name: &str| reading.hyperparameters.get(name).cloned().unwrap_or_default();
    let mut architecture: Map<_, _> =
        named.map(|field| (field.config.to_owned(), value(field.name))).collect();
    let mut set = |key: &str, value: Value| architecture.insert(key.to_owned(), value);
    let number = |name: &str| reading.hyperparameter(name);
    match reading.layout.name {
        "llama" => {
            set("intermediate_size", llama_intermediate(reading).into());
            if let Some(heads) = llama_kv_heads(reading) {
                set("num_key_value_heads", heads.into());
            }
        }
        "whisper" => {
            set("encoder_ffn_dim", number("n_audio_state").saturating_mul(4).into());
            set("decoder_ffn_dim", number("n_text_state").saturating_mul(4).into());
        }
        "gptneox" => {
            let heads = number("n_head").max(1);
            let head_dim = f64::from(clamp(number("n_embd") / heads).max(1));
            set("rotary_pct", (f64::from(clamp(number("n_rot"))) / head_dim).into());
            // The example that came first had no such field, and always did it.
            let parallel =
                reading.hyperparameters.get("par_res").is_none_or(|flag| flag != &json!(0));
            set("use_parallel_residual", parallel.into());
        }
        _ => {}
    }

    architecture
}

fn clamp(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Returns the intermediate size of the first layer. Without that layer, returns two thirds of four
/// times the width, rounded up to a multiple of `n_mult`.
fn llama_intermediate(reading: &Reading) -> u64 {
    let first_layer = reading.tensor("layers.0.feed_forward.w1.weight");
    if let Some(&[rows, _]) = first_layer.map(|tensor| tensor.info.shape.dims()) {
        return rows;
    }
    let (width, multiple) =
        (clamp(reading.hyperparameter("n_embd")), clamp(reading.hyperparameter("n_mult")));
    (u64::from(width) * 8 / 3).next_multiple_of(u64::from(multiple).max(1))
}

/// Returns the number of heads of the first layer's keys, which is less than `n_head` in LLaMA 2
/// 70B.
fn llama_kv_heads(reading: &Reading) -> Option<u64> {
    let key = reading.tensor("layers.0.attention.wk.weight")?;
    let head_dim = u64::from(clamp(reading.hyperparameter("n_rot")));
    let &[rows, _] = key.info.shape.dims() else { return None };
    rows.checked_div(head_dim).filter(|heads| heads * head_dim == rows)
}

fn set_vocabulary(metadata: &mut Metadata, reading: &Reading) {
    let vocabulary = &reading.vocabulary;
    if vocabulary.len() == 0 {
        return;
    }
    let representation = vocabulary.representation(reading.layout.name == "llama");
    metadata.set("tokenizer.vocab_size", vocabulary.len());
    metadata.set("tokenizer.vocabulary_encoding", representation.name());
    metadata.set("tokenizer.vocabulary", vocabulary.texts(representation).collect::<Vec<_>>());
    if !vocabulary.scores().is_empty() {
        metadata.set("tokenizer.scores", vocabulary.scores());
    }
}
