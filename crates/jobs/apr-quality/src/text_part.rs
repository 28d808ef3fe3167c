//! The part of a model that continues texts: a language model, or the decoder of a speech model.

use apr_graph::Meaning;
use apr_infer::Tensor;
use apr_run::{Prepared, RunResult, Tokenizer};

use crate::samples::Sample;
use crate::subject::Subject;
use crate::windows::leading_token;

/// Input of a part beside the tokens of a text.
#[derive(Clone)]
pub(crate) struct Beside {
    /// Token before the text.
    pub(crate) start: Option<i64>,
    /// States of the encoder, for a decoder.
    pub(crate) states: Option<Tensor>,
    /// Maximum number of tokens of a text.
    pub(crate) longest: usize,
}

/// A part that continues texts.
pub(crate) struct TextPart<'m, 's> {
    pub(crate) part: &'m Prepared<'s>,
    pub(crate) tokenizer: &'m Tokenizer<'s>,
    pub(crate) beside: Beside,
}

impl<'m, 's> TextPart<'m, 's> {
    /// Returns the part of a model that continues texts, or `None` if it has none or no tokenizer.
    ///
    /// The decoder of a speech model learnt a language too. Behind the states of silence, no words
    /// that were spoken help it to predict a text.
    pub(crate) fn of(model: &'m Subject<'s>) -> RunResult<Option<Self>> {
        let Some(tokenizer) = model.tokenizer() else { return Ok(None) };
        let facts = model.runner().facts();
        // One position is for the token before the text.
        let longest = facts.context().map_or(usize::MAX, |context| context.saturating_sub(1));
        let (part, beside) = match model.parts() {
            [part] => (part, Beside { start: leading_token(tokenizer)?, states: None, longest }),
            [encoder, decoder] if hears(encoder) && decoder.takes(Meaning::EncoderStates) => {
                let states = model.encoded(&Sample::silence())?;
                (decoder, Beside { start: facts.decoder_start(), states, longest })
            }
            _ => return Ok(None),
        };
        let continues = part.output(Meaning::Logits).is_some();
        Ok(continues.then_some(Self { part, tokenizer, beside }))
    }
}

/// Returns `true` if a part reads audio.
fn hears(part: &Prepared<'_>) -> bool {
    part.takes(Meaning::Mel) || part.takes_waveforms()
}
