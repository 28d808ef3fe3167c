//! `forward` of a model whose encoder and decoder are methods of their own.

use apr_graph::{Body, Meaning, ValueId};

use crate::Method;
use crate::method::{ROOT, inputs_alone, result_type};
use crate::text::Variables;

/// Writes a `forward` that calls the encoder and the first method that accepts its states.
///
/// The source is empty if there are no such methods. Further inputs of the decoder are named
/// `decoder_...`.
pub(crate) fn forward(methods: &[Method<'_>]) -> String {
    let Some((encoder, reads, states)) = methods.iter().find_map(|(name, graph)| {
        let states = with_meaning(&graph.body, &graph.body.outputs, Meaning::EncoderStates)?;
        Some((name, &graph.body, states))
    }) else {
        return String::new();
    };
    let Some((decoder, writes)) = methods.iter().find_map(|(name, graph)| {
        with_meaning(&graph.body, &graph.body.inputs, Meaning::EncoderStates)?;
        Some((name, &graph.body))
    }) else {
        return String::new();
    };

    let mut variables = Variables::default();
    let mut parameters = String::new();
    let mut take = |name: &str| {
        let variable = variables.of(name);
        parameters.push_str(&format!(",\n    {variable}: Tensor"));
        variable
    };
    let read: Vec<(Meaning, String)> = inputs_alone(reads)
        .map(|input| (reads.value(input).meaning, take(&reads.value(input).name)))
        .collect();

    let mask = read.iter().find(|(meaning, _)| *meaning == Meaning::AttentionMask);
    let written: Vec<String> = inputs_alone(writes)
        .map(|input| match (writes.value(input).meaning, mask) {
            (Meaning::EncoderStates, _) => "states".to_owned(),
            (Meaning::AttentionMask, Some((_, mask))) => mask.clone(),
            _ => take(&format!("decoder_{}", writes.value(input).name)),
        })
        .collect();

    let read: Vec<String> = read.into_iter().map(|(_, variable)| variable).collect();
    let several = reads.outputs.len() > 1;
    let part = if several { format!("[{states}]") } else { String::new() };
    format!(
        "  def forward(self: {ROOT}{parameters}) -> {}:\n    \
         states = (self.{encoder}({})){part}\n    \
         return self.{decoder}({})\n",
        result_type(writes),
        read.join(", "),
        written.join(", ")
    )
}

/// The place of a value with a meaning among some.
fn with_meaning(body: &Body, values: &[ValueId], meaning: Meaning) -> Option<usize> {
    values.iter().position(|value| body.value(*value).meaning == meaning)
}
