//! What the model computes on an input that is made for it.

use apr_core::{Code, counted};
use apr_graph::Meaning;
use apr_quality::{Sample, Subject, bmp, built_in, wav};
use apr_run::{InputKind, RunError, Runner, Transcriber, with_runner};
use apr_trace::{Anomaly, AnomalyKind, AnomalyReport, Payload, Trace, TraceOptions, anomalies};

use crate::bench::Bench;
use crate::judgement::{Judgement, absent, failed};
use crate::made::scrambled;

/// Tokens that are generated to find repetitions.
const TOKENS: usize = 64;
/// The built-in sample that is noise.
const NOISE: usize = 3;
/// Side of an image in pixels, for models that accept any size.
const SIDE: u32 = 64;
/// Samples of a second of sound.
const SECOND: u32 = 16_000;

/// A run of the model, step by step.
pub(crate) struct Ran {
    pub(crate) kind: InputKind,
    pub(crate) trace: Trace,
    pub(crate) found: AnomalyReport,
    /// `true` if the model transcribes audio.
    pub(crate) transcribes: bool,
    /// Text input next to an image.
    text: Option<String>,
    size: (u32, u32),
    /// Longer input, if the model reads text.
    long: Option<Payload>,
}

/// Reason why a model did not run.
pub(crate) struct NotRun {
    /// `true` if the model is damaged.
    is_broken: bool,
    why: String,
}

impl From<RunError> for NotRun {
    fn from(error: RunError) -> Self {
        let is_broken = match &error {
            RunError::Model(error) => matches!(error.code(), Code::Corrupt | Code::Checksum),
            _ => false,
        };
        Self { is_broken, why: error.to_string() }
    }
}

impl From<apr_core::Error> for NotRun {
    fn from(error: apr_core::Error) -> Self {
        RunError::from(error).into()
    }
}

impl NotRun {
    /// Returns the judgement for points about the model's computations.
    pub(crate) fn judgement(&self) -> Judgement {
        let text = format!("the model was not run: {}", self.why);
        if self.is_broken { failed(text) } else { absent(text) }
    }
}

/// Input form of a model, and an input of this form.
struct Taken {
    payload: Payload,
    transcribes: bool,
    size: (u32, u32),
    long: Option<Payload>,
}

impl Ran {
    pub(crate) fn of(bench: &Bench<'_>) -> Result<Self, NotRun> {
        let options = bench.run_options();
        let taken = with_runner(bench.source(), bench.facts(), &options, bench.host(), |runner| {
            taken(runner).map_err(NotRun::from)
        })?;
        let trace = traced(bench, &taken.payload, TOKENS)?;
        let found = anomalies(&trace);
        let Taken { payload, transcribes, size, long } = taken;
        let kind = payload.kind();
        let text = match payload {
            Payload::Image { text, .. } => text,
            _ => None,
        };
        Ok(Self { kind, trace, found, transcribes, text, size, long })
    }

    /// The first anomaly of a kind.
    pub(crate) fn anomaly(&self, wanted: impl Fn(&AnomalyKind) -> bool) -> Option<&Anomaly> {
        self.found.anomalies.iter().find(|anomaly| wanted(&anomaly.kind))
    }

    /// Returns the place of the first NaN or infinite value. Values after it are not judged.
    pub(crate) fn not_finite(&self) -> Option<String> {
        let is_such = |kind: &AnomalyKind| matches!(kind, AnomalyKind::NotFinite { .. });
        let anomaly = self.anomaly(is_such)?;
        match &anomaly.kind {
            AnomalyKind::NotFinite { operator, count } => {
                Some(format!("{} NaN or infinite from {operator} on", counted(*count, "value")))
            }
            _ => None,
        }
    }

    /// Runs the model on noise. Returns `None` if it does not accept audio or images.
    pub(crate) fn on_noise(&self, bench: &Bench<'_>) -> Option<Result<Trace, NotRun>> {
        let name = "noise".to_owned();
        let payload = match self.kind {
            InputKind::Audio => Payload::Audio { name, bytes: sound(noise) },
            InputKind::Image => match picture(self.size, bench.subject.max_memory) {
                Ok(bytes) => Payload::Image { name, bytes, text: self.text.clone() },
                Err(not_run) => return Some(Err(not_run)),
            },
            _ => return None,
        };
        Some(traced(bench, &payload, TOKENS))
    }

    /// Runs the model on silence.
    pub(crate) fn on_silence(&self, bench: &Bench<'_>) -> Result<Trace, NotRun> {
        let payload = Payload::Audio { name: "silence".to_owned(), bytes: sound(|_| 0) };
        traced(bench, &payload, TOKENS)
    }

    /// Runs the model on an input of many positions, without generating tokens.
    ///
    /// Returns `None` if the first run already has the maximum number of positions.
    pub(crate) fn on_many(&self, bench: &Bench<'_>) -> Option<Result<Trace, NotRun>> {
        Some(traced(bench, self.long.as_ref()?, 0))
    }
}

/// A trace of an input with its values.
fn traced(bench: &Bench<'_>, payload: &Payload, tokens: usize) -> Result<Trace, NotRun> {
    let mut options = TraceOptions::new(bench.run_options());
    options.run.truncate = true;
    options.payload = true;
    options.max_tokens = Some(tokens);
    let subject = apr_trace::Subject { source: bench.source(), facts: bench.facts() };
    Ok(apr_trace::trace(subject, payload, &options, bench.host(), None)?)
}

/// An input that fits a model: sound before pictures, and those before text, since models that
/// write about either take text as well.
fn taken(runner: &Runner<'_>) -> Result<Taken, RunError> {
    let mut meanings = Vec::new();
    let mut size = (SIDE, SIDE);
    for part in runner.parts() {
        let body = &part.graph.body;
        for value in body.inputs.iter().map(|id| body.value(*id)) {
            meanings.push(value.meaning);
            if value.meaning == Meaning::Pixels {
                let dims = value.shape().unwrap_or_default();
                let side = |at: usize| u32::try_from(dims.get(at)?.size()?).ok();
                size = (side(3).unwrap_or(SIDE), side(2).unwrap_or(SIDE));
            }
        }
    }

    let takes = |what: &[Meaning]| meanings.iter().any(|meaning| what.contains(meaning));
    let subject = Subject::of(runner)?;
    let has_tokenizer = subject.tokenizer().is_some();
    let mut samples = built_in(runner);
    let texts: Vec<&str> = samples.iter().filter_map(|sample| sample.text.as_deref()).collect();
    let texts = texts.join(" ");
    let many: Vec<i64> = samples.iter().flat_map(|sample| &sample.tokens).copied().collect();
    let is_sound = takes(&[Meaning::Mel, Meaning::Waveform]);
    let is_picture = takes(&[Meaning::Pixels]);
    // A tone is no noise, and sums are what small models know.
    let wanted = if is_sound { NOISE - 1 } else { 2 * NOISE };
    // A model without inputs has one.
    let sample = samples.swap_remove(wanted.min(samples.len().saturating_sub(1)));
    let Sample { name, text, tokens, audio, image, .. } = sample;
    let payload = match (is_sound, is_picture, audio, image, text) {
        (true, _, Some(bytes), ..) => Payload::Audio { name, bytes },
        (_, true, _, Some(bytes), text) => {
            Payload::Image { name, bytes, text: text.filter(|_| has_tokenizer) }
        }
        (.., Some(prompt)) if has_tokenizer => Payload::Text { prompt, chat: None, context: None },
        _ if takes(&[Meaning::TokenIds]) => Payload::Tokens(tokens),
        _ => {
            return Err(RunError::request(
                "it takes neither text nor audio nor images, and no other inputs are built in",
            ));
        }
    };
    let transcribes = is_sound && Transcriber::fits(runner);
    let long = match &payload {
        Payload::Text { .. } => Some(Payload::Text { prompt: texts, chat: None, context: None }),
        Payload::Tokens(_) => Some(Payload::Tokens(many)),
        _ => None,
    };
    Ok(Taken { payload, transcribes, size, long })
}

/// A WAV file of a second.
pub(crate) fn sound(sample: impl Fn(u64) -> i16) -> Vec<u8> {
    let samples: Vec<i16> = (0..u64::from(SECOND)).map(sample).collect();
    wav(SECOND, &samples)
}

/// A sample of white noise, over the full range.
fn noise(at: u64) -> i16 {
    let [low, high, ..] = scrambled(at).to_le_bytes();
    i16::from_le_bytes([low, high])
}

/// A BMP file of noise, of the size that the model takes, so that no resampling makes neighbours
/// alike. The size comes from the model's file.
fn picture((width, height): (u32, u32), max_memory: u64) -> Result<Vec<u8>, NotRun> {
    let bytes = u64::from(width).saturating_mul(u64::from(height)).saturating_mul(3);
    let mut at = 0;
    let mut pixel = |_, _| {
        at += 1;
        let [red, green, blue, ..] = scrambled(at).to_le_bytes();
        [red, green, blue]
    };
    let file = if bytes <= max_memory / 4 { bmp(width, height, &mut pixel) } else { None };
    file.ok_or_else(|| NotRun {
        is_broken: false,
        why: format!("an image of {width} x {height} pixels exceeds the memory limit"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_loud_and_adjacent_samples_are_unrelated() {
        let samples: Vec<f64> = (0..16_000).map(|at| f64::from(noise(at)) / 32_768.0).collect();
        let count = 16_000.0;
        let mean = samples.iter().sum::<f64>() / count;
        let square = samples.iter().map(|sample| sample * sample).sum::<f64>() / count;
        // Of numbers from -1 to 1 that are all alike, the root mean square is that of 1/3.
        assert!(mean.abs() < 0.02 && (square.sqrt() - 0.577).abs() < 0.02, "{mean} {square}");
        let products = samples.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>();
        assert!((products / count / square).abs() < 0.03);
    }

    #[test]
    fn a_picture_whose_size_a_file_invents_is_not_made() {
        assert_eq!(picture((4, 4), 1 << 20).map(|file| file.len()).ok(), Some(54 + 48));
        for size in [(u32::MAX, 1), (1 << 31, 1 << 31), (u32::MAX, u32::MAX), (1 << 12, 1 << 12)] {
            assert!(picture(size, 1 << 20).is_err_and(|not_run| !not_run.is_broken));
        }
    }
}
