//! A model that runs in the page: one thread, and answers as `apr run --json` gives them.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use apr_graph::Meaning;
use apr_infer::{Alone, Memory, Value, Workers};
use apr_registry::Error;
use apr_run::{
    Answers, AudioEncoder, AudioResult, Completion, Conversation, Facts, GenerateOptions,
    GenerationOptions, Generator, Given, GivenArray, Host, ImageEncoder, ImageResult, Prepared,
    Prompt, QuestionAnswering, Remedy, RunError, RunOptions, RunReport, RunResult, Runner,
    TextEncoder, TextTask, Tokenizer, Transcriber, Transcription, TranscriptionOptions,
    array_inputs, assumed, inputs_of, known_inputs, report, with_runner,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};

use crate::error::{Thrown, json};
use crate::model::Model;

#[wasm_bindgen(typescript_custom_section)]
const ON_TEXT: &str = r#"
/** Hears each piece of a text as it is generated. */
export type OnText = (piece: string) => void;
"#;

#[wasm_bindgen]
extern "C" {
    /// The listener.
    #[wasm_bindgen(typescript_type = "OnText | undefined")]
    pub type OnText;
}

/// Inputs and options of a run.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct RunWishes {
    text: Option<String>,
    /// The text is a message of a chat.
    chat: bool,
    system: Option<String>,
    /// Previous messages of the chat, the oldest first, which the text continues.
    history: Option<Vec<Message>>,
    /// The text that a question is about.
    context: Option<String>,
    /// Candidate texts beside an image.
    candidates: Vec<String>,
    /// Name of the file. The extension determines whether it is an audio file or an image.
    file: Option<String>,
    /// Arrays by their names, as nested lists.
    arrays: Option<Json>,
    /// Values of the graph that are wanted instead of an answer.
    want: Vec<String>,
    part: Option<String>,
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    seed: u64,
}

impl RunWishes {
    /// Rejects options that would have no effect.
    fn check(&self) -> RunResult<()> {
        let silent = [("system", self.system.is_some()), ("history", self.history.is_some())];
        let silent = silent.iter().find(|(_, is_given)| *is_given && !self.chat);
        silent.map_or(Ok(()), |(name, _)| {
            Err(RunError::request(format!("`{name}` is of a chat: it needs `chat: true`")))
        })
    }
}

/// A message of a chat.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    /// `user` or `assistant`.
    role: String,
    text: String,
}

/// Result of a run.
#[derive(Serialize)]
struct Ran {
    #[serde(flatten)]
    answer: Answered,
    warnings: Vec<String>,
    seconds: f64,
}

/// Result by the kind of answer.
#[derive(Serialize)]
#[serde(tag = "kind", content = "result", rename_all = "snake_case")]
enum Answered {
    Completion(Box<Completion>),
    Text(TextTask),
    Answers(Answers),
    Audio(AudioResult),
    Transcription(Transcription),
    Image(ImageResult),
    Arrays(RunReport),
}

/// A piece of a text, as the tokenizer cuts it.
#[derive(Serialize)]
struct TokenOfText {
    id: i64,
    text: String,
    /// The token of the vocabulary so that spaces, new lines and single bytes can be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    shown: Option<String>,
}

/// The surroundings that a page has: one thread and a clock.
struct Page {
    warnings: Mutex<Vec<String>>,
}

impl Host for Page {
    fn workers(&self) -> &dyn Workers {
        &Alone
    }

    fn warn(&self, message: &str, _: Option<Remedy>) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(message.to_owned());
    }

    #[allow(clippy::cast_possible_truncation, reason = "seconds")]
    fn now(&self) -> i64 {
        (js_sys::Date::now() / 1000.0) as i64
    }

    fn elapsed(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(js_sys::Date::now() / 1000.0).ok()
    }

    fn isolate(&self, _: &str, work: Box<dyn FnOnce() + Send>) -> apr_core::Result<()> {
        work();
        Ok(())
    }
}

#[wasm_bindgen]
impl Model {
    /// Runs the model on what is given, and says what its head makes of it; `bytes` are those of
    /// the sound or the image, and `on_text` hears a text as it is generated.
    ///
    /// # Errors
    /// What does not go with the model, and the errors of its files.
    pub fn run(
        &self,
        wishes: &str,
        bytes: Option<Vec<u8>>,
        on_text: OnText,
    ) -> Result<String, JsValue> {
        let wishes: RunWishes = serde_json::from_str(wishes)
            .map_err(|error| JsValue::from(Thrown::request(error.to_string())))?;
        let host = Page { warnings: Mutex::default() };
        let started = js_sys::Date::now();
        let answer = self.answer(&wishes, bytes, &host, on_text).map_err(Thrown::from)?;
        let seconds = (js_sys::Date::now() - started) / 1000.0;
        let warnings = host.warnings.into_inner().unwrap_or_else(PoisonError::into_inner);
        json(&Ran { answer, warnings, seconds })
    }

    /// The tokens of a text, by the model's own tokenizer.
    ///
    /// # Errors
    /// E003 where the model has none, or none that is understood.
    pub fn tokenize(&self, text: &str) -> Result<String, JsValue> {
        let host = Page { warnings: Mutex::default() };
        json(&self.tokens(text, &host).map_err(Thrown::from)?)
    }
}

impl Model {
    fn tokens(&self, text: &str, host: &Page) -> RunResult<Vec<TokenOfText>> {
        let tokenizer = Tokenizer::of(&*self.reader, host)?;
        let ids = tokenizer.encode(text, true)?;
        let vocabulary = self.whole_vocabulary()?;
        let shown = |id: i64| {
            let token = vocabulary?.token(u64::try_from(id).ok()?)?;
            vocabulary.map(|vocabulary| vocabulary.readable(token))
        };
        let token =
            |id| Ok(TokenOfText { id, text: tokenizer.decode(&[id], true)?, shown: shown(id) });
        ids.into_iter().map(token).collect()
    }

    fn answer(
        &self,
        wishes: &RunWishes,
        bytes: Option<Vec<u8>>,
        host: &Page,
        on_text: OnText,
    ) -> RunResult<Answered> {
        wishes.check()?;
        let source = self.source();
        let facts = Facts::of_source(&source)?;
        let goes_on = wishes.text.is_some() || bytes.is_some();
        let mut options = RunOptions::default();
        options.part.clone_from(&wishes.part);
        options.seed = wishes.seed;
        // What a module's memory can hold, beside what is in it already.
        options.max_memory = 2 << 30;
        options.keeps_past = options.generates(&facts) && goes_on && wishes.want.is_empty();
        with_runner(&source, &facts, &options, host, |runner| {
            let memory = &self.memory;
            GivenToRun { wishes, model: &self.name, on_text, memory }.to(runner, bytes)
        })
    }
}

/// Inputs and options of a prepared model, without the bytes of a file.
struct GivenToRun<'g> {
    wishes: &'g RunWishes,
    model: &'g str,
    on_text: OnText,
    memory: &'g RefCell<Memory>,
}

impl GivenToRun<'_> {
    /// Runs the model on the inputs, and returns the result of the model's task.
    fn to(&self, runner: &Runner<'_>, bytes: Option<Vec<u8>>) -> RunResult<Answered> {
        let Self { wishes, model, .. } = *self;
        let name = wishes.file.as_deref().unwrap_or("file");
        if wishes.part.is_none() && wishes.want.is_empty() && runner.has_decoder() {
            match bytes {
                Some(bytes) => {
                    let options = TranscriptionOptions::default();
                    let heard = Transcriber::of(runner, options)?.transcribe(name, bytes)?;
                    return Ok(Answered::Transcription(heard));
                }
                None if !Transcriber::fits(runner) && wishes.text.is_some() => {
                    let generator = Generator::of(runner, self.generation())?;
                    return self.generated(generator);
                }
                None => {}
            }
        }

        let part = runner.prepare()?;
        if let Some(bytes) = bytes {
            if part.takes_waveforms() {
                return Ok(Answered::Audio(AudioEncoder::of_part(part)?.read(name, bytes)?));
            }
            let encoder = ImageEncoder::of_part(part, &wishes.candidates)?;
            return Ok(Answered::Image(encoder.read(name, &bytes)?));
        }
        let Some(text) = &wishes.text else { return arrays(model, wishes, &part) };
        if !part.takes(Meaning::TokenIds) {
            let message = format!("the model has no text input; {}", inputs_of(&part.graph().body));
            return Err(RunError::request(message));
        }
        if !wishes.want.is_empty() {
            let ids = runner.text_ids(&Tokenizer::of(runner.reader(), runner.host())?, text)?;
            return values(model, wishes, &part, known_inputs(&part.graph().body, &ids)?);
        }
        if part.answers_questions() {
            let Some(context) = &wishes.context else {
                return Err(RunError::request("a question needs the text that it is about"));
            };
            return Ok(Answered::Answers(QuestionAnswering::of_part(part, context)?.answer(text)?));
        }
        if part.generates() {
            let generator = Generator::of_part(part, self.generation())?;
            return self.generated(generator);
        }
        Ok(Answered::Text(TextEncoder::of_part(part)?.read(text)?))
    }

    fn generation(&self) -> GenerateOptions {
        let wishes = self.wishes;
        GenerateOptions {
            sampling: GenerationOptions {
                temperature: wishes.temperature,
                top_k: wishes.top_k,
                top_p: wishes.top_p,
                max_tokens: wishes.max_tokens,
                seed: wishes.seed,
                ..GenerationOptions::default()
            },
            ..GenerateOptions::default()
        }
    }

    fn generated(&self, mut generator: Generator<'_>) -> RunResult<Answered> {
        let wishes = self.wishes;
        let text = wishes.text.as_deref().unwrap_or_default();
        if let (true, Some(history)) = (wishes.chat, &wishes.history) {
            return self.turn(generator, text, history);
        }
        let prompt = match wishes.chat {
            true => Prompt::Chat { system: wishes.system.as_deref(), message: text },
            false => Prompt::Text(text),
        };
        let made = generator.generate(prompt, &mut |piece| self.tell(piece))?;
        Ok(Answered::Completion(Box::new(made)))
    }

    /// Returns the answer to a message of a conversation.
    ///
    /// The KV cache stays with the model until the next message.
    fn turn(
        &self,
        generator: Generator<'_>,
        text: &str,
        history: &[Message],
    ) -> RunResult<Answered> {
        let system = self.wishes.system.clone();
        let messages = history.iter().map(|said| (said.role.clone(), said.text.clone())).collect();
        let memory = self.memory.take();
        let mut conversation = Conversation::resumed(generator, system, messages, memory)?;
        let made = conversation.turn(text, &mut |piece| self.tell(piece))?;
        self.memory.replace(conversation.into_memory());
        Ok(Answered::Completion(Box::new(made)))
    }

    fn tell(&self, piece: &str) -> apr_core::Result<()> {
        let listener: Option<&js_sys::Function> = self.on_text.dyn_ref();
        if let Some(listener) = listener {
            // A listener that throws does not end the text.
            let _ = listener.call1(&JsValue::NULL, &piece.into());
        }
        Ok(())
    }
}

/// Runs the model on arrays, with assumed values for the missing inputs.
fn arrays(model: &str, wishes: &RunWishes, part: &Prepared<'_>) -> RunResult<Answered> {
    let given = match &wishes.arrays {
        Some(Json::Object(fields)) => fields
            .iter()
            .map(|(name, list)| GivenArray {
                name: Some(name.clone()),
                value: Given::Json(list.clone()),
                file: "the arrays given".to_owned(),
            })
            .collect(),
        Some(_) => return Err(RunError::request("arrays are an object of nested lists")),
        None => Vec::new(),
    };
    values(model, wishes, part, array_inputs(&part.graph().body, &given, true)?)
}

fn values(
    model: &str,
    wishes: &RunWishes,
    part: &Prepared<'_>,
    mut inputs: Vec<(String, Value)>,
) -> RunResult<Answered> {
    let session = part.session();
    let body = &part.graph().body;
    let outputs = body.outputs.iter().map(|id| body.value(*id).name.as_str());
    let wanted: Vec<&str> = match wishes.want.as_slice() {
        [] => outputs.collect(),
        want => want.iter().map(String::as_str).collect(),
    };
    if let Some(name) = wanted.iter().find(|name| !session.has(name)) {
        return Err(Error::format(format!("unknown value '{name}'")).into());
    }
    let absent = session.absent(&inputs, &wanted)?;
    let (assumed, values): (Vec<_>, Vec<_>) = assumed(body, &inputs, &absent)?.into_iter().unzip();
    inputs.extend(assumed.iter().map(|input| input.name.clone()).zip(values));
    let missing = session.missing(&inputs, &wanted)?;
    if !missing.is_empty() {
        return Err(RunError::request(format!("missing inputs: {}", missing.join(", "))));
    }
    let outcome = part.run(inputs, &wanted)?;
    let report = report(model, part.name(), &wanted, &outcome)?;
    Ok(Answered::Arrays(RunReport { assumed, ..report }))
}
