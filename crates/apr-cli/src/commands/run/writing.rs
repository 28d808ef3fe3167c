//! Models of two parts: an encoder that reads or listens, and a decoder that writes.

use std::collections::BTreeMap;

use apr::{CheckpointReader, Error};
use apr_graph::{Body, Meaning};
use apr_infer::{Session, Tensor, Value};
use apr_ops::run::Runnable;

use super::job::{Job, meaning};
use crate::failure::Outcome;

/// The parts of such a model, ready to run.
pub(super) struct Parts<'p> {
    job: &'p Job<'p>,
    pub(super) encoder: (&'p Body, Session<'p>),
    first: (&'p Body, Session<'p>),
    /// Goes on with the keys and values of earlier tokens.
    rest: (&'p Body, Session<'p>),
}

impl<'p> Parts<'p> {
    /// Finds them; `None` for a model of other parts.
    pub(super) fn of(
        job: &'p Job<'p>,
        parts: &'p [Runnable],
        weights: &'p dyn CheckpointReader,
    ) -> Outcome<Option<Self>> {
        let named = |name: &str| parts.iter().find(|part| part.name == name);
        let found =
            (named("encoder_model"), named("decoder_model"), named("decoder_with_past_model"));
        let (Some(encoder), Some(first), Some(rest)) = found else { return Ok(None) };
        let ready = |part: &'p Runnable| {
            Ok::<_, crate::failure::Failure>((&part.graph.body, job.session(part, weights)?))
        };
        Ok(Some(Self { job, encoder: ready(encoder)?, first: ready(first)?, rest: ready(rest)? }))
    }

    /// Whether the encoder reads texts, and not sounds.
    pub(super) fn reads_text(&self) -> bool {
        let body = self.encoder.0;
        meaning(body, &body.inputs, Meaning::TokenIds).is_some()
    }

    /// What the encoder makes of its input.
    pub(super) fn encode(&self, inputs: Vec<(String, Value)>) -> Outcome<Value> {
        let (body, session) = &self.encoder;
        let name = meaning(body, &body.outputs, Meaning::EncoderStates)
            .or_else(|| meaning(body, &body.outputs, Meaning::HiddenStates))
            .ok_or_else(|| Error::version("the encoder makes nothing that is known"))?;
        let outcome = self.job.run(session, inputs, &[name])?;
        Ok(outcome
            .outputs
            .into_iter()
            .next()
            .ok_or_else(|| Error::format("the encoder made nothing"))?)
    }

    /// A decoder that has written nothing yet.
    pub(super) fn decoder(&self, states: Value) -> Outcome<Decoder<'_>> {
        let length = states.tensor()?.shape().get(1).copied().unwrap_or_default();
        Ok(Decoder { parts: self, states, length, past: BTreeMap::new() })
    }
}

/// A decoder, and what it keeps of what it wrote.
pub(super) struct Decoder<'d> {
    parts: &'d Parts<'d>,
    states: Value,
    /// How many vectors the encoder made.
    length: usize,
    /// Keys and values by the names of the inputs that they go into.
    past: BTreeMap<String, Value>,
}

impl Decoder<'_> {
    /// The logits of what follows these tokens.
    pub(super) fn next(&mut self, tokens: &[i64]) -> Outcome<Vec<f32>> {
        let (body, session) =
            if self.past.is_empty() { &self.parts.first } else { &self.parts.rest };
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
                            "nothing was kept for '{}'",
                            value.name
                        ))
                        .into());
                    }
                },
                _ => continue,
            };

            inputs.push((value.name.clone(), given));
        }

        let logits = meaning(body, &body.outputs, Meaning::Logits);
        let logits = logits.ok_or_else(|| Error::version("the decoder makes no logits"))?;
        let kept = |what| matches!(what, Meaning::PresentKey | Meaning::PresentValue);
        let presents =
            body.outputs.iter().map(|id| body.value(*id)).filter(|value| kept(value.meaning));
        let mut wanted = vec![logits];
        wanted.extend(presents.map(|value| value.name.as_str()));
        let outcome = self.parts.job.run(session, inputs, &wanted)?;
        let mut outputs = wanted.iter().zip(outcome.outputs);
        let (_, logits) =
            outputs.next().ok_or_else(|| Error::format("the decoder made nothing"))?;

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
