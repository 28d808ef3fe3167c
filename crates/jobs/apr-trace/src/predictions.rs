//! What a model predicts, in words.

use apr_graph::Meaning;
use apr_infer::{Outcome, Tensor};
use apr_run::{Facts, RunResult, Tokenizer, largest, softmax};
use serde::Serialize;

use crate::payload::Pass;

/// Predictions at one position.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Predictions {
    /// Name of the output.
    pub output: String,
    /// Dimensions of the output.
    pub shape: Vec<usize>,
    /// Position in the sequence, starting at 0; `None` if the output has no positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// The likeliest first.
    pub top: Vec<Prediction>,
}

/// A class and its probability.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Prediction {
    /// Number of the class.
    pub id: usize,
    /// Text of the token, or the label; `None` if the model has no tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Softmax of the logits.
    pub probability: f64,
}

/// Source of the names of classes.
pub(crate) struct Namer<'n> {
    facts: &'n Facts,
    tokenizer: Option<Tokenizer<'n>>,
}

impl<'n> Namer<'n> {
    /// Returns the source for a model, and reads its tokenizer if it has one.
    pub(crate) fn of(pass: &Pass<'n>) -> Self {
        let runner = pass.part.runner();
        let is_text = pass.part.takes(Meaning::TokenIds);
        let tokenizer = is_text
            .then(|| Tokenizer::find(runner.reader(), runner.host()).ok().flatten())
            .flatten();
        Self { facts: runner.facts(), tokenizer }
    }

    pub(crate) fn token(&self, id: usize) -> Option<String> {
        let tokenizer = self.tokenizer.as_ref()?;
        let id = i64::try_from(id).ok()?;
        let spelled = || tokenizer.vocabulary().token(id);
        // The spelling tells a space before a word, which a decoder drops.
        let text = tokenizer.decode(&[id], true).ok().filter(|text| !text.is_empty());
        text.or_else(spelled)
    }

    fn label(&self, class: usize) -> Option<String> {
        self.facts.get("labels").is_some().then(|| self.facts.label(class))
    }
}

/// Returns the predictions from the logits of a pass: for the last token, for masks, or for the
/// whole input.
pub(crate) fn predictions(
    pass: &Pass<'_>,
    outcome: &Outcome,
    top: usize,
) -> RunResult<Vec<Predictions>> {
    let Some(name) = pass.part.output(Meaning::Logits) else { return Ok(Vec::new()) };
    let at = pass.outputs().iter().position(|output| *output == name);
    let Some(value) = at.and_then(|at| outcome.outputs.get(at)) else { return Ok(Vec::new()) };
    let Ok(logits) = value.tensor() else { return Ok(Vec::new()) };
    if !logits.element().is_float() {
        return Ok(Vec::new());
    }
    let namer = Namer::of(pass);
    let of_row = |position: Option<usize>, row: &[f32], is_token: bool| {
        let probabilities = softmax(row);
        let top = largest(&probabilities, top).into_iter().map(|id| Prediction {
            id,
            text: if is_token { namer.token(id) } else { namer.label(id) },
            probability: probabilities[id],
        });
        let top = top.collect();
        Predictions { output: name.to_owned(), shape: logits.shape().to_vec(), position, top }
    };

    let values = logits.floats()?;
    Ok(match *logits.shape() {
        [1, classes] if classes > 1 => vec![of_row(None, &values, false)],
        [1, length, classes] if length > 0 && classes > 1 => {
            let row = |at: usize| &values[at * classes..(at + 1) * classes];
            let is_token = pass.part.takes(Meaning::TokenIds);
            positions(pass, &namer, length)
                .into_iter()
                .map(|at| of_row(Some(at), row(at), is_token && !is_labels(&namer, classes)))
                .collect()
        }
        _ => Vec::new(),
    })
}

/// Returns `true` if classes are labels of tokens instead of the vocabulary.
fn is_labels(namer: &Namer<'_>, classes: usize) -> bool {
    let labels = namer.facts.get("num_labels").and_then(serde_json::Value::as_u64);
    labels == Some(classes as u64) && namer.facts.vocabulary() != Some(classes)
}

/// The masks of a text that has some, otherwise its last token.
fn positions(pass: &Pass<'_>, namer: &Namer<'_>, length: usize) -> Vec<usize> {
    let special = namer.facts.special_tokens();
    let mask = special.iter().find(|(role, _)| role == "mask_token");
    let mask = mask.and_then(|(_, token)| namer.tokenizer.as_ref()?.vocabulary().id(token));
    let masks: Vec<usize> =
        (0..pass.tokens.len().min(length)).filter(|&at| Some(pass.tokens[at]) == mask).collect();
    if masks.is_empty() { vec![length - 1] } else { masks }
}

/// Returns the logits of a pass, row by row, if it has one row for each token.
pub(crate) fn token_logits(pass: &Pass<'_>, outcome: &Outcome) -> Option<Tensor> {
    let name = pass.part.output(Meaning::Logits)?;
    let at = pass.outputs().iter().position(|output| *output == name)?;
    let tensor = outcome.outputs.get(at)?.tensor().ok()?;
    let is_rows = matches!(tensor.shape(), [1, length, _] if *length == pass.tokens.len());
    (is_rows && tensor.element().is_float()).then(|| tensor.clone())
}
