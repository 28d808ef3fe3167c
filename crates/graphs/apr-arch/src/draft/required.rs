//! In which layers a tensor is.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::dimensions::Config;
use crate::expression::Expression;
use crate::family::Required;
use crate::file::Condition;
use crate::missing::combinations;
use crate::model::FamilyModel;

use super::text::quoted;

/// Tensors of one entry that a condition is tried on.
const MAX_PLACES: u64 = 20_000;

/// Longest period of layers that is looked for.
const MAX_PERIOD: u64 = 8;

/// Returns the line `required` of an entry, or `None` for a tensor that all layers have.
///
/// `numbers` are those of the placeholders, for each tensor of the entry.
pub(super) fn condition(
    numbers: &[Vec<(String, u64)>],
    config: Option<&Config>,
    model: Option<&FamilyModel<'_>>,
    count_of: &dyn Fn(&str) -> Option<u64>,
) -> Option<String> {
    let indices: Vec<&str> = numbers.first()?.iter().map(|(index, _)| index.as_str()).collect();
    let counts: Vec<u64> = indices.iter().map(|index| count_of(index)).collect::<Option<_>>()?;
    let places: BTreeSet<Vec<u64>> = numbers
        .iter()
        .map(|numbers| numbers.iter().map(|(_, number)| *number).collect::<Vec<_>>())
        .filter(|place: &Vec<u64>| place.iter().zip(&counts).all(|(at, count)| at < count))
        .collect();
    let all = counts.iter().try_fold(1_u64, |product, count| product.checked_mul(*count))?;
    if all == 0 || all == places.len() as u64 {
        return None;
    }
    let found = model
        .filter(|_| all <= MAX_PLACES)
        .and_then(|model| by_base(model, &indices, &counts, &places))
        .or_else(|| {
            let layers: BTreeSet<u64> = places.iter().map(|place| place[0]).collect();
            let others = counts[1..].iter().product::<u64>() * layers.len() as u64;
            if others != places.len() as u64 {
                return None;
            }
            let stated = config.and_then(|it| by_list(it, indices[0], counts[0], &layers));
            stated.or_else(|| by_number(config, indices[0], counts[0], &layers))
        });
    Some(match found {
        Some(text) => format!("required = {}", quoted(&text)),
        None => format!("required = false    # {} of {all} are there", places.len()),
    })
}

/// A condition that the base has for another tensor with the same placeholders.
fn by_base(
    model: &FamilyModel<'_>,
    indices: &[&str],
    counts: &[u64],
    places: &BTreeSet<Vec<u64>>,
) -> Option<String> {
    let family = model.family();
    let mut conditions: Vec<(&str, &Expression)> = Vec::new();
    for (entry, tensor) in family.file.tensors.iter().zip(&family.tensors) {
        let (Some(Condition::Computed(text)), Required::Computed(expression)) =
            (&entry.required, &tensor.required)
        else {
            continue;
        };
        let is_new = conditions.iter().all(|(known, _)| known != text);
        if is_new && tensor.pattern.indices().iter().eq(indices) {
            conditions.push((text, expression));
        }
    }
    let holds = |expression: &Expression| {
        combinations(counts).all(|place| {
            let named: Vec<(&str, u64)> =
                indices.iter().copied().zip(place.iter().copied()).collect();
            let truth = model.dimensions.truth(expression, &named).unwrap_or(false);
            truth == places.contains(&place)
        })
    };
    let found = conditions.into_iter().find(|(_, expression)| holds(expression));
    found.map(|(text, _)| text.to_owned())
}

/// A list of the configuration that says it: one of kinds, or one of numbers.
fn by_list(config: &Config, index: &str, count: u64, there: &BTreeSet<u64>) -> Option<String> {
    config.iter().filter(|(key, _)| is_name(key)).find_map(|(key, entry)| {
        let is_of_layers = |list: &&Vec<Json>| (1..=count).contains(&(list.len() as u64));
        let list = entry.as_array().filter(is_of_layers)?;
        let numbers: Option<BTreeSet<u64>> = list.iter().map(Json::as_u64).collect();
        if numbers.as_ref() == Some(there) && list.len() as u64 != count {
            return Some(format!("contains({key}, {index})"));
        }
        if list.len() as u64 != count {
            return None;
        }
        let at = usize::try_from(*there.first()?).ok()?;
        let kind = list.get(at)?;
        let same: BTreeSet<u64> =
            (0..).zip(list).filter(|(_, other)| *other == kind).map(|(at, _)| at).collect();
        let kind = match kind {
            Json::String(text) if !text.contains(['\'', '\\']) => format!("'{text}'"),
            Json::Number(number) => number.to_string(),
            Json::Bool(truth) => truth.to_string(),
            _ => return None,
        };
        (same == *there).then(|| format!("{key}[{index}] == {kind}"))
    })
}

/// The first layers, the last ones, or each of several.
fn by_number(
    config: Option<&Config>,
    index: &str,
    count: u64,
    there: &BTreeSet<u64>,
) -> Option<String> {
    let (first, last) = (*there.first()?, *there.last()?);
    let stated = |number: u64| {
        let entries = config.into_iter().flatten();
        let words = ["first", "dense", "skip", "last", "start", "replace"];
        let is_it = |(key, entry): &(&String, &Json)| {
            is_name(key)
                && words.iter().any(|word| key.contains(word))
                && entry.as_u64() == Some(number)
        };
        entries.into_iter().find(is_it).map_or_else(|| number.to_string(), |(key, _)| key.clone())
    };
    let is_range = last - first + 1 == there.len() as u64;
    if is_range && first == 0 {
        return Some(format!("{index} < {}", stated(last + 1)));
    }
    if is_range && last + 1 >= count {
        return Some(format!("{index} >= {}", stated(first)));
    }
    (2..=MAX_PERIOD.min(count / 2)).find_map(|period| {
        let every = (0..count).filter(|at| at % period == first % period);
        every.eq(there.iter().copied()).then(|| format!("{index} % {period} == {}", first % period))
    })
}

/// Returns `true` if an expression can name the entry.
pub(super) fn is_name(key: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
