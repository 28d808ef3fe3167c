//! Generated text, as an iterator.

use std::mem;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use apr::run::{
    Arithmetic, Breakers, CacheType, ChatFile, Completion, Conversation, Data, DryPenalty,
    GenerateOptions, GenerationOptions, Generator, Grammar, Mirostat, Prompt, RunError, RunOptions,
    RunResult, Runner, TokenName, Xtc,
};
use apr::{Error, IoCause};
use apr_infer::Memory;
use pyo3::prelude::*;

use crate::errors::Failure;
use crate::supervised::{PERIOD, Watch};

/// Options of a generation, with the names of Python's keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Asked {
    prompt: Option<String>,
    tokens: Option<Vec<i64>>,
    chat: bool,
    /// Messages of a chat, as a JSON document.
    messages: Option<String>,
    /// Variables of the chat template, as JSON documents.
    tools: Option<String>,
    documents: Option<String>,
    template_args: Vec<(String, String)>,
    system: Option<String>,
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    beams: Option<usize>,
    length_penalty: Option<f32>,
    sampling: Sampling,
    seed: u64,
    stop: Vec<String>,
    logprobs: Option<usize>,
    /// Kind and text of a grammar.
    grammar: Option<(String, String)>,
    exact: bool,
    /// Name of a [`CacheType`]. Python rejects other names.
    cache_type: String,
    max_memory: Option<u64>,
    /// The chat of which the prompt is the next message.
    history: Option<Py<History>>,
}

/// Samplers of llama.cpp, with the names of Python's keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Sampling {
    frequency_penalty: Option<f32>,
    repeat_last_n: Option<usize>,
    /// Ids or texts of tokens, with the numbers that are added to their logits.
    logit_bias: Vec<(Option<i64>, String, f32)>,
    typical_p: Option<f32>,
    mirostat: Option<u8>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<usize>,
    dry_penalty_last_n: Option<usize>,
    dry_sequence_breakers: Option<Vec<String>>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    ignore_eos: bool,
    min_tokens: Option<usize>,
}

impl Sampling {
    fn add_to(&self, options: &mut GenerationOptions) {
        options.frequency_penalty = self.frequency_penalty;
        options.repeat_last_n = self.repeat_last_n;
        let named = |(id, text, bias): &(Option<i64>, String, f32)| {
            (id.map_or_else(|| TokenName::Text(text.clone()), TokenName::Id), *bias)
        };
        options.logit_bias = self.logit_bias.iter().map(named).collect();
        options.typical_p = self.typical_p;
        options.mirostat = self.mirostat.map(|version| {
            let usual = Mirostat::default();
            let (tau, eta) = (self.mirostat_tau, self.mirostat_eta);
            Mirostat { version, tau: tau.unwrap_or(usual.tau), eta: eta.unwrap_or(usual.eta) }
        });
        options.dry = self.dry_multiplier.map(|multiplier| {
            let usual = DryPenalty::default();
            DryPenalty {
                multiplier,
                base: self.dry_base.unwrap_or(usual.base),
                allowed_length: self.dry_allowed_length.unwrap_or(usual.allowed_length),
                last_n: self.dry_penalty_last_n,
                breakers: self.dry_sequence_breakers.clone().map_or(usual.breakers, Breakers::new),
            }
        });
        options.xtc = self.xtc_probability.map(|probability| {
            let threshold = self.xtc_threshold.unwrap_or(Xtc::default().threshold);
            Xtc { probability, threshold }
        });
        options.ignore_eos = self.ignore_eos;
        options.min_tokens = self.min_tokens;
    }
}

/// State of a chat between its turns.
#[pyclass(frozen, module = "apr._apr")]
pub(crate) struct History(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    /// Roles and texts, the oldest first.
    messages: Vec<(String, String)>,
    /// Keys and values of the tokens read.
    memory: Memory,
    /// `true` while a turn is generated.
    is_busy: bool,
}

impl History {
    fn said(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
        said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl History {
    #[new]
    fn new(messages: Vec<(String, String)>) -> Self {
        Self(Arc::new(Mutex::new(Said { messages, ..Said::default() })))
    }

    /// Returns roles and texts, the oldest first, without the system message.
    fn messages(&self) -> Vec<(String, String)> {
        Self::said(&self.0).messages.clone()
    }
}

impl Asked {
    pub(crate) fn run_options(&self) -> RunOptions {
        let mut options = RunOptions::default();
        if !self.exact {
            options.arithmetic = Arithmetic::Fast;
        }
        options.cache_type = CacheType::named(&self.cache_type).unwrap_or_default();
        options.max_memory = self.max_memory.unwrap_or(options.max_memory);
        options.seed = self.seed;
        options
    }

    fn generate_options(&self) -> RunResult<GenerateOptions> {
        let mut options = GenerateOptions {
            logprobs: self.logprobs,
            stops: self.stop.clone(),
            grammar: self.grammar(),
            ..Default::default()
        };
        options.sampling.temperature = self.temperature;
        options.sampling.top_k = self.top_k;
        options.sampling.top_p = self.top_p;
        options.sampling.min_p = self.min_p;
        options.sampling.repeat_penalty = self.repeat_penalty;
        options.sampling.presence_penalty = self.presence_penalty;
        self.sampling.add_to(&mut options.sampling);
        options.sampling.max_tokens = self.max_tokens;
        options.sampling.beams = self.beams;
        options.sampling.length_penalty = self.length_penalty;
        options.sampling.seed = self.seed;
        options.template.tools =
            self.tools.as_deref().map(ChatFile::tools_from_json).transpose()?;
        options.template.documents = self.documents.as_deref().map(Data::from_json).transpose()?;
        for (name, value) in &self.template_args {
            options.template.arguments.push((name.clone(), Data::from_json(value)?));
        }
        Ok(options)
    }

    /// Returns the constraint on the text.
    fn grammar(&self) -> Option<Grammar> {
        let (kind, text) = self.grammar.as_ref()?;
        Some(match kind.as_str() {
            "json_schema" => Grammar::json_schema(text),
            "regex" => Grammar::regex(text),
            _ => Grammar::rules(text),
        })
    }

    /// Generates the text, or the answer of the chat.
    fn write(
        &self,
        runner: &Runner<'_>,
        said: Option<&Mutex<Said>>,
        sink: &mut dyn FnMut(&str) -> apr::Result<()>,
    ) -> RunResult<Completion> {
        let mut generator = Generator::of(runner, self.generate_options()?)?;
        let Some(said) = said else {
            let chat = self.messages.as_deref().map(ChatFile::from_json).transpose()?;
            let prompt = match &chat {
                Some(chat) => Prompt::Messages(&chat.messages),
                None => self.prompt(),
            };
            return generator.generate(prompt, sink);
        };
        let (messages, memory) = {
            let mut said = History::said(said);
            if mem::replace(&mut said.is_busy, true) {
                return Err(RunError::request("another turn of this chat is being written"));
            }
            (said.messages.clone(), mem::take(&mut said.memory))
        };
        let message = self.prompt.as_deref().unwrap_or_default();
        let made = Conversation::resumed(generator, self.system.clone(), messages, memory)
            .and_then(|mut chat| Ok((chat.turn(message, sink)?, chat)));
        let mut said = History::said(said);
        said.is_busy = false;
        let (made, chat) = made?;
        said.messages = chat.messages().to_vec();
        said.memory = chat.into_memory();
        Ok(made)
    }

    /// Generates text for each prompt, with this many at the same time.
    pub(crate) fn write_all(
        &self,
        runner: &Runner<'_>,
        prompts: &[String],
        batch: usize,
    ) -> RunResult<Vec<Completion>> {
        let mut generator = Generator::of(runner, self.generate_options()?)?;
        let prompts: Vec<Prompt<'_>> = prompts.iter().map(|text| self.prompt_of(text)).collect();
        generator.generate_all(&prompts, batch, &mut |_, _| Ok(()))
    }

    fn prompt(&self) -> Prompt<'_> {
        match &self.tokens {
            Some(ids) => Prompt::Tokens(ids),
            None => self.prompt_of(self.prompt.as_deref().unwrap_or_default()),
        }
    }

    fn prompt_of<'a>(&'a self, text: &'a str) -> Prompt<'a> {
        match self.chat {
            true => Prompt::Chat { system: self.system.as_deref(), message: text },
            false => Prompt::Text(text),
        }
    }
}

enum Event {
    Piece(String),
    /// Returns the report as JSON.
    Done(Result<String, Failure>),
}

/// Pieces of a text, while it is generated. Dropping the iterator ends the generation.
#[pyclass(frozen, module = "apr._apr")]
pub(crate) struct Generation {
    events: Mutex<Receiver<Event>>,
    watch: Watch,
    report: Mutex<Option<String>>,
}

impl Generation {
    pub(crate) fn begin(model: Arc<apr::Model>, asked: Asked) -> Self {
        let (sender, events) = mpsc::channel();
        let watch = Watch::default();
        let worker = watch.clone();
        let failed = sender.clone();
        let said = asked.history.as_ref().map(|history| Arc::clone(&history.get().0));
        let write = move || {
            let warn = |message: &str, _| worker.warn(message);
            let interrupt = worker.interrupt.clone();
            let made = model.run_until(&asked.run_options(), interrupt, warn, |runner| {
                asked.write(runner, said.as_deref(), &mut |piece| {
                    let gone = |_| Error::io(IoCause::Interrupted, "nobody reads the text");
                    sender.send(Event::Piece(piece.to_owned())).map_err(gone)
                })
            });
            let report = made.map_err(Failure::from).and_then(|completion| {
                apr_core::json::to_string(&completion).map_err(Failure::from)
            });
            // Nobody may be left to hear it.
            let _ = sender.send(Event::Done(report));
        };
        let spawned = thread::Builder::new().name("apr".to_owned()).spawn(write);
        if let Err(error) = spawned {
            let _ = failed.send(Event::Done(Err(Error::memory(error.to_string()).into())));
        }
        Self { events: Mutex::new(events), watch, report: Mutex::new(None) }
    }
}

#[pymethods]
impl Generation {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            let event = py.detach(|| {
                self.events.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PERIOD)
            });
            self.watch.pass_on(py, None).inspect_err(|_| self.watch.interrupt.cancel())?;
            match event {
                Ok(Event::Piece(piece)) => return Ok(Some(piece)),
                Ok(Event::Done(report)) => {
                    let report = report.map_err(|failure| failure.raised(py))?;
                    *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// Returns the report as JSON, once the text is complete.
    #[getter]
    fn report(&self) -> Option<String> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.watch.interrupt.cancel();
    }
}
