//! Filters that are other than the engine's.

use std::borrow::Cow;
use std::sync::Arc;

use minijinja::filters;
use minijinja::value::{
    Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, ValueKind, ValueOrKwargs,
};
use minijinja::{Environment, Error, State};

use super::{json, refused, sums};

/// Adds the filters to those of the engine.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("sum", sum);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter(sums::FILTER, pay_for_length);
    environment.add_filter(sums::ITERATED, iterated);
    environment.add_filter(sums::ESCAPED, escaped);
    environment.add_filter(
        "map",
        |state: &mut State<'_, '_>, value: Value, arguments: Rest<ValueOrKwargs>| {
            filters::map(state, value, arguments).map(generator)
        },
    );
    environment.add_filter(
        "select",
        |state: &mut State<'_, '_>,
         value: Value,
         test: Option<Cow<'_, str>>,
         arguments: Rest<ValueOrKwargs>| {
            filters::select(state, value, test, arguments).map(generator)
        },
    );
    environment.add_filter(
        "reject",
        |state: &mut State<'_, '_>,
         value: Value,
         test: Option<Cow<'_, str>>,
         arguments: Rest<ValueOrKwargs>| {
            filters::reject(state, value, test, arguments).map(generator)
        },
    );
    environment.add_filter(
        "selectattr",
        |state: &mut State<'_, '_>,
         value: Value,
         attribute: Cow<'_, str>,
         test: Option<Cow<'_, str>>,
         arguments: Rest<ValueOrKwargs>| {
            filters::selectattr(state, value, attribute, test, arguments).map(generator)
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &mut State<'_, '_>,
         value: Value,
         attribute: Cow<'_, str>,
         test: Option<Cow<'_, str>>,
         arguments: Rest<ValueOrKwargs>| {
            filters::rejectattr(state, value, attribute, test, arguments).map(generator)
        },
    );
}

/// Result of Jinja's list filters. It can be iterated over and is true even if it is empty, and has
/// no length and no JSON form.
#[derive(Debug)]
pub(super) struct Generator(Vec<Value>);

fn generator(items: Vec<Value>) -> Value {
    Value::from_object(Generator(items))
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.clone())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// An operand beside one that is `safe`, as MarkupSafe escapes it.
fn escaped(value: Value) -> Value {
    let Some(text) = value.as_str().filter(|_| !value.is_safe()) else { return value };
    let mut made = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => made.push_str("&amp;"),
            '<' => made.push_str("&lt;"),
            '>' => made.push_str("&gt;"),
            '\'' => made.push_str("&#39;"),
            '"' => made.push_str("&#34;"),
            letter => made.push(letter),
        }
    }
    Value::from_safe_string(made)
}

/// The filter `default`, whose second argument may be named.
#[expect(clippy::needless_pass_by_value, reason = "filters get their options so")]
fn default(
    state: &State<'_, '_>,
    value: &Value,
    other: Option<Value>,
    is_lax: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(named.get("default_value")?).unwrap_or_else(|| Value::from(""));
    let is_lax = is_lax.or(named.get("boolean")?).unwrap_or_else(|| Value::from(false));
    named.assert_all_used()?;
    filters::default(state, value, Rest(vec![other, is_lax]))
}

/// Returns the value that a loop iterates over, which must not be `none`.
fn iterated(value: Value) -> Result<Value, Error> {
    match value.is_none() {
        true => Err(refused("'NoneType' object is not iterable")),
        false => Ok(value),
    }
}

/// Returns an operand of a sum of `operands` operands. A list consumes fuel for each time that it
/// may be copied.
fn pay_for_length(state: &State<'_, '_>, value: Value, operands: u64) -> Result<Value, Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let length = value.len().unwrap_or(0) as u64;
        state.consume_fuel(length.saturating_mul(operands) / 2)?;
    }
    Ok(value)
}

/// Returns the sum of numbers. Sums of lists are rejected, because they would copy the lists
/// needlessly.
fn sum(
    state: &State<'_, '_>,
    values: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let named: Option<Value> = kwargs.peek("start")?;
    if [&start, &named].into_iter().flatten().any(|start| start.kind() != ValueKind::Number) {
        return Err(refused("a sum starts with a number"));
    }
    filters::sum(state, values, attribute, start, kwargs)
}
