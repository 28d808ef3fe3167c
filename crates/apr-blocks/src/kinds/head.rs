//! Heads: what becomes of the vectors after the last layer.

use apr_core::{Error, Result};
use apr_graph::{ElementType, Meaning, ValueId, View};

use crate::model::Place;
use crate::writer::{Writer, signed};

/// What a model ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// The vectors themselves.
    States,
    /// Scores of the next token.
    Language,
    /// Scores of classes, from the vector of the last token that is no padding.
    LastToken,
}

impl Head {
    /// Option `head`.
    ///
    /// # Errors
    /// E003 when it names none that is known, or nothing for this task.
    pub(crate) fn of(place: Place<'_>) -> Result<Self> {
        let Some(head) = place.text_or_none("head")? else {
            let (family, task) = (place.model.family().family().name(), place.model.settings.task());
            return Err(Error::version(format!("the graph of family {family} has no head for the task '{task}'")));
        };
        match head.as_str() {
            "states" => Ok(Self::States),
            "language" => Ok(Self::Language),
            "last_token" => Ok(Self::LastToken),
            other => Err(place.unknown("head", other)),
        }
    }

    pub(crate) fn write(self, w: &mut Writer<'_>, place: Place<'_>, x: ValueId, tokens: ValueId) -> Result<()> {
        match self {
            Self::States => w.body().output("last_hidden_state", x, Meaning::HiddenStates),
            Self::Language => {
                let logits = language(w, place, x)?;
                w.body().output("logits", logits, Meaning::Logits);
            }
            Self::LastToken => {
                let logits = last_token(w, place, x, tokens)?;
                w.body().output("logits", logits, Meaning::Logits);
            }
        }
        Ok(())
    }
}

/// Scores of classes of the last token that is not option `padding_id`, or of the last one where there is no such id.
fn last_token(w: &mut Writer<'_>, place: Place<'_>, x: ValueId, tokens: ValueId) -> Result<ValueId> {
    w.scope("head", |w| {
        let scores = w.outer_linear("scores", x, &place.module("score")?)?;
        let Some(padding) = place.size_or_none("padding_id")? else {
            let last = w.int(-1);
            return Ok(w.op("Gather", [scores, last]).attribute("axis", 1).output("logits"));
        };
        let padding = w.int(signed(padding));
        let is_padding = w.make("Equal", "is_padding", [tokens, padding]);
        let counts = w.make("Not", "counts", [is_padding]);
        let counts = w.cast("counts_as_number", counts, ElementType::I32);
        // The last of several largest ones.
        let last = w.op("ArgMax", [counts]).attribute("axis", 1).attribute("keepdims", 1);
        let last = last.attribute("select_last_index", 1).output("last");
        let logits = w.op("GatherND", [scores, last]).attribute("batch_dims", 1).output("logits");
        Ok(logits)
    })
}

/// `x W^T + b`, times `logit_scale`, through `logit_cap tanh(logits / logit_cap)`; W is the table of the tokens where option
/// `tied` holds.
pub(crate) fn language(w: &mut Writer<'_>, place: Place<'_>, x: ValueId) -> Result<ValueId> {
    w.scope("head", |w| {
        let mut logits = if place.truth("tied")? {
            let table = place.module("tokens")?;
            let dims = w.model.using(&table)?;
            let views = vec![View::Transposed(vec![1, 0])];
            let weight = w.viewed(&table, views, dims.into_iter().rev().collect())?;
            w.make("MatMul", "logits", [x, weight])
        } else {
            let head = place.module("head")?;
            let weight = w.matrix(&format!("{head}.weight"), false)?;
            w.make("MatMul", "logits", [x, weight])
        };
        if let Some(head) = place.name("head") {
            logits = w.biased("logits", logits, &format!("{head}.bias"))?;
        }
        if let Some(scale) = place.number_or_none("logit_scale")?.filter(|scale| *scale != 1.0) {
            logits = w.scaled("scaled", logits, scale);
        }
        match place.number_or_none("logit_cap")?.filter(|cap| *cap > 0.0) {
            Some(cap) => Ok(w.capped("capped", logits, cap)),
            None => Ok(logits),
        }
    })
}
