//! Models of two parts: an encoder that reads text or audio, and a decoder that writes text.

use std::collections::BTreeMap;

use apr_graph::{Body, Meaning};
use apr_infer::{Arithmetic, CacheType, Tensor, Value};
use apr_registry::Error;

use crate::error::RunResult;
use crate::recognised::PARTS;
use crate::runner::{Prepared, Runner};

/// The parts of such a model, ready to run.
pub(crate) struct EncoderDecoder<'p> {
    pub(crate) encoder: Prepared<'p>,
    first: Prepared<'p>,
    /// Decoder that continues with the keys and values of earlier tokens.
    rest: Prepared<'p>,
    /// Storage type of the keys and values of the decoder's own tokens.
    cache_type: CacheType,
}

impl<'p> EncoderDecoder<'p> {
    /// Finds them; `None` for a model of other parts.
    ///
    /// # Errors
    /// E003 where the decoder can't keep keys and values as the runner's cache type.
    pub(crate) fn of(runner: &Runner<'p>) -> RunResult<Option<Self>> {
        if !runner.has_decoder() {
            return Ok(None);
        }
        let prepared = |name: &str| {
            let part = runner.parts().iter().find(|part| part.name == name);
            runner.prepared(part.ok_or_else(|| Error::format(format!("missing part '{name}'")))?)
        };
        let [encoder, first, rest] = PARTS.map(prepared);
        let (encoder, first, rest) = (encoder?, first?, rest?);
        let cache_type = runner.options().cache_type;
        rest.session.check_cache_type(cache_type)?;
        Ok(Some(Self { encoder, first, rest, cache_type }))
    }

    /// Returns the storage type of the keys and values of the decoder's own tokens. Keys and values
    /// of the encoder's states are not converted.
    pub(crate) fn cache_type(&self) -> CacheType {
        self.cache_type
    }

    /// Returns `true` if the encoder reads text, `false` if it reads audio.
    pub(crate) fn reads_text(&self) -> bool {
        self.encoder.takes(Meaning::TokenIds)
    }

    /// Returns the arithmetic for weights in blocks.
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

    /// Creates a decoder that has not written any text.
    pub(crate) fn decoder(&self, states: Value) -> RunResult<Decoder<'_>> {
        let length = states.tensor()?.shape().get(1).copied().unwrap_or_default();
        Ok(Decoder { parts: self, states, length, past: BTreeMap::new() })
    }
}

/// A decoder with the keys and values of the texts that it writes: one text, or several side by
/// side that began as one.
#[derive(Clone)]
pub(crate) struct Decoder<'d> {
    parts: &'d EncoderDecoder<'d>,
    states: Value,
    /// Number of vectors from the encoder.
    length: usize,
    /// Keys and values by the names of their inputs.
    past: BTreeMap<String, Value>,
}

impl Decoder<'_> {
    /// Returns the logits after these tokens.
    pub(crate) fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::format("no tokens to continue from").into());
        }
        let logits = self.run(tokens, 1)?;
        let vocabulary = logits.len() / tokens.len();
        Ok(logits[logits.len() - vocabulary..].to_vec())
    }

    /// Returns the logits after each text and its new token.
    pub(crate) fn next_of_each(&mut self, tokens: &[i64]) -> RunResult<Vec<Vec<f32>>> {
        let logits = self.run(tokens, tokens.len())?;
        let vocabulary = logits.len() / tokens.len().max(1);
        Ok(logits.chunks_exact(vocabulary.max(1)).map(<[f32]>::to_vec).collect())
    }

    /// Keeps only these texts, in this order. A text may occur several times.
    pub(crate) fn select(&mut self, texts: &[usize]) -> RunResult<()> {
        self.states = self.states.clone().select(texts)?;
        for value in self.past.values_mut() {
            let kept = std::mem::replace(value, Value::Optional(None));
            *value = kept.select(texts)?;
        }
        Ok(())
    }

    /// Returns the logits after each of these tokens, with which a text begins: `[1, tokens,
    /// vocabulary]`. Also returns the shares of the encoder's vectors in the attention of these
    /// layers: `[1, heads, tokens, vectors]` of each.
    ///
    /// # Errors
    /// E003 if the graph does not name them as a graph of the family does.
    pub(crate) fn attention(
        &mut self,
        tokens: &[i64],
        layers: &[usize],
    ) -> RunResult<(Tensor, Vec<Tensor>)> {
        let part = &self.parts.first;
        let inputs = self.inputs(part, tokens, 1)?;
        let mut wanted = vec![logits_of(part)?.to_owned()];
        wanted.extend(layers.iter().map(|layer| format!("layers.{layer}/cross_attention/probs")));
        if let Some(absent) = wanted.iter().find(|name| !part.session.has(name)) {
            return Err(Error::version(format!(
                "the decoder has no value '{absent}', which the times of words are computed from"
            ))
            .into());
        }
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let outputs = part.run(inputs, &wanted)?.outputs;
        let mut found = outputs.iter().map(|value| value.tensor().cloned());
        let logits = found.next().ok_or_else(|| Error::format("the decoder has no output"))??;
        Ok((logits, found.collect::<Result<_, _>>()?))
    }

    /// Returns the logits of the tokens of `texts` texts.
    fn run(&mut self, tokens: &[i64], texts: usize) -> RunResult<Vec<f32>> {
        let parts = self.parts;
        let part = if self.past.is_empty() { &parts.first } else { &parts.rest };
        let inputs = self.inputs(part, tokens, texts)?;
        let body = part.body();
        let logits = logits_of(part)?;
        let kept = |what| matches!(what, Meaning::PresentKey | Meaning::PresentValue);
        let presents =
            body.outputs.iter().map(|id| body.value(*id)).filter(|value| kept(value.meaning));
        let mut wanted = vec![logits];
        wanted.extend(presents.map(|value| value.name.as_str()));
        let outcome = part.run(inputs, &wanted)?;
        let mut outputs = wanted.iter().zip(outcome.outputs);
        let (_, logits) =
            outputs.next().ok_or_else(|| Error::format("the decoder has no output"))?;
        for (name, value) in outputs {
            // Optimum names them so where they come out and where they go in.
            let name = name.replacen("present.", "past_key_values.", 1);
            let value = parts.rest.session.cached(&name, value, parts.cache_type)?;
            self.past.insert(name, value);
        }
        Ok(logits.tensor()?.floats()?.into_owned())
    }

    /// Returns the inputs of a part of the decoder for the tokens of `texts` texts.
    fn inputs(
        &mut self,
        part: &Prepared<'_>,
        tokens: &[i64],
        texts: usize,
    ) -> RunResult<Vec<(String, Value)>> {
        let body = part.body();
        let mut inputs = Vec::new();
        for id in &body.inputs {
            let value = body.value(*id);
            let rows = |values: Vec<i64>| {
                Tensor::new(vec![texts, values.len() / texts], values).map(Value::from)
            };
            let given = match value.meaning {
                Meaning::TokenIds => rows(tokens.to_vec())?,
                Meaning::AttentionMask => rows(vec![1; texts * self.length])?,
                Meaning::EncoderStates => self.states.clone(),
                // What a step does not make anew stays: keys and values of the encoder's states.
                Meaning::PastKey | Meaning::PastValue => match self.past.get_mut(&value.name) {
                    Some(kept @ Value::Cached(_)) => std::mem::replace(kept, Value::Optional(None)),
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

        Ok(inputs)
    }
}

fn logits_of<'p>(part: &Prepared<'p>) -> RunResult<&'p str> {
    let logits = part.output(Meaning::Logits);
    Ok(logits.ok_or_else(|| Error::version("the decoder has no logits output"))?)
}
