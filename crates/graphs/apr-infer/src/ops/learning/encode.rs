//! Labels as other labels, and as rows with a one.

use std::collections::HashMap;
use std::hash::Hash;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::call::Call;
use crate::cast::from_doubles;
use crate::ops::layout::tensor_attribute;
use crate::tensor::Data;
use crate::{Tensor, Value};

/// An element as what it is looked up by.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Int(i64),
    Text(String),
    /// The bits of a double; negative zero and NaN have others of their kind.
    Float(u64),
}

impl Key {
    fn float(x: f64) -> Self {
        Self::Float(if x.is_nan() { f64::NAN.to_bits() } else { (x + 0.0).to_bits() })
    }
}

/// The elements as keys.
fn keys(tensor: &Tensor) -> Result<Vec<Key>> {
    Ok(match tensor.data() {
        Data::Text(texts) => texts.iter().cloned().map(Key::Text).collect(),
        _ if tensor.element().is_float() => tensor.doubles()?.into_iter().map(Key::float).collect(),
        _ => tensor.integers()?.into_iter().map(Key::Int).collect(),
    })
}

/// The list that is given as one of several attributes.
fn listed(call: &Call<'_>, prefix: &str) -> Result<Option<Tensor>> {
    let name = |kind: &str| format!("{prefix}_{kind}");
    if let Some(tensor) = tensor_attribute(call, &name("tensor"))? {
        return Ok(Some(tensor));
    }
    if let Some(texts) = call.texts(&name("strings")) {
        return Ok(Some(Tensor::row(texts)));
    }
    if let Some(ints) = call.ints(&name("int64s")) {
        return Ok(Some(Tensor::row(ints)));
    }
    Ok(call.floats(&name("floats")).map(Tensor::row))
}

/// Checks the memory for the lookups of all elements, and counts their work.
fn count(call: &Call<'_>, keys: usize) -> Result<()> {
    const LOOKUP: usize = 20;

    let x = call.tensor(0)?;
    call.room_for(x.shape(), size_of::<Key>() as u64)?;
    call.room_for(&[keys], 2 * size_of::<Key>() as u64)?;
    call.work(&[x.len().saturating_add(keys), LOOKUP])
}

/// For each element of the input the value beside the same key; of equal keys the last.
pub(super) fn encode(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let missing = || Error::format("keys or values are missing");
    let from = listed(call, "keys")?.ok_or_else(missing)?;
    let to = listed(call, "values")?.ok_or_else(missing)?;
    if from.len() != to.len() {
        return Err(Error::format(format!("{} keys have {} values", from.len(), to.len())));
    }
    count(call, from.len())?;
    let default = default_of(call, &to)?;
    let x = call.tensor(0)?;
    if x.element() != from.element() {
        return Err(Error::format(format!(
            "keys of {} are looked up by {}",
            from.element(),
            x.element()
        )));
    }

    let places: HashMap<Key, usize> =
        keys(&from)?.into_iter().enumerate().map(|(at, key)| (key, at)).collect();
    call.room_like(x.shape(), &to)?;
    call.room_like(x.shape(), &default)?;

    // The default lies behind the values.
    let all = crate::moving::joined(&[&to.reshaped(vec![from.len()])?, &default], 0)?;
    let found: Vec<_> =
        keys(x)?.iter().map(|key| places.get(key).copied().unwrap_or(from.len())).collect();
    let data = crate::moving::picked(all.data(), found.len(), |visit| {
        found.iter().for_each(|&at| visit(at));
    });
    Ok(vec![all.like(x.shape().to_vec(), data)?.into()])
}

/// The default value, for keys that the map lacks, as a row of one.
fn default_of(call: &Call<'_>, to: &Tensor) -> Result<Tensor> {
    if let Some(tensor) = tensor_attribute(call, "default_tensor")? {
        return tensor.reshaped(vec![1])?.cast(to.element());
    }
    match to.element() {
        ElementType::Text => Ok(Tensor::row(vec![call.text("default_string", "_Unused")])),
        element if element.is_float() => {
            from_doubles(vec![f64::from(call.float("default_float", -0.0))], vec![1], element)
        }
        element => Tensor::row(vec![call.int("default_int64", -1)]).cast(element),
    }
}

/// Version 1: places in a list of texts, and back.
pub(super) fn classes(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let texts = call.texts("classes_strings").unwrap_or_default();
    let ints: Vec<_> = (0..texts.len() as i64).collect();
    both_ways(call, &texts, &ints)
}

pub(super) fn categories(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let texts = call.texts("cats_strings").unwrap_or_default();
    let ints = call.ints("cats_int64s").unwrap_or_default();
    both_ways(call, &texts, &ints)
}

/// Texts as numbers, or numbers as texts.
fn both_ways(call: &Call<'_>, texts: &[String], ints: &[i64]) -> Result<Vec<Value>> {
    if texts.len() != ints.len() {
        return Err(Error::format(format!("{} texts have {} numbers", texts.len(), ints.len())));
    }
    count(call, texts.len())?;
    let x = call.tensor(0)?;
    let shape = x.shape().to_vec();
    if let Data::Text(given) = x.data() {
        let default = call.int("default_int64", -1);
        let by_text: HashMap<&str, i64> =
            texts.iter().map(String::as_str).zip(ints.iter().copied()).collect();
        let of = |text: &String| by_text.get(text.as_str()).copied().unwrap_or(default);
        call.room(&shape, ElementType::I64)?;
        return Ok(vec![Tensor::new(shape, given.iter().map(of).collect())?.into()]);
    }

    let default = call.text("default_string", "_Unused");
    let longest = texts.iter().map(String::len).max().unwrap_or(0).max(default.len());
    call.room_for(&shape, (size_of::<String>() + longest) as u64)?;
    let by_int: HashMap<i64, &String> = ints.iter().copied().zip(texts).collect();
    let of = |int: i64| by_int.get(&int).map_or_else(|| default.clone(), |text| (*text).clone());
    let found: Vec<String> = x.integers()?.into_iter().map(of).collect();
    Ok(vec![Tensor::new(shape, found)?.into()])
}

/// A one at the place of each element's category, along a new last dimension.
pub(super) fn one_hot(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let categories = match call.texts("cats_strings").filter(|texts| !texts.is_empty()) {
        Some(texts) => texts.into_iter().map(Key::Text).collect::<Vec<_>>(),
        None => call.ints("cats_int64s").unwrap_or_default().into_iter().map(Key::Int).collect(),
    };
    count(call, categories.len())?;
    let width = categories.len();
    let shape = [x.shape(), &[width]].concat();
    let mut out = vec![0.0_f32; call.room(&shape, ElementType::F32)?];
    let places: HashMap<Key, usize> =
        categories.into_iter().enumerate().map(|(at, key)| (key, at)).collect();

    // Floats are cut off to integers.
    let given = if x.element().is_float() { x.cast(ElementType::I64)? } else { x.clone() };
    for (row, key) in keys(&given)?.iter().enumerate() {
        match places.get(key) {
            Some(place) => out[row * width + place] = 1.0,
            None if call.flag("zeros", true) => {}
            None => return Err(Error::format(format!("element {row} is not in any category"))),
        }
    }
    Ok(vec![Tensor::new(shape, out)?.into()])
}
