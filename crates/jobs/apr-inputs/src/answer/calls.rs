//! Tool calls in JSON without a mark behind them.

use super::{Answer, ToolCall};
use crate::messages::Data;

/// A call from an object with a name and arguments, which models call in several ways.
pub(super) fn call(data: &Data) -> Option<ToolCall> {
    let inner = data.get("function").filter(|inner| matches!(inner, Data::Object(_)));
    let of = |names: &[&str]| {
        names.iter().find_map(|name| inner.unwrap_or(data).get(name).or_else(|| data.get(name)))
    };
    let name = of(&["name", "tool_name"])?.as_str()?;
    let arguments = match of(&["arguments", "parameters"]) {
        None | Some(Data::Null) => Data::Object(Vec::new()),
        Some(arguments @ Data::Object(_)) => arguments.clone(),
        // JSON in a text, as OpenAI's programs have it.
        Some(Data::Text(text)) => {
            Data::from_json(text).ok().filter(|data| matches!(data, Data::Object(_)))?
        }
        Some(_) => return None,
    };
    let id = of(&["id", "tool_call_id"]).and_then(Data::as_str).map(str::to_owned);
    Some(ToolCall { id, ..ToolCall::new(name, arguments) })
}

/// Calls from one object or a list of them.
pub(super) fn calls(data: &Data) -> Option<Vec<ToolCall>> {
    match data {
        Data::List(items) => items.iter().map(call).collect(),
        one => call(one).map(|call| vec![call]),
    }
}

/// The JSON value that a text begins with, and the rest.
fn leading(text: &str) -> Option<(Data, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Data>();
    let data = values.next()?.ok()?;
    Some((data, text.get(values.byte_offset()..)?))
}

/// Objects one behind the other with `;` between them, which are the whole answer, or behind
/// `<|python_tag|>`; and calls of built-in tools, `NAME.call(KEY="VALUE")`.
pub(super) fn llama(text: &str, answer: &mut Answer) {
    let (before, mut rest) = match text.split_once("<|python_tag|>") {
        Some((before, rest)) => (before, rest),
        None if text.trim_start().starts_with('{') => ("", text),
        None => {
            text.clone_into(&mut answer.text);
            return;
        }
    };
    let is_marked = text.len() > before.len() + rest.len();
    before.clone_into(&mut answer.text);
    let whole = rest;
    let mut found = Vec::new();
    while !rest.trim_matches([';', ' ', '\n']).is_empty() {
        let made = leading(rest).and_then(|(data, behind)| Some((call(&data)?, behind)));
        let Some((call, behind)) = made.or_else(|| built_in(rest)) else {
            if is_marked {
                answer.unreadable.push(whole.to_owned());
            }
            answer.text.push_str(whole);
            return;
        };
        found.push(call);
        rest = behind.trim_start_matches([';', ' ', '\n']);
    }
    answer.tool_calls = found;
}

/// `NAME.call(KEY="VALUE")`, of which the values are texts.
fn built_in(text: &str) -> Option<(ToolCall, &str)> {
    let (name, rest) = text.trim_start().split_once(".call(")?;
    if name.is_empty() || !name.chars().all(|letter| letter.is_alphanumeric() || letter == '_') {
        return None;
    }
    let mut fields = Vec::new();
    let mut rest = rest;
    while !rest.starts_with(')') {
        let (key, value) = rest.split_once('=')?;
        let (value, behind) = match value.starts_with(['"', '{', '[']) {
            true => leading(value)?,
            false => {
                let (value, behind) = value.split_at(value.find([',', ')'])?);
                (Data::from_json(value).ok()?, behind)
            }
        };
        fields.push((key.trim().to_owned(), value));
        rest = behind.trim_start_matches([',', ' ']);
    }
    Some((ToolCall::new(name, Data::Object(fields)), &rest[1..]))
}

/// `[TOOL_CALLS]` with a list, or in front of each call, as newer models write them:
/// `NAME[CALL_ID]ID[ARGS]{...}`.
pub(super) fn mistral(text: &str, answer: &mut Answer) {
    let mut parts = text.split("[TOOL_CALLS]");
    answer.text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let made = match leading(part.trim_start()) {
            Some((data, rest)) => calls(&data).map(|calls| (calls, rest)),
            None => part.split_once("[ARGS]").and_then(|(head, arguments)| {
                let (arguments, rest) = leading(arguments)?;
                let (name, id) = match head.split_once("[CALL_ID]") {
                    Some((name, id)) => (name, Some(id.trim().to_owned())),
                    None => (head, None),
                };
                matches!(arguments, Data::Object(_)).then(|| {
                    let call = ToolCall::new(name.trim(), arguments);
                    (vec![ToolCall { id, ..call }], rest)
                })
            }),
        };
        match made {
            Some((calls, rest)) => {
                answer.tool_calls.extend(calls);
                answer.text.push_str(rest);
            }
            None => {
                answer.unreadable.push(part.to_owned());
                answer.text.push_str(part);
            }
        }
    }
}
