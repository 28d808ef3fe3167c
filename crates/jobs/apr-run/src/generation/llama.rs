//! Samplers that llama.cpp has and transformers has not: DRY, XTC and Mirostat.
//!
//! Names and arithmetic are llama.cpp's, sums in double precision where its are in single. None of
//! them sorts the vocabulary.

use super::names::Breakers;
use super::processors::{Scratch, at, is_allowed, keep, largest, last, single};

/// Tokens from which Mirostat 1 estimates how fast probabilities fall, llama.cpp's `m`.
const ESTIMATED_FROM: usize = 100;

/// The logarithm of the largest `f32`: powers of [`DryPenalty::base`] stay below it.
const LOG_OF_LARGEST: f64 = 88.722_839_1;

/// DRY ("don't repeat yourself") penalty for tokens that would continue a repetition.
///
/// It lowers the logit of such a token by an amount that depends on the length of the repetition.
#[derive(Debug, Clone, PartialEq)]
pub struct DryPenalty {
    /// Amount subtracted after a repetition of the allowed length; 0 disables the penalty.
    pub multiplier: f32,
    /// The base of the power by which more is taken off for each token beyond.
    pub base: f32,
    /// Longest repetition that is free, in tokens.
    pub allowed_length: usize,
    /// Number of last tokens that are searched; `None` for all.
    pub last_n: Option<usize>,
    /// Texts that a repetition can't cross.
    pub breakers: Breakers,
}

impl Default for DryPenalty {
    /// llama.cpp's, with a multiplier of 0.
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: None,
            breakers: Breakers::default(),
        }
    }
}

impl DryPenalty {
    /// Returns `true` if the penalty has an effect.
    pub(super) fn is_on(&self) -> bool {
        self.multiplier != 0.0 && self.base >= 1.0 && self.last_n != Some(0)
    }

    /// Returns the amount subtracted after a repetition of `length` tokens.
    fn of(&self, length: usize) -> f32 {
        let base = f64::from(self.base);
        let beyond = (length - self.allowed_length) as f64;
        let most = if base > 1.000_001 { (LOG_OF_LARGEST / base.ln()).floor() } else { 0.0 };
        let power = if most > 0.0 { beyond.min(most) } else { beyond };
        single(f64::from(self.multiplier) * base.powf(power))
    }
}

/// XTC ("exclude top choices"): at times rules out the likeliest tokens, all but the least likely
/// of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// Probability that it does so for a token; 0 for never.
    pub probability: f32,
    /// Tokens of this probability and more are the likeliest; above 0.5 there are never two.
    pub threshold: f32,
}

impl Default for Xtc {
    /// llama.cpp's, with a probability of 0.
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

impl Xtc {
    /// Returns `true` if the sampler has an effect.
    pub(super) fn is_on(&self) -> bool {
        self.probability > 0.0 && self.threshold <= 0.5
    }
}

/// Mirostat (Basu et al. 2020): keeps the surprise of a text near a target. It takes the place of
/// the samplers that leave out unlikely tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// 1, or 2 for the simpler second version.
    pub version: u8,
    /// The target, in bits.
    pub tau: f32,
    /// Rate at which the target is approached.
    pub eta: f32,
}

impl Default for Mirostat {
    /// llama.cpp's, of version 2.
    fn default() -> Self {
        Self { version: 2, tau: 5.0, eta: 0.1 }
    }
}

impl Mirostat {
    /// The surprise to cut off at first.
    pub(super) fn first(self) -> f64 {
        2.0 * f64::from(self.tau)
    }

    /// The surprise to cut off at next, behind a token of these logits.
    pub(super) fn next(self, surprise: f64, logits: &[f32], token: usize) -> f64 {
        let largest = largest(logits);
        let logit = logits.get(token).copied().unwrap_or(f32::NEG_INFINITY);
        let observed = (sum_of_weights(logits, largest).ln() - f64::from(logit - largest))
            / std::f64::consts::LN_2;
        surprise - f64::from(self.eta) * (observed - f64::from(self.tau))
    }
}

/// Returns the sum of the weights of all tokens.
///
/// Weights are proportional to the probabilities. The weight of the largest logit is 1.
fn sum_of_weights(logits: &[f32], largest: f32) -> f64 {
    let allowed = logits.iter().filter(|logit| is_allowed(**logit));
    allowed.map(|logit| f64::from(logit - largest).exp()).sum()
}

pub(super) fn xtc(logits: &mut [f32], threshold: f64) {
    let largest = largest(logits);
    let bound = (threshold * sum_of_weights(logits, largest)).ln();
    let is_likely = |logit: f32| is_allowed(logit) && f64::from(logit - largest) >= bound;
    let likely = (0..logits.len()).filter(|at| is_likely(logits[*at]));
    let (count, least) = likely.fold((0, None), |(count, least), at| match least {
        Some(least) if logits[least] < logits[at] => (count + 1, Some(least)),
        _ => (count + 1, Some(at)),
    });
    if count > 1 {
        keep(logits, |logit, at| !is_likely(logit) || Some(at) == least);
    }
}

/// Returns the number of likeliest tokens that Mirostat 1 keeps.
///
/// It assumes that the probabilities follow Zipf's law.
pub(super) fn mirostat_1(logits: &[f32], surprise: f64, scratch: &mut Scratch) -> usize {
    let order = &mut scratch.order;
    order.clear();
    order.extend((0..logits.len()).filter(|at| is_allowed(logits[*at])));
    let falling = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]);
    if order.len() > ESTIMATED_FROM {
        order.select_nth_unstable_by(ESTIMATED_FROM - 1, falling);
        order.truncate(ESTIMATED_FROM);
    }
    order.sort_unstable_by(falling);

    let (mut products, mut squares) = (0.0, 0.0);
    for (rank, pair) in order.windows(2).enumerate() {
        let rank = rank as f64;
        let ratio = ((rank + 2.0) / (rank + 1.0)).ln();
        products += ratio * f64::from(logits[pair[0]] - logits[pair[1]]);
        squares += ratio * ratio;
    }
    let exponent = products / squares;
    let beyond = exponent - 1.0;
    let all = logits.len() as f64;
    let kept = (beyond * surprise.exp2() / (1.0 - all.powf(-beyond))).powf(1.0 / exponent);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is no number becomes 0, and what is too large the largest"
    )]
    let kept = kept as usize;
    kept.max(1)
}

pub(super) fn mirostat_2(logits: &mut [f32], surprise: f64) {
    let largest = largest(logits);
    let bound = sum_of_weights(logits, largest).ln() - surprise * std::f64::consts::LN_2;
    keep(logits, |logit, _| f64::from(logit - largest) >= bound || logit >= largest);
}

pub(super) fn dry(logits: &mut [f32], tokens: &[i64], dry: &DryPenalty, scratch: &mut Scratch) {
    let tokens = dry.last_n.map_or(tokens, |count| last(tokens, count));
    if tokens.len() <= dry.allowed_length {
        return;
    }
    let longest = dry.breakers.distance_from_end(tokens).unwrap_or(tokens.len());
    if longest < dry.allowed_length {
        return;
    }

    let Scratch { repeats, counts, .. } = scratch;
    common_ends(tokens, repeats);
    counts.resize(counts.len().max(logits.len()), 0);
    // What stood behind a repetition would go on with it: of each token, one more than the length
    // of the longest.
    let next = |distance: usize| {
        let token = tokens[tokens.len() - distance];
        usize::try_from(token).ok().filter(|at| *at < logits.len())
    };
    for (distance, length) in repeats.iter().enumerate().skip(1) {
        let length = (*length).min(longest);
        if length >= dry.allowed_length
            && let Some(at) = next(distance)
        {
            counts[at] = counts[at].max(u32::try_from(length + 1).unwrap_or(u32::MAX));
        }
    }
    for &token in tokens {
        let Some(logit) = at(logits, token) else { continue };
        let at = usize::try_from(token).unwrap_or(usize::MAX);
        let length = std::mem::take(&mut counts[at]);
        if length > 0 && !dry.breakers.has_alone(token) {
            *logit -= dry.of(length as usize - 1);
        }
    }
}

/// Computes, for each distance from the end, the number of tokens before it that equal the last
/// ones.
///
/// It applies the Z-algorithm from the end.
fn common_ends(tokens: &[i64], lengths: &mut Vec<usize>) {
    let back = |at: usize| tokens[tokens.len() - 1 - at];
    let count = tokens.len();
    lengths.clear();
    lengths.resize(count, 0);
    // The match that reaches furthest: where it begins, and what is behind it.
    let (mut begin, mut end) = (0, 0);
    for at in 1..count {
        let mut length = 0;
        if at < end {
            length = lengths[at - begin].min(end - at);
        }
        while at + length < count && back(length) == back(at + length) {
            length += 1;
        }
        if at + length > end {
            (begin, end) = (at, at + length);
        }
        lengths[at] = length;
    }
}
