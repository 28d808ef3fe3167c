//! The numbers that shapes are made of: from the configuration, or else from the tensors
//! themselves, or else as the family's configuration class has them by default.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use apr_core::{Metadata, Shape, keys};
use serde_json::{Map, Value as Json};

use crate::defaults;
use crate::expression::{Expression, Value};
use crate::families::is_no_type;
use crate::family::{Family, FamilyTensor};
use crate::text_part;

/// Hyperparameters as `config.json` states them.
pub type Config = Map<String, Json>;

static NO_CONFIG: LazyLock<Config> = LazyLock::new(Config::new);

/// Words in the names of keys about training, generation or the files.
const BOOKKEEPING: [&str; 15] = [
    "_token_id",
    "architectures",
    "auto_map",
    "dropout",
    "dtype",
    "head_dim",
    "initializer",
    "label",
    "model_type",
    "name_or_path",
    "pretraining_tp",
    "rope_",
    "transformers_version",
    "output_",
    "use_cache",
];

/// Configuration and metadata of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told<'a> {
    /// The model's configuration: of one with parts for images or sound, the language model's.
    pub(crate) config: &'a Config,
    /// The configuration as a whole.
    whole: &'a Config,
    pub(crate) model_type: Option<&'a str>,
    /// Type of the model that contains the language model; empty if the language model is the whole
    /// model.
    part_of: Option<&'a str>,
    /// Defaults for keys that the configuration omits; empty if there is no configuration.
    defaults: &'a Config,
}

impl<'a> Told<'a> {
    pub(crate) fn by(metadata: &'a Metadata, family: &Family) -> Self {
        let whole = metadata.object(keys::ARCHITECTURE).unwrap_or(&NO_CONFIG);
        let told = metadata.text(keys::MODEL_TYPE);
        // A configuration that names neither class nor type may be of another family.
        let is_told =
            told.is_some_and(|name| !is_no_type(name)) || whole.contains_key("architectures");
        let has_part = !family.has_parts() && text_part::text_type(whole).is_some();
        let text = text_part::text_part(whole).filter(|_| has_part);
        let model_type = text.and_then(|_| text_part::text_type(whole)).or(told);
        let defaults = defaults::of(family, model_type).filter(|_| is_told && !whole.is_empty());
        Self {
            config: text.unwrap_or(whole),
            whole,
            model_type,
            part_of: text.and(told),
            defaults: defaults.unwrap_or(&NO_CONFIG),
        }
    }

    /// Returns the same without the defaults of a configuration class.
    pub(crate) fn without_defaults(self) -> Self {
        Self { defaults: &NO_CONFIG, ..self }
    }

    /// Returns `true` if the model has parts for images or audio that the family does not describe.
    pub(crate) fn has_other_parts(self, family: &Family) -> bool {
        !family.has_parts() && text_part::has_others(self.whole)
    }

    /// Returns `true` if an entry of the configuration is about training, generation or the files.
    pub(crate) fn is_bookkeeping(key: &str) -> bool {
        BOOKKEEPING.iter().any(|word| key.contains(word))
    }

    /// Returns the entries that a class with these defaults does not have.
    ///
    /// Entries that do not affect the computation are left out.
    pub(crate) fn entries_beyond(self, defaults: Option<&Config>) -> Vec<String> {
        let defaults = defaults.unwrap_or(&NO_CONFIG);
        let names = defaults.get("attribute_map").and_then(Json::as_object);
        let is_known = |key: &str| {
            defaults.contains_key(key)
                || names.is_some_and(|names| names.contains_key(key))
                || Self::is_bookkeeping(key)
        };
        let keys = self.config.iter().filter(|(_, value)| !value.is_null());
        keys.map(|(key, _)| key).filter(|key| !is_known(key)).cloned().collect()
    }

    /// An entry at the top of the configuration.
    fn top(self, key: &str) -> Option<&'a Json> {
        let of_whole = || text_part::of_whole(self.whole, self.config, key);
        let is_part = !std::ptr::eq(self.whole, self.config);
        is_part.then(of_whole).flatten().or_else(|| self.config.get(key))
    }

    /// The configuration's entry under a dotted path, which may be null; also under another name
    /// that its class has for it (`attribute_map` of transformers).
    fn stated(self, path: &str) -> Option<&'a Json> {
        let (key, rest) = path.split_once('.').map_or((path, None), |(key, at)| (key, Some(at)));
        let within = |json: &'a Json| rest.map_or(Some(json), |rest| within(json, rest));
        self.top(key).and_then(within).or_else(|| {
            let names = self.defaults.get("attribute_map")?.as_object()?;
            let called = names.get(path).and_then(Json::as_str);
            let others = names.iter().filter(|(_, name)| *name == path).map(|(other, _)| other);
            called.into_iter().chain(others.map(String::as_str)).find_map(|name| self.top(name))
        })
    }

    /// Returns the default of an entry that the configuration omits.
    ///
    /// An object, such as the settings of rotary positions, has a default as a whole, which also
    /// applies if it is null. Only a part with its own configuration has defaults for single
    /// entries.
    fn default(self, path: &str) -> Option<&'a Json> {
        let default = entry(self.defaults, path)?;
        let object = path.split_once('.').map_or("", |(object, _)| object);
        let is_whole = !object.ends_with("_config")
            && self.top(object).is_some_and(|object| !object.is_null());
        match self.stated(path) {
            None if !is_whole => Some(default),
            Some(Json::Null) if default.is_object() => Some(default),
            _ => None,
        }
    }

    /// The configuration's entry under a dotted path, whether it has one that is not null (`has.`
    /// and the path), `model_type`, `part_of`, or `task`: what the first of `architectures` has
    /// after `For`, such as `CausalLM`, or no text.
    fn value(self, path: &str) -> Option<Value> {
        if let Some(path) = path.strip_prefix("has.") {
            let is_there = self.stated(path).is_some_and(|entry| !entry.is_null());
            return Some(Value::Truth(is_there));
        }
        match path {
            "model_type" => self.model_type.map(|name| Value::Text(name.to_owned())),
            "part_of" => Some(Value::Text(self.part_of.unwrap_or_default().to_owned())),
            "task" => {
                let class = self.top("architectures").and_then(|names| names.get(0)?.as_str());
                let task =
                    class.and_then(|class| class.split_once("For")).map_or("", |(_, task)| task);
                Some(Value::Text(task.to_owned()))
            }
            _ => Value::of(self.stated(path)?),
        }
    }

    /// Returns the value and `false`, or the default and `true` if the configuration omits the key.
    fn value_or_default(self, path: &str) -> Option<(Value, bool)> {
        let stated = self.value(path).map(|value| (value, false));
        stated.or_else(|| Some((Value::of(self.default(path)?)?, true)))
    }
}

/// The entry under a dotted path.
fn entry<'c>(config: &'c Config, path: &str) -> Option<&'c Json> {
    match path.split_once('.') {
        Some((key, rest)) => within(config.get(key)?, rest),
        None => config.get(path),
    }
}

/// Returns the value under a dotted path in an object.
fn within<'j>(json: &'j Json, path: &str) -> Option<&'j Json> {
    path.split('.').try_fold(json, |json, part| json.get(part))
}

/// Returns the first alternative that can be computed.
///
/// `value` computes an alternative and returns `true` if it used a default of the configuration's
/// class. An entry that the configuration states, and that a later alternative names, takes
/// precedence over such a default.
pub(crate) fn first_of(
    alternatives: &[Expression],
    mut value: impl FnMut(&Expression) -> Option<(Value, bool)>,
    stated: impl Fn(&str) -> Option<Value>,
) -> Option<(Value, bool)> {
    let mut rest = alternatives.iter();
    let (first, by_default) = rest.find_map(&mut value)?;
    if by_default && let Some(other) = rest.find_map(|other| stated(other.as_name()?)) {
        return Some((other, false));
    }
    Some((first, by_default))
}

/// A dimension that was computed, or could not be.
#[derive(Debug, Clone, Default)]
struct Resolved {
    value: Option<Value>,
    /// `true` if the value was computed from a default of the configuration's class.
    by_default: bool,
}

/// Dimensions of one checkpoint of a family.
#[derive(Debug)]
pub(crate) struct Dimensions<'a> {
    family: &'a Family,
    told: Told<'a>,
    /// Read off the tensors.
    observed: BTreeMap<&'a str, Value>,
    resolved: BTreeMap<&'a str, Resolved>,
}

impl<'a> Dimensions<'a> {
    pub(crate) fn new(family: &'a Family, told: Told<'a>) -> Self {
        let mut dimensions =
            Self { family, told, observed: BTreeMap::new(), resolved: BTreeMap::new() };
        dimensions.resolve_all();
        dimensions
    }

    /// Takes dimensions that the configuration leaves open from tensors. The first tensor that
    /// shows a dimension counts.
    ///
    /// `lacks_ones` is `true` for shapes of GGML, which lack outermost dimensions of 1: the matrix
    /// of a classifier with one label is a vector. Such a shape counts only for dimensions that no
    /// other tensor shows.
    pub(crate) fn observe<'t>(
        &mut self,
        tensors: impl Iterator<Item = (&'a FamilyTensor, &'t Shape)>,
        lacks_ones: bool,
    ) {
        let mut ones = Vec::new();
        for (tensor, shape) in tensors {
            let Some(expected) = &tensor.shape else { continue };
            match expected.len().checked_sub(shape.dims().len()) {
                Some(0) => {
                    for (expression, &dim) in expected.iter().zip(shape.dims()) {
                        self.observe_one(expression, dim);
                    }
                }
                Some(missing) if lacks_ones => ones.extend(&expected[..missing]),
                _ => {}
            }
        }
        for expression in ones {
            self.observe_one(expression, 1);
        }

        self.resolve_all();
    }

    fn observe_one(&mut self, expression: &'a Expression, dim: u64) {
        // Only a dimension by itself can be read off; a product could be of many.
        let Some(name) = expression.as_name() else { return };
        let is_unknown = |known: &Resolved| known.value.is_none() || known.by_default;
        let open = self.told.whole.is_empty() || self.resolved.get(name).is_some_and(is_unknown);
        if open && self.family.dimensions.contains_key(name) {
            self.observed.entry(name).or_insert(Value::Number(dim as f64));
        }
    }

    fn resolve_all(&mut self) {
        self.resolved.clear();
        for name in self.family.dimensions.keys() {
            self.resolve(name, &mut Vec::new());
        }
    }

    /// Computes a dimension, and on the way those it is made of; a name within its own definition
    /// is the configuration's.
    fn resolve(&mut self, name: &'a str, within: &mut Vec<&'a str>) -> Resolved {
        if let Some(known) = self.resolved.get(name) {
            return known.clone();
        }

        let observed = self.observed.get(name).cloned();
        let (family, told) = (self.family, self.told);
        within.push(name);
        let alternatives = family.dimensions.get(name).map_or(&[][..], Vec::as_slice);
        let value = |alternative: &Expression| {
            let mut by_default = false;
            let value =
                alternative.value(&mut |inner| match family.dimensions.get_key_value(inner) {
                    Some((inner, _)) if !within.contains(&inner.as_str()) => {
                        let inner = self.resolve(inner, within);
                        by_default |= inner.by_default;
                        inner.value
                    }
                    _ => {
                        let (value, is_default) = told.value_or_default(inner)?;
                        by_default |= is_default;
                        Some(value)
                    }
                });
            Some((value?, by_default))
        };
        let computed = first_of(alternatives, value, |name| told.value(name));

        within.pop();

        // Without a configuration, what the tensors show is better than what a definition falls
        // back on; and a checkpoint whose tensors contradict a default has no such configuration.
        let observed = observed.map(|value| Resolved { value: Some(value), by_default: false });
        let computed =
            computed.map(|(value, by_default)| Resolved { value: Some(value), by_default });
        let is_weak = |computed: &Resolved| told.whole.is_empty() || computed.by_default;
        let dimension = match (computed, observed) {
            (Some(computed), Some(observed)) if is_weak(&computed) => observed,
            (computed, observed) => computed.or(observed).unwrap_or_default(),
        };

        // Half-way through another definition a name may have meant the configuration's.
        if within.is_empty() {
            self.resolved.insert(name, dimension.clone());
        }

        dimension
    }

    pub(crate) fn value(&self, expression: &Expression, numbers: &[(&str, u64)]) -> Option<Value> {
        self.value_for(expression, numbers, None)
    }

    /// The value, with another task than the configuration's.
    pub(crate) fn value_for(
        &self,
        expression: &Expression,
        numbers: &[(&str, u64)],
        task: Option<&str>,
    ) -> Option<Value> {
        self.computed(expression, numbers, task).map(|(value, _)| value)
    }

    /// The first alternative that can be computed, with another task than the configuration's.
    pub(crate) fn first_of(
        &self,
        alternatives: &[Expression],
        numbers: &[(&str, u64)],
        task: Option<&str>,
    ) -> Option<Value> {
        let value = |alternative: &Expression| self.computed(alternative, numbers, task);
        first_of(alternatives, value, |name| self.stated(name)).map(|(value, _)| value)
    }

    /// The value, and whether a default of the configuration's class went into it.
    fn computed(
        &self,
        expression: &Expression,
        numbers: &[(&str, u64)],
        task: Option<&str>,
    ) -> Option<(Value, bool)> {
        let mut by_default = false;
        let value = expression.value(&mut |name| {
            let number = numbers.iter().find(|(index, _)| *index == name);
            match (number, task, self.resolved.get(name)) {
                (Some((_, number)), ..) => Some(Value::Number(*number as f64)),
                (None, Some(task), _) if name == "task" => Some(Value::Text(task.to_owned())),
                (None, _, Some(resolved)) => {
                    by_default |= resolved.by_default;
                    resolved.value.clone()
                }
                (None, _, None) => {
                    let (value, is_default) = self.told.value_or_default(name)?;
                    by_default |= is_default;
                    Some(value)
                }
            }
        });
        Some((value?, by_default))
    }

    /// Returns an entry that the configuration states, if no dimension has its name.
    fn stated(&self, name: &str) -> Option<Value> {
        if self.resolved.contains_key(name) { None } else { self.told.value(name) }
    }

    /// Returns an entry of the configuration unchanged, including objects, or else its default.
    pub(crate) fn entry(&self, path: &str) -> Option<Json> {
        if matches!(path, "model_type" | "task") {
            return self.told.value(path)?.to_json();
        }
        self.stated_entry(path).or_else(|| self.told.default(path).cloned())
    }

    /// Returns an entry only if the configuration itself states it.
    pub(crate) fn stated_entry(&self, path: &str) -> Option<Json> {
        self.told.stated(path).filter(|json| !json.is_null()).cloned()
    }

    /// Returns `true` if the model has parts for images or audio that the family does not describe.
    pub(crate) fn has_other_parts(&self) -> bool {
        self.told.has_other_parts(self.family)
    }

    /// Returns `true` if the checkpoint has a configuration.
    pub(crate) fn has_configuration(&self) -> bool {
        !self.told.whole.is_empty()
    }

    pub(crate) fn size(&self, expression: &Expression) -> Option<u64> {
        self.value(expression, &[])?.as_size()
    }

    pub(crate) fn truth(&self, expression: &Expression, numbers: &[(&str, u64)]) -> Option<bool> {
        self.value(expression, numbers)?.as_truth()
    }

    /// Returns `true` if there is no configuration and all dimensions are derived from the tensors.
    pub(crate) fn is_guessed(&self) -> bool {
        self.told.whole.is_empty()
    }

    /// A dimension, else an entry of the configuration, or else its default.
    pub(crate) fn named_value(&self, name: &str) -> Option<Value> {
        let named = self.resolved(name).or_else(|| self.told_or_default(name));
        named.map(|(value, _)| value)
    }

    /// An entry of the configuration or else its default, and whether it is one.
    pub(crate) fn told_or_default(&self, name: &str) -> Option<(Value, bool)> {
        self.told.value_or_default(name)
    }

    /// A dimension of the family, and whether a default of the configuration's class went into it.
    pub(crate) fn resolved(&self, name: &str) -> Option<(Value, bool)> {
        let dimension = self.resolved.get(name)?;
        Some((dimension.value.clone()?, dimension.by_default))
    }

    pub(crate) fn named(&self, name: &str) -> Option<u64> {
        self.resolved.get(name)?.value.as_ref()?.as_size()
    }

    /// Dimensions that are whole numbers, by name.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.resolved
            .iter()
            .filter_map(|(name, value)| Some((*name, value.value.as_ref()?.as_size()?)))
    }
}
