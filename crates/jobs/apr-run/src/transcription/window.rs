//! The text of a window: by the likeliest tokens, by beams, or by a temperature that rises until
//! the text is no failure (Radford et al. 2022, section 4.5).

use apr_infer::Value;

use super::{Transcriber, TranscriptionOptions};
use crate::beam_search::{BeamSearch, log_softmax};
use crate::encoder_decoder::Decoder;
use crate::error::RunResult;
use crate::facts::Facts;
use crate::generation::{Generation, GenerationOptions};
use crate::tokens::Tokenizer;

/// Temperatures to try after the likeliest tokens.
const TEMPERATURES: [f32; 5] = [0.2, 0.4, 0.6, 0.8, 1.0];
/// A text that compresses better repeats itself.
const MOST_COMPRESSION: f64 = 2.4;
/// A text whose tokens are less likely in the mean is a failure.
const LEAST_MEAN: f64 = -1.0;
/// Probability of silence above which a window with such a text has no speech.
const MOST_SILENCE: f64 = 0.6;
/// zlib's usual level.
const LEVEL: u8 = 6;

/// Text that was written for a window.
pub(super) struct WindowText {
    /// Tokens with timestamps, without those that begin and end a text.
    pub(super) tokens: Vec<i64>,
    /// Mean log probability of a token, including the end.
    pub(super) mean: f64,
    /// Bytes of the text divided by the bytes of its compressed form.
    pub(super) compression_ratio: f64,
    /// Probability that the window has no speech, if the model has a token for it.
    pub(super) no_speech: Option<f64>,
    pub(super) temperature: f32,
}

impl WindowText {
    /// Returns `true` if the text repeats itself.
    pub(super) fn repeats(&self) -> bool {
        self.compression_ratio > MOST_COMPRESSION
    }

    /// Returns `true` if the window has no speech.
    pub(super) fn is_silence(&self) -> bool {
        self.no_speech.is_some_and(|share| share > MOST_SILENCE) && self.mean < LEAST_MEAN
    }

    fn is_failure(&self) -> bool {
        !self.is_silence() && (self.repeats() || self.mean < LEAST_MEAN)
    }
}

/// The settings at each temperature.
pub(super) fn fallbacks(
    facts: &Facts,
    options: &TranscriptionOptions,
    tokenizer: &Tokenizer<'_>,
) -> RunResult<Vec<(f32, Generation)>> {
    let at = |temperature: f32| GenerationOptions {
        temperature: Some(temperature),
        beams: None,
        ..options.sampling.clone()
    };
    let named = |it: f32| -> RunResult<(f32, Generation)> {
        Ok((it, Generation::of(facts, &at(it)).named(Some(tokenizer))?))
    };
    TEMPERATURES.into_iter().map(named).collect()
}

/// Settings of one attempt to write a window.
struct Attempt<'a> {
    settings: &'a Generation,
    temperature: f32,
    /// The tokens that a text begins with.
    begin: &'a [i64],
    /// Tokens of the beginning that the decoder has not read.
    unread: &'a [i64],
    /// Maximum number of tokens.
    most: usize,
}

impl Transcriber<'_> {
    /// Transcribes a window with at most `left` tokens.
    pub(super) fn write(&self, states: Value, begin: &[i64], left: usize) -> RunResult<WindowText> {
        let mut decoder = self.parts.decoder(states)?;
        let mut unread = begin;
        let mut probe = decoder.clone();
        let no_speech = self.no_speech(&probe.next(&begin[..1])?)?;
        if begin.len() > 1 {
            (decoder, unread) = (probe, &begin[1..]);
        }
        let room = self.longest.saturating_sub(begin.len());
        let room = match self.options.sampling.max_tokens {
            Some(_) => room,
            None => room.min(self.settings.most(begin.len()).unwrap_or(room)),
        };
        let most = room.min(left);
        let (settings, temperature) = (&self.settings, 0.0);
        let mut attempt = Attempt { settings, temperature, begin, unread, most };
        let (mut made, mut has_ended) = self.attempt(decoder.clone(), &attempt, no_speech)?;
        for (temperature, settings) in &self.fallbacks {
            if !made.is_failure() {
                break;
            }
            attempt = Attempt { settings, temperature: *temperature, ..attempt };
            (made, has_ended) = self.attempt(decoder.clone(), &attempt, no_speech)?;
        }
        if !has_ended && room <= left {
            self.runner.warn(&format!(
                "ended: context: a window has more than {} tokens; the rest of its text is lost",
                room + begin.len()
            ));
        }
        Ok(made)
    }

    /// Probability of the token for silence, which is that before the one for no marks of time.
    fn no_speech(&self, logits: &[f32]) -> RunResult<Option<f64>> {
        let logs = log_softmax(logits)?;
        let token = self.special.no_times.and_then(|id| usize::try_from(id - 1).ok());
        Ok(token.and_then(|token| logs.get(token)).map(|log| f64::from(*log).exp()))
    }

    /// Returns the text of a window, and `true` if the text reached its end.
    fn attempt(
        &self,
        decoder: Decoder<'_>,
        attempt: &Attempt<'_>,
        no_speech: Option<f64>,
    ) -> RunResult<(WindowText, bool)> {
        let (tokens, mean, has_ended) = match attempt.settings.beams() {
            Some(_) if attempt.most > 0 => self.search(decoder, attempt)?,
            _ => self.follow(decoder, attempt)?,
        };
        let text = self.tokenizer.vocabulary().decode(&self.special.text_of(&tokens))?;
        let text = text.trim();
        let packed = miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), LEVEL);
        let compression_ratio = text.len() as f64 / packed.len() as f64;
        let temperature = attempt.temperature;
        let made = WindowText { tokens, mean, compression_ratio, no_speech, temperature };
        Ok((made, has_ended))
    }

    /// One token after the other.
    fn follow(
        &self,
        mut decoder: Decoder<'_>,
        attempt: &Attempt<'_>,
    ) -> RunResult<(Vec<i64>, f64, bool)> {
        let (mut written, mut next) = (Vec::new(), attempt.unread.to_vec());
        let mut chooser = attempt.settings.begin(attempt.begin, &[], attempt.most);
        let mut sum = 0.0;
        let mut has_ended = false;
        while written.len() < attempt.most {
            let mut logits = decoder.next(&next)?;
            chooser.process(&mut logits);
            if self.times() {
                self.special.rule_out(&mut logits, &written);
            }
            let token = chooser.choose(&logits)?;
            // Of the model's own distribution, whatever the temperature.
            if attempt.temperature > 0.0 {
                logits.iter_mut().for_each(|logit| *logit *= attempt.temperature);
            }
            let logs = log_softmax(&logits)?;
            let log = usize::try_from(token).ok().and_then(|token| logs.get(token));
            sum += log.map_or(0.0, |log| f64::from(*log));
            if attempt.settings.ends().contains(&token) {
                has_ended = true;
                break;
            }
            written.push(token);
            next = vec![token];
        }
        let mean = sum / (written.len() + usize::from(has_ended)).max(1) as f64;
        Ok((written, mean, has_ended))
    }

    /// The likeliest of the texts of all beams.
    fn search(
        &self,
        decoder: Decoder<'_>,
        attempt: &Attempt<'_>,
    ) -> RunResult<(Vec<i64>, f64, bool)> {
        let settings = attempt.settings;
        let chooser = settings.begin(attempt.begin, &[], attempt.most);
        let search = BeamSearch {
            beams: settings.beams().unwrap_or_default(),
            ends: settings.ends(),
            limit: (attempt.most, "max_tokens"),
            process: &|logits, added| {
                chooser.process_generated(logits, added);
                if self.times() {
                    self.special.rule_out(logits, added);
                }
                Ok(())
            },
            stops: &|_| Ok(None),
            describes: None,
            is_cancelled: &|| false,
        };
        let best = search.run(decoder, attempt.unread, &mut || {})?.into_iter().next();
        Ok(best
            .map_or((Vec::new(), 0.0, true), |best| (best.added, best.mean, best.ended == "end")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(mean: f64, compression_ratio: f64, no_speech: Option<f64>) -> WindowText {
        WindowText { tokens: Vec::new(), mean, compression_ratio, no_speech, temperature: 0.0 }
    }

    #[test]
    fn unlikely_and_repeated_texts_are_failures_but_silence_is_not() {
        assert!(!text(-0.4, 1.5, Some(0.1)).is_failure());
        assert!(text(-0.4, 2.5, None).is_failure());
        assert!(text(-1.2, 1.5, Some(0.1)).is_failure());
        assert!(!text(-1.2, 9.0, Some(0.9)).is_failure());
        assert!(text(-1.2, 1.5, Some(0.9)).is_silence());
        assert!(!text(-0.4, 1.5, Some(0.9)).is_silence());
    }
}
