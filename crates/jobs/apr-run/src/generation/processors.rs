//! What changes the logits before a token is chosen.
//!
//! Names, order and arithmetic are those of transformers' logits processors; sums are in double
//! precision where theirs are in single.

use super::super::softmax;
use super::llama::{DryPenalty, dry, mirostat_1, mirostat_2, xtc};
use super::names::TokenName;
use super::typical::typical_p;

/// Data that a change to the logits may depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written<'w> {
    /// All tokens so far: the given tokens, then the generated tokens.
    pub tokens: &'w [i64],
    /// Number of given tokens.
    pub given: usize,
    /// Tokens that an encoder has read. Empty for a model without an encoder.
    pub encoder: &'w [i64],
    /// Number of last tokens that the penalties consider; `None` for the default of each penalty.
    pub window: Option<usize>,
    /// A random number from 0 to 1, without 1.
    pub chance: f64,
    /// The surprise of a token, in bits, that Mirostat cuts off at.
    pub surprise: f64,
}

impl<'w> Written<'w> {
    /// Returns the tokens that a penalty considers, which are `usual` without a window.
    fn penalized(self, usual: &'w [i64]) -> &'w [i64] {
        self.window.map_or(usual, |count| last(self.tokens, count))
    }

    fn generated(self) -> &'w [i64] {
        self.tokens.get(self.given..).unwrap_or_default()
    }
}

/// Returns the last `count` tokens, or all tokens if there are fewer.
pub(super) fn last(tokens: &[i64], count: usize) -> &[i64] {
    &tokens[tokens.len().saturating_sub(count)..]
}

/// Memory that is used again for each token.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scratch {
    /// A number of each token of the vocabulary, 0 between two uses.
    pub(super) counts: Vec<u32>,
    pub(super) shares: Vec<f64>,
    pub(super) distances: Vec<f64>,
    pub(super) order: Vec<usize>,
    pub(super) repeats: Vec<usize>,
    kept: Vec<f32>,
}

/// A change to the logits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Processor {
    /// Adds to the logits of tokens.
    LogitBias(Vec<(TokenName, f32)>),
    /// Adds a number to the last token of each sequence whose other tokens precede it. Forbidden
    /// sequences have minus infinity.
    SequenceBias(Vec<(Vec<i64>, f32)>),
    /// Raises the logits of the tokens that the encoder has read.
    EncoderRepetitionPenalty(f32),
    /// Divides the positive and multiplies the negative logits of tokens that were there already
    /// (Keskar et al. 2019).
    RepetitionPenalty(f32),
    /// Lowers the logits of tokens that were generated already.
    PresencePenalty(f32),
    /// Lowers the logits of tokens in proportion to their number of occurrences.
    FrequencyPenalty(f32),
    /// Lowers the logits of tokens that would continue a repetition.
    Dry(DryPenalty),
    /// Rules out tokens that would repeat a sequence of this many tokens.
    NoRepeatNgram(usize),
    /// Rules out tokens that would repeat a sequence of this many tokens that the encoder has read.
    EncoderNoRepeatNgram(usize),
    /// Rules out the ends of a text below this length, given tokens among it.
    MinLength(usize, Vec<i64>),
    /// Rules out the ends of a text before this many tokens are generated.
    MinNewTokens(usize, Vec<i64>),
    /// The only token that may follow the first one.
    ForcedBos(i64),
    /// The only tokens that may be the last of a text of this length.
    ForcedEos(usize, Vec<i64>),
    /// Replaces logits that are not numbers.
    RemoveInvalid,
    /// Raises the ends of a text by a power of the factor after this many generated tokens.
    ExponentialDecay {
        /// Tokens that are generated before.
        start: usize,
        /// The base of the power.
        factor: f64,
        /// Tokens that end a text.
        ends: Vec<i64>,
    },
    /// Rules out tokens.
    Suppress(Vec<i64>),
    /// Rules out tokens as the first generated one. With `true`, this is the token after a forced
    /// one.
    SuppressFirst(Vec<i64>, bool),
    /// Divides all logits.
    Temperature(f32),
    /// Keeps this many of the largest logits.
    TopK(usize),
    /// Keeps the largest until their probabilities reach this sum (Holtzman et al. 2019).
    TopP(f64),
    /// Keeps the tokens with at least this share of the largest probability (Nguyen et al. 2024).
    MinP(f64),
    /// Keeps the tokens nearest to the entropy, up to this probability (Meister et al. 2022).
    TypicalP(f64),
    /// Keeps the tokens with at least this probability (Hewitt et al. 2022).
    EpsilonCutoff(f64),
    /// Like `EpsilonCutoff`, with a bound that falls with the entropy.
    EtaCutoff(f64),
    /// Rules out the likeliest but one of those above the threshold, with this probability.
    Xtc {
        /// Probability that the processor acts on a token.
        probability: f64,
        /// Minimum probability of a token that may be ruled out.
        threshold: f64,
    },
    /// Keeps as many of the likeliest tokens as the surprise cutoff allows (Basu et al. 2020).
    Mirostat1,
    /// Keeps the tokens whose surprise does not exceed the cutoff.
    Mirostat2,
}

impl Processor {
    /// Changes the logits of the tokens that may follow `written`.
    pub(crate) fn apply(&self, logits: &mut [f32], written: Written<'_>, scratch: &mut Scratch) {
        let tokens = written.tokens;
        match self {
            Self::LogitBias(biases) => add_to_each(logits, biases),
            Self::SequenceBias(biases) => add_biases(logits, tokens, biases),
            Self::EncoderRepetitionPenalty(penalty) => {
                penalize(logits, written.encoder, 1.0 / penalty, scratch);
            }
            Self::RepetitionPenalty(penalty) => {
                penalize(logits, written.penalized(tokens), *penalty, scratch);
            }
            Self::PresencePenalty(penalty) => {
                let repeated = written.penalized(written.generated());
                each_counted(logits, repeated, scratch, |logit, _| *logit -= penalty);
            }
            Self::FrequencyPenalty(penalty) => {
                let repeated = written.penalized(written.generated());
                let lower = |logit: &mut f32, count: u32| *logit -= count as f32 * penalty;
                each_counted(logits, repeated, scratch, lower);
            }
            Self::Dry(penalty) => dry(logits, tokens, penalty, scratch),
            Self::NoRepeatNgram(size) => no_repeat(logits, tokens, tokens, *size),
            Self::EncoderNoRepeatNgram(size) => {
                no_repeat(logits, tokens, written.encoder, *size);
            }
            Self::MinLength(least, ends) if tokens.len() < *least => rule_out(logits, ends),
            Self::MinNewTokens(least, ends) if tokens.len() < written.given + least => {
                rule_out(logits, ends);
            }
            Self::ForcedBos(token) if tokens.len() == 1 => force(logits, &[*token]),
            Self::ForcedEos(length, ends) if tokens.len() + 1 == *length => force(logits, ends),
            Self::RemoveInvalid => logits.iter_mut().for_each(make_number),
            Self::ExponentialDecay { start, factor, ends } => {
                let beyond = tokens.len().saturating_sub(written.given + start);
                raise(logits, ends, factor.powf(beyond as f64) - 1.0, scratch);
            }
            Self::Suppress(list) => rule_out(logits, list),
            Self::SuppressFirst(list, forced)
                if tokens.len() == written.given + usize::from(*forced && written.given <= 1) =>
            {
                rule_out(logits, list);
            }
            Self::Temperature(temperature) => {
                logits.iter_mut().for_each(|logit| *logit /= temperature);
            }
            Self::TopK(count) => top_k(logits, *count, scratch),
            Self::TopP(share) => top_p(logits, *share),
            Self::MinP(share) => min_p(logits, *share),
            Self::TypicalP(mass) => typical_p(logits, *mass, scratch),
            Self::EpsilonCutoff(bound) => cut_off(logits, *bound),
            Self::EtaCutoff(epsilon) => {
                let bound = epsilon.min(epsilon.sqrt() * (-entropy(&softmax(logits))).exp());
                cut_off(logits, bound);
            }
            Self::Xtc { probability, threshold } => {
                if written.chance <= *probability {
                    xtc(logits, *threshold);
                }
            }
            Self::Mirostat1 => {
                let count = mirostat_1(logits, written.surprise, scratch);
                top_k(logits, count, scratch);
            }
            Self::Mirostat2 => mirostat_2(logits, written.surprise),
            // What does not hold at this length.
            Self::MinLength(..)
            | Self::MinNewTokens(..)
            | Self::ForcedBos(_)
            | Self::ForcedEos(..)
            | Self::SuppressFirst(..) => {}
        }
    }
}

/// Returns the logit of a token, if the model has it.
pub(super) fn at(logits: &mut [f32], token: i64) -> Option<&mut f32> {
    usize::try_from(token).ok().and_then(|token| logits.get_mut(token))
}

fn rule_out(logits: &mut [f32], tokens: &[i64]) {
    tokens.iter().for_each(|token| {
        if let Some(logit) = at(logits, *token) {
            *logit = f32::NEG_INFINITY;
        }
    });
}

fn force(logits: &mut [f32], tokens: &[i64]) {
    logits.fill(f32::NEG_INFINITY);
    tokens.iter().for_each(|token| {
        if let Some(logit) = at(logits, *token) {
            *logit = 0.0;
        }
    });
}

/// Changes the logit of each distinct token once, by its number of occurrences.
fn each_counted(
    logits: &mut [f32],
    tokens: &[i64],
    scratch: &mut Scratch,
    change: impl Fn(&mut f32, u32),
) {
    let counts = &mut scratch.counts;
    counts.resize(counts.len().max(logits.len()), 0);
    let known = |token: &i64| usize::try_from(*token).ok().filter(|at| *at < logits.len());
    tokens.iter().filter_map(known).for_each(|at| counts[at] += 1);
    for token in tokens {
        let position = usize::try_from(*token).ok().filter(|at| *at < logits.len());
        if let Some((at, count)) = position.map(|at| (at, std::mem::take(&mut counts[at])))
            && count > 0
        {
            change(&mut logits[at], count);
        }
    }
}

fn penalize(logits: &mut [f32], tokens: &[i64], penalty: f32, scratch: &mut Scratch) {
    each_counted(logits, tokens, scratch, |logit, _| {
        *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
    });
}

fn add_to_each(logits: &mut [f32], biases: &[(TokenName, f32)]) {
    for (token, bias) in biases {
        if let TokenName::Id(id) = token
            && let Some(logit) = at(logits, *id)
        {
            *logit += bias;
        }
    }
}

fn add_biases(logits: &mut [f32], tokens: &[i64], biases: &[(Vec<i64>, f32)]) {
    for (sequence, bias) in biases {
        if let Some((last, before)) = sequence.split_last()
            && tokens.ends_with(before)
            && let Some(logit) = at(logits, *last)
        {
            *logit += bias;
        }
    }
}

/// Rules out every token that would end a sequence of `size` tokens that `among` has already.
fn no_repeat(logits: &mut [f32], tokens: &[i64], among: &[i64], size: usize) {
    let Some(start) = (tokens.len() + 1).checked_sub(size) else { return };
    let before = &tokens[start..];
    for window in among.windows(size) {
        if let Some(last) = window.strip_prefix(before) {
            rule_out(logits, last);
        }
    }
}

fn make_number(logit: &mut f32) {
    *logit = if logit.is_nan() { 0.0 } else { logit.clamp(f32::MIN, f32::MAX) };
}

fn raise(logits: &mut [f32], ends: &[i64], power: f64, scratch: &mut Scratch) {
    each_counted(logits, ends, scratch, |logit, _| {
        if power != 0.0 && logit.is_finite() {
            *logit = single(f64::from(*logit) + f64::from(logit.abs()) * power);
        }
    });
}

#[expect(clippy::cast_possible_truncation, reason = "logits have single precision")]
pub(super) fn single(value: f64) -> f32 {
    value as f32
}

/// Returns the largest logit, or minus infinity if there are no logits.
pub(super) fn largest(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

fn top_k(logits: &mut [f32], count: usize, scratch: &mut Scratch) {
    let count = count.max(1);
    if count >= logits.len() {
        return;
    }
    // The largest so far: few of a vocabulary are among them.
    let kept = &mut scratch.kept;
    kept.clear();
    let mut least = f32::NEG_INFINITY;
    let shrink = |kept: &mut Vec<f32>| {
        kept.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        kept.truncate(count);
        kept[count - 1]
    };
    for &logit in &*logits {
        if logit > least {
            kept.push(logit);
            if kept.len() == 2 * count {
                least = shrink(kept);
            }
        }
    }
    if kept.len() > count {
        least = shrink(kept);
    }
    // Equal ones stay together.
    keep(logits, |logit, _| logit >= least);
}

/// Distances from the largest logit within which [`top_p`] searches for the logits to keep.
const DISTANCES: [f32; 3] = [8.0, 24.0, f32::INFINITY];

fn top_p(logits: &mut [f32], share: f64) {
    let largest = largest(logits);
    let weight = |logit: &f32| f64::from(logit - largest).exp();
    let total: f64 = logits.iter().filter(|logit| is_allowed(**logit)).map(weight).sum();
    for distance in DISTANCES {
        let is_near = |logit: f32| is_allowed(logit) && largest - logit <= distance;
        let far = logits.iter().filter(|logit| is_allowed(**logit) && !is_near(**logit));
        let mut sum = far.map(weight).sum::<f64>() / total;
        // What is further away goes together, where that is little enough.
        if sum > 1.0 - share {
            continue;
        }
        let mut near: Vec<usize> = (0..logits.len()).filter(|at| is_near(logits[*at])).collect();
        near.sort_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        keep(logits, |logit, _| is_near(logit));
        let Some((_, others)) = near.split_last() else { return };
        for &at in others {
            sum += weight(&logits[at]) / total;
            if sum > 1.0 - share {
                break;
            }
            logits[at] = f32::NEG_INFINITY;
        }
        return;
    }
}

/// Returns `true` if a token with this logit is possible.
pub(super) fn is_allowed(logit: f32) -> bool {
    logit > f32::NEG_INFINITY
}

fn min_p(logits: &mut [f32], share: f64) {
    // The largest probability is that of weight 1, of which both are shares.
    let largest = largest(logits);
    keep(logits, |logit, _| f64::from(logit - largest).exp() >= share);
}

fn cut_off(logits: &mut [f32], bound: f64) {
    let (shares, largest) = (softmax(logits), largest(logits));
    keep(logits, |logit, at| shares[at] >= bound || logit >= largest);
}

/// The entropy of probabilities, in nats.
pub(super) fn entropy(shares: &[f64]) -> f64 {
    -shares.iter().filter(|share| **share > 0.0).map(|share| share * share.ln()).sum::<f64>()
}

pub(super) fn keep(logits: &mut [f32], stays: impl Fn(f32, usize) -> bool) {
    for (at, logit) in logits.iter_mut().enumerate() {
        if !stays(*logit, at) {
            *logit = f32::NEG_INFINITY;
        }
    }
}
