//! Sounds that a model listens to: letters, labels, vectors, and where somebody speaks.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr::{Error, Escaped};
use apr_graph::{Body, Meaning, Origin};
use apr_infer::{Session, Tensor, Value};
use apr_inputs::sound::{Sound, decode};
use apr_io::io_error;
use apr_ops::run::{Pooling, Runnable, Spoken, collapsed, normalize, pool, spoken};
use serde::Serialize;
use serde_json::Value as Json;

use super::answers::Answers;
use super::job::{Job, meaning};
use super::output::Output;
use super::texts::{Label, labels, render_labels};
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};

/// Extensions of sound files.
pub(super) const EXTENSIONS: [&str; 8] =
    ["wav", "rf64", "aiff", "aif", "flac", "mp3", "ogg", "oga"];
/// Rate of models that do not say theirs.
const USUAL_RATE: u32 = 16_000;
/// Samples of a window of silero's models, and those before it that they see again, at 16 and at 8
/// kHz.
const WINDOWS: [(u32, usize, usize); 2] = [(16_000, 512, 64), (8_000, 256, 32)];

/// What the model made of all sounds.
#[derive(Debug, Serialize)]
struct SoundsReport {
    /// The model.
    file: String,
    /// One for each sound.
    results: Vec<Heard>,
}

#[derive(Debug, Serialize)]
struct Heard {
    sound: SoundReport,
    #[serde(flatten)]
    made: Made,
}

/// What a sound file is.
#[derive(Debug, Serialize)]
pub(super) struct SoundReport {
    pub(super) file: String,
    /// Of the file.
    rate: u32,
    /// Of the file; they are averaged.
    channels: usize,
    seconds: f64,
    /// The rate that the model gets it at.
    model_rate: u32,
}

#[derive(Debug, Serialize)]
#[serde(tag = "task", rename_all = "snake_case")]
enum Made {
    /// Letters in a row.
    Transcription { text: String },
    /// Labels of the whole sound, the likeliest first.
    Classification { labels: Vec<Label> },
    /// One vector for the sound: the mean of its frames.
    Embedding { vector: Vec<f32> },
    /// Where somebody speaks.
    SpeechDetection { spoken: Vec<Spoken>, probabilities: Vec<f32> },
}

/// A sound at the rate of a model, and what its file is.
pub(super) struct Read {
    pub(super) sound: Sound,
    pub(super) report: SoundReport,
}

/// Reads a sound file for a model that wants this rate.
pub(super) fn read(job: &Job<'_>, path: &Path, rate: u32) -> Outcome<Read> {
    let budget = job.context.max_memory();
    let named = |error: Error| error.in_file(path.display());
    let len = std::fs::metadata(path).map_err(|error| io_error(&error, path))?.len();
    let left = budget.checked_sub(len);
    let left = left.ok_or_else(|| {
        named(Error::memory(format!("the file has {len} bytes: raise --max-memory")))
    })?;
    let bytes = std::fs::read(path).map_err(|error| io_error(&error, path))?;
    let file = path.display().to_string();

    // Samples take four bytes each, and those at the model's rate as well.
    super::tokens::silence();
    let (sound, warnings) =
        decode(bytes, usize::try_from(left / 6).unwrap_or(usize::MAX)).map_err(named)?;
    let odd = sound.check().map_err(named)?;
    warnings.iter().chain(&odd).for_each(|warning| job.warn(&format!("{file}: {warning}")));
    let count = sound.samples.len() as u64;
    if 4 * (count + count.saturating_mul(rate.into()) / u64::from(sound.rate)) > budget {
        return Err(named(Error::memory(
            "at the model's rate the sound does not fit --max-memory",
        ))
        .into());
    }

    let report = SoundReport {
        file,
        rate: sound.rate,
        channels: sound.channels,
        seconds: sound.seconds(),
        model_rate: rate,
    };

    Ok(Read { sound: sound.at_rate(rate).map_err(named)?, report })
}

/// A number of the model's `audio_config`.
pub(super) fn setting(job: &Job<'_>, key: &str) -> Option<u64> {
    job.facts.get("audio_config")?.get(key)?.as_u64()
}

/// The rate that the model wants.
pub(super) fn model_rate(job: &Job<'_>) -> u32 {
    setting(job, "sample_rate").and_then(|rate| u32::try_from(rate).ok()).unwrap_or(USUAL_RATE)
}

pub(super) fn run(
    job: &Job<'_>,
    paths: &[PathBuf],
    part: &Runnable,
    session: &Session<'_>,
) -> Outcome {
    let output = Output::of(job.args, &job.context.printer)?;
    let listening = Listening { job, body: &part.graph.body, session };
    let results = paths.iter().map(|path| listening.hear(path)).collect::<Outcome<Vec<_>>>()?;
    if let Some(output) = output {
        output.write(&[("values".to_owned(), rows(&results)?)])?;
    }

    let text = |heard: &Heard| match &heard.made {
        Made::Transcription { text } => Some(text.clone()),
        _ => None,
    };
    let texts: Option<Vec<String>> = results.iter().map(text).collect();
    let report = SoundsReport { file: job.name.to_owned(), results };
    if let Some(texts) = texts {
        let mut answers = Answers::of(job);
        for text in &texts {
            answers.begin()?;
            answers.write(text)?;
            answers.end(text);
        }
        answers.finish()?;
        return job.context.printer.report(&report, |_, _| Ok(()));
    }
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|heard| {
            if paths.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped(&heard.sound.file))?;
            }
            render(out, heard)
        })
    })
}

/// What goes into the model for each sound.
pub(super) fn features(
    job: &Job<'_>,
    paths: &[PathBuf],
    body: &Body,
) -> Outcome<Vec<Vec<(String, Value)>>> {
    let inputs = |path: &PathBuf| {
        let Read { sound, .. } = read(job, path, model_rate(job))?;
        let waveform = meaning(body, &body.inputs, Meaning::Waveform);
        let (input, samples) = match waveform {
            Some(input) => (input, waveform_of(job, &sound)?),
            None if detects_speech(body) => ("input", samples_of(sound.samples)?),
            None => return Err(Failure::Usage("the model takes no sound".to_owned())),
        };
        Ok(vec![(input.to_owned(), samples.into())])
    };
    paths.iter().map(inputs).collect()
}

fn samples_of(samples: Vec<f32>) -> Outcome<Tensor> {
    Ok(Tensor::new(vec![1, samples.len()], samples)?)
}

/// Samples as the model's feature extractor makes them.
fn waveform_of(job: &Job<'_>, sound: &Sound) -> Outcome<Tensor> {
    let wants_normal =
        job.facts.get("audio_config").and_then(|config| config.get("do_normalize")?.as_bool());
    samples_of(match wants_normal {
        Some(true) => sound.normalized(),
        _ => sound.samples.clone(),
    })
}

/// What was made, as one array.
fn rows(results: &[Heard]) -> Outcome<Tensor> {
    let row = |heard: &Heard| match &heard.made {
        Made::Embedding { vector } => Ok(vector.clone()),
        Made::SpeechDetection { probabilities, .. } => Ok(probabilities.clone()),
        _ => Err(Failure::Usage(
            "--output writes vectors, and this model makes texts or labels: use --json".to_owned(),
        )),
    };

    let rows = results.iter().map(row).collect::<Outcome<Vec<_>>>()?;
    let width = rows.first().map_or(0, Vec::len);
    if rows.iter().any(|row| row.len() != width) {
        return Err(Failure::Usage(
            "sounds of different lengths make no one array: give one at a time".to_owned(),
        ));
    }

    Ok(Tensor::new(vec![rows.len(), width], rows.concat())?)
}

struct Listening<'l> {
    job: &'l Job<'l>,
    body: &'l Body,
    session: &'l Session<'l>,
}

impl Listening<'_> {
    fn hear(&self, path: &Path) -> Outcome<Heard> {
        let Read { sound, report } = read(self.job, path, model_rate(self.job))?;
        let made =
            if detects_speech(self.body) { self.detect(&sound)? } else { self.listen(&sound)? };
        Ok(Heard { sound: report, made })
    }

    fn listen(&self, sound: &Sound) -> Outcome<Made> {
        let input = meaning(self.body, &self.body.inputs, Meaning::Waveform);
        let input = input.ok_or_else(|| Failure::Usage("the model takes no sound".to_owned()))?;
        let samples = waveform_of(self.job, sound)?;
        let output = |what| meaning(self.body, &self.body.outputs, what);
        let made = |name: &str| self.one(vec![(input.to_owned(), samples.into())], name);
        if let Some(name) = output(Meaning::Logits) {
            let logits = made(name)?;
            if logits.rank() == 2 {
                return Ok(Made::Classification { labels: labels(self.job, &logits.floats()?) });
            }
            return self.letters(&logits);
        }

        let name = output(Meaning::HiddenStates)
            .ok_or_else(|| Error::version("what the model makes is not known"))?;
        let states = made(name)?;
        let width = states.shape().last().copied().unwrap_or_default();
        let mut vector = pool(&states.floats()?, width, Pooling::Mean);
        if self.job.facts.pooling().is_some_and(|(_, normalized)| normalized) {
            normalize(&mut vector);
        }

        Ok(Made::Embedding { vector })
    }

    fn one(&self, inputs: Vec<(String, Value)>, wanted: &str) -> Outcome<Tensor> {
        let outcome = self.job.run(self.session, inputs, &[wanted])?;
        let value =
            outcome.outputs.first().ok_or_else(|| Error::format("the model made nothing"))?;
        Ok(value.tensor()?.clone())
    }

    /// The likeliest letter of each frame, and the text that they make.
    fn letters(&self, logits: &Tensor) -> Outcome<Made> {
        let vocabulary = Vocabulary::of(self.job)?;
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let best = |row: &[f32]| {
            // `max_by` takes the last of equals: from behind, that is the first.
            (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or_default()
        };
        let frames: Vec<usize> = logits.floats()?.chunks_exact(width).map(best).collect();
        Ok(Made::Transcription { text: vocabulary.text(&collapsed(&frames, vocabulary.blank)) })
    }

    /// The probability that somebody speaks in each window; the model remembers what it heard
    /// before.
    fn detect(&self, sound: &Sound) -> Outcome<Made> {
        let window = WINDOWS.into_iter().find(|(rate, ..)| *rate == sound.rate);
        let (rate, window, before) =
            window.ok_or_else(|| Error::version("the model hears 8 and 16 kHz"))?;

        // The shape that silero's models have for it, and zeros before the first window.
        let mut state = Value::Tensor(Tensor::new(vec![2, 1, 128], vec![0.0_f32; 256])?);
        let mut seen = vec![0.0; before];
        let mut probabilities = Vec::with_capacity(sound.samples.len().div_ceil(window));
        for piece in sound.samples.chunks(window) {
            seen.extend(piece);
            seen.resize(before + window, 0.0);
            let inputs = vec![
                ("input".to_owned(), Tensor::new(vec![1, seen.len()], seen.clone())?.into()),
                ("state".to_owned(), state),
                ("sr".to_owned(), Tensor::scalar(i64::from(rate)).into()),
            ];
            let mut outcome = self.job.run(self.session, inputs, &["output", "stateN"])?;
            state = outcome.outputs.pop().ok_or_else(|| Error::format("the model made nothing"))?;
            let made =
                outcome.outputs.pop().ok_or_else(|| Error::format("the model made nothing"))?;
            probabilities.push(made.tensor()?.floats()?.first().copied().unwrap_or(f32::NAN));
            seen.drain(..window);
        }

        let spoken = spoken(&probabilities, window as f64 / f64::from(rate));
        Ok(Made::SpeechDetection { spoken, probabilities })
    }
}

/// Whether a graph is one of silero's, which are told apart by what goes in and what comes out.
pub(super) fn detects_speech(body: &Body) -> bool {
    let has = |list: &[apr_graph::ValueId], name: &str| {
        list.iter().any(|id| body.value(*id).name == name)
    };
    let open = body.inputs.iter().filter(|id| body.value(**id).origin == Origin::Input).count();
    let inputs = ["input", "state", "sr"].iter().all(|name| has(&body.inputs, name)) && open == 3;
    inputs && has(&body.outputs, "output") && has(&body.outputs, "stateN")
}

/// Letters by their numbers.
struct Vocabulary {
    letters: Vec<String>,
    /// Stands for no letter.
    blank: usize,
    /// Stands between words.
    between: String,
}

impl Vocabulary {
    fn of(job: &Job<'_>) -> Outcome<Self> {
        let lacking = || {
            let advice = "put the model's vocab.json beside it, or take the logits: --want logits \
                --input NAME=FILE";
            Failure::Model(Error::version(format!("the model has no letters: {advice}")))
        };
        let found = apr_tokenizer::vocabulary(job.reader, usize::MAX)?.ok_or_else(lacking)?;
        let size = found.tokens.iter().map(|token| token.id + 1).max().unwrap_or_default();

        // A huge id in a file must not decide how much memory is taken.
        let mut letters =
            vec![String::new(); usize::try_from(size).unwrap_or_default().min(1 << 20)];
        for token in found.tokens {
            if let Some(letter) = usize::try_from(token.id).ok().and_then(|id| letters.get_mut(id))
            {
                *letter = token.text;
            }
        }

        // Transformers' CTC models take the padding for the blank.
        let blank = job
            .facts
            .config("pad_token_id")
            .and_then(Json::as_u64)
            .and_then(|id| usize::try_from(id).ok());
        let settings = job.facts.file("tokenizer_config.json");

        // Transformers' `Wav2Vec2CTCTokenizer` has the same default.
        let between = settings
            .and_then(|settings| settings.get("word_delimiter_token")?.as_str())
            .unwrap_or("|");
        Ok(Self { letters, blank: blank.unwrap_or(0), between: between.to_owned() })
    }

    fn text(&self, tokens: &[usize]) -> String {
        let letter = |at: &usize| match self.letters.get(*at).map(String::as_str) {
            Some(letter) if letter == self.between => " ",
            letter => letter.unwrap_or_default(),
        };
        tokens.iter().map(letter).collect::<String>().trim().to_owned()
    }
}

fn render(out: &mut dyn Write, heard: &Heard) -> io::Result<()> {
    match &heard.made {
        Made::Transcription { text } => writeln!(out, "{}", Escaped(text)),
        Made::Classification { labels } => render_labels(out, labels),
        Made::Embedding { vector } => {
            let shown: Vec<String> = vector.iter().take(8).map(ToString::to_string).collect();
            writeln!(out, "{DIM}{} numbers{DIM:#}\n  {}", vector.len(), shown.join(" "))
        }
        Made::SpeechDetection { spoken, .. } => {
            let seconds = heard.sound.seconds;
            writeln!(out, "{DIM}somebody speaks, in a sound of {seconds:.2} seconds:{DIM:#}")?;
            if spoken.is_empty() {
                writeln!(out, "nowhere")?;
            }
            spoken.iter().try_for_each(|part| {
                writeln!(out, "{:>8.2} to {:.2}", part.start, part.end.min(seconds))
            })
        }
    }
}
