//! What goes through a model: the inputs of its parts, one after the other.

use apr_graph::{Body, Meaning};
use apr_infer::{Outcome, Tensor, Value};
use apr_registry::Error;
use apr_run::{
    AssumedInput, AudioFeatures, AudioFile, Facts, GenerateOptions, GenerationOptions, Generator,
    GivenArray, Host, ImageFeatures, InputKind, Prepared, Prompt, QuestionAnswering, Remedy,
    RunError, RunOptions, RunResult, Runnable, Runner, Tokenizer, Transcriber,
    TranscriptionOptions, array_inputs, assumed, known_inputs, with_runner,
};
use apr_source::Source;
use serde::Serialize;

use crate::quiet::Quiet;

/// Names in `apr run` of the two parts of a model with an encoder and a decoder.
const ENCODER: &str = "encoder_model";
const DECODER: &str = "decoder_model";

/// Default number of generated tokens for a separate encoder and decoder: without tokens, the
/// decoder has no input.
const DECODED: usize = 16;

/// A model that is looked at.
#[derive(Clone, Copy)]
pub struct Subject<'s> {
    /// Source of the model.
    pub source: &'s Source<'s>,
    /// Facts about the model.
    pub facts: &'s Facts,
}

/// Input of a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Payload {
    /// Text prompt.
    Text {
        /// The text, or the message of a chat.
        prompt: String,
        /// Applies the model's chat template, with this system message if there is one.
        chat: Option<Option<String>>,
        /// Text that contains the answer, if the prompt is a question about a text.
        context: Option<String>,
    },
    /// Token ids.
    Tokens(Vec<i64>),
    /// Audio file.
    Audio {
        /// Name for reports.
        name: String,
        /// Bytes of the file.
        bytes: Vec<u8>,
    },
    /// Image file.
    Image {
        /// Name for reports.
        name: String,
        /// Bytes of the file.
        bytes: Vec<u8>,
        /// Text that accompanies the image, if the model takes one.
        text: Option<String>,
    },
    /// Arrays of files.
    Arrays {
        /// Arrays with their names.
        arrays: Vec<GivenArray>,
        /// `true` if all arrays are from one file.
        is_only_file: bool,
    },
}

impl Payload {
    /// Returns the kind of input.
    #[must_use]
    pub fn kind(&self) -> InputKind {
        match self {
            Self::Text { .. } | Self::Tokens(_) => InputKind::Text,
            Self::Audio { .. } => InputKind::Audio,
            Self::Image { .. } => InputKind::Image,
            Self::Arrays { .. } => InputKind::Arrays,
        }
    }

    /// Returns the name for headings.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Text { prompt, .. } => format!("\"{prompt}\""),
            Self::Tokens(ids) => format!("{} tokens", ids.len()),
            Self::Audio { name, .. } | Self::Image { name, .. } => name.clone(),
            Self::Arrays { arrays, .. } => {
                let mut files: Vec<&str> = arrays.iter().map(|array| &*array.file).collect();
                files.dedup();
                files.join(", ")
            }
        }
    }
}

/// Tokens that a model is given and that it generates from them, greedily.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Written {
    /// Tokens before the first generated token: the prompt's, or the start tokens of a decoder.
    pub given: Vec<i64>,
    /// Tokens of the encoder, if the model has an encoder that reads text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub encoder: Vec<i64>,
    /// Tokens that were generated.
    pub added: Vec<i64>,
    /// Text of the generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Written {
    /// Returns all tokens that the decoder receives.
    #[must_use]
    pub fn tokens(&self) -> Vec<i64> {
        [&self.given[..], &self.added].concat()
    }
}

/// Generates up to `most` tokens from a payload.
///
/// The default is 16 tokens for a separate encoder and decoder, and none otherwise. Returns `None`
/// if the model does not generate tokens from the payload.
///
/// # Errors
/// Returns the same errors as [`Generator::generate`] and [`Transcriber::transcribe`].
pub fn generated(
    subject: Subject<'_>,
    options: &RunOptions,
    host: &dyn Host,
    payload: &Payload,
    most: Option<usize>,
) -> RunResult<Option<Written>> {
    let Subject { source, facts } = subject;
    let mut options = options.clone();
    options.keeps_past = options.generates(facts);
    if !options.keeps_past {
        return Ok(None);
    }
    // What is warned of here is warned of again where the payload is traced.
    let quiet = Quiet(host);
    with_runner(source, facts, &options, &quiet, |runner| {
        let is_pair = options.part.is_none() && runner.has_decoder();
        let most = most.unwrap_or(if is_pair { DECODED } else { 0 });
        match payload {
            Payload::Audio { name, bytes } if is_pair && Transcriber::fits(runner) => {
                transcribed(runner, name, bytes, most).map(Some)
            }
            Payload::Text { context: None, .. } | Payload::Tokens(_) => {
                let options = generation(most);
                let mut generator = match is_pair {
                    true if Transcriber::fits(runner) => return Ok(None),
                    true => Generator::of(runner, options)?,
                    false => {
                        let part = runner.prepare()?;
                        if !part.generates() {
                            return Ok(None);
                        }
                        Generator::of_part(part, options)?
                    }
                };
                completed(&mut generator, payload, is_pair.then_some(facts)).map(Some)
            }
            _ => Ok(None),
        }
    })
}

/// The likeliest tokens, and no other setting of the model: a trace shows what it computes.
fn generation(most: usize) -> GenerateOptions {
    let sampling = GenerationOptions {
        temperature: Some(0.0),
        repeat_penalty: Some(1.0),
        max_tokens: Some(most),
        ..GenerationOptions::default()
    };
    GenerateOptions { sampling, ..GenerateOptions::default() }
}

fn completed(
    generator: &mut Generator<'_>,
    payload: &Payload,
    pair: Option<&Facts>,
) -> RunResult<Written> {
    let prompt = match payload {
        Payload::Tokens(ids) => Prompt::Tokens(ids),
        Payload::Text { prompt, chat: Some(system), .. } => {
            Prompt::Chat { system: system.as_deref(), message: prompt }
        }
        Payload::Text { prompt, .. } => Prompt::Text(prompt),
        _ => return Ok(Written::default()),
    };
    let made = generator.generate(prompt, &mut |_| Ok(()))?;
    let text = made.text.filter(|_| !made.added.is_empty());
    let Some(facts) = pair else {
        return Ok(Written { given: made.given, encoder: Vec::new(), added: made.added, text });
    };
    // The generator has refused models that say no such token.
    let start = facts.decoder_start().into_iter().collect();
    Ok(Written { given: start, encoder: made.given, added: made.added, text })
}

fn transcribed(runner: &Runner<'_>, name: &str, bytes: &[u8], most: usize) -> RunResult<Written> {
    let sampling = generation(most).sampling;
    let options = TranscriptionOptions { sampling, ..TranscriptionOptions::default() };
    let transcriber = Transcriber::of(runner, options)?;
    let body = &named(runner, ENCODER)?.graph.body;
    let mut inputs = AudioFeatures::of(runner, body)?.inputs(name, bytes.to_vec())?;
    cut_to_window(body, &mut inputs)?;
    let states = transcriber.states(inputs)?;
    let (given, added) = transcriber.window_tokens(&states, None, most)?;
    let text = (!added.is_empty()).then(|| transcriber.text_of(&added)).transpose()?;
    Ok(Written { given, encoder: Vec::new(), added, text })
}

/// Keeps the first window of a spectrum that is longer than the graph takes; seconds are not known
/// here, so what was cut is told in frames.
fn cut_to_window(body: &Body, inputs: &mut [(String, Value)]) -> RunResult<Option<(usize, usize)>> {
    let mut cut = None;
    for (name, value) in inputs {
        let input = body.inputs.iter().map(|id| body.value(*id)).find(|input| input.name == *name);
        let Some(input) = input.filter(|input| input.meaning == Meaning::Mel) else { continue };
        let fixed = input.shape().and_then(|dims| dims.last()?.size());
        let tensor = value.tensor()?;
        let &[batch, mels, frames] = tensor.shape() else { continue };
        let Some(window) = fixed.and_then(|size| usize::try_from(size).ok()) else { continue };
        if frames > window {
            let values = tensor.floats()?;
            let rows = values.chunks_exact(frames).flat_map(|row| &row[..window]);
            let kept: Vec<f32> = rows.copied().collect();
            *value = Tensor::new(vec![batch, mels, window], kept)?.into();
            cut = Some((window, frames));
        }
    }
    Ok(cut)
}

/// An input that is a file, before anything is made of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RawInput {
    /// Kind of input, such as `audio_input`.
    pub name: &'static str,
    /// Values of the input.
    pub value: Value,
    /// The audio file.
    pub sound: Option<AudioFile>,
}

/// One run of a part of a model.
pub struct Pass<'p> {
    /// Part of the model that runs.
    pub part: Prepared<'p>,
    /// Inputs of the part.
    pub inputs: Vec<(String, Value)>,
    /// Inputs that were not given, with the assumed values.
    pub assumed: Vec<AssumedInput>,
    /// Decoded values of the input file, if the payload is a file.
    pub raw: Vec<RawInput>,
    /// Token ids among the inputs.
    pub tokens: Vec<i64>,
}

impl<'p> Pass<'p> {
    /// One without inputs yet.
    pub(crate) fn of(part: Prepared<'p>, tokens: Vec<i64>) -> Self {
        Self { part, inputs: Vec::new(), assumed: Vec::new(), raw: Vec::new(), tokens }
    }

    /// The names of the part's outputs.
    #[must_use]
    pub fn outputs(&self) -> Vec<&str> {
        let body = &self.part.graph().body;
        body.outputs.iter().map(|id| body.value(*id).name.as_str()).collect()
    }
}

/// Parts of a model that a payload runs, in order.
pub struct Passes<'r> {
    runner: Runner<'r>,
    parts: Vec<&'r Runnable>,
}

impl<'r> Passes<'r> {
    /// Returns the parts of a model: the encoder and the decoder if it has both and no part is
    /// chosen.
    ///
    /// # Errors
    /// [`RunError::Request`] if the model has several parts and none is chosen.
    pub fn of(runner: &Runner<'r>, payload: &Payload) -> RunResult<Self> {
        let is_media = payload.kind() != InputKind::Arrays;
        let parts = match is_pair(runner) && is_media && runner.options().part.is_none() {
            true => vec![named(runner, ENCODER)?, named(runner, DECODER)?],
            false => vec![runner.part()?],
        };
        Ok(Self { runner: *runner, parts })
    }

    /// Returns the parts of the model.
    #[must_use]
    pub fn parts(&self) -> &[&'r Runnable] {
        &self.parts
    }

    /// The part at a position, with its inputs. A decoder gets the encoder's states of `before`,
    /// and the tokens of `written`.
    ///
    /// # Errors
    /// What making the inputs ends with; [`RunError::Request`] where some are missing.
    pub fn pass(
        &self,
        at: usize,
        payload: &Payload,
        written: Option<&Written>,
        before: Option<&Value>,
    ) -> RunResult<Pass<'r>> {
        let mut pass = Pass::of(self.runner.prepared(self.parts[at])?, Vec::new());
        match before {
            Some(states) => self.decoder_inputs(&mut pass, written, states)?,
            None => self.inputs(&mut pass, payload, written)?,
        }
        complete(&mut pass)?;
        Ok(pass)
    }

    /// The part at a position with the inputs that another model's part was given. A decoder gets
    /// the states of its own encoder.
    ///
    /// # Errors
    /// [`RunError::Request`] where inputs are missing.
    pub fn pass_like(
        &self,
        at: usize,
        other: &Pass<'_>,
        before: Option<&Value>,
    ) -> RunResult<Pass<'r>> {
        let mut pass = Pass::of(self.runner.prepared(self.parts[at])?, other.tokens.clone());
        let body = &pass.part.graph().body;
        pass.inputs = inputs_like(body, other)?;
        for (name, value) in &mut pass.inputs {
            let mut inputs = body.inputs.iter().map(|id| body.value(*id));
            let input = inputs.find(|input| input.name == *name);
            let is_states = input.is_some_and(|input| input.meaning == Meaning::EncoderStates);
            if let Some(states) = before.filter(|_| is_states) {
                value.clone_from(states);
            }
        }
        complete(&mut pass)?;
        Ok(pass)
    }

    fn inputs(
        &self,
        pass: &mut Pass<'r>,
        payload: &Payload,
        written: Option<&Written>,
    ) -> RunResult<()> {
        let body = &pass.part.graph().body;
        let has_two = self.parts.len() > 1;
        match payload {
            Payload::Tokens(_) | Payload::Text { .. } if !InputKind::Text.fits(body) => {
                return Err(takes_no("text", body));
            }
            Payload::Text { prompt, context: Some(context), .. } => {
                let part = self.runner.prepared(self.parts[0])?;
                let (inputs, windows) =
                    QuestionAnswering::of_part(part, context.clone())?.inputs(prompt)?;
                if windows > 1 {
                    let host = self.runner.host();
                    host.warn(&format!("only the first of {windows} windows is traced"), None);
                }
                pass.inputs = inputs;
            }
            Payload::Text { prompt, chat, .. } => {
                let ids = match written {
                    Some(written) if has_two => written.encoder.clone(),
                    Some(written) => written.tokens(),
                    None if chat.is_some() => {
                        let message = "a chat is for models that generate text";
                        return Err(RunError::with_remedy(message, Remedy::NoChat));
                    }
                    None => {
                        let host = self.runner.host();
                        let tokenizer = Tokenizer::of(self.runner.reader(), host)?;
                        self.runner.text_ids(&tokenizer, prompt)?
                    }
                };
                pass.inputs = known_inputs(body, &ids)?;
                pass.tokens = ids;
            }
            Payload::Tokens(ids) => {
                let ids = match written {
                    Some(written) if has_two => written.encoder.clone(),
                    Some(written) => written.tokens(),
                    None => self.runner.token_ids(ids.clone())?,
                };
                pass.inputs = known_inputs(body, &ids)?;
                pass.tokens = ids;
            }
            Payload::Audio { name, bytes } => self.hear(pass, name, bytes)?,
            Payload::Image { name, bytes, text } => {
                let texts: Vec<String> = text.iter().cloned().collect();
                let features = ImageFeatures::of(&self.runner, body, &texts)?;
                pass.inputs = features.inputs(name, bytes)?;
            }
            Payload::Arrays { arrays, is_only_file } => {
                pass.inputs = array_inputs(body, arrays, *is_only_file)?;
                pass.tokens = token_ids(body, &pass.inputs);
            }
        }
        Ok(())
    }

    fn hear(&self, pass: &mut Pass<'r>, name: &str, bytes: &[u8]) -> RunResult<()> {
        let body = &pass.part.graph().body;
        let heard = AudioFeatures::of(&self.runner, body)?.read(name, bytes.to_vec())?;
        pass.inputs = heard.inputs;
        if let Some((window, frames)) = cut_to_window(body, &mut pass.inputs)? {
            let message = format!(
                "{name}: the first window is traced, {window} of {frames} frames of the spectrum"
            );
            self.runner.host().warn(&message, None);
        }
        let samples = Tensor::new(vec![1, heard.samples.len()], heard.samples)?;
        let raw = RawInput { name: "audio_input", value: samples.into(), sound: Some(heard.file) };
        pass.raw.push(raw);
        Ok(())
    }

    /// The encoder's states and the tokens so far as the inputs of the decoder.
    fn decoder_inputs(
        &self,
        pass: &mut Pass<'r>,
        written: Option<&Written>,
        states: &Value,
    ) -> RunResult<()> {
        let nothing = || Error::version("the model does not state the decoder's start token");
        // Where generating ended in NaN, the first token is enough to see where they begin.
        let first = || self.runner.facts().decoder_start().map(|start| vec![start]);
        let tokens = written.map(Written::tokens).filter(|tokens| !tokens.is_empty());
        let tokens = tokens.or_else(first).ok_or_else(nothing)?;
        let length = states.tensor()?.shape().get(1).copied().unwrap_or_default();
        let body = &pass.part.graph().body;
        for value in body.inputs.iter().map(|id| body.value(*id)) {
            let row = |row: Vec<i64>| Tensor::new(vec![1, row.len()], row).map(Value::from);
            let given = match value.meaning {
                Meaning::TokenIds => row(tokens.clone())?,
                Meaning::AttentionMask => row(vec![1; length])?,
                Meaning::EncoderStates => states.clone(),
                _ => continue,
            };
            pass.inputs.push((value.name.clone(), given));
        }
        pass.tokens = tokens;
        Ok(())
    }
}

/// Returns the inputs for a graph from another pass, matched by name or meaning.
pub(crate) fn inputs_like(body: &Body, pass: &Pass<'_>) -> RunResult<Vec<(String, Value)>> {
    let original = &pass.part.graph().body;
    let meaning = |name: &str| {
        let mut values = original.inputs.iter().map(|id| original.value(*id));
        values.find(|value| value.name == name).map(|value| value.meaning)
    };
    let mut inputs = Vec::new();
    for value in body.inputs.iter().map(|id| body.value(*id)) {
        let same = pass.inputs.iter().find(|(name, _)| *name == value.name);
        let known = value.meaning != Meaning::Unknown;
        let alike = || {
            let mut given = pass.inputs.iter();
            given.find(|(name, _)| known && meaning(name) == Some(value.meaning))
        };
        let Some((_, given)) = same.or_else(alike) else { continue };
        let given = match (given.tensor(), value.element()) {
            (Ok(tensor), Some(element)) if tensor.element() != element => {
                tensor.cast(element).map_err(|error: Error| error.for_tensor(&value.name))?.into()
            }
            _ => given.clone(),
        };
        inputs.push((value.name.clone(), given));
    }
    Ok(inputs)
}

/// The states of an encoder among its outputs.
#[must_use]
pub fn states_of(pass: &Pass<'_>, outcome: &Outcome) -> Option<Value> {
    let part = &pass.part;
    let name =
        part.output(Meaning::EncoderStates).or_else(|| part.output(Meaning::HiddenStates))?;
    let at = pass.outputs().iter().position(|output| *output == name)?;
    outcome.outputs.get(at).cloned()
}

/// Returns `true` if a model has a separate encoder and decoder.
fn is_pair(runner: &Runner<'_>) -> bool {
    [ENCODER, DECODER].iter().all(|name| runner.parts().iter().any(|part| part.name == *name))
}

fn named<'r>(runner: &Runner<'r>, name: &str) -> RunResult<&'r Runnable> {
    let part = runner.parts().iter().find(|part| part.name == name);
    Ok(part.ok_or_else(|| Error::format(format!("missing part '{name}'")))?)
}

/// Adds inputs that follow from the others.
fn complete(pass: &mut Pass<'_>) -> RunResult<()> {
    let session = pass.part.session();
    let wanted = pass.outputs();
    let absent = session.absent(&pass.inputs, &wanted)?;
    let found = assumed(&pass.part.graph().body, &pass.inputs, &absent)?;
    let (names, values): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let added: Vec<_> =
        names.iter().map(|input: &AssumedInput| input.name.clone()).zip(values).collect();
    pass.inputs.extend(added);
    pass.assumed = names;

    let wanted = pass.outputs();
    let missing = pass.part.session().missing(&pass.inputs, &wanted)?;
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("missing inputs: {}", missing.join(", "));
    Err(RunError::with_remedy(message, Remedy::Arrays))
}

fn takes_no(what: &str, body: &Body) -> RunError {
    RunError::request(format!("the model has no {what} input; {}", apr_run::inputs_of(body)))
}

/// Returns the token ids among the arrays, if they have one row.
fn token_ids(body: &Body, inputs: &[(String, Value)]) -> Vec<i64> {
    let is_ids = |name: &str| {
        let mut values = body.inputs.iter().map(|id| body.value(*id));
        values.any(|value| value.name == name && value.meaning == Meaning::TokenIds)
    };
    let found = inputs.iter().find(|(name, _)| is_ids(name));
    let row = found.and_then(|(_, value)| value.tensor().ok());
    let row = row.filter(|row| matches!(row.shape(), [1, _]));
    row.and_then(|row| row.values::<i64>().ok()).map(<[i64]>::to_vec).unwrap_or_default()
}
