//! Choices that changed nothing: what a user asked for must show, or be said to have no effect.

use std::collections::BTreeMap;

use apr_core::{Error, Result};
use apr_view::NamePattern;

use super::{
    Candidate, Choices, Decision, DecisionReason, ModelFacts, Scheme, SchemeKind, TensorType,
    assign,
};

/// Reasons that an error names before the rest is left out.
const SHOWN: usize = 4;

/// Rejects a quantization that changes no tensor.
///
/// Casts are exempt, because a cast file is valid whatever the dtype of the source was.
pub(super) fn changes_something(
    candidates: &[Candidate],
    decisions: &[Decision],
    choices: &Choices,
) -> Result<()> {
    let changes = candidates
        .iter()
        .zip(decisions)
        .any(|(candidate, decision)| candidate.dtype != decision.dtype);
    if changes || choices.scheme.kind() == SchemeKind::Cast {
        return Ok(());
    }

    let reasons = decisions.iter().map(|decision| match &decision.reason {
        DecisionReason::Kept(why) => why.to_string(),
        DecisionReason::Fallback { .. } => decision.reason.to_string(),
        _ => format!("{} already", decision.dtype),
    });
    Err(nothing_changes(choices.scheme, reasons))
}

/// Returns the error for a quantization that changes no tensor, with the reasons of the tensors.
#[must_use]
pub fn nothing_changes(scheme: Scheme, all: impl Iterator<Item = String>) -> Error {
    let mut reasons = BTreeMap::<String, usize>::new();
    for reason in all {
        *reasons.entry(reason).or_default() += 1;
    }

    let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let shown: Vec<String> =
        reasons.iter().take(SHOWN).map(|(why, count)| format!("{count} of them: {why}")).collect();
    let why = if shown.is_empty() { "there is none".to_owned() } else { shown.join("; ") };
    Error::format(format!("quantization to {scheme} changes no tensor ({why})"))
}

/// Patterns that no name matches, which are misspelt more often than not.
pub(super) fn idle_patterns(
    overrides: &[(NamePattern, TensorType)],
    names: &[String],
) -> Vec<String> {
    let idle =
        overrides.iter().filter(|(pattern, _)| !names.iter().any(|name| pattern.is_match(name)));
    idle.map(|(pattern, _)| format!("no tensor's name matches {}", pattern.text())).collect()
}

/// Choices without which every tensor would get the same type.
pub(super) fn idle_choices(
    candidates: &[Candidate],
    decisions: &[Decision],
    facts: &ModelFacts,
    choices: &Choices,
) -> Vec<String> {
    let question = Idle { candidates, decisions, facts, choices };
    let of_tensors = [question.embedding_type(), question.output_type()].into_iter().flatten();
    let of_all = [question.pure(), question.requantize()].into_iter().flatten();
    of_tensors.chain(question.overrides()).chain(of_all).collect()
}

/// User's choices and the decisions that result from them.
struct Idle<'a> {
    candidates: &'a [Candidate],
    decisions: &'a [Decision],
    facts: &'a ModelFacts,
    choices: &'a Choices,
}

impl Idle<'_> {
    /// Returns `true` if `without`, the choices with one removed, leads to the same dtypes.
    fn is_same(&self, without: &Choices) -> bool {
        // Without it there may be an error, which the choice then keeps off.
        assign(self.candidates, self.facts, without).is_ok_and(|others| {
            others.iter().zip(self.decisions).all(|(other, decision)| other.dtype == decision.dtype)
        })
    }

    fn has(&self, reason: &DecisionReason) -> bool {
        self.decisions.iter().any(|decision| decision.reason == *reason)
    }

    fn embedding_type(&self) -> Option<String> {
        let dtype = self.choices.embedding_type?;
        self.is_same(&Choices { embedding_type: None, ..self.choices.clone() }).then(|| {
            let why = if self.has(&DecisionReason::Embedding) {
                "they have that type anyway"
            } else {
                "no tensor is recognized as such"
            };
            format!("`embedding_type` {dtype} has no effect on the token embeddings: {why}")
        })
    }

    fn output_type(&self) -> Option<String> {
        let dtype = self.choices.output_type?;
        self.is_same(&Choices { output_type: None, ..self.choices.clone() }).then(|| {
            let why = if self.has(&DecisionReason::Output) {
                "it has that type anyway"
            } else {
                "no tensor of its own is known to be one, or it has that type anyway"
            };
            format!("`output_type` {dtype} has no effect on the output matrix: {why}")
        })
    }

    fn overrides(&self) -> Vec<String> {
        if self.choices.searched {
            return Vec::new();
        }
        let is_idle = |position: usize, pattern: &NamePattern| {
            let matches = self.candidates.iter().any(|candidate| pattern.is_match(&candidate.name));
            let mut overrides = self.choices.overrides.clone();
            overrides.remove(position);
            matches && self.is_same(&Choices { overrides, ..self.choices.clone() })
        };

        let idle = self
            .choices
            .overrides
            .iter()
            .enumerate()
            .filter(|(position, (pattern, _))| is_idle(*position, pattern));
        let why = "the tensors that it matches have the same type without it";
        idle.map(|(_, (pattern, dtype))| {
            format!("`tensor_type` {}={dtype} has no effect: {why}", pattern.text())
        })
        .collect()
    }

    fn pure(&self) -> Option<String> {
        let choices = self.choices;
        (choices.pure && self.is_same(&Choices { pure: false, ..choices.clone() })).then(|| {
            let why = match choices.scheme.kind() {
                SchemeKind::Blocks => "the mix has the same type for every tensor",
                SchemeKind::Rows | SchemeKind::Cast | SchemeKind::Layout => "there is no mix",
            };
            format!("`pure` has no effect: {why} with {}", choices.scheme)
        })
    }

    fn requantize(&self) -> Option<String> {
        let is_idle = self.choices.requantize
            && self.is_same(&Choices { requantize: false, ..self.choices.clone() });
        is_idle.then(idle_requantize)
    }
}

/// Returns the note that [`Choices::requantize`] had no effect.
#[must_use]
pub fn idle_requantize() -> String {
    "`requantize` has no effect: no quantized tensor gets another type".to_owned()
}
