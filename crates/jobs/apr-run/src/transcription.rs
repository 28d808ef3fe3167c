//! Speech transcribed by a Whisper, window by window (Radford et al. 2022).

mod subtitles;
mod window;
mod words;

use apr_core::{DType, Escaped, keys};
use apr_graph::{Body, Meaning};
use apr_infer::{Tensor, Value};
use apr_inputs::sound::{LogMel, MelSettings};
use apr_registry::{CheckpointReader, Error};
use apr_source::companions::learn_from;
use serde::Serialize;
use serde_json::Value as Json;

use crate::audio::{AudioFile, Decoded, takes_no_audio};
use crate::completion::warn_ignored;
use crate::encoder_decoder::EncoderDecoder;
use crate::error::{Remedy, RunError, RunResult, absent};
use crate::features::AudioInput;
use crate::generation::{Generation, GenerationOptions};
use crate::runner::Runner;
use crate::tokens::Tokenizer;
use crate::whisper::{TokenSegment, WhisperTokens};

pub use words::Word;

/// Frames of the spectrum for each state of the encoder.
const FRAMES_A_STEP: usize = 2;

/// Options of a transcription.
#[derive(Debug, Clone, Default)]
pub struct TranscriptionOptions {
    /// Source language, such as `en`; detected by default.
    pub language: Option<String>,
    /// Translate into English.
    pub translate: bool,
    /// The model writes the time of each segment.
    pub timestamps: bool,
    /// Segments have their words, with the time of each. Also requests `timestamps`.
    pub words: bool,
    /// A window whose text repeats itself or is unlikely is written again with higher and higher
    /// temperatures, and one of silence is left out (Radford et al. 2022, section 4.5).
    pub fallback: bool,
    /// Sampling settings, and the maximum number of tokens for each file.
    pub sampling: GenerationOptions,
}

/// Transcription of an audio file.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Transcription {
    /// Audio file and its properties.
    pub sound: AudioFile,
    /// `transcription`.
    pub task: &'static str,
    /// Code of the language, if the model has several languages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Text of all segments.
    pub text: String,
    /// Parts of the text with their times.
    pub segments: Vec<Segment>,
    /// Tokens of all windows, including timestamps.
    pub tokens: Vec<i64>,
    /// Reason why transcription ended: `end` of the audio, or `max_tokens`.
    pub ended: &'static str,
    /// Storage type of the keys and values of the decoder's own tokens: `f32`, `f16` or `q8_0`.
    pub cache_type: &'static str,
    /// Settings of the model that are not supported, with their values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

/// Segment of a transcription.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Segment {
    /// Number of the segment, from 0.
    pub id: usize,
    /// Frame of the spectrum at which the window of the segment begins: 100 are a second.
    pub seek: usize,
    /// Seconds from the beginning.
    pub start: f64,
    /// Seconds from the beginning.
    pub end: f64,
    /// Text as the tokens spell it.
    pub text: String,
    /// Tokens, including timestamps.
    pub tokens: Vec<i64>,
    /// Words with their times, with [`words`](TranscriptionOptions::words).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<Word>>,
    /// Mean log probability of a token in the window of the segment, as a natural logarithm.
    pub avg_logprob: f64,
    /// Compression ratio of the window's text: bytes divided by the bytes that zlib compresses them
    /// to. Above 2.4, the text repeats itself.
    pub compression_ratio: f64,
    /// Probability that the window has no speech, if the model has a token for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_speech_prob: Option<f64>,
    /// At which the window was written; 0 for the likeliest tokens.
    pub temperature: f32,
}

/// Settings of the spectrum for a Whisper model.
pub(crate) struct LogMelInput {
    mel: LogMel,
    /// Name of the input.
    input: String,
    mels: usize,
    /// Frames of a window.
    frames: usize,
    hop: usize,
    rate: u32,
}

impl LogMelInput {
    pub(crate) fn of(runner: &Runner<'_>, body: &Body) -> RunResult<Self> {
        let input = body
            .inputs
            .iter()
            .map(|id| body.value(*id))
            .find(|value| value.meaning == Meaning::Mel);
        let input = input.ok_or_else(takes_no_audio)?;
        let sizes: Vec<usize> = input
            .shape()
            .unwrap_or_default()
            .iter()
            .filter_map(|dim| usize::try_from(dim.size()?).ok())
            .collect();
        let [.., mels, frames] = sizes[..] else {
            return Err(Error::version("a spectrum of unknown size").into());
        };
        let number = |key: &str, usual: usize| {
            runner
                .audio_setting(key)
                .and_then(|number| usize::try_from(number).ok())
                .unwrap_or(usual)
        };
        let (points, hop) = (number("n_fft", 400), number("hop_length", 160));
        let filterbank = filterbank(runner.reader)?;
        let mel = LogMel::new(MelSettings { points, hop, mels, filterbank })?;
        Ok(Self { mel, input: input.name.clone(), mels, frames, hop, rate: runner.audio_rate() })
    }

    /// Samples of a window.
    fn window(&self) -> usize {
        self.frames * self.hop
    }

    /// The spectrum of samples, row by row.
    ///
    /// A short file is a window with silence behind it; of a longer one, the spectrum is made as a
    /// whole.
    fn spectrum(&self, samples: &mut Vec<f32>) -> RunResult<Vec<f32>> {
        samples.resize(samples.len().max(self.window()), 0.0);
        Ok(self.mel.spectrum(samples)?)
    }

    /// The spectrum as the input of the graph, as long as the file is, and one window at least.
    pub(crate) fn read(
        &self,
        runner: &Runner<'_>,
        name: &str,
        bytes: Vec<u8>,
    ) -> RunResult<AudioInput> {
        let Decoded { mut sound, file } = runner.decode_audio(name, bytes, self.rate)?;
        let spectrum = self.spectrum(&mut sound.samples)?;
        let frames = spectrum.len() / self.mels;
        let spectrum = Tensor::new(vec![1, self.mels, frames], spectrum)?;
        let inputs = vec![(self.input.clone(), spectrum.into())];
        Ok(AudioInput { inputs, file, samples: sound.samples })
    }
}

/// Transcribes speech with a Whisper.
pub struct Transcriber<'t> {
    runner: Runner<'t>,
    options: TranscriptionOptions,
    parts: EncoderDecoder<'t>,
    tokenizer: Tokenizer<'t>,
    special: WhisperTokens,
    hearing: LogMelInput,
    settings: Generation,
    /// Settings at the temperatures of the fallback, the lowest first.
    fallbacks: Vec<(f32, Generation)>,
    /// Maximum number of tokens of a window.
    longest: usize,
    /// Heads whose attention follows the speech: layer and head.
    heads: Vec<(usize, usize)>,
    /// Number of tokens that the decoder can read.
    positions: usize,
}

impl<'t> Transcriber<'t> {
    /// Returns `true` if a model has an encoder for audio and a decoder for text.
    #[must_use]
    pub fn fits(runner: &Runner<'_>) -> bool {
        let encoder = runner.parts().iter().find(|part| part.name == "encoder_model");
        encoder.is_some_and(|part| {
            let body = &part.graph.body;
            body.inputs.iter().any(|id| body.value(*id).meaning == Meaning::Mel)
        })
    }

    /// A transcriber for a model that [fits](Self::fits).
    ///
    /// # Errors
    /// [`RunError::Request`] where it does not; E003 where it lacks a tokenizer or the tokens that
    /// begin a text.
    pub fn of(runner: &Runner<'t>, mut options: TranscriptionOptions) -> RunResult<Self> {
        options.timestamps |= options.words;
        let parts = EncoderDecoder::of(runner)?.ok_or_else(takes_no_audio)?;
        let hearing = LogMelInput::of(runner, parts.encoder_body())?;
        let facts = runner.facts;
        let special = WhisperTokens::of(facts).ok_or_else(|| {
            Error::version(absent("missing start tokens", "generation_config.json"))
        })?;
        let length =
            facts.file("generation_config.json").and_then(|file| file.get("max_length")?.as_u64());
        let length = length.or_else(|| facts.config("max_length").and_then(Json::as_u64));

        // All of OpenAI's models have 448.
        let positions = facts.config("max_target_positions").and_then(Json::as_u64).unwrap_or(448);
        let longest = usize::try_from(length.unwrap_or(positions).min(positions)).unwrap_or(448);
        let tokenizer = Tokenizer::of(runner.reader, runner.host)?;
        let settings = Generation::of(facts, &options.sampling).named(Some(&tokenizer))?;
        warn_ignored(runner, &settings);
        if options.timestamps && special.no_times.is_none() {
            runner.warn("missing timestamp tokens: each segment is a window");
        }
        let heads = words::alignment_heads(facts);
        if options.words && heads.is_empty() {
            let what = "missing alignment_heads, which the times of words are computed from";
            return Err(Error::version(absent(what, "generation_config.json")).into());
        }
        let fallbacks = match options.fallback {
            true => window::fallbacks(facts, &options, &tokenizer)?,
            false => Vec::new(),
        };
        Ok(Self {
            runner: *runner,
            options,
            parts,
            tokenizer,
            special,
            hearing,
            settings,
            fallbacks,
            longest,
            heads,
            positions: usize::try_from(positions).unwrap_or(448),
        })
    }

    /// Returns the settings for the choice of tokens, from the model's settings and the options.
    #[must_use]
    pub fn settings(&self) -> &Generation {
        &self.settings
    }

    /// Transcribes an audio file; `name` is for reports.
    ///
    /// # Errors
    /// What decoding ends with (E001, E002, E003, E008), [`RunError::Request`] for a language that
    /// the model does not know; those of [`Session::run`](apr_infer::Session::run).
    pub fn transcribe(&self, name: &str, bytes: Vec<u8>) -> RunResult<Transcription> {
        let hearing = &self.hearing;
        let Decoded { mut sound, file: report } =
            self.runner.decode_audio(name, bytes, hearing.rate)?;
        // Silence fills the window of a short file.
        let heard = sound.samples.len() / hearing.hop;
        let spectrum = hearing.spectrum(&mut sound.samples)?;
        drop(sound);
        let all = spectrum.len() / hearing.mels;
        let (window, frames) = (hearing.window(), hearing.frames);
        let step = window as f64 / f64::from(hearing.rate) / (frames / FRAMES_A_STEP) as f64;
        let (mut place, mut begin, mut segments, mut written) = (0, None, Vec::new(), Vec::new());
        let mut left = self.options.sampling.max_tokens.unwrap_or(usize::MAX);
        // End of the last word, in seconds.
        let mut spoken = 0.0;
        while place < all && left > 0 {
            let here = frames.min(all - place);
            let states = self
                .parts
                .encode(vec![(hearing.input.clone(), self.window(&spectrum, all, place)?)])?;

            // The language is detected in the first window only.
            let begin = match &begin {
                Some(begin) => begin,
                None => begin.insert(self.begin(&states, None)?),
            };
            let seconds = |frames: usize| frames as f64 / FRAMES_A_STEP as f64 * step;
            let written_here = self.write(states.clone(), begin, left)?;
            if self.options.fallback && written_here.is_silence() {
                place += here;
                continue;
            }
            if !self.options.fallback && written_here.repeats() {
                self.runner.host.warn(
                    &format!(
                        "the text from {:.2} to {:.2} s repeats itself (compression ratio {:.1})",
                        seconds(place),
                        seconds(place + here),
                        written_here.compression_ratio
                    ),
                    Some(Remedy::Fallback),
                );
            }
            let tokens = &written_here.tokens;
            left = left.saturating_sub(tokens.len());
            let steps = (here / FRAMES_A_STEP) as i64;
            let (mut parts, moved) = self.special.segments(tokens, steps);

            // What a next window would write again stays where there is none.
            let whole: usize = parts.iter().map(|part| part.tokens.len()).sum();
            if left == 0 && whole < tokens.len() {
                let start = parts.last().map_or(0, |part| part.end);
                parts.push(TokenSegment { start, end: steps, tokens: tokens[whole..].to_vec() });
            }

            let first = segments.len();
            for part in parts {
                let at = |steps: i64| seconds(place) + steps as f64 * step;
                let text =
                    self.tokenizer.vocabulary().decode(&self.special.text_of(&part.tokens))?;
                written.extend(&part.tokens);
                segments.push(Segment {
                    id: segments.len(),
                    seek: place,
                    start: at(part.start),
                    end: at(part.end),
                    text,
                    tokens: part.tokens,
                    words: None,
                    avg_logprob: written_here.mean,
                    compression_ratio: written_here.compression_ratio,
                    no_speech_prob: written_here.no_speech,
                    temperature: written_here.temperature,
                });
            }

            let mut moved = moved
                .and_then(|steps| usize::try_from(steps).ok())
                .map_or(here, |steps| steps * FRAMES_A_STEP);
            if self.options.words {
                let window = words::Window {
                    states: &states,
                    begin,
                    frames: here.min(heard.saturating_sub(place)),
                    offset: seconds(place),
                    step,
                    is_unspaced: words::Window::is_unspaced(self.language_of(begin)),
                };
                spoken = self.add_words(&window, &mut segments[first..], spoken)?;
                // A text that one mark ends is whole. After another, the next window begins
                // behind the last word, not at its mark.
                if !self.special.ends_once(tokens) && spoken > seconds(place) {
                    moved = frame_at(spoken, seconds(1)).saturating_sub(place);
                }
            }

            // A text that ends where it begins would be written for ever.
            place += if moved == 0 { here } else { moved.min(here) };
        }

        let language = begin.and_then(|begin: Vec<i64>| Some(self.language_of(&begin)?.to_owned()));

        let text = segments
            .iter()
            .map(|said: &Segment| said.text.as_str())
            .collect::<String>()
            .trim()
            .to_owned();
        Ok(Transcription {
            sound: report,
            task: "transcription",
            language,
            text,
            segments,
            tokens: written,
            ended: if left == 0 { "max_tokens" } else { "end" },
            cache_type: self.parts.cache_type().name(),
            ignored: self.settings.ignored().to_vec(),
        })
    }

    /// Returns the tokens with which a text begins, and at most `most` tokens written after them
    /// for the encoder's states of one window. The default of `language` is the language in the
    /// options.
    ///
    /// # Errors
    /// Returns the errors of [`transcribe`](Self::transcribe).
    pub fn window_tokens(
        &self,
        states: &Value,
        language: Option<&str>,
        most: usize,
    ) -> RunResult<(Vec<i64>, Vec<i64>)> {
        let begin = self.begin(states, language)?;
        let mut written = Vec::new();
        if most > 0 {
            written = self.write(states.clone(), &begin, most)?.tokens;
        }
        Ok((begin, written))
    }

    /// Returns the text of tokens, without the tokens for timestamps and tasks.
    ///
    /// # Errors
    /// E001 if the tokenizer fails.
    pub fn text_of(&self, tokens: &[i64]) -> RunResult<String> {
        Ok(self.tokenizer.vocabulary().decode(&self.special.text_of(tokens))?)
    }

    /// Returns the encoder's states of an audio file that is not longer than a window, padded with
    /// silence.
    ///
    /// # Errors
    /// E001 for a longer file. Otherwise, returns the errors of [`transcribe`](Self::transcribe).
    pub fn window_states(&self, name: &str, bytes: Vec<u8>) -> RunResult<Value> {
        let AudioInput { inputs, samples, file } = self.hearing.read(&self.runner, name, bytes)?;
        if samples.len() > self.hearing.window() {
            let seconds = self.hearing.window() as f64 / f64::from(self.hearing.rate);
            let message = format!("it is longer than the {seconds} s of the model's input");
            return Err(Error::format(message).in_file(file.path).into());
        }
        self.states(inputs)
    }

    /// The encoder's states of a window, given as its inputs.
    ///
    /// # Errors
    /// Those of [`Session::run`](apr_infer::Session::run).
    pub fn states(&self, inputs: Vec<(String, Value)>) -> RunResult<Value> {
        self.parts.encode(inputs)
    }

    /// Returns the part of a spectrum that begins at a frame, padded with zeros after its end.
    fn window(&self, spectrum: &[f32], all: usize, place: usize) -> RunResult<Value> {
        let (mels, frames) = (self.hearing.mels, self.hearing.frames);
        let here = frames.min(all - place);
        let mut values = Vec::with_capacity(mels * frames);
        for row in spectrum.chunks_exact(all) {
            values.extend_from_slice(&row[place..place + here]);
            values.extend(std::iter::repeat_n(0.0, frames - here));
        }
        Ok(Tensor::new(vec![1, mels, frames], values)?.into())
    }

    /// Returns the tokens with which a text begins: the language, which the model detects if it is
    /// not given, and the task.
    fn begin(&self, states: &Value, language: Option<&str>) -> RunResult<Vec<i64>> {
        let special = &self.special;
        let mut begin = vec![special.start];
        let wanted = language.or(self.options.language.as_deref());
        if special.languages.is_empty() {
            if wanted.is_some() || self.options.translate {
                return Err(RunError::with_remedy(
                    "the model has one language",
                    Remedy::NoLanguage,
                ));
            }
        } else {
            begin.push(self.language(wanted, states)?);
            let task = if self.options.translate { special.translate } else { special.transcribe };
            begin.extend(task);
        }

        begin.extend(special.no_times.filter(|_| !self.times()));
        Ok(begin)
    }

    /// Returns the code of the language with which a text begins.
    fn language_of(&self, begin: &[i64]) -> Option<&str> {
        let mut languages = self.special.languages.iter();
        languages.find(|(_, id)| begin.contains(id)).map(|(code, _)| code.as_str())
    }

    /// Returns `true` if timestamps are requested and supported.
    fn times(&self) -> bool {
        self.options.timestamps && self.special.no_times.is_some()
    }

    fn language(&self, wanted: Option<&str>, states: &Value) -> RunResult<i64> {
        let languages = &self.special.languages;
        if let Some(wanted) = wanted {
            let found = languages.iter().find(|(code, _)| code == wanted);
            return found.map(|(_, id)| *id).ok_or_else(|| {
                let codes: Vec<&str> = languages.iter().map(|(code, _)| code.as_str()).collect();
                RunError::request(format!(
                    "unknown language '{}'; the model has {}",
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
}

/// Returns the frame at a time, for frames of `one` seconds.
fn frame_at(seconds: f64, one: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "seconds of a sound, from 0 on"
    )]
    let frame = (seconds.max(0.0) / one).round() as usize;
    frame
}

/// Returns the weights of the bands, which are stored with the model or follow from its settings.
fn filterbank(reader: &dyn CheckpointReader) -> RunResult<Vec<f32>> {
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
            let what = "missing audio preprocessor configuration";
            Error::version(absent(what, "preprocessor_config.json"))
        })?;
    Ok(floats(&tensor.bytes))
}
