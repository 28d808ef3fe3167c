//! Models of two parts: an encoder that reads text or audio, and a decoder that writes text.

use std::collections::BTreeMap;

use apr_graph::{Body, Meaning};
use apr_infer::{Arithmetic, Tensor, Value};
use apr_registry::Error;

use crate::error::RunResult;
use crate::recognised::PARTS;
use crate::runner::{Prepared, Runner};

/// The parts of such a model, ready to run.
pub(crate) struct EncoderDecoder<'p> {
    pub(crate) encoder: Prepared<'p>,
    first: Prepared<'p>,
    /// Goes on with the keys and values of earlier tokens.
    rest: Prepared<'p>,
}

impl<'p> EncoderDecoder<'p> {
    /// Finds them; `None` for a model of other parts.
    pub(crate) fn of(runner: &Runner<'p>) -> RunResult<Option<Self>> {
        if !runner.has_decoder() {
            return Ok(None);
        }
        let prepared = |name: &str| {
            let part = runner.parts().iter().find(|part| part.name == name);
            runner.prepared(part.ok_or_else(|| Error::format(format!("missing part '{name}'")))?)
        };
        let [encoder, first, rest] = PARTS.map(prepared);
        Ok(Some(Self { encoder: encoder?, first: first?, rest: rest? }))
    }

    /// Whether the encoder reads text, and not audio.
    pub(crate) fn reads_text(&self) -> bool {
        self.encoder.takes(Meaning::TokenIds)
    }

    /// How weights in blocks are multiplied.
    pub(crate) fn arithmetic(&self) -> Arithmetic {
        self.first.session.arithmetic()
    }

    /// The graph of the encoder.
    pub(crate) fn encoder_body(&self) -> &'p Body {
        self.encoder.body()
    }

    /// The states that the encoder makes of its input.
    pub(crate) fn encode(&self, inputs: Vec<(String, Value)>) -> RunResult<Value> {
        let name = self
            .encoder
            .output(Meaning::EncoderStates)
            .or_else(|| self.encoder.output(Meaning::HiddenStates))
            .ok_or_else(|| Error::version("the encoder has no output of hidden states"))?;
        let outcome = self.encoder.run(inputs, &[name])?;
        Ok(outcome
            .outputs
            .into_iter()
            .next()
            .ok_or_else(|| Error::format("the encoder has no output"))?)
    }

    /// A decoder that has written nothing yet.
    pub(crate) fn decoder(&self, states: Value) -> RunResult<Decoder<'_>> {
        let length = states.tensor()?.shape().get(1).copied().unwrap_or_default();
        Ok(Decoder { parts: self, states, length, past: BTreeMap::new() })
    }
}

/// A decoder, and what it keeps of what it wrote.
#[derive(Clone)]
pub(crate) struct Decoder<'d> {
    parts: &'d EncoderDecoder<'d>,
    states: Value,
    /// How many vectors the encoder made.
    length: usize,
    /// Keys and values by the names of the inputs that they go into.
    past: BTreeMap<String, Value>,
}

impl Decoder<'_> {
    /// The logits of what follows these tokens.
    pub(crate) fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::format("no tokens to continue from").into());
        }
        let part = if self.past.is_empty() { &self.parts.first } else { &self.parts.rest };
        let body = part.body();
        let mut inputs = Vec::new();
        for id in &body.inputs {
            let value = body.value(*id);
            let row = |row: Vec<i64>| Tensor::new(vec![1, row.len()], row).map(Value::from);
            let given = match value.meaning {
                Meaning::TokenIds => row(tokens.to_vec())?,
                Meaning::AttentionMask => row(vec![1; self.length])?,
                Meaning::EncoderStates => self.states.clone(),
                Meaning::PastKey | Meaning::PastValue => match self.past.get(&value.name) {
                    Some(kept) => kept.clone(),
                    None => {
                        return Err(Error::format(format!(
                            "missing key-value cache for '{}'",
                            value.name
                        ))
                        .into());
                    }
                },
                _ => continue,
            };

            inputs.push((value.name.clone(), given));
        }

        let logits = part.output(Meaning::Logits);
        let logits = logits.ok_or_else(|| Error::version("the decoder has no logits output"))?;
        let kept = |what| matches!(what, Meaning::PresentKey | Meaning::PresentValue);
        let presents =
            body.outputs.iter().map(|id| body.value(*id)).filter(|value| kept(value.meaning));
        let mut wanted = vec![logits];
        wanted.extend(presents.map(|value| value.name.as_str()));
        let outcome = part.run(inputs, &wanted)?;
        let mut outputs = wanted.iter().zip(outcome.outputs);
        let (_, logits) =
            outputs.next().ok_or_else(|| Error::format("the decoder has no output"))?;

        // Optimum names them so where they come out and where they go in. What this step does not
        // make anew stays.
        self.past.extend(
            outputs.map(|(name, value)| (name.replacen("present.", "past_key_values.", 1), value)),
        );
        let logits = logits.tensor()?.floats()?.into_owned();
        let vocabulary = logits.len() / tokens.len().max(1);
        Ok(logits[logits.len() - vocabulary..].to_vec())
    }
}
