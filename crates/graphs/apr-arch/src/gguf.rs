//! The `[gguf]` table of a family: what llama.cpp calls its hyperparameters, and where the values
//! of its tensors lie otherwise than Hugging Face has them.
//!
//! | | |
//! |---|---|
//! | `architecture` | `general.architecture`; `variants` say when it is another one |
//! | `recognized` | tells the family from others of the same architecture, over the keys of a GGUF file |
//! | `refused_if` | models of the family that llama.cpp can't compute: `when`, and `why` |
//! | `needs` | tensors that llama.cpp reads in every layer, although the model may do without |
//! | `keys` | hyperparameters: key, type, the first of `value` that has one, `when` they are written |
//! | `layouts` | canonical name to how GGUF's values come from Hugging Face's |
//! | `config` | entries of `config.json`, over the keys of a GGUF file; `preprocessor_config.NAME` are of the file of that name |
//! | `dtypes` | canonical name to the dtype that llama.cpp needs, where neither name nor shape shows it |
//! | `numbers` | index of names to the list whose elements are its numbers in the file |
//! | `computes` | options of the graph that llama.cpp computes otherwise than these entries say |
//!
//! Keys that do not start with `general.` or `tokenizer.` have the architecture in front. Names in
//! the expressions of `keys` are dimensions of the family, else entries of the configuration;
//! `config.NAME` is only the latter. In those of `config` and `recognized` they are keys of the
//! file, `has.TENSOR`, and `rows.TENSOR`.

mod layout;

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use apr_core::{DType, Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::dimensions::first_of;
use crate::expression::{Expression, Value};
use crate::name_list::Names;
use layout::LayoutEntry;
pub(crate) use layout::{ArrangedLayout, ScaledLayout, TensorLayout};
pub use layout::{GgufArrangement, GgufCut, GgufFactors, GgufLayout, GgufTurned};

/// The `[gguf]` table before its expressions are parsed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GgufFile {
    pub(crate) architecture: Option<String>,
    /// Without an architecture: why no file of the one that llama.cpp has is written.
    pub(crate) refused: Option<String>,
    /// Models of the family that llama.cpp can't compute.
    #[serde(default)]
    refused_if: Vec<RefusedEntry>,
    #[serde(default)]
    variants: Vec<VariantEntry>,
    recognized: Option<String>,
    /// `true` if the base's layouts do not apply.
    #[serde(default)]
    own_layouts: bool,
    #[serde(default)]
    without_keys: Vec<String>,
    /// Condition over the indices for tensors that llama.cpp does not use.
    without_tensors: Option<String>,
    /// Tensors that llama.cpp reads in every layer, although the model may do without.
    #[serde(default)]
    needs: Vec<String>,
    #[serde(default)]
    keys: Vec<KeyEntry>,
    #[serde(default)]
    layouts: BTreeMap<String, LayoutEntry>,
    #[serde(default)]
    dtypes: BTreeMap<String, String>,
    #[serde(default)]
    numbers: BTreeMap<String, String>,
    #[serde(default)]
    without_config: Vec<String>,
    #[serde(default)]
    config: Vec<ConfigEntry>,
    /// Options of the graph that llama.cpp computes with, regardless of the file's keys.
    #[serde(default)]
    computes: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantEntry {
    architecture: String,
    when: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusedEntry {
    when: String,
    why: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    key: String,
    #[serde(rename = "type")]
    kind: KeyKind,
    value: Names,
    when: Option<String>,
    /// Number of items, for a list whose items are computed one by one. `layer` is the number of
    /// an item.
    each: Option<String>,
    #[serde(default)]
    required: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigEntry {
    key: String,
    value: Names,
    when: Option<String>,
    /// Number of items of a list, as for a key.
    each: Option<String>,
    /// `true` to write an integer with a decimal point: some configurations distinguish 2 from 2.0.
    #[serde(default)]
    real: bool,
    /// `true` to write null if no value can be computed.
    ///
    /// An omitted entry would mean the default of the model's class.
    #[serde(default)]
    or_null: bool,
}

/// Type of a hyperparameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeyKind {
    U32,
    F32,
    Bool,
    String,
    Strings,
    Bools,
    I32s,
    F32s,
}

/// A hyperparameter's value, in the type that llama.cpp expects.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GgufValue {
    /// A whole number.
    U32(u32),
    /// Floating-point number.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// Text.
    String(String),
    /// List of texts.
    Strings(Vec<String>),
    /// Several truths.
    Bools(Vec<bool>),
    /// Several whole numbers.
    I32s(Vec<i32>),
    /// Several floating-point numbers.
    F32s(Vec<f32>),
}

impl GgufFile {
    /// Everything of `base`, with this table on top.
    pub(crate) fn on_top_of(self, base: &Self) -> Self {
        let mut layouts = if self.own_layouts { BTreeMap::new() } else { base.layouts.clone() };
        layouts.extend(self.layouts);
        let mut computes = base.computes.clone();
        computes.extend(self.computes);
        let mut dtypes = base.dtypes.clone();
        dtypes.extend(self.dtypes);
        // The base's files are none of a family that has none.
        let inherited = base.architecture.clone().filter(|_| self.refused.is_none());
        Self {
            architecture: self.architecture.or(inherited),
            keys: replaced(&base.keys, self.keys, &self.without_keys, |entry| &entry.key),
            config: replaced(&base.config, self.config, &self.without_config, |entry| &entry.key),
            layouts,
            dtypes,
            computes,
            without_tensors: self.without_tensors.or_else(|| base.without_tensors.clone()),
            ..self
        }
    }
}

/// Returns the base's entries without the keys in `without`, with the family's own entries.
///
/// An entry with a key of the base takes the position of the base's first entry with that key.
fn replaced<T: Clone>(
    base: &[T],
    mut own: Vec<T>,
    without: &[String],
    key: impl Fn(&T) -> &String,
) -> Vec<T> {
    let replacing: HashSet<String> = own.iter().map(|entry| key(entry).clone()).collect();
    let mut all: Vec<T> = Vec::with_capacity(base.len() + own.len());
    for entry in base.iter().filter(|entry| !without.contains(key(entry))) {
        // A key may have several entries, under other conditions: all of the base's give way at
        // once.
        if replacing.contains(key(entry)) {
            let (here, later) = own.into_iter().partition(|new| key(new) == key(entry));
            let here: Vec<T> = here;
            all.extend(here);
            own = later;
        } else {
            all.push(entry.clone());
        }
    }

    all.extend(own);
    all
}

/// A parsed table.
#[derive(Debug)]
pub(crate) struct Gguf {
    architecture: String,
    variants: Vec<(String, Expression)>,
    recognized: Option<Expression>,
    /// Conditions over dimensions and configuration, with the error message of a conversion.
    pub(crate) refused_if: Vec<(Expression, String)>,
    pub(crate) without_tensors: Option<Expression>,
    pub(crate) needs: Vec<String>,
    keys: Vec<Key>,
    /// Layouts by canonical pattern.
    pub(crate) layouts: Vec<(String, TensorLayout)>,
    /// Dtypes by canonical pattern.
    pub(crate) dtypes: Vec<(String, DType)>,
    /// Lists of the numbers that indices have in the file.
    pub(crate) numbers: Vec<(String, Expression)>,
    config: Vec<ConfigRule>,
    pub(crate) computes: BTreeMap<String, Expression>,
}

#[derive(Debug)]
struct Key {
    key: String,
    kind: KeyKind,
    values: Vec<Expression>,
    /// First alternative as text.
    shown: String,
    when: Option<Expression>,
    each: Option<Expression>,
    required: bool,
}

#[derive(Debug)]
struct ConfigRule {
    key: String,
    values: Vec<Expression>,
    when: Option<Expression>,
    each: Option<Expression>,
    real: bool,
    or_null: bool,
}

/// Looks up the value of a name.
pub(crate) type Lookup<'l> = &'l mut dyn FnMut(&str) -> Option<Value>;

/// Information on which values of a lookup are only defaults of the configuration's class.
#[derive(Clone, Copy)]
pub(crate) struct Defaults<'l> {
    /// The lookup sets it when it gives a default.
    pub(crate) were_used: &'l Cell<bool>,
    /// Entries that the configuration states.
    pub(crate) stated: &'l dyn Fn(&str) -> Option<Value>,
}

impl Gguf {
    /// # Errors
    /// E001 when an expression is malformed.
    pub(crate) fn parse(file: &GgufFile) -> Result<Option<Self>> {
        let Some(architecture) = file.architecture.clone() else { return Ok(None) };
        let parsed = |text: &Option<String>| text.as_deref().map(Expression::parse).transpose();
        let all = |names: &Names| names.iter().map(Expression::parse).collect::<Result<Vec<_>>>();
        let keys = file.keys.iter().map(|entry| {
            Ok(Key {
                key: entry.key.clone(),
                kind: entry.kind,
                values: all(&entry.value)?,
                shown: entry.value.iter().next().unwrap_or_default().to_owned(),
                when: parsed(&entry.when)?,
                each: parsed(&entry.each)?,
                required: entry.required,
            })
        });

        let config = file.config.iter().map(|entry| {
            let key = entry.key.clone();
            Ok(ConfigRule {
                key,
                values: all(&entry.value)?,
                when: parsed(&entry.when)?,
                each: parsed(&entry.each)?,
                real: entry.real,
                or_null: entry.or_null,
            })
        });

        let computes =
            file.computes.iter().map(|(name, text)| Ok((name.clone(), Expression::parse(text)?)));
        let variants = file
            .variants
            .iter()
            .map(|entry| Ok((entry.architecture.clone(), Expression::parse(&entry.when)?)));
        Ok(Some(Self {
            architecture,
            variants: variants.collect::<Result<_>>()?,
            recognized: parsed(&file.recognized)?,
            refused_if: file
                .refused_if
                .iter()
                .map(|entry| Ok((Expression::parse(&entry.when)?, entry.why.clone())))
                .collect::<Result<_>>()?,
            without_tensors: parsed(&file.without_tensors)?,
            needs: file.needs.clone(),
            keys: keys.collect::<Result<_>>()?,
            layouts: file
                .layouts
                .iter()
                .map(|(name, entry)| Ok((name.clone(), TensorLayout::parse(entry)?)))
                .collect::<Result<_>>()?,
            dtypes: file.dtypes.iter().map(dtype).collect::<Result<_>>()?,
            numbers: file
                .numbers
                .iter()
                .map(|(index, list)| Ok((index.clone(), Expression::parse(list)?)))
                .collect::<Result<_>>()?,
            config: config.collect::<Result<_>>()?,
            computes: computes.collect::<Result<_>>()?,
        }))
    }

    /// Returns the value of `general.architecture`.
    pub(crate) fn architecture(&self, lookup: Lookup<'_>) -> &str {
        let variant = self.variants.iter().find(|(_, when)| holds(when, lookup));
        variant.map_or(&self.architecture, |(architecture, _)| architecture)
    }

    /// Returns `true` if files of this architecture may be of the family.
    pub(crate) fn is_architecture(&self, architecture: &str) -> bool {
        self.architectures().any(|known| known == architecture)
    }

    /// Returns the possible values of `general.architecture`, the usual one first.
    pub(crate) fn architectures(&self) -> impl Iterator<Item = &str> {
        let variants = self.variants.iter().map(|(variant, _)| variant.as_str());
        std::iter::once(self.architecture.as_str()).chain(variants)
    }

    /// Returns `true` if the file's keys identify this family among related families.
    ///
    /// Returns `None` if the table has no such condition.
    pub(crate) fn is_recognized(&self, lookup: Lookup<'_>) -> Option<bool> {
        self.recognized.as_ref().map(|when| holds(when, lookup))
    }

    /// Returns the hyperparameters in llama.cpp's order. `defaults` contains the names that are
    /// only defaults.
    ///
    /// # Errors
    /// E001 if a hyperparameter that llama.cpp requires is missing or has the wrong type; `source`
    /// returns the configuration's name for a name of the table.
    pub(crate) fn keys(
        &self,
        lookup: Lookup<'_>,
        defaults: Defaults<'_>,
        source: impl Fn(&str) -> String,
    ) -> Result<Vec<(String, GgufValue)>> {
        let architecture = self.architecture(lookup).to_owned();
        let mut pairs: Vec<(String, GgufValue)> = Vec::with_capacity(self.keys.len());
        for entry in &self.keys {
            if entry.when.as_ref().is_some_and(|when| !holds(when, lookup)) {
                continue;
            }

            let key = absolute(&entry.key, &architecture);
            let mut first = |lookup: Lookup<'_>| {
                let computed = |value: &Expression| {
                    defaults.were_used.set(false);
                    let value = value.value(lookup)?;
                    Some((value, defaults.were_used.get()))
                };
                first_of(&entry.values, computed, defaults.stated).map(|(value, _)| value)
            };
            let value = match &entry.each {
                Some(count) => each(count, lookup, &mut first),
                None => first(lookup),
            };
            match value {
                Some(value) => pairs.push((
                    key.clone(),
                    entry.kind.of(&value).map_err(|error| error.for_key(&key))?,
                )),
                None if entry.required => {
                    let name = source(&entry.shown);
                    return Err(Error::format(format!(
                        "missing '{name}' in config.json, which llama.cpp needs as {key}"
                    )));
                }
                None => {}
            }
        }

        Ok(pairs)
    }

    /// The entries of `config.json` that keys of a file lead to; keys with dots make objects.
    pub(crate) fn config(&self, lookup: Lookup<'_>) -> Map<String, Json> {
        let mut config = Map::new();
        for rule in &self.config {
            if rule.when.as_ref().is_some_and(|when| !holds(when, lookup)) {
                continue;
            }

            let mut first =
                |lookup: Lookup<'_>| rule.values.iter().find_map(|value| value.value(lookup));
            let value = match &rule.each {
                Some(count) => each(count, lookup, &mut first),
                None => first(lookup),
            };
            let value = match value {
                Some(value) if rule.real => as_reals(&value),
                value => value.and_then(|value| value.to_json()),
            };
            let Some(value) = value.or_else(|| rule.or_null.then_some(Json::Null)) else {
                continue;
            };
            insert(&mut config, &rule.key, value);
        }

        config
    }
}

/// Inserts an entry; each dot of the key leads into an object.
fn insert(config: &mut Map<String, Json>, key: &str, value: Json) {
    match key.split_once('.') {
        None => _ = config.insert(key.to_owned(), value),
        Some((object, key)) => {
            let object = config.entry(object).or_insert_with(|| Map::new().into());
            if let Some(object) = object.as_object_mut() {
                insert(object, key, value);
            }
        }
    }
}

/// Reads an entry of `[gguf.dtypes]`.
fn dtype((tensor, name): (&String, &String)) -> Result<(String, DType)> {
    let dtype = DType::ALL.iter().copied().find(|dtype| dtype.name() == name);
    let dtype = dtype.ok_or_else(|| Error::format(format!("{tensor}: no dtype '{name}'")))?;
    Ok((tensor.clone(), dtype))
}

/// Returns the file's key for a key of the table: the model's own keys get the architecture as a
/// prefix.
pub(crate) fn absolute(key: &str, architecture: &str) -> String {
    if key.starts_with("general.") || key.starts_with("tokenizer.") {
        key.to_owned()
    } else {
        format!("{architecture}.{key}")
    }
}

/// Returns a number, or a list of numbers, with decimal points: 2 is 2.0.
fn as_reals(value: &Value) -> Option<Json> {
    match value {
        Value::Number(number) => Some((*number).into()),
        Value::List(items) => items.iter().map(as_reals).collect::<Option<_>>().map(Json::Array),
        other => other.to_json(),
    }
}

/// Returns a list of as many items as `count` states, whose numbers are `layer` in `item`.
fn each(
    count: &Expression,
    lookup: Lookup<'_>,
    item: &mut dyn FnMut(Lookup<'_>) -> Option<Value>,
) -> Option<Value> {
    /// Files and configurations may state any number.
    const MOST: u64 = 1 << 12;

    let count = count.value(lookup)?.as_size().filter(|count| *count <= MOST)?;
    let items = (0..count).map(|number| {
        let number = Value::Number(number as f64);
        item(&mut |name| if name == "layer" { Some(number.clone()) } else { lookup(name) })
    });
    items.collect::<Option<_>>().map(Value::List)
}

fn holds(when: &Expression, lookup: Lookup<'_>) -> bool {
    // What can't be computed does not hold.
    when.value(lookup).and_then(|value| value.as_truth()).unwrap_or(false)
}

/// A value that is not of its key's type.
struct WrongType(String);

impl WrongType {
    fn for_key(self, key: &str) -> Error {
        Error::format(format!("{key} can't be {}", self.0))
    }
}

impl KeyKind {
    #[expect(clippy::cast_possible_truncation, reason = "GGUF has single precision here")]
    fn of(self, value: &Value) -> Result<GgufValue, WrongType> {
        let typed = match (self, value) {
            (Self::U32, value) => {
                value.as_size().and_then(|size| u32::try_from(size).ok()).map(GgufValue::U32)
            }
            (Self::F32, Value::Number(number)) => Some(GgufValue::F32(*number as f32)),
            (Self::Bool, Value::Truth(truth)) => Some(GgufValue::Bool(*truth)),
            (Self::String, Value::Text(text)) => Some(GgufValue::String(text.clone())),
            (Self::Strings, Value::List(items)) => {
                let text = |item: &Value| {
                    if let Value::Text(text) = item { Some(text.clone()) } else { None }
                };
                items.iter().map(text).collect::<Option<_>>().map(GgufValue::Strings)
            }
            (Self::Bools, Value::List(items)) => {
                items.iter().map(Value::as_truth).collect::<Option<_>>().map(GgufValue::Bools)
            }
            (Self::I32s, Value::List(items)) => {
                let number = |item: &Value| i32::try_from(item.as_size()?).ok();
                items.iter().map(number).collect::<Option<_>>().map(GgufValue::I32s)
            }
            (Self::F32s, Value::List(items)) => {
                let number = |item: &Value| match item {
                    Value::Number(number) => Some(*number as f32),
                    _ => None,
                };
                items.iter().map(number).collect::<Option<_>>().map(GgufValue::F32s)
            }
            _ => None,
        };

        typed.ok_or_else(|| WrongType(value.to_json().unwrap_or_default().to_string()))
    }
}

#[cfg(test)]
mod tests;
