//! What inputs and outputs are for, by the names that exporters give them.

use apr_graph::{Body, Meaning};

/// Names of inputs from the Optimum exporter, which follow the arguments of `transformers`.
const INPUTS: [(&str, Meaning); 14] = [
    ("input_ids", Meaning::TokenIds),
    ("decoder_input_ids", Meaning::TokenIds),
    ("attention_mask", Meaning::AttentionMask),
    ("encoder_attention_mask", Meaning::AttentionMask),
    ("decoder_attention_mask", Meaning::AttentionMask),
    ("position_ids", Meaning::PositionIds),
    ("token_type_ids", Meaning::TokenTypes),
    ("inputs_embeds", Meaning::Embeddings),
    ("pixel_values", Meaning::Pixels),
    ("input_features", Meaning::Mel),
    ("input_values", Meaning::Waveform),
    ("encoder_hidden_states", Meaning::EncoderStates),
    ("encoder_outputs", Meaning::EncoderStates),
    ("audio_signal", Meaning::Mel),
];

const OUTPUTS: [(&str, Meaning); 8] = [
    ("logits", Meaning::Logits),
    ("last_hidden_state", Meaning::HiddenStates),
    ("hidden_states", Meaning::HiddenStates),
    ("encoder_last_hidden_state", Meaning::EncoderStates),
    ("pooler_output", Meaning::Pooled),
    ("sentence_embedding", Meaning::Pooled),
    ("image_embeds", Meaning::Pooled),
    ("text_embeds", Meaning::Pooled),
];

/// Kinds of states as transformers.js calls them.
const STATES: [&str; 3] = ["_conv.", "_ssm.", "_recurrent."];

/// Notes what the inputs and outputs of the main body are for.
pub(super) fn find(body: &mut Body) {
    for id in body.inputs.clone() {
        let meaning = of(&INPUTS, &body.value(id).name, Meaning::PastKey, Meaning::PastValue);
        body.value_mut(id).meaning = meaning;
    }
    for id in body.outputs.clone() {
        let meaning =
            of(&OUTPUTS, &body.value(id).name, Meaning::PresentKey, Meaning::PresentValue);
        body.value_mut(id).meaning = meaning;
    }
}

fn of(names: &[(&str, Meaning)], name: &str, key: Meaning, value: Meaning) -> Meaning {
    // `past_key_values.0.key`, `present.0.decoder.value`
    let is_cache = name.starts_with("past") || name.starts_with("present");
    // `past_conv.0`, `present_ssm.0`
    let is_state = |start: &str| {
        let rest = name.strip_prefix(start);
        rest.is_some_and(|rest| STATES.iter().any(|kind| rest.starts_with(kind)))
    };
    if is_state("past") {
        return Meaning::PastState;
    }
    if is_state("present") {
        return Meaning::PresentState;
    }
    match name.rsplit(['.', '_']).next() {
        Some("key") if is_cache => return key,
        Some("value") if is_cache => return value,
        _ => {}
    }
    names.iter().find(|(known, _)| *known == name).map_or(Meaning::Unknown, |(_, meaning)| *meaning)
}
