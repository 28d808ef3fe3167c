//! What the model computes on an input that is made for it.

use apr_core::Code;
use apr_graph::Meaning;
use apr_quality::{Sample, Subject, built_in};
use apr_run::{InputKind, RunError, Runner, Transcriber, with_runner};
use apr_trace::{Anomaly, AnomalyKind, AnomalyReport, Payload, Trace, TraceOptions, anomalies};

use crate::bench::Bench;
use crate::judgement::{Judgement, absent, failed};

/// Tokens that are generated to find repetitions.
const TOKENS: usize = 64;
/// The built-in sample that is noise.
const NOISE: usize = 3;
/// Pixels of an image's side where the model takes any.
const SIDE: u32 = 64;
/// Samples of a second of sound.
const SECOND: u32 = 16_000;

/// A run of the model, step by step.
pub(crate) struct Ran {
    pub(crate) kind: InputKind,
    pub(crate) trace: Trace,
    pub(crate) found: AnomalyReport,
    /// Whether it writes down what is said.
    pub(crate) transcribes: bool,
    /// What is read beside a picture.
    text: Option<String>,
    size: (u32, u32),
}

/// Why a model did not run.
pub(crate) struct NotRun {
    /// Whether something is wrong with it.
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
    /// What becomes of a point about what the model computes.
    pub(crate) fn judgement(&self) -> Judgement {
        let text = format!("the model was not run: {}", self.why);
        if self.is_broken { failed(text) } else { absent(text) }
    }
}

/// What a model takes, and an input of that form.
struct Taken {
    payload: Payload,
    transcribes: bool,
    size: (u32, u32),
}

impl Ran {
    pub(crate) fn of(bench: &Bench<'_>) -> Result<Self, NotRun> {
        let options = bench.run_options();
        let taken = with_runner(bench.source(), bench.facts(), &options, bench.host(), |runner| {
            taken(runner).map_err(NotRun::from)
        })?;
        let trace = traced(bench, &taken.payload)?;
        let found = anomalies(&trace);
        let Taken { payload, transcribes, size } = taken;
        let kind = payload.kind();
        let text = match payload {
            Payload::Image { text, .. } => text,
            _ => None,
        };
        Ok(Self { kind, trace, found, transcribes, text, size })
    }

    /// The first anomaly of a kind.
    pub(crate) fn anomaly(&self, wanted: impl Fn(&AnomalyKind) -> bool) -> Option<&Anomaly> {
        self.found.anomalies.iter().find(|anomaly| wanted(&anomaly.kind))
    }

    /// Where values are NaN or infinite, behind which nothing is judged.
    pub(crate) fn not_finite(&self) -> Option<String> {
        let is_such = |kind: &AnomalyKind| matches!(kind, AnomalyKind::NotFinite { .. });
        let anomaly = self.anomaly(is_such)?;
        match &anomaly.kind {
            AnomalyKind::NotFinite { operator, count } => {
                Some(format!("{count} values are NaN or infinite from {operator} on"))
            }
            _ => None,
        }
    }

    /// What the model makes of noise; `None` where it takes neither sounds nor pictures.
    pub(crate) fn on_noise(&self, bench: &Bench<'_>) -> Option<Result<Trace, NotRun>> {
        let payload = match self.kind {
            InputKind::Audio => Payload::Audio {
                name: "noise".to_owned(),
                bytes: sound(|at| crate::made::scrambled(at).to_le_bytes()[0].into()),
            },
            InputKind::Image => {
                let (name, text) = ("noise".to_owned(), self.text.clone());
                Payload::Image { name, bytes: picture(self.size), text }
            }
            _ => return None,
        };
        Some(traced(bench, &payload))
    }

    /// What the model makes of silence.
    pub(crate) fn on_silence(&self, bench: &Bench<'_>) -> Result<AnomalyReport, NotRun> {
        let payload = Payload::Audio { name: "silence".to_owned(), bytes: sound(|_| 0) };
        traced(bench, &payload).map(|trace| anomalies(&trace))
    }
}

/// A trace of an input with its values.
pub(crate) fn traced(bench: &Bench<'_>, payload: &Payload) -> Result<Trace, NotRun> {
    let mut options = TraceOptions::new(bench.run_options());
    options.run.truncate = true;
    options.payload = true;
    options.max_tokens = Some(TOKENS);
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
    let is_sound = takes(&[Meaning::Mel, Meaning::Waveform]);
    let is_picture = takes(&[Meaning::Pixels]);
    // A tone is no noise, and sums are what small models know.
    let sample = samples.swap_remove(if is_sound { NOISE - 1 } else { 2 * NOISE });
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
                "it takes neither text nor sound nor pictures, and only \
                                          those are made here",
            ));
        }
    };
    let transcribes = is_sound && Transcriber::fits(runner);
    Ok(Taken { payload, transcribes, size })
}

/// A WAV file of a second.
pub(crate) fn sound(sample: impl Fn(u64) -> i16) -> Vec<u8> {
    let len = SECOND * 2;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + len).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16_u32.to_le_bytes());
    file.extend([1_u16, 1].map(u16::to_le_bytes).concat());
    file.extend([SECOND, len].map(u32::to_le_bytes).concat());
    file.extend([2_u16, 16].map(u16::to_le_bytes).concat());
    file.extend(b"data");
    file.extend(len.to_le_bytes());
    (0..u64::from(SECOND)).for_each(|at| file.extend(sample(at).to_le_bytes()));
    file
}

/// A BMP file of noise, of the size that the model takes, so that no resampling makes neighbours
/// alike.
fn picture((width, height): (u32, u32)) -> Vec<u8> {
    let row = (width * 3).next_multiple_of(4);
    let len = row * height;
    let mut file = b"BM".to_vec();
    let words = [54 + len, 0, 54, 40, width, height, 1 + (24 << 16), 0, len, 0, 0, 0, 0];
    words.iter().for_each(|word: &u32| file.extend(word.to_le_bytes()));
    file.extend((0..u64::from(len)).map(|at| crate::made::scrambled(at).to_le_bytes()[0]));
    file
}
