//! The runs in which a graph reads a prompt.

use apr_graph::{Body, Meaning, ValueId};

use crate::last_rows;

/// Tokens from which on a prompt is read in pieces.
const LONG: usize = 256;
/// Maximum number of tokens of a piece.
const PIECE: usize = 512;
/// Fewest that a piece has for the sake of memory.
const SHORTEST: usize = 64;
/// Maximum number of scores per head for the tokens of a piece.
const SCORES: usize = 1 << 22;

/// A run of a graph that reads a prompt or a piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptRun {
    /// Tokens that it reads.
    pub tokens: usize,
    /// Tokens whose logits it computes, the last ones.
    pub logits: usize,
}

/// Returns the runs in which a text-generating graph reads a prompt of `tokens` tokens.
pub fn prompt_runs(body: &Body, tokens: usize) -> impl Iterator<Item = PromptRun> + use<> {
    let reading = Reading::of(body);
    let mut past = 0;
    std::iter::from_fn(move || {
        let left = tokens.checked_sub(past).filter(|left| *left > 0)?;
        let run = reading.run(past, left, tokens, 0);
        past += run.tokens;
        Some(run)
    })
}

/// Returns the vectors of a graph from which logits are computed, for each token by itself.
///
/// A run that computes the logits of the last tokens alone still computes these for all tokens.
#[must_use]
pub fn vectors_of_logits(body: &Body) -> Option<ValueId> {
    let logits = body.outputs.iter().find(|id| body.value(**id).meaning == Meaning::Logits)?;
    last_rows::vectors_of(body, *logits)
}

/// Method by which a graph reads prompts.
pub(super) struct Reading {
    /// `true` if keys and values of earlier tokens are sufficient to continue reading.
    on: bool,
    /// `true` if the logits of the last tokens can be computed alone.
    last_rows: bool,
}

impl Reading {
    pub(super) fn of(body: &Body) -> Self {
        Self { on: reads_on(body), last_rows: vectors_of_logits(body).is_some() }
    }

    /// Returns the next run of a prompt of `total` tokens, of which `past` are read and `left` are
    /// not. The run has at least `least` tokens, if that many are left.
    ///
    /// Logits that are not needed take no time and no memory. If they can't be computed separately,
    /// the last tokens are a run of their own.
    pub(super) fn run(&self, past: usize, left: usize, total: usize, least: usize) -> PromptRun {
        let logits =
            |tokens: usize| if self.last_rows { tokens.min(last_rows::KEPT) } else { tokens };
        let all = PromptRun { tokens: left, logits: logits(left) };
        // The last rows of a run are two: so are those of the last one.
        let own = if self.last_rows { 0 } else { last_rows::KEPT };
        if !self.on || total <= LONG || left <= own {
            return all;
        }
        let tokens = piece(past, left - own).max(least);
        match left.checked_sub(tokens) {
            Some(rest) if rest >= last_rows::KEPT => PromptRun { tokens, logits: 0 },
            _ => all,
        }
    }
}

/// Returns the number of tokens to read in one run, out of `left` tokens after `past` others. The
/// scores of a run are bounded, and the pieces that follow have the same length.
fn piece(past: usize, left: usize) -> usize {
    let most = (SCORES / (past + PIECE)).clamp(SHORTEST, PIECE);
    left.div_ceil(left.div_ceil(most))
}

/// Returns `true` if keys and values of earlier tokens are sufficient to continue reading.
pub(super) fn reads_on(body: &Body) -> bool {
    let mut kept = body.inputs.iter().map(|id| body.value(*id).meaning).filter(|m| m.is_kept());
    let has_keys = kept.clone().next().is_some();
    has_keys && kept.all(|meaning| meaning != Meaning::PastState)
}
