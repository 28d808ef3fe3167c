//! Answers in channels, as gpt-oss writes them.

use super::{Answer, ToolCall};
use crate::messages::Data;

/// Marks that end a message.
const ENDS: [&str; 3] = ["<|end|>", "<|call|>", "<|return|>"];

/// Takes apart messages in channels: `analysis` is thinking, what has a recipient is a call.
pub(super) fn parse(written: &str) -> Answer {
    let mut answer = Answer::default();
    let mut thinking = Vec::new();
    let mut texts = Vec::new();
    for message in written.split("<|start|>") {
        let Some((header, body)) = message.split_once("<|message|>") else {
            // Nothing but a header, or an answer without channels.
            if !message.contains("<|channel|>") && !message.trim().is_empty() {
                texts.push(message);
            }
            continue;
        };
        let end = ENDS.iter().filter_map(|end| body.find(end)).min().unwrap_or(body.len());
        let body = &body[..end];
        let channel = header.split_once("<|channel|>").map_or("", |(_, channel)| channel);
        let recipient = header.split_once("to=").map(|(_, name)| {
            let end = name.find(|letter: char| letter.is_whitespace() || letter == '<');
            &name[..end.unwrap_or(name.len())]
        });
        match (recipient, channel.trim_start()) {
            (Some(name), _) => match Data::from_json(body) {
                Ok(arguments @ Data::Object(_)) => {
                    let name = name.strip_prefix("functions.").unwrap_or(name);
                    answer.tool_calls.push(ToolCall::new(name, arguments));
                }
                _ => {
                    answer.unreadable.push(body.to_owned());
                    texts.push(body);
                }
            },
            (None, channel) if channel.starts_with("analysis") => thinking.push(body),
            (None, _) => texts.push(body),
        }
    }
    answer.thinking = (!thinking.is_empty()).then(|| thinking.join("\n"));
    answer.text = texts.join("\n");
    answer
}
