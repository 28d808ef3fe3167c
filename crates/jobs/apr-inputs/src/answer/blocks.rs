//! Tool calls between marks.

use super::calls::calls;
use super::{Answer, ToolCall};
use crate::messages::Data;

/// Takes out blocks between marks, which `read` parses to calls. A block that can't be parsed stays
/// in the text. A block without an end may be an answer that was cut off.
fn each(
    text: &str,
    open: &str,
    close: &str,
    answer: &mut Answer,
    read: impl Fn(&str) -> Option<Vec<ToolCall>>,
) {
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(open) {
        answer.text.push_str(before);
        let (block, left) = behind.split_once(close).unwrap_or((behind, ""));
        match read(block) {
            Some(calls) => answer.tool_calls.extend(calls),
            None => {
                answer.unreadable.push(block.to_owned());
                answer.text.push_str(&rest[before.len()..rest.len() - left.len()]);
            }
        }
        rest = left;
    }
    answer.text.push_str(rest);
}

/// JSON between marks, an object or a list.
pub(super) fn json(text: &str, open: &str, close: &str, answer: &mut Answer) {
    each(text, open, close, answer, |block| {
        let values = serde_json::Deserializer::from_str(block).into_iter::<Data>();
        let mut made = Vec::new();
        for value in values {
            made.extend(calls(&value.ok()?)?);
        }
        (!made.is_empty()).then_some(made)
    });
}

/// `<function=NAME>` with `<parameter=NAME>VALUE</parameter>` or JSON inside; models that put
/// `<tool_call>` around it write JSON there as well.
pub(super) fn functions(text: &str, tools: Option<&Data>, answer: &mut Answer) {
    let function = |block: &str| {
        let (name, body) = block.split_once('>')?;
        if let Ok(arguments @ Data::Object(_)) = Data::from_json(body.trim()) {
            return Some(vec![ToolCall::new(name.trim(), arguments)]);
        }
        let mut fields = Vec::new();
        let mut rest = body;
        while let Some((before, behind)) = rest.split_once("<parameter=") {
            if !before.trim().is_empty() {
                return None;
            }
            let (key, value) = behind.split_once('>')?;
            let end = value.find("</parameter>").or_else(|| value.find("<parameter="))?;
            // One line break on each side belongs to the marks.
            let text = value[..end].strip_prefix('\n').unwrap_or(&value[..end]);
            let text = text.strip_suffix('\n').unwrap_or(text);
            fields.push((key.trim().to_owned(), typed(tools, name, key.trim(), text)));
            rest = value[end..].strip_prefix("</parameter>").unwrap_or(&value[end..]);
        }
        let is_read = rest.trim().is_empty();
        is_read.then(|| vec![ToolCall::new(name.trim(), Data::Object(fields))])
    };
    let around = [("<tool_call>", "</tool_call>"), ("<seed:tool_call>", "</seed:tool_call>")];
    let Some((open, close)) = around.into_iter().find(|(open, _)| text.contains(open)) else {
        return each(text, "<function=", "</function>", answer, function);
    };
    each(text, open, close, answer, |block| {
        let block = block.trim();
        match block.strip_prefix("<function=") {
            Some(inner) => function(inner.split_once("</function>").map_or(inner, |(it, _)| it)),
            None => Data::from_json(block).ok().and_then(|data| calls(&data)),
        }
    });
}

/// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` between `<tool_call>` marks.
pub(super) fn keys(text: &str, tools: Option<&Data>, answer: &mut Answer) {
    each(text, "<tool_call>", "</tool_call>", answer, |block| {
        let end = block.find("<arg_key>").unwrap_or(block.len());
        let name = block[..end].trim();
        let mut fields = Vec::new();
        let mut rest = &block[end..];
        while let Some(behind) = rest.trim_start().strip_prefix("<arg_key>") {
            let (key, behind) = behind.split_once("</arg_key>")?;
            let behind = behind.trim_start().strip_prefix("<arg_value>")?;
            let (value, left) = behind.split_once("</arg_value>")?;
            fields.push((key.trim().to_owned(), typed(tools, name, key.trim(), value)));
            rest = left;
        }
        let is_call = !name.is_empty() && !name.contains(['{', '\n']) && rest.trim().is_empty();
        is_call.then(|| vec![ToolCall::new(name, Data::Object(fields))])
    });
}

/// Parses an argument without quotes: text if the tool declares it as text, otherwise JSON if it is
/// valid.
fn typed(tools: Option<&Data>, name: &str, key: &str, text: &str) -> Data {
    let tools = tools.and_then(Data::as_list).unwrap_or_default();
    let function = tools.iter().map(|tool| tool.get("function").unwrap_or(tool));
    let named = |function: &&Data| function.get("name").and_then(Data::as_str) == Some(name);
    let schema = function
        .filter(named)
        .find_map(|function| function.get("parameters")?.get("properties")?.get(key)?.get("type"));
    let is_text = schema.and_then(Data::as_str) == Some("string");
    // Templates that write values without JSON write Python's.
    let python = match text {
        "True" => Some(Data::Bool(true)),
        "False" => Some(Data::Bool(false)),
        "None" => Some(Data::Null),
        _ => None,
    };
    let value = python.or_else(|| Data::from_json(text).ok()).filter(|_| !is_text);
    value.unwrap_or_else(|| Data::Text(text.to_owned()))
}

/// `<invoke name="NAME">` with `<parameter name="KEY">VALUE</parameter>`; tags may have a prefix,
/// and parameters say in `string` whether they are texts.
pub(super) fn invokes(text: &str, prefix: &str, tools: Option<&Data>, answer: &mut Answer) {
    let around = ["minimax:tool_call", "｜DSML｜function_calls", "｜DSML｜tool_calls"];
    let around = around.iter().flat_map(|name| [format!("<{name}>"), format!("</{name}>")]);
    let text = around.fold(text.to_owned(), |text, mark| text.replace(&mark, ""));
    let (open, close) = (format!("<{prefix}invoke name=\""), format!("</{prefix}invoke>"));
    let (begin, end) = (format!("<{prefix}parameter name=\""), format!("</{prefix}parameter>"));
    each(&text, &open, &close, answer, |block| {
        let (name, body) = block.split_once("\">")?;
        let mut fields = Vec::new();
        let mut rest = body;
        while let Some(behind) = rest.trim_start().strip_prefix(&begin) {
            let (head, behind) = behind.split_once('>')?;
            let (key, kind) = head.split_once('"')?;
            let (value, left) = behind.split_once(&end)?;
            let data = match kind.trim() {
                "string=\"true\"" => Data::Text(value.to_owned()),
                _ => typed(tools, name, key, value),
            };
            fields.push((key.to_owned(), data));
            rest = left;
        }
        rest.trim().is_empty().then(|| vec![ToolCall::new(name, Data::Object(fields))])
    });
}

/// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}`, or `function<｜tool▁sep｜>NAME` with JSON in a fence.
pub(super) fn deepseek(text: &str, answer: &mut Answer) {
    let text = without(text, &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"]);
    each(&text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", answer, |block| {
        let (head, body) = block.split_once("<｜tool▁sep｜>")?;
        let (name, arguments) = match body.split_once("```json") {
            Some((name, fenced)) => (name, fenced.split_once("```")?.0),
            None => (head, body),
        };
        one(name, arguments)
    });
}

/// `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}`.
pub(super) fn kimi(text: &str, answer: &mut Answer) {
    let text = without(text, &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"]);
    each(&text, "<|tool_call_begin|>", "<|tool_call_end|>", answer, |block| {
        let (id, arguments) = block.split_once("<|tool_call_argument_begin|>")?;
        let id = id.trim();
        let name = id.rsplit_once(':').map_or(id, |(name, _)| name);
        let mut calls = one(name.strip_prefix("functions.").unwrap_or(name), arguments)?;
        calls.iter_mut().for_each(|call| call.id = Some(id.to_owned()));
        Some(calls)
    });
}

/// A call of a name and an object in JSON.
fn one(name: &str, arguments: &str) -> Option<Vec<ToolCall>> {
    match Data::from_json(arguments.trim()).ok()? {
        arguments @ Data::Object(_) => Some(vec![ToolCall::new(name.trim(), arguments)]),
        _ => None,
    }
}

fn without(text: &str, marks: &[&str]) -> String {
    marks.iter().fold(text.to_owned(), |text, mark| text.replace(mark, ""))
}
