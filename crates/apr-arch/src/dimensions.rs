//! The numbers that shapes are made of: from the configuration, or else from the tensors
//! themselves.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use apr_core::{Metadata, Shape, keys};
use serde_json::{Map, Value as Json};

use crate::expression::{Expression, Value};
use crate::family::{Family, FamilyTensor};

/// Hyperparameters as `config.json` states them.
pub type Config = Map<String, Json>;

static NO_CONFIG: LazyLock<Config> = LazyLock::new(Config::new);

/// What a checkpoint says about itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told<'a> {
    pub(crate) config: &'a Config,
    pub(crate) model_type: Option<&'a str>,
}

impl<'a> Told<'a> {
    pub(crate) fn by(metadata: &'a Metadata) -> Self {
        Self {
            config: metadata.object(keys::ARCHITECTURE).unwrap_or(&NO_CONFIG),
            model_type: metadata.text(keys::MODEL_TYPE),
        }
    }

    /// The configuration's entry under a dotted path, `model_type`, or `task`: what the first of
    /// `architectures` has after `For`, such as `CausalLM`, or no text.
    fn value(self, path: &str) -> Option<Value> {
        match path {
            "model_type" => return self.model_type.map(|name| Value::Text(name.to_owned())),
            "task" => {
                let class =
                    self.config.get("architectures").and_then(|names| names.get(0)?.as_str());
                let task =
                    class.and_then(|class| class.split_once("For")).map_or("", |(_, task)| task);
                return Some(Value::Text(task.to_owned()));
            }
            _ => {}
        }

        let mut parts = path.split('.');
        let mut json = self.config.get(parts.next()?)?;
        for part in parts {
            json = json.get(part)?;
        }

        Value::of(json)
    }
}

/// Dimensions of one checkpoint of a family.
#[derive(Debug)]
pub(crate) struct Dimensions<'a> {
    family: &'a Family,
    told: Told<'a>,
    /// Read off the tensors.
    observed: BTreeMap<&'a str, Value>,
    resolved: BTreeMap<&'a str, Option<Value>>,
}

impl<'a> Dimensions<'a> {
    pub(crate) fn new(family: &'a Family, told: Told<'a>) -> Self {
        let mut dimensions =
            Self { family, told, observed: BTreeMap::new(), resolved: BTreeMap::new() };
        dimensions.resolve_all();
        dimensions
    }

    /// Takes dimensions that the configuration leaves open from tensors, the first that shows one
    /// counts.
    pub(crate) fn observe<'t>(
        &mut self,
        tensors: impl Iterator<Item = (&'a FamilyTensor, &'t Shape)>,
    ) {
        for (tensor, shape) in tensors {
            let Some(expected) =
                tensor.shape.as_ref().filter(|expected| expected.len() == shape.dims().len())
            else {
                continue;
            };
            for (expression, &dim) in expected.iter().zip(shape.dims()) {
                // Only a dimension by itself can be read off; a product could be of many.
                let Some(name) = expression.as_name() else { continue };
                let open = self.told.config.is_empty()
                    || self.resolved.get(name).is_some_and(Option::is_none);
                if open && self.family.dimensions.contains_key(name) {
                    self.observed.entry(name).or_insert(Value::Number(dim as f64));
                }
            }
        }

        self.resolve_all();
    }

    fn resolve_all(&mut self) {
        self.resolved.clear();
        for name in self.family.dimensions.keys() {
            self.resolve(name, &mut Vec::new());
        }
    }

    /// Computes a dimension, and on the way those it is made of; a name within its own definition
    /// is the configuration's.
    fn resolve(&mut self, name: &'a str, within: &mut Vec<&'a str>) -> Option<Value> {
        if let Some(known) = self.resolved.get(name) {
            return known.clone();
        }

        // Without a configuration, what the tensors show is better than what a definition falls
        // back on.
        let observed = self.observed.get(name).cloned();
        let family = self.family;
        within.push(name);
        let stated = family.dimensions.get(name).into_iter().flatten().find_map(|alternative| {
            alternative.value(&mut |inner| match family.dimensions.get_key_value(inner) {
                Some((inner, _)) if !within.contains(&inner.as_str()) => {
                    self.resolve(inner, within)
                }
                _ => self.told.value(inner),
            })
        });

        within.pop();
        let value =
            if self.told.config.is_empty() { observed.or(stated) } else { stated.or(observed) };

        // Half-way through another definition a name may have meant the configuration's.
        if within.is_empty() {
            self.resolved.insert(name, value.clone());
        }

        value
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
        expression.value(&mut |name| {
            let number = numbers.iter().find(|(index, _)| *index == name);
            match (number, task, self.resolved.get(name)) {
                (Some((_, number)), ..) => Some(Value::Number(*number as f64)),
                (None, Some(task), _) if name == "task" => Some(Value::Text(task.to_owned())),
                (None, _, Some(resolved)) => resolved.clone(),
                (None, _, None) => self.told.value(name),
            }
        })
    }

    /// An entry of the configuration as it is, objects included.
    pub(crate) fn entry(&self, path: &str) -> Option<Json> {
        if matches!(path, "model_type" | "task") {
            return self.told.value(path)?.to_json();
        }
        let mut parts = path.split('.');
        let first = self.told.config.get(parts.next()?)?;
        parts.try_fold(first, |json, part| json.get(part)).filter(|json| !json.is_null()).cloned()
    }

    pub(crate) fn size(&self, expression: &Expression) -> Option<u64> {
        self.value(expression, &[])?.as_size()
    }

    pub(crate) fn truth(&self, expression: &Expression, numbers: &[(&str, u64)]) -> Option<bool> {
        self.value(expression, numbers)?.as_truth()
    }

    /// Whether there is no configuration, so that everything is read off the tensors.
    pub(crate) fn is_guessed(&self) -> bool {
        self.told.config.is_empty()
    }

    /// A dimension, else an entry of the configuration.
    pub(crate) fn named_value(&self, name: &str) -> Option<Value> {
        self.dimension(name).or_else(|| self.told.value(name))
    }

    /// A dimension of the family.
    pub(crate) fn dimension(&self, name: &str) -> Option<Value> {
        self.resolved.get(name).cloned().flatten()
    }

    pub(crate) fn named(&self, name: &str) -> Option<u64> {
        self.resolved.get(name)?.as_ref()?.as_size()
    }

    /// Dimensions that are whole numbers, by name.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.resolved.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?.as_size()?)))
    }
}
