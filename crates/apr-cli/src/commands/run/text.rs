//! Texts that a language model goes on with, or answers with another text.

use std::time::{SystemTime, UNIX_EPOCH};

use apr_graph::Meaning;
use apr_infer::{LanguageModel, Memory, Session, Tensor, Value};
use apr_inputs::chat::{self, Chat, Message, Template};
use apr_inputs::text::TextStream;
use apr_ops::run::{Generation, TokenLogProbabilities, log_probabilities};
use serde::Serialize;

use super::answers::Answers;
use super::generation;
use super::job::{Job, UntilInterrupted};
use super::tokens::{Tokens, apart};
use super::writing::{Decoder, Parts};
use crate::failure::{Failure, Outcome};

/// What was added.
#[derive(Debug, Serialize)]
struct Continued {
    /// What a chat was written down as, for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    /// The tokens that were given, or that the prompt is.
    given: Vec<i64>,
    /// Those that were added, or that the answer is.
    added: Vec<i64>,
    /// The text that they are, where the model's tokenizer is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Why no more were added: `end` for a token that ends a text, `stop` for what --stop or the
    /// model's settings say, `max_tokens`, `context` where the model takes no more.
    ended: &'static str,
    /// Of each token that was added, where --logprobs asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenLogProbabilities>>,
    /// What the model's settings ask for and is not done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored: Vec<String>,
}

/// Whatever says what may follow.
trait Next {
    /// The logits of what follows all tokens so far and these.
    fn next(&mut self, tokens: &[i64]) -> Outcome<Vec<f32>>;
}

impl Next for Decoder<'_> {
    fn next(&mut self, tokens: &[i64]) -> Outcome<Vec<f32>> {
        Decoder::next(self, tokens)
    }
}

/// A language model, and what it keeps of the text so far.
struct Reader<'r> {
    job: &'r Job<'r>,
    language: &'r LanguageModel<'r, 'r>,
    memory: Memory,
}

impl Next for Reader<'_> {
    fn next(&mut self, tokens: &[i64]) -> Outcome<Vec<f32>> {
        let mut tap = UntilInterrupted(self.job.context.interrupt.clone());
        Ok(self.language.next(&mut self.memory, tokens, &self.job.workers, &mut tap)?)
    }
}

/// What a text begins with.
struct Begin {
    /// The tokens before the first that is written.
    tokens: Vec<i64>,
    /// What the encoder was given.
    encoder: Vec<i64>,
    /// How many fit the model, these among them.
    context: Option<usize>,
}

/// Goes on with each text.
pub(super) fn run(job: &Job<'_>, texts: &[String], session: &Session<'_>) -> Outcome {
    let language = LanguageModel::new(session)?;
    let settings = generation::settings(job);
    let context = job.facts.context();
    each(job, texts, context.map(|context| context.saturating_sub(1)), |asked| {
        let reader = Reader { job, language: &language, memory: Memory::default() };
        let tokens = asked.given.clone();
        write(job, reader, &settings, Begin { tokens, encoder: Vec::new(), context }, asked)
    })
}

/// Answers each text: the encoder reads it, and the decoder writes another one.
pub(super) fn answer(job: &Job<'_>, texts: &[String], parts: &Parts<'_>) -> Outcome {
    let start = job.facts.decoder_start().ok_or_else(|| {
        let advice = "put the model's config.json beside it";
        apr::Error::version(format!(
            "the model does not say with which token it begins a text: {advice}"
        ))
    })?;
    let settings = generation::settings(job);
    let context = job.facts.decoder_context();
    each(job, texts, job.facts.context(), |asked| {
        let states = parts.encode(read_by(parts, &asked.given)?)?;
        let begin = Begin { tokens: vec![start], encoder: asked.given.clone(), context };
        write(job, parts.decoder(states)?, &settings, begin, asked)
    })
}

/// A text as the inputs of the encoder.
fn read_by(parts: &Parts<'_>, given: &[i64]) -> Outcome<Vec<(String, Value)>> {
    let body = parts.encoder.0;
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

/// What a text is written for.
struct Asked<'a, 'o> {
    tokens: Option<&'a Tokens>,
    prompt: Option<String>,
    given: Vec<i64>,
    answers: &'a mut Answers<'o>,
}

/// Writes something for each text, or for the tokens that are given; `kept` is how many of a text
/// --truncate leaves.
fn each(
    job: &Job<'_>,
    texts: &[String],
    kept: Option<usize>,
    mut one: impl FnMut(Asked<'_, '_>) -> Outcome<Continued>,
) -> Outcome {
    if job.args.output.is_some() {
        return Err(Failure::Usage(
            "--output writes arrays, and a text is none: use > FILE".to_owned(),
        ));
    }

    let mut answers = Answers::of(job);
    if texts.is_empty() {
        let mut given = job.args.tokens.clone();
        fit(job, &mut given, kept)?;
        let asked = Asked { tokens: None, prompt: None, given, answers: &mut answers };
        let report = one(asked)?;
        return job.context.printer.report(&report, |out, _| writeln!(out));
    }

    let tokens = Tokens::of(job.reader, job.context)?;
    let mut reports = Vec::with_capacity(texts.len());
    for text in texts {
        // A template writes down the tokens that begin and end a text itself.
        let (prompt, ends) =
            if job.args.chat { (Some(as_chat(job, text)?), false) } else { (None, true) };
        let mut given = tokens.encode(prompt.as_deref().unwrap_or(text), ends, job.context)?;
        fit(job, &mut given, kept)?;
        if given.is_empty() {
            return Err(Failure::Usage(
                "the text is empty, so there is nothing to go on from".to_owned(),
            ));
        }

        answers.begin()?;
        let asked = Asked { tokens: Some(&tokens), prompt, given, answers: &mut answers };
        reports.push(one(asked)?);
    }

    answers.finish()?;
    match reports.as_slice() {
        [report] => job.context.printer.report(report, |_, _| Ok(())),
        reports => job.context.printer.report(&reports, |_, _| Ok(())),
    }
}

/// The message, written down by the model's template.
fn as_chat(job: &Job<'_>, text: &str) -> Outcome<String> {
    let template = job
        .facts
        .get("tokenizer.chat_template")
        .and_then(Template::from_json)
        .ok_or_else(|| {
            let advice = "leave --chat out, or put the model's chat_template.jinja beside it";
            Failure::Model(apr::Error::version(format!("the model has no chat template: {advice}")))
        })?;
    let message =
        |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    let mut messages: Vec<Message> =
        job.args.system.iter().map(|system| message("system", system)).collect();
    messages.push(message("user", text));
    let tokens = job.facts.special_tokens();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = i64::try_from(now).unwrap_or(0);
    apart("the chat template", job.context, move || {
        chat::render(&template, &Chat { messages: &messages, tokens: &tokens, now })
    })
}

/// Refuses what is longer than the model's context, or leaves out its end where that is wanted:
/// then `kept` tokens stay.
fn fit(job: &Job<'_>, given: &mut Vec<i64>, kept: Option<usize>) -> Outcome {
    let count = given.len();
    let context = job.facts.context().filter(|context| count > *context);
    let Some((context, kept)) = context.zip(kept) else { return Ok(()) };
    if !job.args.truncate {
        let what = if job.args.tokens.is_empty() { "the text is" } else { "--tokens is" };
        return Err(Failure::Usage(format!(
            "{what} {count} tokens long, and the model's context has {context}; --truncate \
             leaves out the end"
        )));
    }
    job.warn(&format!("the last {} of the text's {count} tokens are left out", count - kept));
    given.truncate(kept);
    Ok(())
}

/// Adds tokens until something ends the text.
fn write(
    job: &Job<'_>,
    mut writer: impl Next,
    settings: &Generation,
    begin: Begin,
    asked: Asked<'_, '_>,
) -> Outcome<Continued> {
    let most = generation::most(job, settings, begin.tokens.len());
    let room = begin.context.map_or(usize::MAX, |size| size.saturating_sub(begin.tokens.len()));
    let mut chooser = settings.begin(&begin.tokens, &begin.encoder, most);
    let stream = asked.tokens.map(|tokens| TextStream::behind(&tokens.0, &begin.tokens));
    let mut writing = Writing {
        stream: stream.transpose()?,
        stops: [&job.args.stop[..], settings.stops()].concat(),
        answers: asked.answers,
        text: String::new(),
        shown: 0,
    };

    let name = |id: i64| asked.tokens.and_then(|tokens| tokens.0.token(id));
    let (mut added, mut next, mut logprobs) = (Vec::new(), begin.tokens, Vec::new());
    let ended = loop {
        if added.len() >= most {
            break "max_tokens";
        }
        if added.len() >= room {
            let context = begin.context.unwrap_or_default();
            job.warn(&format!("ended: context: the model's context of {context} tokens is full"));
            break "context";
        }

        let mut logits = writer.next(&next)?;
        let own = job.args.logprobs.map(|count| (logits.clone(), count));
        chooser.process(&mut logits);
        let token = chooser.choose(&logits)?;
        if settings.ends().contains(&token) {
            break "end";
        }
        logprobs.extend(own.map(|(own, count)| log_probabilities(&own, token, count, name)));
        added.push(token);
        if writing.add(token)? {
            break "stop";
        }
        next = vec![token];
    };

    let text = writing.finish()?;
    let logprobs = job.args.logprobs.map(|_| logprobs);
    generation::show_logprobs(job, logprobs.as_deref())?;
    Ok(Continued {
        prompt: asked.prompt,
        given: asked.given,
        added,
        text: asked.tokens.map(|_| text),
        ended,
        logprobs,
        ignored: settings.ignored().to_vec(),
    })
}

/// The text as it grows, shown as far as it is whole characters.
struct Writing<'a, 'o> {
    /// `None` where tokens are shown by their numbers.
    stream: Option<TextStream<'a>>,
    stops: Vec<String>,
    answers: &'a mut Answers<'o>,
    text: String,
    shown: usize,
}

impl Writing<'_, '_> {
    /// Adds a token; true where the text has come to what it stops at.
    fn add(&mut self, token: i64) -> Outcome<bool> {
        let stop = match &mut self.stream {
            Some(stream) => {
                self.text.push_str(&stream.push(token)?);
                self.stops.iter().filter_map(|stop| self.text.find(stop.as_str())).min()
            }
            None => {
                let space = if self.text.is_empty() { "" } else { " " };
                self.text.push_str(&format!("{space}{token}"));
                self.stops.iter().any(|stop| *stop == token.to_string()).then_some(self.text.len())
            }
        };

        if let Some(at) = stop {
            self.text.truncate(at);
        }

        self.show(false)?;
        Ok(stop.is_some())
    }

    /// Shows the rest, and returns the text.
    fn finish(mut self) -> Outcome<String> {
        if let Some(stream) = self.stream.take() {
            let rest = stream.finish()?;
            let is_cut = self.stops.iter().any(|stop| rest.contains(stop.as_str()));
            self.text.push_str(if is_cut { "" } else { &rest });
        }
        self.show(true)?;
        self.answers.end(&self.text);
        Ok(self.text)
    }

    /// Writes what is new; what may be a part of what the text stops at, only at the end.
    fn show(&mut self, all: bool) -> Outcome {
        let held = if all {
            0
        } else {
            self.stops.iter().map(|stop| stop.len().saturating_sub(1)).max().unwrap_or(0)
        };
        let mut end = self.text.len().saturating_sub(held).max(self.shown.min(self.text.len()));
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }

        let start = self.shown.min(end);
        self.shown = end;
        self.answers.write(&self.text[start..end])
    }
}
