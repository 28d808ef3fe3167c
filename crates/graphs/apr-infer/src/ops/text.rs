//! Texts.

use std::collections::HashSet;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::elementwise::expanded;
use crate::call::Call;
use crate::operator::{Operator, moves};
use crate::shape::broadcast;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    moves("StringConcat", concat),
    moves("StringSplit", split),
    moves("StringNormalizer", normalise),
];

fn concat(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let shape = broadcast(&[a.shape(), b.shape()])?;
    call.room_like(&shape, a)?;
    call.room_like(&shape, b)?;
    let (a, b) = (expanded(a, &shape)?, expanded(b, &shape)?);
    let pairs = a.values::<String>()?.iter().zip(b.values::<String>()?);
    Ok(vec![Tensor::new(shape, pairs.map(|(a, b)| format!("{a}{b}")).collect())?.into()])
}

fn split(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    call.work(&[x.bytes() as usize])?;
    let delimiter = call.text("delimiter", "");
    let most = call.optional_int("maxsplit").and_then(|most| usize::try_from(most).ok());
    let parts = |text: &String| -> Vec<String> {
        let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
        if delimiter.is_empty() {
            return by_spaces(text, most);
        }
        text.splitn(most, &delimiter).map(str::to_owned).collect()
    };

    let texts: Vec<Vec<String>> = x.values::<String>()?.iter().map(parts).collect();
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let shape = [x.shape(), &[longest]].concat();
    call.room(&shape, ElementType::Text)?;
    let counts = texts.iter().map(|parts| parts.len() as i64).collect();
    let filled = texts.into_iter().flat_map(|mut parts| {
        parts.resize(longest, String::new());
        parts
    });
    let filled = filled.collect();
    Ok(vec![Tensor::new(shape, filled)?.into(), Tensor::new(x.shape().to_vec(), counts)?.into()])
}

/// Words between spaces; the last of `most` parts keeps the spaces in it.
fn by_spaces(text: &str, most: usize) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if parts.len() + 1 == most {
            parts.push(rest.to_owned());
            break;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        parts.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    parts
}

fn normalise(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    call.work(&[x.bytes() as usize])?;
    let exact = call.flag("is_case_sensitive", false);
    let same = |text: &str| if exact { text.to_owned() } else { text.to_lowercase() };
    let stop = call.texts("stopwords").unwrap_or_default();
    let stop: HashSet<String> = stop.iter().map(|word| same(word)).collect();
    let change = call.text("case_change_action", "NONE");
    let cased = |text: &str| match change.as_str() {
        "LOWER" => text.to_lowercase(),
        "UPPER" => text.to_uppercase(),
        _ => text.to_owned(),
    };
    let texts = x.values::<String>()?.iter().filter(|text| !stop.contains(&same(text)));
    let kept = texts.map(|text| cased(text));
    let mut kept: Vec<String> = kept.collect();

    // What is left of nothing is an empty text.
    if kept.is_empty() {
        kept.push(String::new());
    }

    let shape = match x.shape() {
        [_] => vec![kept.len()],
        [1, _] => vec![1, kept.len()],
        other => return Err(Error::format(format!("texts of shape {other:?} are not in a row"))),
    };
    Ok(vec![Tensor::new(shape, kept)?.into()])
}
