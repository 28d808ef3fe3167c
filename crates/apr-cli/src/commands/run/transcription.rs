//! Speech written down by a Whisper, window by window.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr::{CheckpointReader, Error, Escaped};
use apr_core::{DType, keys};
use apr_graph::{Body, Meaning};
use apr_infer::{Tensor, Value};
use apr_inputs::sound::{LogMel, MelSettings};
use apr_ops::run::{Generation, Segment, WhisperTokens};
use apr_source::companions::learn_from;
use serde::Serialize;
use serde_json::Value as Json;

use super::answers::Answers;
use super::generation;
use super::job::Job;
use super::sounds::{Read, SoundReport, model_rate, read, setting};
use super::tokens::Tokens;
use super::writing::Parts;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};

/// Frames of the spectrum for each vector that the encoder makes.
const FRAMES_A_STEP: usize = 2;

#[derive(Debug, Serialize)]
struct TranscriptionReport {
    /// The model.
    file: String,
    /// One for each sound.
    results: Vec<Transcribed>,
}

/// What was said.
#[derive(Debug, Serialize)]
struct Transcribed {
    sound: SoundReport,
    task: &'static str,
    /// Its code, where the model knows several.
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<String>,
    text: String,
    segments: Vec<Said>,
    /// Tokens of all windows, with marks of time.
    tokens: Vec<i64>,
    /// Why the writing ended: `end` of the sound, or `max_tokens`.
    ended: &'static str,
    /// What the model's settings ask for and is not done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Said {
    /// Seconds from the beginning.
    start: f64,
    /// Seconds from the beginning.
    end: f64,
    text: String,
}

pub(super) fn run(job: &Job<'_>, paths: &[PathBuf], parts: &Parts<'_>) -> Outcome {
    if job.args.output.is_some() {
        return Err(Failure::Usage(
            "--output writes arrays, and a text is none: use > FILE or --json".to_owned(),
        ));
    }

    let whisper = Whisper::of(job, parts)?;
    let mut answers = Answers::of(job);
    let mut results = Vec::with_capacity(paths.len());
    for path in paths {
        let said = whisper.transcribe(path)?;
        if !job.args.timestamps {
            answers.begin()?;
            answers.write(&said.text)?;
            answers.end(&said.text);
        }
        results.push(said);
    }

    let report = TranscriptionReport { file: job.name.to_owned(), results };
    if !job.args.timestamps {
        answers.finish()?;
        return job.context.printer.report(&report, |_, _| Ok(()));
    }
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|said| {
            if paths.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped(&said.sound.file))?;
            }
            render(out, said)
        })
    })
}

/// The log-mel spectrum of each sound, as long as the sound is, and one window at least.
pub(super) fn features(
    job: &Job<'_>,
    paths: &[PathBuf],
    body: &Body,
) -> Outcome<Vec<Vec<(String, Value)>>> {
    let hearing = Hearing::of(job, body)?;
    let inputs = |path: &PathBuf| {
        let (spectrum, _) = hearing.spectrum(job, path)?;
        let frames = spectrum.len() / hearing.mels;
        let spectrum = Tensor::new(vec![1, hearing.mels, frames], spectrum)?;
        Ok(vec![(hearing.input.clone(), spectrum.into())])
    };
    paths.iter().map(inputs).collect()
}

/// How a Whisper hears: the settings of its spectrum.
struct Hearing {
    mel: LogMel,
    /// Name of the input.
    input: String,
    mels: usize,
    /// Frames of a window.
    frames: usize,
    hop: usize,
    rate: u32,
}

impl Hearing {
    fn of(job: &Job<'_>, body: &Body) -> Outcome<Self> {
        let input = body
            .inputs
            .iter()
            .map(|id| body.value(*id))
            .find(|value| value.meaning == Meaning::Mel);
        let input = input.ok_or_else(|| Failure::Usage("the model takes no sound".to_owned()))?;
        let sizes: Vec<usize> = input
            .shape()
            .unwrap_or_default()
            .iter()
            .filter_map(|dim| usize::try_from(dim.size()?).ok())
            .collect();
        let [.., mels, frames] = sizes[..] else {
            return Err(Error::version("a spectrum of no size").into());
        };
        let number = |key: &str, usual: usize| {
            setting(job, key).and_then(|number| usize::try_from(number).ok()).unwrap_or(usual)
        };
        let (points, hop) = (number("n_fft", 400), number("hop_length", 160));
        let mel =
            LogMel::new(MelSettings { points, hop, mels, filterbank: filterbank(job.reader)? })?;
        Ok(Self { mel, input: input.name.clone(), mels, frames, hop, rate: model_rate(job) })
    }

    /// Samples of a window.
    fn window(&self) -> usize {
        self.frames * self.hop
    }

    /// The spectrum of a file's sound, row by row.
    fn spectrum(&self, job: &Job<'_>, path: &Path) -> Outcome<(Vec<f32>, SoundReport)> {
        let Read { mut sound, report } = read(job, path, self.rate)?;

        // A short sound is a window with silence behind it; of a longer one, the spectrum is made
        // as a whole.
        sound.samples.resize(sound.samples.len().max(self.window()), 0.0);
        Ok((self.mel.spectrum(&sound.samples)?, report))
    }
}

struct Whisper<'w> {
    job: &'w Job<'w>,
    parts: &'w Parts<'w>,
    tokens: Tokens,
    special: WhisperTokens,
    hearing: Hearing,
    settings: Generation,
    /// Most tokens of a window.
    longest: usize,
}

impl<'w> Whisper<'w> {
    fn of(job: &'w Job<'w>, parts: &'w Parts<'w>) -> Outcome<Self> {
        let hearing = Hearing::of(job, parts.encoder.0)?;
        let special = WhisperTokens::of(job.facts).ok_or_else(|| {
            let advice = "put the model's generation_config.json beside it";
            Error::version(format!(
                "the model does not say with which tokens it begins a text: {advice}"
            ))
        })?;
        let length = job
            .facts
            .file("generation_config.json")
            .and_then(|file| file.get("max_length")?.as_u64());
        let length = length.or_else(|| job.facts.config("max_length").and_then(Json::as_u64));

        // All of OpenAI's models have 448.
        let positions =
            job.facts.config("max_target_positions").and_then(Json::as_u64).unwrap_or(448);
        let longest = usize::try_from(length.unwrap_or(positions).min(positions)).unwrap_or(448);
        let tokens = Tokens::of(job.reader, job.context)?;
        let settings = generation::settings(job);
        Ok(Self { job, parts, tokens, special, hearing, settings, longest })
    }

    fn transcribe(&self, path: &Path) -> Outcome<Transcribed> {
        let hearing = &self.hearing;
        let (spectrum, report) = hearing.spectrum(self.job, path)?;
        let all = spectrum.len() / hearing.mels;
        let (window, frames) = (hearing.window(), hearing.frames);
        let step = window as f64 / f64::from(hearing.rate) / (frames / FRAMES_A_STEP) as f64;
        let (mut place, mut begin, mut segments, mut written) = (0, None, Vec::new(), Vec::new());
        let mut left = self.job.args.max_tokens.unwrap_or(usize::MAX);
        while place < all && left > 0 {
            let here = frames.min(all - place);
            let states = self
                .parts
                .encode(vec![(hearing.input.clone(), self.window(&spectrum, all, place)?)])?;

            // The language is heard in the first window only.
            let begin = match &begin {
                Some(begin) => begin,
                None => begin.insert(self.begin(&states)?),
            };
            let tokens = self.write(states, begin, left)?;
            left = left.saturating_sub(tokens.len());
            let steps = (here / FRAMES_A_STEP) as i64;
            let (mut parts, moved) = self.special.segments(&tokens, steps);

            // What a next window would write again stays where there is none.
            let whole: usize = parts.iter().map(|part| part.tokens.len()).sum();
            if left == 0 && whole < tokens.len() {
                let start = parts.last().map_or(0, |part| part.end);
                parts.push(Segment { start, end: steps, tokens: tokens[whole..].to_vec() });
            }

            for part in parts {
                let seconds =
                    |steps: i64| place as f64 / FRAMES_A_STEP as f64 * step + steps as f64 * step;
                let text = self.tokens.0.decode(&self.special.text_of(&part.tokens))?;
                written.extend(part.tokens);
                segments.push(Said { start: seconds(part.start), end: seconds(part.end), text });
            }

            let moved = moved
                .and_then(|steps| usize::try_from(steps).ok())
                .map_or(here, |steps| steps * FRAMES_A_STEP);

            // A text that ends where it begins would be written for ever.
            place += if moved == 0 { here } else { moved.min(here) };
        }

        let language = begin.and_then(|begin: Vec<i64>| {
            self.special
                .languages
                .iter()
                .find(|(_, id)| begin.contains(id))
                .map(|(code, _)| code.clone())
        });

        let text = segments
            .iter()
            .map(|said: &Said| said.text.as_str())
            .collect::<String>()
            .trim()
            .to_owned();
        Ok(Transcribed {
            sound: report,
            task: "transcription",
            language,
            text,
            segments,
            tokens: written,
            ended: if left == 0 { "max_tokens" } else { "end" },
            ignored: self.settings.ignored().to_vec(),
        })
    }

    /// The part of a spectrum that begins at a frame, with nothing behind its end.
    fn window(&self, spectrum: &[f32], all: usize, place: usize) -> Outcome<Value> {
        let (mels, frames) = (self.hearing.mels, self.hearing.frames);
        let here = frames.min(all - place);
        let mut values = Vec::with_capacity(mels * frames);
        for row in spectrum.chunks_exact(all) {
            values.extend_from_slice(&row[place..place + here]);
            values.extend(std::iter::repeat_n(0.0, frames - here));
        }
        Ok(Tensor::new(vec![1, mels, frames], values)?.into())
    }

    /// The tokens that a text begins with: the language, which the model hears where the user does
    /// not say it, and the task.
    fn begin(&self, states: &Value) -> Outcome<Vec<i64>> {
        let special = &self.special;
        let mut begin = vec![special.start];
        let wanted = self.job.args.language.as_deref();
        if special.languages.is_empty() {
            if wanted.is_some() || self.job.args.translate {
                return Err(Failure::Usage(
                    "the model knows one language: leave --language and --translate out".to_owned(),
                ));
            }
        } else {
            begin.push(self.language(wanted, states)?);
            let task = if self.job.args.translate { special.translate } else { special.transcribe };
            begin.extend(task);
        }

        begin.extend(special.no_times.filter(|_| !self.times()));
        Ok(begin)
    }

    /// Whether marks of time are written: where they are asked for.
    fn times(&self) -> bool {
        self.job.args.timestamps && self.special.no_times.is_some()
    }

    fn language(&self, wanted: Option<&str>, states: &Value) -> Outcome<i64> {
        let languages = &self.special.languages;
        if let Some(wanted) = wanted {
            let found = languages.iter().find(|(code, _)| code == wanted);
            return found.map(|(_, id)| *id).ok_or_else(|| {
                let codes: Vec<&str> = languages.iter().map(|(code, _)| code.as_str()).collect();
                Failure::Usage(format!(
                    "the model does not know the language '{}'; it knows {}",
                    Escaped(wanted),
                    codes.join(", ")
                ))
            });
        }

        let logits = self.parts.decoder(states.clone())?.next(&[self.special.start])?;
        let logit = |id: i64| {
            usize::try_from(id)
                .ok()
                .and_then(|id| logits.get(id).copied())
                .unwrap_or(f32::NEG_INFINITY)
        };

        let likeliest =
            languages.iter().rev().max_by(|(_, a), (_, b)| logit(*a).total_cmp(&logit(*b)));
        Ok(likeliest.map_or(self.special.start, |(_, id)| *id))
    }

    /// What is said in a window, in so many tokens at most.
    fn write(&self, states: Value, begin: &[i64], left: usize) -> Outcome<Vec<i64>> {
        let mut decoder = self.parts.decoder(states)?;
        let (mut written, mut next) = (Vec::new(), begin.to_vec());
        let room = self.longest.saturating_sub(begin.len());
        let room = match self.job.args.max_tokens {
            Some(_) => room,
            None => room.min(self.settings.most(begin.len()).unwrap_or(room)),
        };
        let mut chooser = self.settings.begin(begin, &[], room);
        while written.len() < room.min(left) {
            let mut logits = decoder.next(&next)?;
            chooser.process(&mut logits);
            if self.times() {
                self.special.rule_out(&mut logits, &written);
            }
            let token = chooser.choose(&logits)?;
            if self.settings.ends().contains(&token) {
                return Ok(written);
            }
            written.push(token);
            next = vec![token];
        }

        if room <= left {
            self.job.warn(&format!(
                "ended: context: a window has more than {} tokens; the rest of its text is left \
                 out",
                room + begin.len()
            ));
        }
        Ok(written)
    }
}

/// The weights of the bands, which travel with the model or follow from its settings.
fn filterbank(reader: &dyn CheckpointReader) -> Outcome<Vec<f32>> {
    let floats = |bytes: &[u8]| {
        bytes
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect()
    };

    let name = keys::MEL_FILTERBANK_TENSOR;
    if let Some(position) =
        reader.tensors().iter().position(|info| info.name == name && info.dtype == DType::F32)
    {
        let len = usize::try_from(reader.tensors()[position].byte_len()?)
            .map_err(|_| Error::memory("a filterbank"))?;
        let mut bytes = vec![0; len];
        reader.read_tensor(position, 0, &mut bytes)?;
        return Ok(floats(&bytes));
    }
    let learnt = learn_from(reader)?;
    let tensor =
        learnt.tensors.iter().find(|tensor| tensor.info.name == name).ok_or_else(|| {
            let advice = "put the model's preprocessor_config.json beside it";
            Error::version(format!("nothing says how the model hears: {advice}"))
        })?;
    Ok(floats(&tensor.bytes))
}

/// The parts of a text, and when each is said.
fn render(out: &mut dyn Write, said: &Transcribed) -> io::Result<()> {
    said.segments.iter().try_for_each(|part| {
        let text = part.text.trim();
        writeln!(out, "{DIM}{:>8.2} to {:.2}{DIM:#}  {}", part.start, part.end, Escaped(text))
    })
}
