//! What tells models apart that take a run of their own: names of parts, inputs and outputs.

use apr_graph::{Body, ValueId, ValueOrigin};

/// Parts of an encoder-decoder: the encoder, the decoder for the first token, and for later ones.
pub(crate) const PARTS: [&str; 3] = ["encoder_model", "decoder_model", "decoder_with_past_model"];

/// Outputs of extractive question answering.
pub(crate) const ENDS: [&str; 2] = ["start_logits", "end_logits"];

/// Returns `true` if a graph is one of silero's, which are recognized by their inputs and outputs.
pub(crate) fn detects_speech(body: &Body) -> bool {
    let has = |list: &[ValueId], name: &str| list.iter().any(|id| body.value(*id).name == name);
    let open =
        body.inputs.iter().filter(|id| body.value(**id).origin == ValueOrigin::Input).count();
    let inputs = ["input", "state", "sr"].iter().all(|name| has(&body.inputs, name)) && open == 3;
    inputs && has(&body.outputs, "output") && has(&body.outputs, "stateN")
}
