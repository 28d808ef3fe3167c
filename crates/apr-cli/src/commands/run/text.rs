//! Texts that a language model goes on with, or answers with another text.

use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use apr_graph::Meaning;
use apr_infer::{LanguageModel, Memory, Sampler, Sampling, Session, Tensor, Value};
use apr_inputs::chat::{self, Chat, Message, Template};
use apr_inputs::text::TextStream;
use apr_io::io_error;
use serde::Serialize;

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
    /// Why no more were added: `end` for a token that ends a text, `stop` for what --stop says,
    /// `max_tokens`, `context` where the model takes no more.
    ended: &'static str,
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
    /// How many more fit the model.
    room: usize,
}

/// Goes on with each text.
pub(super) fn run(job: &Job<'_>, texts: &[String], session: &Session<'_>) -> Outcome {
    let language = LanguageModel::new(session)?;
    each(job, texts, |tokens, prompt, given| {
        let reader = Reader { job, language: &language, memory: Memory::default() };
        let room =
            job.facts.context().map_or(usize::MAX, |context| context.saturating_sub(given.len()));
        // The last token that fits leads to one more, which need not.
        let begin = Begin { tokens: given.clone(), room: room.saturating_add(1) };
        write(job, reader, begin, tokens, (prompt, given))
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
    let beams = ["generation_config.json", "config.json"].into_iter().find_map(|file| {
        job.facts.file(file)?.get("num_beams")?.as_u64().filter(|beams| *beams > 1)
    });
    if let Some(beams) = beams {
        job.warn(&format!(
            "the model's settings ask for a search with {beams} beams; one is followed"
        ));
    }

    each(job, texts, |tokens, prompt, given| {
        let states = parts.encode(read_by(parts, &given)?)?;
        let begin = Begin { tokens: vec![start], room: usize::MAX };
        write(job, parts.decoder(states)?, begin, tokens, (prompt, given))
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

/// Writes something for each text, or for the tokens that are given.
fn each(
    job: &Job<'_>,
    texts: &[String],
    one: impl Fn(Option<&Tokens>, Option<String>, Vec<i64>) -> Outcome<Continued>,
) -> Outcome {
    if job.args.output.is_some() {
        return Err(Failure::Usage(
            "--output writes arrays, and a text is none: use > FILE".to_owned(),
        ));
    }

    if texts.is_empty() {
        let report = one(None, None, job.args.tokens.clone())?;
        return job.context.printer.report(&report, |out, _| writeln!(out));
    }

    let tokens = Tokens::of(job.reader, job.context)?;
    let mut reports = Vec::with_capacity(texts.len());
    for text in texts {
        // A template writes down the tokens that begin and end a text itself.
        let (prompt, ends) =
            if job.args.chat { (Some(as_chat(job, text)?), false) } else { (None, true) };
        let mut given = tokens.encode(prompt.as_deref().unwrap_or(text), ends, job.context)?;
        fit(job, &mut given)?;
        if given.is_empty() {
            return Err(Failure::Usage(
                "the text is empty, so there is nothing to go on from".to_owned(),
            ));
        }

        reports.push(one(Some(&tokens), prompt, given)?);
        if !job.context.json {
            writeln!(io::stdout())
                .map_err(|error| io_error(&error, Path::new("standard output")))?;
        }
    }

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

/// Refuses what is longer than the model's context, or leaves out its beginning where that is
/// wanted.
fn fit(job: &Job<'_>, given: &mut Vec<i64>) -> Outcome {
    let Some(context) = job.facts.context().filter(|context| given.len() > *context) else {
        return Ok(());
    };
    let count = given.len();
    if !job.args.truncate {
        return Err(Failure::Usage(format!(
            "the text is {count} tokens long, and the model's context has {context}; --truncate \
             leaves out the end"
        )));
    }
    job.warn(&format!("the last {} of the text's {count} tokens are left out", count - context));
    given.truncate(context);
    Ok(())
}

/// Adds tokens until something ends the text.
fn write(
    job: &Job<'_>,
    mut writer: impl Next,
    begin: Begin,
    tokens: Option<&Tokens>,
    (prompt, given): (Option<String>, Vec<i64>),
) -> Outcome<Continued> {
    let args = job.args;
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed,
    };

    let mut sampler = Sampler::new(sampling);
    let stream = tokens.map(|tokens| TextStream::behind(&tokens.0, &begin.tokens)).transpose()?;
    let mut writing = Writing {
        stream,
        stops: &args.stop,
        quiet: job.context.json,
        text: String::new(),
        shown: 0,
    };

    let (mut added, mut next) = (Vec::new(), begin.tokens);
    let ended = loop {
        if added.len() >= args.max_tokens {
            break "max_tokens";
        }
        if added.len() >= begin.room {
            let context = job.facts.context().unwrap_or_default();
            job.warn(&format!("the model's context of {context} tokens is full"));
            break "context";
        }
        let logits = writer.next(&next)?;
        let token = sampler
            .choose(&logits)
            .ok_or_else(|| Failure::General("no logit is a number".to_owned()))?;
        let token = i64::try_from(token).unwrap_or(i64::MAX);
        if job.facts.ends().contains(&token) {
            break "end";
        }
        added.push(token);
        if writing.add(token)? {
            break "stop";
        }
        next = vec![token];
    };

    let text = writing.finish()?;
    Ok(Continued { prompt, given, added, text: tokens.map(|_| text), ended })
}

/// The text as it grows, shown as far as it is whole characters.
struct Writing<'a> {
    /// `None` where tokens are shown by their numbers.
    stream: Option<TextStream<'a>>,
    stops: &'a [String],
    quiet: bool,
    text: String,
    shown: usize,
}

impl Writing<'_> {
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
        Ok(self.text)
    }

    /// Writes what is new; what may be a part of what the text stops at, only at the end.
    fn show(&mut self, all: bool) -> Outcome {
        if self.quiet {
            return Ok(());
        }

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
        let new = &self.text[start..end];

        // A model may write what steers a terminal.
        let shown: String =
            new.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        let mut out = io::stdout().lock();
        let written = out.write_all(shown.as_bytes()).and_then(|()| out.flush());
        Ok(written.map_err(|error| io_error(&error, Path::new("standard output")))?)
    }
}
