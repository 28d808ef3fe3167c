//! Text generation: completions, chats, and the answers of an encoder and a decoder.

mod batch;
mod chat;
mod images;
mod report;
mod search;
mod tiles;
mod writing;

use std::cell::{Cell, OnceCell};

use apr_core::counted;
use apr_graph::Meaning;
use apr_infer::{Arithmetic, CacheType, Memory, Tensor, Value};
use apr_inputs::chat::{Message, TemplateOptions};
use apr_registry::{Error, Result};

use self::chat::chat_template;
pub use self::chat::{chat_text, has_chat_template};
use self::images::PromptImages;
pub use self::report::Completion;
use self::report::text_of;
use crate::encoder_decoder::EncoderDecoder;
use crate::error::{Remedy, RunError, RunResult, absent};
use crate::generation::{Generation, GenerationOptions};
use crate::grammar::{Compiled, Constraint, Grammar, KeptGrammar};
use crate::growing::{ByteSink, as_texts};
use crate::next::{Causal, Fork, Next, keep_common};
use crate::runner::{Prepared, Runner};
use crate::timing::Stopwatch;
use crate::tokens::Tokenizer;

/// Maximum number of tokens if no setting gives another one.
const DEFAULT_TOKENS: usize = 128;

/// Options of text generation.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// Sampling settings and the maximum number of tokens. For `None`, the model's own settings
    /// apply.
    pub sampling: GenerationOptions,
    /// Texts before which a completion ends; with [`Prompt::Tokens`], ids.
    pub stops: Vec<String>,
    /// Number of the likeliest tokens at each position whose log probabilities are returned,
    /// besides the generated token's.
    pub logprobs: Option<usize>,
    /// Inputs of the chat template besides messages: tools, documents, arguments.
    pub template: TemplateOptions,
    /// Grammar that the text must match. It can't be used with [`Prompt::Tokens`].
    pub grammar: Option<Grammar>,
}

/// Beginning of a completion.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Prompt<'p> {
    /// A text, without changes.
    Text(&'p str),
    /// A message of a chat, written by the model's own template.
    Chat {
        /// The system message before it.
        system: Option<&'p str>,
        /// The user's message.
        message: &'p str,
    },
    /// Messages of a chat, the oldest first, written by the model's own template.
    Messages(&'p [Message]),
    /// Ids of tokens; so is what is written then.
    Tokens(&'p [i64]),
}

/// Generates text with a language model, or with an encoder and a decoder.
pub struct Generator<'g> {
    pub(crate) runner: Runner<'g>,
    model: Model<'g>,
    settings: Generation,
    options: GenerateOptions,
    /// Read when the first text needs it.
    tokenizer: Option<Tokenizer<'g>>,
    /// Keys and values of the last prompt, if prompts are kept.
    pub(crate) kept: Option<Memory>,
    /// Identity of everything that keys and values depend on, as stored in files of prompts.
    pub(crate) identity: OnceCell<String>,
    /// State of the files that the model was read from.
    pub(crate) files: Option<String>,
    /// `true` if nothing compares the digests in the files with the weights.
    pub(crate) distrusts_digests: bool,
    /// `true` if the ignored inputs of the chat template have been reported.
    told: Cell<bool>,
    /// The grammar of the options, once a text needs it.
    compiled: OnceCell<Compiled>,
    /// Images that the prompts show.
    images: Option<PromptImages<'g>>,
    /// The settings with the tokens that the options name by their texts, once a text needs them.
    named: OnceCell<Generation>,
}

enum Model<'g> {
    /// Continues its prompt.
    Decoder(Box<Prepared<'g>>),
    /// Reads the prompt with the encoder, and writes behind this token.
    EncoderDecoder(Box<EncoderDecoder<'g>>, i64),
}

/// Beginning of a text.
struct Begin {
    /// The tokens before the first that is written.
    tokens: Vec<i64>,
    /// Number of these tokens that are already in the memory.
    reused: Option<usize>,
    /// Tokens that the encoder has read.
    encoder: Vec<i64>,
    /// Number of tokens that fit the model, including these.
    context: Option<usize>,
    arithmetic: Arithmetic,
    cache_type: CacheType,
    /// `true` for a turn of a conversation.
    is_turn: bool,
}

/// Keys and values that a prompt finds of earlier ones.
enum Kept<'m> {
    /// No keys and values, and none are kept afterwards.
    Nothing,
    /// A prompt's keys and values, and it leaves its own.
    Prompt(&'m mut Memory),
    /// Keys and values of all turns, including answers.
    Conversation(&'m mut Memory),
}

/// Input of a completion.
struct Asked<'a> {
    tokenizer: Option<&'a Tokenizer<'a>>,
    prompt: Option<String>,
    given: Vec<i64>,
    /// Receives the text as it grows.
    sink: Option<&'a mut ByteSink<'a>>,
    watch: Stopwatch<'a>,
}

impl<'g> Generator<'g> {
    /// A generator for the whole model: its decoder, or its encoder and decoder.
    ///
    /// # Errors
    /// E003 where the model generates no text, [`RunError::Request`] where it has several parts of
    /// which none is chosen.
    pub fn of(runner: &Runner<'g>, options: GenerateOptions) -> RunResult<Self> {
        let pair = match runner.options().part {
            None => EncoderDecoder::of(runner)?.filter(EncoderDecoder::reads_text),
            Some(_) => None,
        };
        match pair {
            Some(pair) => Self::of_pair(runner, pair, options),
            None => Self::of_part(runner.prepare()?, options),
        }
    }

    fn of_pair(
        runner: &Runner<'g>,
        pair: EncoderDecoder<'g>,
        options: GenerateOptions,
    ) -> RunResult<Self> {
        let start = runner.facts.decoder_start().ok_or_else(|| {
            Error::version(absent("missing decoder_start_token_id", "config.json"))
        })?;
        Ok(Self::new(*runner, Model::EncoderDecoder(Box::new(pair), start), options))
    }

    /// A generator for a part that continues texts.
    ///
    /// # Errors
    /// E003 where it does not.
    pub fn of_part(part: Prepared<'g>, options: GenerateOptions) -> RunResult<Self> {
        part.language()?;
        let runner = part.runner;
        Ok(Self::new(runner, Model::Decoder(Box::new(part)), options))
    }

    fn new(runner: Runner<'g>, model: Model<'g>, options: GenerateOptions) -> Self {
        let settings = Generation::of(runner.facts, &options.sampling);
        warn_ignored(&runner, &settings);
        let (kept, identity) = (None, OnceCell::new());
        let (files, told, compiled) = (None, Cell::new(false), OnceCell::new());
        Self {
            runner,
            model,
            settings,
            options,
            tokenizer: None,
            kept,
            identity,
            files,
            distrusts_digests: false,
            told,
            compiled,
            images: None,
            named: OnceCell::new(),
        }
    }

    /// Returns the settings for the choice of tokens, from the model's settings and the options.
    #[must_use]
    pub fn settings(&self) -> &Generation {
        &self.settings
    }

    /// Generates text behind a prompt; `sink` receives it as it grows, whole characters at a time.
    ///
    /// # Errors
    /// [`RunError::Request`] for an empty prompt, or one longer than the model's context
    /// ([`Remedy::Truncate`]); E003 where the model has no tokenizer or no chat template; those of
    /// [`Session::run`](apr_infer::Session::run) and of `sink`.
    pub fn generate(
        &mut self,
        prompt: Prompt<'_>,
        sink: &mut dyn FnMut(&str) -> Result<()>,
    ) -> RunResult<Completion> {
        self.generate_bytes(prompt, &mut as_texts(sink))
    }

    /// Same as [`generate`](Self::generate), but `sink` receives bytes, which need not be UTF-8.
    ///
    /// `sink` receives whole characters at a time.
    ///
    /// # Errors
    /// Those of [`generate`](Self::generate).
    pub fn generate_bytes(
        &mut self,
        prompt: Prompt<'_>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> RunResult<Completion> {
        if !matches!(prompt, Prompt::Tokens(_)) {
            self.read_tokenizer()?;
        }
        let (chat, given) = self.encoded(prompt)?;
        let are_tokens = matches!(prompt, Prompt::Tokens(_));
        let given = self.fitting(given, are_tokens)?;
        if given.is_empty() {
            return Err(RunError::request("the prompt is empty"));
        }
        let watch = Stopwatch::start(self.runner.host);
        let mut kept = self.kept.take();
        let tokenizer = self.tokenizer.as_ref().filter(|_| !are_tokens);
        let asked = Asked { tokenizer, prompt: chat, given, sink: Some(sink), watch };
        let made = self.write(asked, kept.as_mut());
        self.kept = kept;
        self.with_answer(made?)
    }

    /// Reads the tokenizer ahead of the first text, which does so otherwise: vocabularies are
    /// large, and whoever measures a prompt wants the time for its tokens alone.
    ///
    /// # Errors
    /// Those of [`Tokenizer::of`].
    pub fn prepare_text(&mut self) -> RunResult<()> {
        self.read_tokenizer().map(drop)
    }

    /// Returns the tokenizer, which is read on the first call.
    pub(crate) fn read_tokenizer(&mut self) -> RunResult<&Tokenizer<'g>> {
        let tokenizer = match self.tokenizer.take() {
            Some(tokenizer) => tokenizer,
            None => Tokenizer::of(self.runner.reader, self.runner.host)?,
        };
        Ok(self.tokenizer.insert(tokenizer))
    }

    /// Returns the settings with the ids of the tokens that the options identify by text.
    fn named(&self, tokenizer: Option<&Tokenizer<'_>>) -> RunResult<&Generation> {
        if !self.settings.has_names() {
            return Ok(&self.settings);
        }
        if let Some(named) = self.named.get() {
            return Ok(named);
        }
        let named = match tokenizer {
            Some(tokenizer) => self.settings.named(Some(tokenizer))?,
            // The prompt is given as tokens.
            None => {
                let own = Tokenizer::find(self.runner.reader, self.runner.host)?;
                self.settings.named(own.as_ref())?
            }
        };
        Ok(self.named.get_or_init(|| named))
    }

    /// Returns the constraint of a text that begins after these tokens, or `None` if any text is
    /// allowed.
    fn constraint(
        &self,
        tokenizer: Option<&Tokenizer<'_>>,
        begin: &[i64],
    ) -> RunResult<Option<Constraint>> {
        let Some(grammar) = &self.options.grammar else { return Ok(None) };
        let tokenizer = tokenizer.ok_or_else(|| {
            RunError::request("a grammar is for texts, and the prompt is given as tokens")
        })?;
        let compiled = match self.compiled.get() {
            Some(compiled) => compiled,
            None => {
                let compiled = Compiled::of(grammar, tokenizer, self.settings.ends())?;
                self.compiled.get_or_init(|| compiled)
            }
        };
        compiled.begin(tokenizer, begin).map(Some)
    }

    /// Warns if a text is only the beginning of a text that its grammar accepts, or if the grammar
    /// ended it although a longer one was requested. `added` is the number of its tokens.
    fn warn_incomplete(&self, kept: Option<KeptGrammar>, ended: &str, added: usize) {
        if kept.is_some_and(|kept| !kept.complete) {
            let remedy = (ended == "max_tokens").then_some(Remedy::MaxTokens);
            let message = format!("the text ends before it matches the grammar: {ended}");
            self.runner.host.warn(&message, remedy);
        }
        let sampling = &self.options.sampling;
        let asked = match sampling.min_tokens {
            _ if ended != "grammar" => None,
            _ if sampling.ignore_eos => Some("which `ignore_eos` does not prevent".to_owned()),
            Some(least) if added < least => Some(format!("fewer than the {least} of `min_tokens`")),
            _ => None,
        };
        if let Some(asked) = asked {
            let tokens = counted(added as u64, "token");
            self.runner.warn(&format!("the grammar ends the text after {tokens}, {asked}"));
        }
    }

    /// A chat as its template writes it, and the tokens of the prompt.
    fn encoded(&self, prompt: Prompt<'_>) -> RunResult<(Option<String>, Vec<i64>)> {
        if let Some(images) = &self.images {
            return self.encoded_with_images(prompt, images);
        }
        let (text, ids) = match prompt {
            Prompt::Tokens(ids) => return Ok((None, ids.to_vec())),
            Prompt::Text(text) => {
                let ids = self.tokenizer.as_ref().map(|tokenizer| tokenizer.encode(text, true));
                return Ok((None, ids.transpose()?.unwrap_or_default()));
            }
            Prompt::Chat { system, message } => {
                let system = system.map(|system| Message::new("system", system));
                let messages: Vec<_> =
                    system.into_iter().chain([Message::new("user", message)]).collect();
                self.of_chat(&messages)?
            }
            Prompt::Messages(messages) => self.of_chat(messages)?,
        };
        Ok((Some(text), ids))
    }

    /// Rejects tokens beyond the model's context, or omits the last ones if truncation is
    /// requested.
    fn fitting(&self, mut given: Vec<i64>, are_tokens: bool) -> RunResult<Vec<i64>> {
        let facts = self.runner.facts;
        let count = given.len();
        let Some(context) = facts.context().filter(|context| count > *context) else {
            return Ok(given);
        };
        if !self.runner.options.truncate {
            let what = if are_tokens { "the tokens given are" } else { "the text is" };
            return Err(RunError::with_remedy(
                format!("{what} {count} tokens long, beyond the model's context of {context}"),
                Remedy::Truncate,
            ));
        }
        let room = match self.model {
            Model::Decoder(_) => self.room(context),
            Model::EncoderDecoder(..) => 0,
        };
        let kept = context - room;
        let mut message =
            format!("truncated: the last {} of {count} tokens of the text", count - kept);
        if room > 0 {
            message.push_str(&format!("; {} can be generated", counted(room as u64, "token")));
        }
        self.runner.warn(&message);
        given.truncate(kept);
        Ok(given)
    }

    /// Returns the number of tokens that a truncated prompt leaves to the answer: the requested
    /// maximum or a quarter of the context, but at least one token and at most three quarters.
    fn room(&self, context: usize) -> usize {
        let quarter = context / 4;
        let asked = self.options.sampling.max_tokens.unwrap_or(quarter);
        asked.min(context - quarter).clamp(1, context.max(1)).min(context)
    }

    /// Checks that the generator can hold a conversation.
    ///
    /// # Errors
    /// E003 if it has an encoder and a decoder, or no chat template.
    pub(crate) fn check_chat(&self) -> RunResult<()> {
        self.check_no_images()?;
        self.causal()?;
        chat_template(&self.runner, false).map(drop)
    }

    pub(crate) fn causal(&self) -> RunResult<&Prepared<'g>> {
        match &self.model {
            Model::Decoder(part) => Ok(part),
            Model::EncoderDecoder(..) => {
                let message = "conversations and prompt caches are not supported for \
                               encoder-decoder models";
                Err(Error::version(message).into())
            }
        }
    }

    /// Generates the answer to a chat from its text and tokens, and from the keys and values in
    /// `memory`. If the host cancels it, it ends after the current token.
    ///
    /// # Errors
    /// E003 if the model does not continue its prompt, E007 if the host cancels the reading of the
    /// prompt. Otherwise, returns the errors of [`Session::run`](apr_infer::Session::run) and of
    /// `sink`.
    pub(crate) fn answer(
        &self,
        (chat, given): (String, Vec<i64>),
        memory: &mut Memory,
        sink: &mut dyn FnMut(&str) -> Result<()>,
    ) -> RunResult<Completion> {
        let watch = Stopwatch::start(self.runner.host);
        let tokenizer = self.tokenizer.as_ref();
        let mut sink = as_texts(sink);
        let asked = Asked { tokenizer, prompt: Some(chat), given, sink: Some(&mut sink), watch };
        let made = self.continued(self.causal()?, asked, Kept::Conversation(memory))?;
        self.with_answer(made)
    }

    /// Continues a prompt, of which the beginning may be kept.
    fn continued<'a>(
        &'a self,
        part: &Prepared<'_>,
        asked: Asked<'a>,
        kept: Kept<'_>,
    ) -> RunResult<Completion> {
        let rows = self.images.as_ref().map(PromptImages::rows);
        let language = &part.language()?.with_rows(rows);
        let mut alone = Memory::default();
        let is_turn = matches!(kept, Kept::Conversation(_));
        let is_prompt = matches!(kept, Kept::Prompt(_));
        let memory = match kept {
            Kept::Conversation(memory) | Kept::Prompt(memory) => memory,
            Kept::Nothing => &mut alone,
        };
        let tokens = asked.given.clone();
        let reads_less = is_turn || is_prompt;
        let begin = Begin {
            reused: reads_less.then(|| keep_common(language, memory, &tokens)).transpose()?,
            tokens,
            encoder: Vec::new(),
            context: self.runner.facts.context(),
            arithmetic: part.session.arithmetic(),
            cache_type: language.cache_type(),
            is_turn,
        };
        let prompt = begin.tokens.len();
        let causal = Causal { runner: self.runner, language, memory, finishes: is_turn };
        let made = self.complete(causal, begin, asked)?;
        if is_prompt {
            language.truncate(memory, prompt)?;
        }
        Ok(made)
    }

    fn write<'a>(&'a self, asked: Asked<'a>, kept: Option<&mut Memory>) -> RunResult<Completion> {
        match &self.model {
            Model::Decoder(part) => {
                self.continued(part, asked, kept.map_or(Kept::Nothing, Kept::Prompt))
            }
            Model::EncoderDecoder(parts, start) => {
                let states = parts.encode(encoder_inputs(parts, &asked.given)?)?;
                let context = self.runner.facts.decoder_context();
                let begin = Begin {
                    tokens: vec![*start],
                    reused: None,
                    encoder: asked.given.clone(),
                    context,
                    arithmetic: parts.arithmetic(),
                    cache_type: parts.cache_type(),
                    is_turn: false,
                };
                self.complete(parts.decoder(states)?, begin, asked)
            }
        }
    }

    /// Returns the maximum number of tokens after `given` ones, or `default` if no setting gives
    /// one.
    fn most(&self, given: usize, default: usize) -> usize {
        let most = self.settings.most(given).unwrap_or(default);
        if most == 0 && self.options.sampling.max_tokens.is_none() {
            self.runner.host.warn(
                &format!("the model's settings allow no token after the {given} of the prompt"),
                Some(Remedy::MaxTokens),
            );
        }
        most
    }

    /// Adds tokens until something ends the text.
    fn complete<'a>(
        &'a self,
        mut model: impl Next + Fork,
        begin: Begin,
        asked: Asked<'a>,
    ) -> RunResult<Completion> {
        if let Some(beams) = self.settings.beams() {
            return self.search(model, beams, &begin, asked);
        }
        let mut writing = self.begin(begin, asked)?;
        let mut ended = writing.full();
        let mut next = writing.unread().to_vec();
        loop {
            if let Some(ended) = ended {
                return Ok(writing.finish(ended)?);
            }
            ended = writing.take(model.next(&next)?)?;
            next = writing.last().into_iter().collect();
        }
    }
}

/// Names the model's settings that are not supported.
pub(crate) fn warn_ignored(runner: &Runner<'_>, settings: &Generation) {
    if !settings.ignored().is_empty() {
        runner.warn(&format!(
            "settings of generation_config.json that are not supported: {}",
            settings.ignored().join(", ")
        ));
    }
}

/// A text as the inputs of the encoder.
fn encoder_inputs(parts: &EncoderDecoder<'_>, given: &[i64]) -> RunResult<Vec<(String, Value)>> {
    let body = parts.encoder_body();
    let mut inputs = Vec::new();
    for value in body.inputs.iter().map(|id| body.value(*id)) {
        let row = match value.meaning {
            Meaning::TokenIds => given.to_vec(),
            Meaning::AttentionMask => vec![1; given.len()],
            _ => continue,
        };
        inputs.push((value.name.clone(), Tensor::new(vec![1, row.len()], row)?.into()));
    }
    Ok(inputs)
}
