//! Choices that changed nothing: what a user asked for must show, or be said to have no effect.

use std::collections::BTreeMap;

use apr_core::{DType, Error, Result};
use globset::GlobMatcher;

use super::{Candidate, Choices, Decision, DecisionReason, ModelFacts, SchemeKind, assign};

/// Reasons that an error names before the rest is left out.
const SHOWN: usize = 4;

/// Refuses a quantization that leaves every tensor as it is. Casts may: a file of halves is one, whatever it was before.
pub(super) fn changes_something(candidates: &[Candidate], decisions: &[Decision], choices: &Choices) -> Result<()> {
    let changes = candidates.iter().zip(decisions).any(|(candidate, decision)| candidate.dtype != decision.dtype);
    if changes || choices.scheme.kind() == SchemeKind::Cast {
        return Ok(());
    }
    let mut reasons = BTreeMap::<String, usize>::new();
    for decision in decisions {
        let reason = match &decision.reason {
            DecisionReason::Kept(why) => why.to_string(),
            DecisionReason::Fallback { .. } => decision.reason.to_string(),
            _ => format!("{} already", decision.dtype),
        };
        *reasons.entry(reason).or_default() += 1;
    }
    let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let shown: Vec<String> = reasons.iter().take(SHOWN).map(|(why, count)| format!("{count} of them: {why}")).collect();
    let why = if shown.is_empty() { "there is none".to_owned() } else { shown.join("; ") };
    Err(Error::format(format!("quantizing to {} changes no tensor ({why})", choices.scheme)))
}

/// Patterns that no name matches, which are misspelt more often than not.
pub(super) fn idle_patterns(overrides: &[(GlobMatcher, DType)], names: &[String]) -> Vec<String> {
    let idle = overrides.iter().filter(|(pattern, _)| !names.iter().any(|name| pattern.is_match(name)));
    idle.map(|(pattern, _)| format!("no tensor's name matches {}", pattern.glob())).collect()
}

/// Choices without which every tensor would get the same type.
pub(super) fn idle_choices(
    candidates: &[Candidate],
    decisions: &[Decision],
    facts: &ModelFacts,
    choices: &Choices,
) -> Vec<String> {
    let is_idle = |without: &Choices| {
        // Without it there may be an error, which the choice then keeps off.
        assign(candidates, facts, without)
            .is_ok_and(|others| others.iter().zip(decisions).all(|(other, decision)| other.dtype == decision.dtype))
    };
    let has = |reason: &DecisionReason| decisions.iter().any(|decision| decision.reason == *reason);
    let mut notes = Vec::new();
    if let Some(dtype) = choices.embedding_type
        && is_idle(&Choices { embedding_type: None, ..choices.clone() })
    {
        let why = if has(&DecisionReason::Embedding) {
            "they get that type anyway"
        } else {
            "no tensor is known to hold them"
        };
        notes.push(format!("--embedding-type {dtype} changed nothing for the token embeddings: {why}"));
    }
    if let Some(dtype) = choices.output_type
        && is_idle(&Choices { output_type: None, ..choices.clone() })
    {
        let why = match has(&DecisionReason::Output) {
            true => "it gets that type anyway",
            false => "no tensor of its own is known to be one, or it gets that type anyway",
        };
        notes.push(format!("--output-type {dtype} changed nothing for the output matrix: {why}"));
    }
    for (position, (pattern, dtype)) in choices.overrides.iter().enumerate() {
        let matches = candidates.iter().any(|candidate| pattern.is_match(&candidate.name));
        let mut overrides = choices.overrides.clone();
        overrides.remove(position);
        if matches && is_idle(&Choices { overrides, ..choices.clone() }) {
            let why = "what it matches gets the same type without it";
            notes.push(format!("--tensor-type {}={dtype} changed nothing: {why}", pattern.glob()));
        }
    }
    if choices.pure && is_idle(&Choices { pure: false, ..choices.clone() }) {
        let why = match choices.scheme.kind() {
            SchemeKind::Blocks => "the mix has the same type for every tensor",
            SchemeKind::Rows | SchemeKind::Cast => "there is no mix",
        };
        notes.push(format!("--pure changed nothing: {why} with {}", choices.scheme));
    }
    if choices.requantize && is_idle(&Choices { requantize: false, ..choices.clone() }) {
        notes.push("--requantize changed nothing: no quantized tensor gets another type".to_owned());
    }
    notes
}
