//! Chats: messages as the model's template writes them, and answers taken apart.

use apr_inputs::answer::AnswerFormat;
use apr_inputs::chat::{self, Chat, Message, Rendered, Template, TemplateOptions};
use apr_registry::Escaped;

use super::{Completion, Generator};
use crate::error::{Remedy, RunError, RunResult, absent};
use crate::host::isolated;
use crate::runner::Runner;

/// The model's own template, for chats with tools or without.
pub(super) fn chat_template(runner: &Runner<'_>, has_tools: bool) -> RunResult<Template> {
    let template = runner.facts.get("tokenizer.chat_template");
    template.and_then(|json| Template::from_json(json, has_tools)).ok_or_else(|| {
        let message = absent("missing chat template", "chat_template.jinja");
        RunError::lacking(message, Remedy::NoChat)
    })
}

/// Returns `true` if the model has a chat template.
#[must_use]
pub fn has_chat_template(runner: &Runner<'_>) -> bool {
    chat_template(runner, false).is_ok()
}

/// Messages, as the model's chat template writes them up to its answer. A warning names options
/// that the template has no place for.
///
/// # Errors
/// E003 where the model has no template, [`RunError::Request`] for messages with images or sound,
/// and what the template ends with.
pub fn chat_text(
    runner: &Runner<'_>,
    messages: &[Message],
    options: &TemplateOptions,
) -> RunResult<String> {
    let made = rendered(runner, messages, options, false)?;
    warn_unread(runner, &made);
    Ok(made.text)
}

fn rendered(
    runner: &Runner<'_>,
    messages: &[Message],
    options: &TemplateOptions,
    takes_images: bool,
) -> RunResult<Rendered> {
    let template = chat_template(runner, options.tools.is_some())?;
    for (at, message) in messages.iter().enumerate() {
        let mut media = message.media().filter(|kind| !(takes_images && *kind == "image"));
        if let Some(kind) = media.next() {
            let takes = if takes_images { "text and images" } else { "text" };
            return Err(RunError::request(format!(
                "message {}: a part of the type '{}' is not supported: chats take {takes} only",
                at + 1,
                Escaped::short(kind)
            )));
        }
    }
    let (messages, options) = (messages.to_vec(), options.clone());
    let (tokens, now) = (runner.facts.special_tokens(), runner.host.now());
    Ok(isolated(runner.host, "the chat template", move || {
        let chat = Chat { messages: &messages, options: &options, tokens: &tokens, now };
        chat::render(&template, &chat)
    })?)
}

/// Names the options that a template did not read.
fn warn_unread(runner: &Runner<'_>, made: &Rendered) {
    if !made.unread.is_empty() {
        let names: Vec<String> =
            made.unread.iter().map(|name| Escaped::short(name).to_string()).collect();
        runner.warn(&format!("the chat template does not read: {}", names.join(", ")));
    }
}

impl Generator<'_> {
    /// Messages as the model's template writes them, and their tokens. The template writes the
    /// tokens that begin and end a text itself.
    pub(crate) fn of_chat(&self, messages: &[Message]) -> RunResult<(String, Vec<i64>)> {
        let text = self.chat(messages)?;
        let ids = self.tokenizer.as_ref().map(|tokenizer| tokenizer.encode(&text, false));
        Ok((text, ids.transpose()?.unwrap_or_default()))
    }

    /// Applies the model's template to messages. Problems with the options are reported only once.
    pub(super) fn chat(&self, messages: &[Message]) -> RunResult<String> {
        let options = &self.options.template;
        let made = rendered(&self.runner, messages, options, self.images.is_some())?;
        if !self.told.replace(true) {
            warn_unread(&self.runner, &made);
            let has_tools = options.tools.is_some() && !made.unread.iter().any(|it| it == "tools");
            if has_tools && !self.answers()?.has_calls() {
                self.runner.warn(
                    "the form of this chat template's tool calls is unknown: they are \
                                  returned as text",
                );
            }
        }
        Ok(made.text)
    }

    /// Returns the format of the model's answers.
    fn answers(&self) -> RunResult<AnswerFormat> {
        let has_tools = self.options.template.tools.is_some();
        chat_template(&self.runner, has_tools).map(|template| AnswerFormat::of(&template))
    }

    /// A completion, with the answer of a chat taken apart.
    pub(crate) fn with_answer(&self, mut made: Completion) -> RunResult<Completion> {
        let (Some(prompt), Some(text), Some(tokenizer)) =
            (&made.prompt, &made.text, &self.tokenizer)
        else {
            return Ok(made);
        };
        // Marks of thinking and calls may be special tokens, which are no text.
        let mut written = tokenizer.decode(&made.added, true)?;
        let stops = [&self.options.stops[..], self.settings.stops()].concat();
        if made.ended == "stop" {
            let end = stops.iter().filter_map(|stop| written.find(stop.as_str())).min();
            written.truncate(end.unwrap_or(written.len()));
        }
        let tools = self.options.template.tools.as_ref();
        let mut answer = self.answers()?.parse(prompt, &written, tools);
        if answer.text == written {
            answer.text.clone_from(text);
        }
        match answer.unreadable.len() {
            0 => {}
            1 => self.runner.warn("a tool call can't be parsed and is left in the text"),
            count => self
                .runner
                .warn(&format!("{count} tool calls can't be parsed and are left in the text")),
        }
        made.answer = Some(answer);
        Ok(made)
    }
}
