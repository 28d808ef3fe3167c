//! Beam search: several texts grow side by side, and the likeliest of those that end is the answer.
//!
//! What ends a search, and how lengths are weighed, is transformers' `generate` with `num_beams`.

use std::cmp::Ordering;

use apr_registry::Error;
use serde::Serialize;

use crate::error::RunResult;
use crate::generation::{Beams, EarlyStopping, TokenLogProbabilities};
use crate::next::{Branches, Fork, Next};

/// A text that a beam search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Hypothesis {
    /// Tokens that were generated, without one that ends the text.
    pub added: Vec<i64>,
    /// Text of the tokens; `None` if the answer is written as tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Sum of the log probabilities, including the end, divided by the number of tokens to the
    /// power of the length penalty.
    pub score: f64,
    /// Reason why the text ended, with the values of a completion's reason.
    pub ended: &'static str,
    /// Mean of the log probabilities, including the end.
    #[serde(skip)]
    pub(crate) mean: f64,
    #[serde(skip)]
    pub(crate) logprobs: Vec<TokenLogProbabilities>,
}

/// Function that describes a token by the model's logits.
type Describe<'s> = dyn Fn(&[f32], i64) -> TokenLogProbabilities + 's;

/// Function that changes the log probabilities of the tokens that may follow generated tokens.
type Process<'s> = dyn Fn(&mut [f32], &[i64]) -> RunResult<()> + 's;

/// Settings of a search, besides the model.
pub(crate) struct BeamSearch<'s> {
    pub(crate) beams: Beams,
    /// Tokens that end a text.
    pub(crate) ends: &'s [i64],
    /// Maximum number of tokens of a text, and the reason for its end at that length.
    pub(crate) limit: (usize, &'static str),
    /// Function that changes the log probabilities of the tokens that may follow generated tokens.
    pub(crate) process: &'s Process<'s>,
    /// Function that returns the reason why a text ends after these generated tokens. The last of
    /// them does not end a text by itself.
    pub(crate) stops: &'s dyn Fn(&[i64]) -> RunResult<Option<&'static str>>,
    /// Function that describes a token by the model's logits, if descriptions are requested.
    pub(crate) describes: Option<&'s Describe<'s>>,
    /// Function that returns `true` to stop the search, whatever it has found.
    pub(crate) is_cancelled: &'s dyn Fn() -> bool,
}

/// A text that still grows.
#[derive(Clone)]
struct Beam {
    added: Vec<i64>,
    /// Sum of the log probabilities.
    sum: f64,
    logprobs: Vec<TokenLogProbabilities>,
}

/// A token that may follow a beam.
#[derive(Clone, Copy)]
struct Candidate {
    /// Number of the beam.
    beam: usize,
    token: i64,
    sum: f64,
    /// Reason why the text ends with the token.
    ended: Option<&'static str>,
}

impl BeamSearch<'_> {
    /// The texts behind a prompt, the best first, as many as there are beams at most; `step` is
    /// called when logits are there.
    ///
    /// # Errors
    /// E001 where no logit is a number or the settings leave no token; those of the model.
    pub(crate) fn run<M: Next + Fork>(
        &self,
        mut model: M,
        prompt: &[i64],
        step: &mut dyn FnMut(),
    ) -> RunResult<Vec<Hypothesis>> {
        let mut logits = vec![model.next(prompt)?];
        let mut branches = model.fork()?;
        drop(model);
        let mut running = vec![Beam { added: Vec::new(), sum: 0.0, logprobs: Vec::new() }];
        let mut finished: Vec<Hypothesis> = Vec::new();
        let mut length = 0;
        loop {
            step();
            length += 1;
            let candidates = self.candidates(&running, &logits, length)?;
            self.finish(&mut finished, &running, &logits, &candidates, length);
            let next = candidates.iter().filter(|candidate| candidate.ended.is_none());
            let next: Vec<Candidate> = next.take(self.beams.count).copied().collect();
            running = next.iter().map(|one| self.with(&running[one.beam], &logits, *one)).collect();
            if running.is_empty() || !self.can_improve(&finished, running[0].sum, length) {
                return Ok(finished);
            }
            if (self.is_cancelled)() {
                let cut = running.into_iter().map(|beam| {
                    self.hypothesis(beam.added, beam.sum, length, "interrupted", beam.logprobs)
                });
                finished.extend(cut);
                self.rank(&mut finished);
                return Ok(finished);
            }
            branches.select(&next.iter().map(|one| one.beam).collect::<Vec<_>>())?;
            logits = branches.next(&next.iter().map(|one| one.token).collect::<Vec<_>>())?;
        }
    }

    /// The likeliest tokens behind all beams, enough of them that a beam's worth does not end.
    fn candidates(
        &self,
        running: &[Beam],
        logits: &[Vec<f32>],
        length: usize,
    ) -> RunResult<Vec<Candidate>> {
        let kept = (1 + self.ends.len()).max(2) * self.beams.count;
        let mut all = Vec::new();
        for (number, (beam, logits)) in running.iter().zip(logits).enumerate() {
            let mut logs = log_softmax(logits)?;
            (self.process)(&mut logs, &beam.added)?;
            all.extend(likeliest(&logs, kept).into_iter().map(|(token, log)| Candidate {
                beam: number,
                token,
                sum: beam.sum + f64::from(log),
                ended: None,
            }));
        }
        if all.is_empty() {
            let message = "the settings for generation rule out every token";
            return Err(Error::format(message).into());
        }
        all.sort_by(|a, b| descending(a.sum, b.sum));
        all.truncate(kept);
        let (limit, reason) = self.limit;
        for candidate in &mut all {
            candidate.ended = if self.ends.contains(&candidate.token) {
                Some("end")
            } else {
                let added = with(&running[candidate.beam].added, candidate.token);
                (self.stops)(&added)?.or((length >= limit).then_some(reason))
            };
        }
        Ok(all)
    }

    /// Adds the texts that end now. Only what is among the best, as many as there are beams,
    /// counts: the other candidates are there to go on with.
    fn finish(
        &self,
        finished: &mut Vec<Hypothesis>,
        running: &[Beam],
        logits: &[Vec<f32>],
        candidates: &[Candidate],
        length: usize,
    ) {
        for candidate in candidates.iter().take(self.beams.count) {
            let Some(ended) = candidate.ended else { continue };
            let beam = &running[candidate.beam];
            let (mut added, mut logprobs) = (beam.added.clone(), beam.logprobs.clone());
            if ended != "end" {
                added.push(candidate.token);
                logprobs.extend(self.described(&logits[candidate.beam], candidate.token));
            }
            finished.push(self.hypothesis(added, candidate.sum, length, ended, logprobs));
        }
        self.rank(finished);
    }

    /// Keeps the best, as many as there are beams.
    fn rank(&self, finished: &mut Vec<Hypothesis>) {
        finished.sort_by(|a, b| descending(a.score, b.score));
        finished.truncate(self.beams.count);
    }

    fn hypothesis(
        &self,
        added: Vec<i64>,
        sum: f64,
        length: usize,
        ended: &'static str,
        logprobs: Vec<TokenLogProbabilities>,
    ) -> Hypothesis {
        let (score, mean) = (self.score(sum, length), sum / length as f64);
        Hypothesis { added, text: None, score, ended, mean, logprobs }
    }

    /// A beam with one more token.
    fn with(&self, beam: &Beam, logits: &[Vec<f32>], next: Candidate) -> Beam {
        let mut beam = Beam { sum: next.sum, ..beam.clone() };
        beam.added.push(next.token);
        beam.logprobs.extend(self.described(&logits[next.beam], next.token));
        beam
    }

    fn described(&self, logits: &[f32], token: i64) -> Option<TokenLogProbabilities> {
        self.describes.map(|describes| describes(logits, token))
    }

    fn score(&self, sum: f64, length: usize) -> f64 {
        sum / (length as f64).powf(self.beams.length_penalty)
    }

    /// Returns `true` if a growing text can still become better than the worst finished one.
    fn can_improve(&self, finished: &[Hypothesis], best: f64, length: usize) -> bool {
        if finished.len() < self.beams.count {
            return true;
        }
        let length = match self.beams.early_stopping {
            EarlyStopping::Full => return false,
            // A longer text may have a better score.
            EarlyStopping::Never if self.beams.length_penalty > 0.0 => self.limit.0,
            EarlyStopping::Never | EarlyStopping::Likely => length,
        };
        finished.last().is_none_or(|worst| self.score(best, length) > worst.score)
    }
}

fn with(added: &[i64], token: i64) -> Vec<i64> {
    added.iter().copied().chain([token]).collect()
}

fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

/// The logarithms of the probabilities of all tokens.
pub(crate) fn log_softmax(logits: &[f32]) -> RunResult<Vec<f32>> {
    let numbers = || logits.iter().copied().filter(|logit| !logit.is_nan());
    let highest = numbers().fold(f32::NEG_INFINITY, f32::max);
    if highest == f32::NEG_INFINITY {
        return Err(Error::format("all logits are NaN").into());
    }
    let sum: f64 = numbers().map(|logit| f64::from(logit - highest).exp()).sum();
    #[expect(clippy::cast_possible_truncation, reason = "logits have single precision")]
    let shift = sum.ln() as f32;
    Ok(logits.iter().map(|logit| logit - highest - shift).collect())
}

/// Returns the `count` tokens with the highest values, the highest first, without tokens that are
/// ruled out.
fn likeliest(values: &[f32], count: usize) -> Vec<(i64, f32)> {
    let possible = |(token, value): (usize, &f32)| {
        (*value > f32::NEG_INFINITY).then_some((i64::try_from(token).ok()?, *value))
    };
    let mut all: Vec<(i64, f32)> = values.iter().enumerate().filter_map(possible).collect();
    let order = |a: &(i64, f32), b: &(i64, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if all.len() > count {
        all.select_nth_unstable_by(count, order);
        all.truncate(count);
    }
    all.sort_unstable_by(order);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits by the tokens so far.
    #[derive(Clone)]
    struct Table(Vec<i64>);

    /// A model of three tokens, of which 2 ends a text.
    impl Next for Table {
        fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<f32>> {
            self.0.extend(tokens);
            let shares: [f32; 3] = match self.0[1..] {
                // The likeliest first token leads nowhere.
                [] => [0.6, 0.4, 0.0],
                [0] => [0.4, 0.3, 0.3],
                [1] => [0.05, 0.05, 0.9],
                _ => [0.1, 0.1, 0.8],
            };
            Ok(shares.map(f32::ln).to_vec())
        }
    }

    impl Fork for Table {
        type Branches = Vec<Self>;

        fn fork(&self) -> RunResult<Vec<Self>> {
            Ok(vec![self.clone()])
        }
    }

    impl Branches for Vec<Table> {
        fn next(&mut self, tokens: &[i64]) -> RunResult<Vec<Vec<f32>>> {
            self.iter_mut().zip(tokens).map(|(text, token)| text.next(&[*token])).collect()
        }

        fn select(&mut self, texts: &[usize]) -> RunResult<()> {
            *self = texts.iter().map(|text| self[*text].clone()).collect();
            Ok(())
        }
    }

    fn search(beams: Beams, limit: usize) -> Vec<Hypothesis> {
        let search = BeamSearch {
            beams,
            ends: &[2],
            limit: (limit, "max_tokens"),
            process: &|_, _| Ok(()),
            stops: &|_| Ok(None),
            describes: None,
            is_cancelled: &|| false,
        };
        search.run(Table(Vec::new()), &[9], &mut || {}).expect("a search")
    }

    #[test]
    fn the_likeliest_text_need_not_begin_with_the_likeliest_token() {
        let one = search(Beams { count: 1, ..Beams::default() }, 5);
        assert_eq!((&one[0].added[..], one[0].ended), (&[0, 0][..], "end"));
        let found = search(Beams { count: 2, ..Beams::default() }, 5);
        assert_eq!((&found[0].added[..], found[0].ended), (&[1][..], "end"));
        let expected = (0.4_f64 * 0.9).ln() / 2.0;
        assert!((found[0].score - expected).abs() < 1e-6, "{}", found[0].score);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_full_search_ends_with_its_limit() {
        let found = search(Beams { count: 2, ..Beams::default() }, 1);
        let texts: Vec<_> = found.iter().map(|one| (&one.added[..], one.ended)).collect();
        assert_eq!(texts, [(&[0][..], "max_tokens"), (&[1][..], "max_tokens")]);
    }

    #[test]
    fn tokens_that_are_ruled_out_are_not_candidates() {
        assert_eq!(
            likeliest(&[1.0, f32::NEG_INFINITY, 2.0, f32::NAN, 2.0], 9),
            [(2, 2.0), (4, 2.0), (0, 1.0)]
        );
        assert_eq!(likeliest(&[1.0, 3.0, 2.0], 2), [(1, 3.0), (2, 2.0)]);
        assert!(log_softmax(&[f32::NAN]).is_err());
    }
}
