//! The inputs of a graph.

use apr_core::Escaped;
use apr_graph::{Body, Meaning, ValueOrigin};
use apr_infer::{Tensor, Value};

use super::meaning;
use crate::error::{Remedy, RunError, RunResult};
use crate::recognised::detects_speech;

/// Returns tokens as the inputs of a graph: ids, and a mask, types and positions if it has such
/// inputs.
///
/// # Errors
/// [`RunError::Request`] if the graph requires other inputs.
pub fn token_inputs(body: &Body, ids: &[i64]) -> RunResult<Vec<(String, Value)>> {
    all_inputs(body, known_inputs(body, ids)?)
}

/// Returns the inputs, or an error if the graph requires others.
pub(super) fn all_inputs(
    body: &Body,
    inputs: Vec<(String, Value)>,
) -> RunResult<Vec<(String, Value)>> {
    let is_known = |name: &str| inputs.iter().any(|(known, _)| known == name);
    let mut needed = body
        .inputs
        .iter()
        .map(|id| body.value(*id))
        .filter(|value| value.origin == ValueOrigin::Input);
    match needed.find(|value| !is_known(&value.name)) {
        Some(value) => {
            let message = format!("missing input '{}'", Escaped(&value.name));
            Err(RunError::with_remedy(message, Remedy::Arrays))
        }
        None => Ok(inputs),
    }
}

/// Returns the inputs of a graph that follow from tokens, without its other inputs.
///
/// # Errors
/// E003 if the graph expects tokens of a type that is not numeric.
pub fn known_inputs(body: &Body, ids: &[i64]) -> RunResult<Vec<(String, Value)>> {
    known_batch(body, &[ids])
}

/// Returns the inputs that follow from texts with equal numbers of tokens.
pub(super) fn known_batch(body: &Body, rows: &[&[i64]]) -> RunResult<Vec<(String, Value)>> {
    let (texts, tokens) = (rows.len(), rows.first().map_or(0, |row| row.len()));
    let mut inputs = Vec::new();
    for value in body.inputs.iter().map(|id| body.value(*id)) {
        let row = match value.meaning {
            _ if value.origin != ValueOrigin::Input => continue,
            Meaning::TokenIds => rows.concat(),
            Meaning::AttentionMask => vec![1; texts * tokens],
            Meaning::TokenTypes => vec![0; texts * tokens],
            Meaning::PositionIds => (0..).take(tokens).collect::<Vec<_>>().repeat(texts),
            _ => continue,
        };
        let row = Tensor::new(vec![texts, tokens], row)?;
        let row = row.cast(value.element().unwrap_or(row.element()))?;
        inputs.push((value.name.clone(), Value::Tensor(row)));
    }
    Ok(inputs)
}

/// Kind of input that users have for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// Text, or ids of tokens.
    Text,
    /// Audio files.
    Audio,
    /// Image files.
    Image,
    /// Arrays, by the names of inputs.
    Arrays,
}

impl InputKind {
    /// Returns the name used in error messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Audio => "audio",
            Self::Image => "image",
            Self::Arrays => "arrays",
        }
    }

    /// Returns `true` if a graph accepts this kind of input.
    #[must_use]
    pub fn fits(self, body: &Body) -> bool {
        let takes = |what| meaning(body, &body.inputs, what).is_some();
        match self {
            Self::Text => takes(Meaning::TokenIds),
            Self::Audio => takes(Meaning::Mel) || takes(Meaning::Waveform) || detects_speech(body),
            Self::Image => takes(Meaning::Pixels),
            Self::Arrays => true,
        }
    }
}
