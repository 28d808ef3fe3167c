//! How the tokens of an answer are chosen: by what a model's `generation_config.json` says, as
//! transformers understands it, and by what the user says instead.

mod llama;
mod names;
mod processors;
mod settings;
mod typical;

use apr_infer::Sampler;
use apr_registry::{Error, Result};
use serde::Serialize;

pub use llama::{DryPenalty, Mirostat, Xtc};
pub use names::{Breakers, TokenName};
pub(crate) use processors::{Processor, Scratch, Written};
pub use settings::MOST_BEAMS;

use super::{Facts, largest};
use crate::error::RunResult;
use crate::tokens::Tokenizer;

/// Generation settings of the user; `None` leaves a setting to the model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationOptions {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// Maximum number of tokens that are considered; 0 for all.
    pub top_k: Option<usize>,
    /// Tokens are considered until their probabilities reach this sum.
    pub top_p: Option<f32>,
    /// Tokens are considered that have this share of the largest probability.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that were there already.
    pub repeat_penalty: Option<f32>,
    /// Is taken off the logits of tokens that were generated already.
    pub presence_penalty: Option<f32>,
    /// Is taken off the logits of tokens for each time that they were generated.
    pub frequency_penalty: Option<f32>,
    /// Number of last tokens that these penalties consider, including tokens of the prompt.
    ///
    /// If `None`, the presence and frequency penalties consider the generated tokens, and the
    /// repetition penalty considers all tokens.
    pub repeat_last_n: Option<usize>,
    /// Is added to the logits of tokens; minus infinity rules one out.
    pub logit_bias: Vec<(TokenName, f32)>,
    /// Penalty for tokens that would continue a repetition.
    pub dry: Option<DryPenalty>,
    /// Tokens are considered whose surprise is nearest to the entropy, until their probabilities
    /// reach this sum.
    pub typical_p: Option<f32>,
    /// Rules out the likeliest tokens at times.
    pub xtc: Option<Xtc>,
    /// Keeps the surprise of the text near a target, in the place of the bounds before.
    pub mirostat: Option<Mirostat>,
    /// Rules out the tokens that end a text.
    pub ignore_eos: bool,
    /// Minimum number of tokens to generate. Tokens that end a text are ruled out before.
    pub min_tokens: Option<usize>,
    /// Maximum number of tokens to generate.
    pub max_tokens: Option<usize>,
    /// Beams of a beam search; 1 for none.
    pub beams: Option<usize>,
    /// Power of the length that a beam's log probability is divided by; above 0, longer texts win.
    pub length_penalty: Option<f32>,
    /// Random seed.
    pub seed: u64,
}

/// Settings of a beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beams {
    /// Texts that grow side by side, 2 at least.
    pub count: usize,
    /// Power of the length that the sum of a text's log probabilities is divided by.
    pub length_penalty: f64,
    /// Condition for the end of the search.
    pub early_stopping: EarlyStopping,
}

impl Default for Beams {
    fn default() -> Self {
        Self { count: 1, length_penalty: 1.0, early_stopping: EarlyStopping::Likely }
    }
}

/// Condition for the end of a beam search that has as many finished texts as beams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyStopping {
    /// No further condition (`true` in `generation_config.json`).
    Full,
    /// The best growing text would not be better at its current length (`false`).
    Likely,
    /// The best growing text would not be better at any length (`"never"`).
    Never,
}

/// Settings for the choice of tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Generation {
    processors: Vec<Processor>,
    beams: Option<Beams>,
    samples: bool,
    /// Number of last tokens that the penalties consider.
    window: Option<usize>,
    mirostat: Option<Mirostat>,
    seed: u64,
    max_new: Option<usize>,
    max_length: Option<usize>,
    forced_end: Option<Vec<i64>>,
    ends: Vec<i64>,
    stops: Vec<String>,
    ignored: Vec<String>,
}

impl Generation {
    /// Returns the settings of a model, combined with the user's.
    #[must_use]
    pub fn of(facts: &Facts, options: &GenerationOptions) -> Self {
        settings::read(facts, options)
    }

    /// Returns `true` if tokens are sampled, `false` if the likeliest token is taken.
    #[must_use]
    pub fn samples(&self) -> bool {
        self.samples
    }

    /// Returns `true` if repetition, presence or frequency is penalized.
    #[must_use]
    pub fn penalizes(&self) -> bool {
        self.processors.iter().any(|processor| {
            matches!(
                processor,
                Processor::RepetitionPenalty(_)
                    | Processor::PresencePenalty(_)
                    | Processor::FrequencyPenalty(_)
            )
        })
    }

    /// Returns `true` if the settings identify tokens by text, which [`named`](Self::named)
    /// resolves.
    pub(crate) fn has_names(&self) -> bool {
        names::has_names(&self.processors)
    }

    /// Returns the settings with the ids of the tokens that they identify by text.
    ///
    /// # Errors
    /// [`RunError::Request`](crate::RunError::Request) if a text is not one token, or if there is
    /// no tokenizer.
    pub(crate) fn named(&self, tokenizer: Option<&Tokenizer<'_>>) -> RunResult<Self> {
        let mut made = self.clone();
        names::find_names(&mut made.processors, tokenizer)?;
        Ok(made)
    }

    /// Returns the settings of the beam search, or `None` if only one text grows.
    #[must_use]
    pub fn beams(&self) -> Option<Beams> {
        self.beams
    }

    /// Tokens that end a text.
    #[must_use]
    pub fn ends(&self) -> &[i64] {
        &self.ends
    }

    /// Texts that end one, by the model's settings.
    #[must_use]
    pub fn stops(&self) -> &[String] {
        &self.stops
    }

    /// Returns the keys of the model's settings that are not supported, with their values.
    #[must_use]
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Returns the maximum number of tokens to generate after `given` ones, or `None` if no setting
    /// gives one.
    #[must_use]
    pub fn most(&self, given: usize) -> Option<usize> {
        self.max_new.or_else(|| Some(self.max_length?.saturating_sub(given)))
    }

    /// Creates a chooser for the tokens after `given`. `encoder` are the tokens that the model's
    /// encoder has read.
    #[must_use]
    pub fn begin(&self, given: &[i64], encoder: &[i64], most: usize) -> Chooser {
        let mut processors = self.processors.clone();
        for processor in &mut processors {
            if let Processor::ForcedEos(length, _) = processor {
                *length = given.len().saturating_add(most);
            }
        }

        Chooser {
            processors,
            sampler: if self.samples { Sampler::seeded(self.seed) } else { Sampler::greedy() },
            tokens: given.to_vec(),
            given: given.len(),
            encoder: encoder.to_vec(),
            window: self.window,
            mirostat: self.mirostat,
            surprise: self.mirostat.map_or(0.0, Mirostat::first),
            scratch: Scratch::default(),
        }
    }
}

/// Chooses one token after the other.
#[derive(Debug, Clone)]
pub struct Chooser {
    processors: Vec<Processor>,
    sampler: Sampler,
    /// Tokens so far.
    tokens: Vec<i64>,
    given: usize,
    encoder: Vec<i64>,
    window: Option<usize>,
    mirostat: Option<Mirostat>,
    /// Surprise above which Mirostat cuts off tokens, in bits.
    surprise: f64,
    scratch: Scratch,
}

impl Chooser {
    /// Applies the settings to logits.
    pub fn process(&mut self, logits: &mut [f32]) {
        let draws = self.processors.iter().any(|it| matches!(it, Processor::Xtc { .. }));
        let chance = if draws { self.sampler.chance() } else { 0.0 };
        let mut scratch = std::mem::take(&mut self.scratch);
        self.process_behind(logits, &self.tokens, chance, &mut scratch);
        self.scratch = scratch;
    }

    /// Applies the settings to the logits after other tokens, which include the given tokens.
    fn process_behind(
        &self,
        logits: &mut [f32],
        tokens: &[i64],
        chance: f64,
        scratch: &mut Scratch,
    ) {
        let (given, encoder) = (self.given, &self.encoder[..]);
        let (window, surprise) = (self.window, self.surprise);
        let written = Written { tokens, given, encoder, window, chance, surprise };
        self.processors.iter().for_each(|processor| processor.apply(logits, written, scratch));
    }

    /// Applies the settings to the logits after these generated tokens.
    pub(crate) fn process_generated(&self, logits: &mut [f32], added: &[i64]) {
        let given = &self.tokens[..self.given];
        self.process_behind(logits, &[given, added].concat(), 0.0, &mut Scratch::default());
    }

    /// The next token by processed logits, which then is one of those so far.
    ///
    /// # Errors
    /// E001 where no logit is a number, or the settings leave no token.
    pub fn choose(&mut self, logits: &[f32]) -> Result<i64> {
        if logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
            return Err(Error::format("the settings for generation rule out every token"));
        }
        let token = self.sampler.choose(logits);
        let token = token.ok_or_else(|| Error::format("all logits are NaN"))?;
        Ok(self.take(token, logits))
    }

    /// Appends a token that was chosen by these logits, and returns its id.
    fn take(&mut self, token: usize, logits: &[f32]) -> i64 {
        if let Some(mirostat) = self.mirostat {
            self.surprise = mirostat.next(self.surprise, logits, token);
        }
        let token = i64::try_from(token).unwrap_or(i64::MAX);
        self.tokens.push(token);
        token
    }
}

/// A token, and the logarithm of its probability by the model alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LogProbability {
    /// Id of the token.
    pub id: i64,
    /// Spelling of the token in the vocabulary, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Natural logarithm.
    pub logprob: f64,
}

/// A token that was generated, and the likeliest ones at its place.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TokenLogProbabilities {
    /// Generated token.
    #[serde(flatten)]
    pub chosen: LogProbability,
    /// The likeliest first.
    pub top: Vec<LogProbability>,
}

/// The logarithms of the probabilities of a token and of the `count` likeliest, by logits as the
/// model made them; `name` spells a token.
#[must_use]
pub(crate) fn log_probabilities(
    logits: &[f32],
    token: i64,
    count: usize,
    name: impl Fn(i64) -> Option<String>,
) -> TokenLogProbabilities {
    let values: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
    let highest = values.iter().copied().filter(|value| !value.is_nan());
    let highest = highest.fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 =
        values.iter().filter(|value| !value.is_nan()).map(|value| (value - highest).exp()).sum();
    let of = |id: i64| LogProbability {
        id,
        token: name(id),
        logprob: usize::try_from(id)
            .ok()
            .and_then(|at| values.get(at))
            .map_or(f64::NAN, |value| value - highest - sum.ln()),
    };
    let top = largest(&values, count).into_iter().map(|at| of(i64::try_from(at).unwrap_or(-1)));
    TokenLogProbabilities { chosen: of(token), top: top.collect() }
}

#[cfg(test)]
mod tests;
