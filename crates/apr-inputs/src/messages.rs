//! What a chat is made of, and the template that writes it down.

use serde::Serialize;
use serde_json::Value as Json;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A chat, as a template gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chat<'c> {
    /// The messages so far.
    pub messages: &'c [Message],
    /// The special tokens by their roles: `bos_token`, `eos_token`, ...
    pub tokens: &'c [(String, String)],
    /// The time, in seconds since 1970, for templates that write the date.
    pub now: i64,
}

/// A model's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(pub String);

impl Template {
    /// The template in the metadata key `tokenizer.chat_template`: a text, or the default of a list
    /// of `{"name", "template"}`.
    #[must_use]
    pub fn from_json(json: &Json) -> Option<Self> {
        let named = |list: &[Json]| {
            let template = |name: &str| {
                list.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some(name))
            };
            template("default").or(list.first())?.get("template")?.as_str().map(str::to_owned)
        };
        match json {
            Json::String(text) => Some(Self(text.clone())),
            Json::Array(list) => named(list).map(Self),
            _ => None,
        }
    }
}
