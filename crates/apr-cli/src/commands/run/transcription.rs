//! Speech written down by a Whisper, window by window.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr::{CheckpointReader, Error, Escaped};
use apr_core::{DType, keys};
use apr_graph::Meaning;
use apr_infer::{Tensor, Value};
use apr_inputs::sound::{LogMel, MelSettings};
use apr_ops::run::WhisperTokens;
use apr_source::companions::learn_from;
use serde::Serialize;
use serde_json::Value as Json;

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
    let results = paths.iter().map(|path| whisper.transcribe(path)).collect::<Outcome<Vec<_>>>()?;
    let report = TranscriptionReport { file: job.name.to_owned(), results };
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|said| {
            if paths.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped(&said.sound.file))?;
            }
            render(out, said, job.args.timestamps)
        })
    })
}

struct Whisper<'w> {
    job: &'w Job<'w>,
    parts: &'w Parts<'w>,
    tokens: Tokens,
    special: WhisperTokens,
    mel: LogMel,
    input: String,
    mels: usize,
    /// Frames of a window.
    frames: usize,
    hop: usize,
    rate: u32,
    /// Most tokens of a window.
    longest: usize,
}

impl<'w> Whisper<'w> {
    fn of(job: &'w Job<'w>, parts: &'w Parts<'w>) -> Outcome<Self> {
        let body = parts.encoder.0;
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
        let (input, rate) = (input.name.clone(), model_rate(job));
        Ok(Self { job, parts, tokens, special, mel, input, mels, frames, hop, rate, longest })
    }

    fn transcribe(&self, path: &Path) -> Outcome<Transcribed> {
        let Read { mut sound, report } = read(self.job, path, self.rate)?;
        let window = self.frames * self.hop;

        // A short sound is a window with silence behind it; of a longer one, the spectrum is made
        // as a whole.
        sound.samples.resize(sound.samples.len().max(window), 0.0);
        let spectrum = self.mel.spectrum(&sound.samples)?;
        let all = spectrum.len() / self.mels;
        let step = window as f64 / f64::from(self.rate) / (self.frames / FRAMES_A_STEP) as f64;
        let (mut place, mut begin, mut segments, mut written) = (0, None, Vec::new(), Vec::new());
        while place < all {
            let here = self.frames.min(all - place);
            let states = self
                .parts
                .encode(vec![(self.input.clone(), self.window(&spectrum, all, place)?)])?;

            // The language is heard in the first window only.
            let begin = match &begin {
                Some(begin) => begin,
                None => begin.insert(self.begin(&states)?),
            };
            let tokens = self.write(states, begin)?;
            let (parts, moved) = self.special.segments(&tokens, (here / FRAMES_A_STEP) as i64);
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
        })
    }

    /// The part of a spectrum that begins at a frame, with nothing behind its end.
    fn window(&self, spectrum: &[f32], all: usize, place: usize) -> Outcome<Value> {
        let here = self.frames.min(all - place);
        let mut values = Vec::with_capacity(self.mels * self.frames);
        for row in spectrum.chunks_exact(all) {
            values.extend_from_slice(&row[place..place + here]);
            values.extend(std::iter::repeat_n(0.0, self.frames - here));
        }
        Ok(Tensor::new(vec![1, self.mels, self.frames], values)?.into())
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

    /// What is said in a window, the likeliest token each time.
    fn write(&self, states: Value, begin: &[i64]) -> Outcome<Vec<i64>> {
        let mut decoder = self.parts.decoder(states)?;
        let (mut written, mut next) = (Vec::new(), begin.to_vec());
        while begin.len() + written.len() < self.longest {
            let mut logits = decoder.next(&next)?;
            self.special.rule_out(&mut logits, &written, self.times());

            // `max_by` takes the last of equals: from behind, that is the first.
            let best = (0..logits.len())
                .rev()
                .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
                .unwrap_or_default();
            let token = i64::try_from(best).unwrap_or(i64::MAX);
            if token == self.special.end {
                return Ok(written);
            }
            written.push(token);
            next = vec![token];
        }

        self.job.warn(&format!(
            "a window has more than {} tokens; the rest of its text is left out",
            self.longest
        ));
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

fn render(out: &mut dyn Write, said: &Transcribed, times: bool) -> io::Result<()> {
    if !times {
        return writeln!(out, "{}", Escaped(&said.text));
    }
    said.segments.iter().try_for_each(|part| {
        let text = part.text.trim();
        writeln!(out, "{DIM}{:>8.2} to {:.2}{DIM:#}  {}", part.start, part.end, Escaped(text))
    })
}
