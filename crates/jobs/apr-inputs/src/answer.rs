//! Answers of chats: what a model wrote, taken apart into thinking, text and tool calls.
//!
//! Models write these in ways of their own, which their templates teach them: which one it is, the
//! template says by the marks in it. What can't be read stays in the text.

mod blocks;
mod calls;
mod harmony;

use serde::Serialize;

use crate::messages::{Data, Template};

/// Answer of a model, split into its parts.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Answer {
    /// Text that the model wrote before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The answer itself, without thinking and tool calls.
    pub text: String,
    /// Tool calls that the model requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Tool calls that can't be parsed, as they are in the text.
    #[serde(rename = "unreadable_calls", skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ToolCall {
    /// Id of the call, if the model gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name of the tool.
    pub name: String,
    /// Arguments of the call: an object.
    pub arguments: Data,
}

impl ToolCall {
    fn new(name: &str, arguments: Data) -> Self {
        Self { id: None, name: name.to_owned(), arguments }
    }
}

/// Format in which a model writes answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerFormat {
    /// The marks around thinking.
    thinking: Option<(&'static str, &'static str)>,
    calls: Calls,
}

/// Format in which a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// The model writes no tool calls, or writes them in an unknown format.
    None,
    /// Channels: `<|channel|>commentary to=functions.NAME<|message|>{...}`.
    Harmony,
    /// JSON between marks, one object or a list of them.
    Json(&'static str, &'static str),
    /// JSON that is the whole answer, or behind `<|python_tag|>`.
    Llama,
    /// `[TOOL_CALLS]` with a list in JSON, or with names and `[ARGS]`.
    Mistral,
    /// `<function=NAME>` with `<parameter=NAME>` or JSON inside.
    Functions,
    /// `<invoke name="NAME">` with `<parameter name="NAME">`, behind this prefix.
    Invokes(&'static str),
    /// `NAME` with `<arg_key>` and `<arg_value>` between `<tool_call>` marks.
    Keys,
    /// Calls between marks of their own, `NAME` and JSON with a mark between.
    DeepSeek,
    /// Like `DeepSeek`, with an id such as `functions.NAME:0`.
    Kimi,
}

/// Marks around thinking.
const THINKING: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
];

/// Marks around calls in JSON.
const JSON: [(&str, &str); 6] = [
    ("<tool_calls>", "</tool_calls>"),
    ("<tool_call>", "</tool_call>"),
    ("<TOOLCALL>", "</TOOLCALL>"),
    ("<|START_ACTION|>", "<|END_ACTION|>"),
    ("<|tools_prefix|>", "<|tools_suffix|>"),
    ("<|tool_call|>", "<|/tool_call|>"),
];

impl AnswerFormat {
    /// The format that a template teaches.
    #[must_use]
    pub fn of(template: &Template) -> Self {
        let has = |mark: &str| template.0.contains(mark);
        let thinking = THINKING.into_iter().find(|(_, close)| has(close));
        let calls = if has("<|channel|>") && has("<|message|>") {
            Calls::Harmony
        } else if has("[TOOL_CALLS]") {
            Calls::Mistral
        } else if has("<｜tool▁calls▁begin｜>") {
            Calls::DeepSeek
        } else if has("<|tool_calls_section_begin|>") {
            Calls::Kimi
        } else if let Some(prefix) = ["｜DSML｜", ""].into_iter().find(|prefix| {
            has(&format!("<{prefix}invoke name=")) || has("DSML") && has("invoke name=")
        }) {
            Calls::Invokes(prefix)
        } else if has("<arg_key>") {
            Calls::Keys
        } else if has("<function=") {
            Calls::Functions
        } else if let Some((open, close)) = JSON.into_iter().find(|(open, _)| has(open)) {
            Calls::Json(open, close)
        } else if has("<|python_tag|>") || has("\"parameters\": ") && has("{\"name\": ") {
            Calls::Llama
        } else {
            Calls::None
        };
        Self { thinking, calls }
    }

    /// Returns `true` if tool calls can be separated from text.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.calls != Calls::None
    }

    /// Splits an answer into its parts. `written` is everything that the model wrote, including
    /// special tokens. `prompt` is the chat before it, in which the thinking may have begun.
    /// Arguments that are not JSON have the types in `tools`.
    #[must_use]
    pub fn parse(&self, prompt: &str, written: &str, tools: Option<&Data>) -> Answer {
        if self.calls == Calls::Harmony {
            return harmony::parse(written);
        }
        let (thinking, rest) = self.thinking(prompt, written);
        let mut answer = Answer { thinking, ..Answer::default() };
        match self.calls {
            Calls::None | Calls::Harmony => rest.clone_into(&mut answer.text),
            Calls::Json(open, close) => blocks::json(rest, open, close, &mut answer),
            Calls::Llama => calls::llama(rest, &mut answer),
            Calls::Mistral => calls::mistral(rest, &mut answer),
            Calls::Functions => blocks::functions(rest, tools, &mut answer),
            Calls::Invokes(prefix) => blocks::invokes(rest, prefix, tools, &mut answer),
            Calls::Keys => blocks::keys(rest, tools, &mut answer),
            Calls::DeepSeek => blocks::deepseek(rest, &mut answer),
            Calls::Kimi => blocks::kimi(rest, &mut answer),
        }
        let is_parted = answer.thinking.is_some() || !answer.tool_calls.is_empty();
        if is_parted {
            answer.text = answer.text.trim().to_owned();
        }
        answer
    }

    /// The thinking in front of an answer, and the rest.
    fn thinking<'t>(&self, prompt: &str, written: &'t str) -> (Option<String>, &'t str) {
        let Some((open, close)) = self.thinking else { return (None, written) };
        let begun = written.trim_start().strip_prefix(open);
        let is_begun = begun.is_some() || prompt.trim_end().ends_with(open);
        let body = begun.unwrap_or(written);
        let (thinking, rest) = match body.split_once(close) {
            Some((thinking, rest)) => (thinking, rest),
            None if is_begun => (body, ""),
            None => return (None, written),
        };
        let thinking = thinking.trim();
        ((!thinking.is_empty()).then(|| thinking.to_owned()), rest)
    }
}

#[cfg(test)]
mod tests;
