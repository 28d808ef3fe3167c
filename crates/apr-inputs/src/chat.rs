//! Chats as texts, by the template that came with a model.
//!
//! Templates are written for Jinja as transformers sets it up: blocks leave no lines behind,
//! `break` and `continue` work, Python's methods of texts and dictionaries are there. A template
//! comes from a stranger, so its steps, its memory and its text are bounded.

mod sums;

use apr_core::{Error, Escaped, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, ErrorKind, State};

pub use crate::messages::{Chat, Message, Template};

/// Steps of a template, of which 64 bytes of memory are one: 64 MiB at most.
const STEPS: u64 = 1 << 20;
/// Bytes of a template. The longest that models have is some 20,000.
const MAX_TEMPLATE: usize = 1 << 20;
/// Calls inside each other.
const DEPTH: usize = 100;
/// Bytes of the chat that a template writes.
const MAX_CHAT: usize = 16 << 20;

/// Writes a chat down, up to where the model's answer begins.
///
/// # Errors
/// E001 for a template that is wrong, or refuses the messages; E008 for one that takes too many
/// steps or too much memory.
pub fn render(template: &Template, chat: &Chat<'_>) -> Result<String> {
    if template.0.len() > MAX_TEMPLATE {
        return Err(Error::memory(format!("the chat template has {} bytes", template.0.len())));
    }

    let environment = environment(chat.now)?;
    let mut values: Vec<(String, Value)> = chat
        .tokens
        .iter()
        .map(|(role, token)| (role.clone(), Value::from(token.as_str())))
        .collect();
    let pairs = |message: &Message| {
        Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())])
    };
    values.push(("messages".to_owned(), chat.messages.iter().map(pairs).collect()));
    values.push(("add_generation_prompt".to_owned(), Value::from(true)));
    for unused in ["tools", "documents"] {
        values.push((unused.to_owned(), Value::from(())));
    }

    let context = Value::from_pairs(values);
    let paying = sums::with_paid_sums(&template.0);
    let compiled = environment
        .template_from_named_str("chat template", &paying)
        .map_err(|error| wrong(&error))?;
    let text = compiled.render(context).map_err(|error| wrong(&error))?;
    if text.len() > MAX_CHAT {
        return Err(Error::memory(format!("the chat template writes {} bytes", text.len())));
    }

    Ok(text)
}

fn environment<'e>(now: i64) -> Result<Environment<'e>> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(STEPS));
    environment.set_recursion_limit(DEPTH);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| wrong(&error))?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.add_function(
        "raise_exception",
        |message: String| -> std::result::Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", move |format: String| date(now, &format));
    environment.add_filter("tojson", to_json);
    environment.add_filter(sums::FILTER, pay_for_length);
    environment.add_filter("sum", sum);
    Ok(environment)
}

/// Python's methods of texts, lists and dictionaries. Those that make a longer text pay for it
/// first.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> std::result::Result<Value, minijinja::Error> {
    let length =
        |value: &Value| value.as_str().map_or_else(|| value.len().unwrap_or(1), str::len) as u64;
    let longest = || arguments.iter().map(length).max().unwrap_or(0);
    let bytes = match (name, value.as_str()) {
        ("replace", Some(text)) => {
            let count = arguments
                .first()
                .and_then(Value::as_str)
                .map_or(0, |old| text.matches(old).count());
            (count as u64).saturating_mul(longest())
        }
        // A width would make any length.
        ("format", Some(text)) if text.contains(':') => u64::MAX,
        ("format", Some(text)) => (text.matches('{').count() as u64).saturating_mul(longest()),
        ("join", Some(text)) => {
            let items = arguments.first().map(Value::try_iter).transpose()?;
            items.into_iter().flatten().map(|item| length(&item) + text.len() as u64).sum()
        }
        _ => length(value),
    };

    state.consume_fuel(bytes / 64 + 1)?;
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// Passes on an operand of a sum of so many. A list pays for each time it may be copied.
fn pay_for_length(
    state: &State<'_, '_>,
    value: Value,
    operands: u64,
) -> std::result::Result<Value, minijinja::Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let length = value.len().unwrap_or(0) as u64;
        state.consume_fuel(length.saturating_mul(operands) / 2)?;
    }
    Ok(value)
}

/// The sum of numbers: one of lists would copy them for nothing.
fn sum(
    state: &State<'_, '_>,
    values: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    kwargs: Kwargs,
) -> std::result::Result<Value, minijinja::Error> {
    let named: Option<Value> = kwargs.peek("start")?;
    if [&start, &named].into_iter().flatten().any(|start| start.kind() != ValueKind::Number) {
        let message = "a sum starts with a number";
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
    }
    minijinja::filters::sum(state, values, attribute, start, kwargs)
}

/// JSON as Python writes it, where the template says nothing else: a space behind commas and
/// colons, no escapes.
#[expect(clippy::needless_pass_by_value, reason = "filters get their options so")]
fn to_json(value: &Value, options: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut text = String::new();
    write_json(&mut text, value, indent.map(|indent| indent.min(16)), 0)?;
    Ok(text)
}

fn write_json(
    out: &mut String,
    value: &Value,
    indent: Option<usize>,
    depth: usize,
) -> std::result::Result<(), minijinja::Error> {
    if depth > DEPTH || out.len() > MAX_CHAT {
        return Err(minijinja::Error::new(
            ErrorKind::InvalidOperation,
            "the value is too large for JSON",
        ));
    }

    let (open, close) = match value.kind() {
        ValueKind::Map => ('{', '}'),
        ValueKind::Seq | ValueKind::Iterable => ('[', ']'),
        _ => {
            let json = serde_json::to_string(value);
            out.push_str(&json.map_err(|error| {
                minijinja::Error::new(ErrorKind::BadSerialization, error.to_string())
            })?);
            return Ok(());
        }
    };

    out.push(open);
    let mut count = 0;
    for item in value.try_iter()? {
        if count > 0 {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        begin_line(out, indent, depth + 1);
        if open == '{' {
            write_json(out, &Value::from(item.to_string()), indent, depth + 1)?;
            out.push_str(": ");
            write_json(out, &value.get_item(&item)?, indent, depth + 1)?;
        } else {
            write_json(out, &item, indent, depth + 1)?;
        }
        count += 1;
    }

    if count > 0 {
        begin_line(out, indent, depth);
    }

    out.push(close);
    Ok(())
}

/// Begins a line where JSON is indented.
fn begin_line(out: &mut String, indent: Option<usize>, depth: usize) {
    if let Some(indent) = indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * depth));
    }
}

/// The date of a time in seconds since 1970 (civil-from-days, Howard Hinnant), by the codes that
/// templates use.
fn date(now: i64, format: &str) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

    let (days, seconds) = (now.div_euclid(86_400), now.rem_euclid(86_400));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let name = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    let weekday = DAYS[usize::try_from(days.rem_euclid(7)).unwrap_or(0)];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }

        match letters.next() {
            Some('Y') => text.push_str(&year.to_string()),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('B') => text.push_str(name),
            Some('b') => text.push_str(&name[..3]),
            Some('A') => text.push_str(weekday),
            Some('a') => text.push_str(&weekday[..3]),
            Some('H') => text.push_str(&format!("{:02}", seconds / 3600)),
            Some('M') => text.push_str(&format!("{:02}", seconds / 60 % 60)),
            Some('S') => text.push_str(&format!("{:02}", seconds % 60)),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }

    text
}

fn wrong(error: &minijinja::Error) -> Error {
    let text = error.to_string();
    let message = format!("the chat template: {}", Escaped::short(&text));
    if error.kind() == ErrorKind::OutOfFuel {
        Error::memory(message)
    } else {
        Error::format(message)
    }
}

#[cfg(test)]
mod tests {
    use apr_core::Code;

    use super::*;

    fn rendered(template: &str) -> Result<String> {
        let messages = [Message { role: "user".to_owned(), content: "hi".to_owned() }];
        let tokens = [("bos_token".to_owned(), "<s>".to_owned())];
        render(
            &Template(template.to_owned()),
            &Chat { messages: &messages, tokens: &tokens, now: 1_700_000_000 },
        )
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
    fn dates_are_those_of_the_calendar() {
        assert_eq!(
            date(1_700_000_000, "%A %d %B %Y %H:%M:%S"),
            "Tuesday 14 November 2023 22:13:20"
        );
        assert_eq!(date(951_782_400, "%a %d %b %Y %%%q"), "Tue 29 Feb 2000 %%q");
        assert_eq!(date(-1, "%Y-%m-%d"), "1969-12-31");
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
