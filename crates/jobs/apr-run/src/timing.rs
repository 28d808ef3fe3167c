//! How long the stages of a run take.

use std::time::Duration;

use serde::Serialize;

use crate::host::Host;

/// Number of processed tokens, and the time that they took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Timing {
    /// Number of tokens.
    #[serde(rename = "token_count")]
    pub tokens: usize,
    /// Wall-clock time.
    pub seconds: f64,
    /// Tokens per second; 0 if no time passed.
    pub tokens_per_second: f64,
}

impl Timing {
    pub(crate) fn new(tokens: usize, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self { tokens, seconds, tokens_per_second: rate(tokens, seconds) }
    }
}

/// Returns the number of events per second.
pub(crate) fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Duration of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Timings {
    /// The prompt, up to the logits of the first token; an encoder is part of that.
    pub prefill: Timing,
    /// The tokens after the first: each is one run of the model, and its choice.
    pub decode: Timing,
}

/// Stopwatch for a completion, if the host has a clock.
pub(crate) struct Stopwatch<'h> {
    host: &'h dyn Host,
    start: Option<Duration>,
    first: Option<Duration>,
}

impl<'h> Stopwatch<'h> {
    pub(crate) fn start(host: &'h dyn Host) -> Self {
        Self { host, start: host.elapsed(), first: None }
    }

    /// Logits are there.
    pub(crate) fn tick(&mut self) {
        if self.first.is_none() {
            self.first = self.host.elapsed();
        }
    }

    /// Returns the times for `prompt` tokens of the prompt and `runs` runs of the model.
    pub(crate) fn finish(self, prompt: usize, runs: usize) -> Option<Timings> {
        let (start, end) = (self.start?, self.host.elapsed()?);
        let first = self.first.unwrap_or(end);
        Some(Timings {
            prefill: Timing::new(prompt, first.saturating_sub(start)),
            decode: Timing::new(runs.saturating_sub(1), end.saturating_sub(first)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_tokens_by_seconds() {
        let timing = Timing::new(6, Duration::from_millis(1500));
        assert_eq!((timing.seconds, timing.tokens_per_second), (1.5, 4.0));
        assert_eq!(Timing::new(6, Duration::ZERO).tokens_per_second, 0.0);
    }
}
