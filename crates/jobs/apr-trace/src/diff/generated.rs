//! Where two models go on with other tokens.

use apr_infer::Outcome;
use apr_run::softmax;
use serde::Serialize;

use crate::payload::{Pass, Written};
use crate::predictions::{Namer, token_logits};

/// Tokens that two models generate from the same ones.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TokensDrift {
    /// Positions that were compared, the first one behind the prompt.
    pub compared: usize,
    /// The first token that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<TokenDrift>,
}

/// A token that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TokenDrift {
    /// Number of equal tokens before it.
    pub at: usize,
    /// Most likely token of the original.
    pub original: TokenChoice,
    /// Most likely token of the other model.
    pub other: TokenChoice,
}

/// A token, and how likely each model takes it to be.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TokenChoice {
    /// Id in the vocabulary.
    pub id: usize,
    /// Text of the token, if the model has a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Probability in the original.
    pub probability: f64,
    /// Probability in the other model.
    pub other_probability: f64,
}

/// Compares the likeliest token at each position behind the prompt; `None` for a model that
/// generates nothing.
pub(crate) fn compared(
    passes: [&Pass<'_>; 2],
    outcomes: [&Outcome; 2],
    written: Option<&Written>,
) -> Option<TokensDrift> {
    let written = written?;
    let one = token_logits(passes[0], outcomes[0])?;
    let two = token_logits(passes[1], outcomes[1])?;
    let width = *one.shape().last()?;
    if one.shape() != two.shape() || width == 0 {
        return None;
    }
    let (one, two) = (one.floats().ok()?, two.floats().ok()?);
    let start = written.given.len().checked_sub(1)?;
    let rows = one.chunks_exact(width).zip(two.chunks_exact(width)).skip(start);
    let namer = Namer::of(passes[0]);
    let mut compared = 0;
    for (one, two) in rows {
        // No token is the likeliest of NaN; the steps say where that begins.
        if one.iter().chain(two).any(|logit| logit.is_nan()) {
            return None;
        }
        let (first, second) = (likeliest(one), likeliest(two));
        if first != second {
            let (one, two) = (softmax(one), softmax(two));
            let choice = |id: usize| TokenChoice {
                id,
                text: namer.token(id),
                probability: one[id],
                other_probability: two[id],
            };
            let first = TokenDrift { at: compared, original: choice(first), other: choice(second) };
            return Some(TokensDrift { compared: compared + 1, first: Some(first) });
        }
        compared += 1;
    }
    Some(TokensDrift { compared, first: None })
}

/// The first of the largest.
fn likeliest(row: &[f32]) -> usize {
    (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or_default()
}
