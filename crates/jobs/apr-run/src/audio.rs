//! Audio: letters (CTC), labels, embeddings, and voice activity.

use apr_graph::{Body, Meaning};
use apr_infer::{Tensor, Value};
use apr_inputs::sound::{Sound, decode};
use apr_registry::Error;
use apr_source::sentence::Sentence;
use serde::Serialize;
use serde_json::Value as Json;

use crate::error::{Remedy, RunError, RunResult, absent};
use crate::features::AudioInput;
use crate::recognised::detects_speech;
use crate::runner::{Prepared, Runner, meaning};
use crate::scores::{mean, normalize};
use crate::speech::{Spoken, collapsed, spoken};
use crate::text_encoder::Label;

/// Sample rate in Hz of models that do not declare one.
const DEFAULT_RATE: u32 = 16_000;
/// Samples of a window of silero's models, and those before it that they see again, at 16 and at 8
/// kHz.
const WINDOWS: [(u32, usize, usize); 2] = [(16_000, 512, 64), (8_000, 256, 32)];

/// Result of a model for an audio file.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AudioResult {
    /// Audio file and its properties.
    pub sound: AudioFile,
    /// Result of the task.
    #[serde(flatten)]
    pub made: AudioTask,
}

/// Audio file and its properties.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AudioFile {
    /// Name of the file.
    pub path: String,
    /// Hz, of the file.
    pub rate: u32,
    /// Number of channels in the file. Samples are averaged over them.
    pub channels: usize,
    /// Length in seconds.
    pub seconds: f64,
    /// Hz that the model takes.
    pub model_rate: u32,
}

/// Result of a model for audio, by the model's head.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "task", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AudioTask {
    /// The letters of a CTC head.
    Transcription {
        /// The letters, joined to a text.
        text: String,
    },
    /// Labels of the whole file, the likeliest first.
    Classification {
        /// At most [`RunOptions::top`](crate::RunOptions::top).
        labels: Vec<Label>,
    },
    /// One vector: the mean of the frames' states.
    Embedding {
        /// Vector of the audio file.
        vector: Vec<f32>,
    },
    /// Voice activity.
    SpeechDetection {
        /// Times at which there is speech.
        spoken: Vec<Spoken>,
        /// Probability of speech for each window.
        probabilities: Vec<f32>,
    },
}

/// Audio at the sample rate of a model, with the file that contains it.
pub(crate) struct Decoded {
    pub(crate) sound: Sound,
    pub(crate) file: AudioFile,
}

impl Runner<'_> {
    /// Decodes an audio file for a model that takes this rate.
    pub(crate) fn decode_audio(&self, name: &str, bytes: Vec<u8>, rate: u32) -> RunResult<Decoded> {
        let budget = self.options.max_memory;
        let named = |error: Error| error.in_file(name);
        let left = budget.checked_sub(bytes.len() as u64);
        let left = left.ok_or_else(|| {
            named(Error::memory(format!(
                "the file has {} bytes, beyond the memory limit",
                bytes.len()
            )))
        })?;

        // Samples take four bytes each, and those at the model's rate as well.
        let (sound, warnings) =
            decode(bytes, usize::try_from(left / 6).unwrap_or(usize::MAX)).map_err(named)?;
        let odd = sound.check().map_err(named)?;
        warnings.iter().chain(&odd).for_each(|warning| self.warn(&format!("{name}: {warning}")));
        let count = sound.samples.len() as u64;
        if 4 * (count + count.saturating_mul(rate.into()) / u64::from(sound.rate)) > budget {
            let message = "at the model's rate the samples are beyond the memory limit";
            return Err(named(Error::memory(message)).into());
        }

        let file = AudioFile {
            path: name.to_owned(),
            rate: sound.rate,
            channels: sound.channels,
            seconds: sound.seconds(),
            model_rate: rate,
        };

        Ok(Decoded { sound: sound.at_rate(rate).map_err(named)?, file })
    }

    /// A number of the model's `audio_config`.
    pub(crate) fn audio_setting(&self, key: &str) -> Option<u64> {
        self.facts.get("audio_config")?.get(key)?.as_u64()
    }

    /// Hz that the model takes.
    pub(crate) fn audio_rate(&self) -> u32 {
        self.audio_setting("sample_rate")
            .and_then(|rate| u32::try_from(rate).ok())
            .unwrap_or(DEFAULT_RATE)
    }

    /// The input of a graph that takes a waveform, and an audio file as that input.
    ///
    /// # Errors
    /// [`RunError::Request`] where the graph takes no waveform, else what decoding ends with.
    pub(crate) fn waveform_input(
        &self,
        body: &Body,
        name: &str,
        bytes: Vec<u8>,
    ) -> RunResult<AudioInput> {
        let waveform = meaning(body, &body.inputs, Meaning::Waveform);
        let (input, is_raw) = match waveform {
            Some(input) => (input, false),
            None if detects_speech(body) => ("input", true),
            None => return Err(takes_no_audio()),
        };
        let Decoded { sound, file } = self.decode_audio(name, bytes, self.audio_rate())?;
        let values = if is_raw { tensor(sound.samples.clone())? } else { self.waveform(&sound)? };
        let inputs = vec![(input.to_owned(), values.into())];
        Ok(AudioInput { inputs, file, samples: sound.samples })
    }

    /// Samples as the model's feature extractor makes them.
    fn waveform(&self, sound: &Sound) -> RunResult<Tensor> {
        let config = self.facts.get("audio_config");
        let wants_normal = config.and_then(|config| config.get("do_normalize")?.as_bool());
        tensor(match wants_normal {
            Some(true) => sound.normalized(),
            _ => sound.samples.clone(),
        })
    }
}

fn tensor(samples: Vec<f32>) -> RunResult<Tensor> {
    Ok(Tensor::new(vec![1, samples.len()], samples)?)
}

pub(crate) fn takes_no_audio() -> RunError {
    RunError::request("the model has no audio input")
}

/// Reads audio with a model that reads it as a whole, or window by window.
///
/// Its head decides what [`read`](Self::read) returns.
pub struct AudioEncoder<'e> {
    part: Prepared<'e>,
}

impl<'e> AudioEncoder<'e> {
    /// A reader of audio for a part that takes waveforms.
    ///
    /// # Errors
    /// [`RunError::Request`] where it takes none.
    pub fn of_part(part: Prepared<'e>) -> RunResult<Self> {
        if part.takes_waveforms() {
            return Ok(Self { part });
        }
        Err(takes_no_audio())
    }

    /// Reads an audio file; `name` is for reports.
    ///
    /// # Errors
    /// What decoding ends with (E001, E002, E003, E008), E003 where nothing is known of the model's
    /// outputs or letters; those of [`Session::run`](apr_infer::Session::run).
    pub fn read(&self, name: &str, bytes: Vec<u8>) -> RunResult<AudioResult> {
        let runner = &self.part.runner;
        let Decoded { sound, file } = runner.decode_audio(name, bytes, runner.audio_rate())?;
        let made = match detects_speech(self.part.body()) {
            true => self.detect(&sound)?,
            false => self.encode(&sound)?,
        };
        Ok(AudioResult { sound: file, made })
    }

    fn encode(&self, sound: &Sound) -> RunResult<AudioTask> {
        let runner = &self.part.runner;
        let input = self.part.input(Meaning::Waveform).ok_or_else(takes_no_audio)?;
        let samples = runner.waveform(sound)?;
        let run = |name: &str| self.part.one(vec![(input.to_owned(), samples.into())], name);
        if let Some(name) = self.part.output(Meaning::Logits) {
            let logits = run(name)?;
            if logits.rank() == 2 {
                let labels = runner.labels(&logits.floats()?);
                return Ok(AudioTask::Classification { labels });
            }
            return self.letters(&logits);
        }

        let name = self
            .part
            .output(Meaning::HiddenStates)
            .ok_or_else(|| Error::version("unknown meaning of the model's outputs"))?;
        let states = run(name)?;
        let width = states.shape().last().copied().unwrap_or_default();
        let mut vector = mean(&states.floats()?, width);
        if runner.facts.sentence().is_some_and(Sentence::normalizes) {
            normalize(&mut vector);
        }

        Ok(AudioTask::Embedding { vector })
    }

    /// The likeliest letter of each frame, and the text that they make.
    fn letters(&self, logits: &Tensor) -> RunResult<AudioTask> {
        let vocabulary = Vocabulary::of(&self.part.runner)?;
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let best = |row: &[f32]| {
            // `max_by` takes the last of equals: from behind, that is the first.
            (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or_default()
        };
        let frames: Vec<usize> = logits.floats()?.chunks_exact(width).map(best).collect();
        Ok(AudioTask::Transcription {
            text: vocabulary.text(&collapsed(&frames, vocabulary.blank)),
        })
    }

    /// The probability that somebody speaks in each window; the model remembers what it heard
    /// before.
    fn detect(&self, sound: &Sound) -> RunResult<AudioTask> {
        let window = WINDOWS.into_iter().find(|(rate, ..)| *rate == sound.rate);
        let (rate, window, before) =
            window.ok_or_else(|| Error::version("the model takes 8 and 16 kHz"))?;

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
            let mut outcome = self.part.run(inputs, &["output", "stateN"])?;
            state =
                outcome.outputs.pop().ok_or_else(|| Error::format("the graph has no output"))?;
            let made =
                outcome.outputs.pop().ok_or_else(|| Error::format("the graph has no output"))?;
            probabilities.push(made.tensor()?.floats()?.first().copied().unwrap_or(f32::NAN));
            seen.drain(..window);
        }

        let spoken = spoken(&probabilities, window as f64 / f64::from(rate));
        Ok(AudioTask::SpeechDetection { spoken, probabilities })
    }
}

/// Letters by their numbers.
struct Vocabulary {
    letters: Vec<String>,
    /// Index of the blank, which represents no letter.
    blank: usize,
    /// Separator between words.
    between: String,
}

impl Vocabulary {
    fn of(runner: &Runner<'_>) -> RunResult<Self> {
        let lacking = || {
            let message = absent("missing vocabulary of letters", "vocab.json");
            RunError::lacking(message, Remedy::Arrays)
        };
        let found = apr_tokenizer::vocabulary(runner.reader, usize::MAX)?.ok_or_else(lacking)?;
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
        let blank = runner
            .facts
            .config("pad_token_id")
            .and_then(Json::as_u64)
            .and_then(|id| usize::try_from(id).ok());
        let settings = runner.facts.file("tokenizer_config.json");

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
