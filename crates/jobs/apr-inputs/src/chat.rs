//! Chats as texts, by the template that came with a model.
//!
//! Templates are written for Jinja as transformers sets it up: blocks leave no lines behind,
//! `break` and `continue` work, Python's methods of texts and dictionaries are there. A template
//! comes from a stranger, so its steps, its memory and its text are bounded.

mod date;
mod filters;
mod json;
mod methods;
mod source;
mod sums;
mod values;

use apr_core::{Code, Error, Escaped, Result, Work};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, ErrorKind};

pub use crate::messages::{Chat, ChatFile, Data, Message, Rendered, Template, TemplateOptions};

/// Steps of a template, of which 64 bytes of memory are one: 64 MiB at most, and more for a chat
/// that is itself long.
const STEPS: u64 = 1 << 20;
/// Bytes of a template. The longest that models have is some 20,000.
const MAX_TEMPLATE: usize = 1 << 20;
/// Calls inside each other.
const DEPTH: usize = 100;
/// Bytes of the chat that a template writes.
const MAX_CHAT: usize = 16 << 20;

/// Renders a chat, up to the beginning of the model's answer.
///
/// # Errors
/// E001 for a template that is wrong or rejects the messages. E008 for a template that takes too
/// many steps or too much memory.
pub fn render(template: &Template, chat: &Chat<'_>) -> Result<Rendered> {
    if template.0.len() > MAX_TEMPLATE {
        return Err(Error::memory(format!("the chat template has {} bytes", template.0.len())));
    }

    let options = chat.options;
    let messages: Vec<Data> = chat.messages.iter().map(Message::for_template).collect();
    let mut bytes: usize = messages.iter().map(values::bytes).sum();
    let mut values: Vec<(&str, Value)> = chat
        .tokens
        .iter()
        .map(|(role, token)| (role.as_str(), Value::from(token.as_str())))
        .collect();
    values.push(("add_generation_prompt", Value::from(true)));
    for (name, list) in [("tools", &options.tools), ("documents", &options.documents)] {
        bytes += list.as_ref().map_or(0, values::bytes);
        values.push((name, list.as_ref().map_or(Value::from(()), values::of)));
    }
    values.extend(options.arguments.iter().map(|(name, data)| (name.as_str(), values::of(data))));

    let environment = environment(chat.now, STEPS.saturating_add(bytes as u64))?;
    let prepared = source::prepared(&template.0);
    let paying = sums::with_paid_sums(&prepared);
    let compiled = environment
        .template_from_named_str("chat template", &paying)
        .map_err(|error| wrong(&error))?;
    let write = |messages: &[Data]| {
        let messages: Vec<Value> = messages.iter().map(values::of).collect();
        let messages = [("messages", Value::from(messages))];
        compiled.render(Value::from_pairs(values.iter().cloned().chain(messages)))
    };
    let has_parts = chat.messages.iter().any(|message| message.joined().is_some());
    let text = match has_parts && !reads_parts(|message| write(message).ok()) {
        true => {
            let joined = |message: &Message| message.joined().unwrap_or_else(|| message.clone());
            let joined = chat.messages.iter().map(|message| joined(message).for_template());
            write(&joined.collect::<Vec<_>>())
        }
        false => write(&messages),
    };
    let text = text.map_err(|error| with_message(wrong(&error), chat.messages))?;
    if text.len() > MAX_CHAT {
        let written = apr_core::grouped(text.len() as u64);
        let justified = Work::NOT_JUSTIFIED;
        return Err(Error::memory(format!(
            "the chat template writes {written} bytes, {justified}"
        )));
    }

    let read = compiled.undeclared_variables(false);
    let lists = [("tools", &options.tools), ("documents", &options.documents)];
    let given = lists.iter().filter(|(_, list)| list.is_some()).map(|(name, _)| *name);
    let given = given.chain(options.arguments.iter().map(|(name, _)| name.as_str()));
    let unread = given.filter(|name| !read.contains(*name)).map(str::to_owned).collect();
    Ok(Rendered { text, unread })
}

/// Returns `true` if a template writes the texts of a list of parts, and not the list itself.
fn reads_parts(write: impl Fn(&[Data]) -> Option<String>) -> bool {
    const TEXT: &str = "text of a part";

    let written = write(&[Message::with_images("user", 0, TEXT).for_template()]);
    // A template that writes messages as JSON reads them as they are.
    written.is_some_and(|text| text.contains(TEXT) && !text.contains(&format!("'{TEXT}'")))
}

/// Names the first message whose content is no text, which most templates read.
fn with_message(error: Error, messages: &[Message]) -> Error {
    match messages.iter().position(|message| message.text().is_none() && message.joined().is_none())
    {
        Some(at) if error.code() == Code::Format => {
            let number = at + 1;
            let message =
                format!("{}; the content of message {number} is not text", error.message());
            Error::format(message)
        }
        _ => error,
    }
}

fn environment<'e>(now: i64, steps: u64) -> Result<Environment<'e>> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(steps));
    environment.set_recursion_limit(DEPTH);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| wrong(&error))?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(methods::method);
    environment.add_function(
        "raise_exception",
        |message: String| -> std::result::Result<Value, minijinja::Error> {
            Err(refused(&message))
        },
    );
    environment.add_function("strftime_now", move |format: String| date::date(now, &format));
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.set_formatter(|out, state, value| {
        let is_float = value.kind() == ValueKind::Number && !value.is_integer();
        match f64::try_from(value.clone()).ok().filter(|float| is_float && float.is_finite()) {
            Some(float) => minijinja::escape_formatter(out, state, &json::float(float).into()),
            None => minijinja::escape_formatter(out, state, value),
        }
    });
    filters::add(&mut environment);
    // Python iterates over letters and missing values, and not over nothing.
    environment.add_test("iterable", |value: &Value| {
        value.is_undefined() || !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map
        )
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    Ok(environment)
}

/// Returns the error with which a template or one of its values fails.
fn refused(message: &str) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, message.to_owned())
}

fn wrong(error: &minijinja::Error) -> Error {
    let text = apr_core::foreign(&error);
    let message = format!("the chat template: {}", Escaped::short(&text));
    if error.kind() == ErrorKind::OutOfFuel {
        let over = format!("the chat template takes more steps, {}", Work::NOT_JUSTIFIED);
        Error::memory(over)
    } else {
        Error::format(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str) -> Result<String> {
        let messages = [Message::new("user", "hi")];
        let tokens = [("bos_token".to_owned(), "<s>".to_owned())];
        let options = TemplateOptions::default();
        let chat =
            Chat { messages: &messages, options: &options, tokens: &tokens, now: 1_700_000_000 };
        render(&Template(template.to_owned()), &chat).map(|made| made.text)
    }

    #[test]
    fn hostile_templates_end_with_an_error() {
        for template in [
            "{% for i in range(100000000) %}{% for j in range(100000000) %}x{% endfor %}{% endfor \
             %}",
            "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = \
             ns.s ~ ns.s %}{% endfor %}",
            "{% set ns = namespace(a=[0]) %}{% for i in range(40) %}{% set ns.a = ns.a + ns.a %}\
             {% endfor %}{{ ns.a|length }}",
            "{% set ns = namespace(a=[0] * 10000000000) %}{% for i in range(40) %}{% set ns.a = \
             ns.a + [] %}{% endfor %}",
            "{{ ([[0] * 10000000000] * 100)|sum(start=[]) }}",
            "{{ 'x' * 10000000000 }}",
            "{{ 'xxxxxxxxxx'|replace('x', 'x' * 1000000)|replace('x', 'x' * 1000000) }}",
            "{{ [0] * 10000000000 }}",
            "{{ '%1000000000d'|format(1) }}",
            "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
            "{{ ('x\\n' * 100000)|indent(1000000) }}",
            "{{ '{:>10000000000}'.format('x') }}",
            "{{ ('{0}' * 100000).format('x' * 100000) }}",
            "{{ ('x' * 100000).join(['x'] * 100000) }}",
            "{{ 'x'.ljust(10000000000) }}",
            "{{ 'x'.zfill(10000000000) }}",
            "{{ [1]|tojson(indent='x' * 1000) }}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{{ raise_exception('no') }}",
            "{{ messages[0].content.nothing() }}",
            "{{",
            "{% if %}",
        ] {
            let error = rendered(template).expect_err(template);
            assert!(matches!(error.code(), Code::Memory | Code::Format), "{template}: {error}");
        }
        let deep = "{{ ".to_owned() + &"(".repeat(100_000) + "1" + &")".repeat(100_000) + " }}";
        assert!(rendered(&deep).is_err());
        assert!(rendered(&"{% if 1 %}".repeat(20_000)).is_err());
        let lists = "{{ ".to_owned() + &"[".repeat(50_000) + &"]".repeat(50_000) + "|tojson }}";
        assert!(rendered(&lists).is_err());
    }

    /// `get_processor_inputs_from_messages` of `transformers serve` 5.24 joins them by a space.
    #[test]
    fn texts_of_parts_are_joined_for_templates_that_read_texts() {
        let parts = r#"[{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}
        ]}, {"role": "assistant"}]"#;
        let messages = ChatFile::from_json(parts).unwrap().messages;
        let options = TemplateOptions::default();
        let written = |template: &str, messages: &[Message]| {
            let chat = Chat { messages, options: &options, tokens: &[], now: 1_700_000_000 };
            render(&Template(template.to_owned()), &chat).map(|made| made.text)
        };
        let first = |template: &str| written(template, &messages[..1]).unwrap();
        assert_eq!(first("{{ 'x' + messages[0]['content'] }}"), "xa b");
        assert_eq!(first("{{ messages[0].content }}"), "a b");
        let each = "{% for part in messages[0].content %}{{ part.text }}|{% endfor %}";
        assert_eq!(first(each), "a|b|");

        let all = "{% for message in messages %}{{ 'x' + message['content'] }}{% endfor %}";
        let error = written(all, &messages).unwrap_err();
        assert!(error.message().ends_with("the content of message 2 is not text"), "{error}");
    }

    #[test]
    fn the_same_as_jinja_writes() {
        assert_eq!(
            rendered("{{ bos_token }}{{ messages[0]['content'].upper().strip() }}").unwrap(),
            "<s>HI"
        );
        assert_eq!(rendered("  {% if true %}\na\n  {% endif %}\nb").unwrap(), "a\nb");
    }
}
