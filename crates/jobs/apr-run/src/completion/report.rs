//! The result of a text generation.

#[cfg(doc)]
use apr_infer::{Arithmetic, CacheType};
use apr_inputs::answer::Answer;
use base64ct::{Base64, Encoding};
use serde::Serialize;

#[cfg(doc)]
use super::{GenerateOptions, Generator, Prompt};
use crate::beam_search::Hypothesis;
use crate::generation::TokenLogProbabilities;
use crate::grammar::KeptGrammar;
use crate::timing::Timings;

/// Result of a text generation.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Completion {
    /// The text that a chat's template made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Tokens of the prompt.
    pub given: Vec<i64>,
    /// Number of these tokens that were not read, because their keys and values were already kept;
    /// `None` if nothing was to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reused: Option<usize>,
    /// Number of the oldest messages of a [`Conversation`](crate::Conversation) that the prompt
    /// omits, because they exceed the model's context.
    #[serde(rename = "dropped_messages", skip_serializing_if = "is_zero")]
    pub dropped: usize,
    /// Tokens that were generated.
    pub added: Vec<i64>,
    /// Text of the generated tokens; `None` for [`Prompt::Tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes of the text in base64, if they are not UTF-8: in the text, replacement characters
    /// stand for them. [`Completion::bytes`] has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_base64: Option<String>,
    /// Generated text of a chat, split into thinking, text and tool calls by the model's template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// Reason why generation ended.
    ///
    /// - `end`: a token that ends a text
    /// - `stop`: a stop text
    /// - `grammar`: [`GenerateOptions::grammar`] allows no more tokens
    /// - `max_tokens`: the maximum number of tokens
    /// - `context`: the model accepts no more tokens
    /// - `interrupted`: the [`Host`](crate::Host) cancelled a turn of a
    ///   [`Conversation`](crate::Conversation)
    pub ended: &'static str,
    /// Match of the text with [`GenerateOptions::grammar`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<KeptGrammar>,
    /// Maximum number of texts that grew side by side, including this one; `None` if it grew alone
    /// ([`Generator::generate_all`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Texts of a beam search, the best first, which is the answer; `None` without beams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beams: Option<Vec<Hypothesis>>,
    /// Arithmetic for weights in blocks: `exact` or `fast` ([`Arithmetic`]).
    pub arithmetic: &'static str,
    /// Storage type of keys and values: `f32`, `f16` or `q8_0` ([`CacheType`]).
    pub cache_type: &'static str,
    /// Duration of the generation; `None` without a clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// Log probabilities of each generated token, as requested by [`GenerateOptions::logprobs`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogProbabilities>>,
    /// Settings of the model that are not supported, with their values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

impl Completion {
    /// The text as the model wrote it, which need not be UTF-8.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let exact = self.text_base64.as_deref().and_then(|text| Base64::decode_vec(text).ok());
        exact.unwrap_or_else(|| self.text.clone().unwrap_or_default().into_bytes())
    }
}

/// A text, and its bytes in base64 if these are not UTF-8.
pub(super) fn text_of(bytes: Vec<u8>) -> (String, Option<String>) {
    String::from_utf8(bytes).map_or_else(
        |error| {
            let bytes = error.as_bytes();
            (String::from_utf8_lossy(bytes).into_owned(), Some(Base64::encode_string(bytes)))
        },
        |text| (text, None),
    )
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
