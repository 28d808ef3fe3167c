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

use apr_core::{Error, Escaped, Result, Work};
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
    let mut bytes = 0;
    let mut messages = Vec::with_capacity(chat.messages.len());
    for message in chat.messages {
        let message = message.for_template();
        bytes += values::bytes(&message);
        messages.push(values::of(&message));
    }
    let mut values: Vec<(&str, Value)> = chat
        .tokens
        .iter()
        .map(|(role, token)| (role.as_str(), Value::from(token.as_str())))
        .collect();
    values.push(("messages", Value::from(messages)));
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
    let text = compiled.render(Value::from_pairs(values)).map_err(|error| wrong(&error))?;
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
    use apr_core::Code;

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

    #[test]
    fn the_same_as_jinja_writes() {
        assert_eq!(
            rendered("{{ bos_token }}{{ messages[0]['content'].upper().strip() }}").unwrap(),
            "<s>HI"
        );
        assert_eq!(rendered("  {% if true %}\na\n  {% endif %}\nb").unwrap(), "a\nb");
    }
}
