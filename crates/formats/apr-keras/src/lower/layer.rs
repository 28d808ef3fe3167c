//! A layer: its class, its configuration and its variables.

use apr_graph::{Attribute, AttributeValue, Dim, ElementType, Value, ValueId, WeightRef};
use apr_lower::Placed;

use crate::graph::config;

/// A call of a layer.
pub(super) struct Layer {
    pub(super) class: String,
    /// Name of the first output of the layer.
    pub(super) name: String,
    pub(super) attributes: Vec<Attribute>,
    pub(super) inputs: Vec<Placed>,
    /// The names of the arguments that the inputs are; empty for those by position.
    pub(super) arguments: Vec<String>,
    /// The masks that the inputs have.
    pub(super) masks: Vec<Option<ValueId>>,
    /// The argument `mask`.
    pub(super) mask: Option<ValueId>,
    pub(super) variables: Vec<Variable>,
}

/// A variable of a layer.
#[derive(Debug, Clone)]
pub(super) struct Variable {
    /// Name of the variable after the name of the layer: `dense/kernel`.
    pub(super) name: String,
    pub(super) weight: WeightRef,
    pub(super) dims: Vec<u64>,
}

impl Variable {
    /// `None` for one that is of neither single nor half precision. Halves are floats in the graph.
    pub(super) fn new(name: &str, weight: &WeightRef, value: &Value) -> Option<Self> {
        let dims: Option<Vec<u64>> = value.shape()?.iter().map(Dim::size).collect();
        // The numbers behind an optimizer or a random generator are no floats.
        let is_state = name.ends_with("seed_generator_state") || name.ends_with("/count");
        let floats = [ElementType::F32, ElementType::F16, ElementType::BF16];
        (is_state || value.element().is_some_and(|own| floats.contains(&own))).then_some(())?;
        Some(Self { name: name.to_owned(), weight: weight.clone(), dims: dims? })
    }
}

impl Layer {
    fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        let found = self.attributes.iter().find(|attribute| &*attribute.name == name);
        found.map(|attribute| &attribute.value)
    }

    /// The input of a layer that has one.
    pub(super) fn only(&self) -> Option<Placed> {
        match self.inputs.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            AttributeValue::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            AttributeValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns `true` if a setting is true.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.int(name).is_some_and(|value| value != 0)
    }

    /// Returns `true` unless a setting is false.
    pub(super) fn is_kept(&self, name: &str) -> bool {
        self.int(name) != Some(0)
    }

    /// Returns `true` if a setting is present and not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }

    pub(super) fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name)? {
            AttributeValue::Float(value) => Some(*value),
            #[expect(clippy::cast_precision_loss, reason = "settings are small numbers")]
            AttributeValue::Int(value) => Some(*value as f32),
            _ => None,
        }
    }

    /// Floats: a list, or one.
    pub(super) fn floats(&self, name: &str) -> Option<Vec<f32>> {
        match self.attribute(name)? {
            AttributeValue::Floats(values) => Some(values.clone()),
            #[expect(clippy::cast_precision_loss, reason = "settings are small numbers")]
            AttributeValue::Ints(values) => Some(values.iter().map(|one| *one as f32).collect()),
            _ => self.float(name).map(|one| vec![one]),
        }
    }

    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.attribute(name)? {
            AttributeValue::Ints(values) => Some(values.clone()),
            AttributeValue::Int(value) => Some(vec![*value]),
            _ => None,
        }
    }

    /// Returns the sizes of `count` dimensions. A single number applies to all of them.
    pub(super) fn sizes(&self, name: &str, count: usize) -> Option<Vec<i64>> {
        match self.ints(name)? {
            one if one.len() == 1 => Some(vec![one[0]; count]),
            all if all.len() == count => Some(all),
            _ => None,
        }
    }

    /// Returns a pair of numbers for each of `count` dimensions.
    ///
    /// The setting can be nested lists, one pair or a number.
    pub(super) fn pairs(&self, name: &str, count: usize) -> Option<Vec<[i64; 2]>> {
        if let Some(text) = self.text(name) {
            let pairs: Vec<[i64; 2]> = serde_json::from_str(text).ok()?;
            return (pairs.len() == count).then_some(pairs);
        }
        match self.ints(name)?.as_slice() {
            [one] => Some(vec![[*one; 2]; count]),
            [start, end] if count == 1 => Some(vec![[*start, *end]]),
            each if each.len() == count => Some(each.iter().map(|one| [*one; 2]).collect()),
            _ => None,
        }
    }

    /// Returns `true` if images have their channels first.
    pub(super) fn is_channels_first(&self) -> bool {
        self.text("data_format") == Some("channels_first")
    }

    /// Returns the variable with one of these names, which depend on the version of Keras.
    ///
    /// If the file has no names, the variable is found by its number.
    pub(super) fn variable(&self, names: &[&str], number: usize) -> Option<&Variable> {
        let own = |variable: &&Variable| {
            let last = variable.name.rsplit('/').next().unwrap_or_default();
            names.contains(&last)
        };
        let numbered = format!("/{number}");
        let by_number = || self.variables.iter().find(|one| one.name.ends_with(&numbered));
        self.variables.iter().find(own).or_else(by_number)
    }

    /// Returns `true` for a layer of Keras, or for a function that is equivalent to its layer.
    pub(super) fn is_of_keras(&self) -> bool {
        let is_same = ["Add", "Maximum", "Minimum", "Multiply", "Subtract"];
        !self.has("registered_name")
            && (!self.has("module") || is_same.contains(&self.class.as_str()))
    }

    /// Returns `true` if the layer computes in single or half precision, with unmodified weights.
    pub(super) fn is_of_floats(&self) -> bool {
        let is_known = self.text("dtype").is_none_or(|dtype| {
            dtype == "float32"
                || self.half().is_some()
                || (self.class == "Embedding" && dtype.starts_with("int"))
        });
        is_known && !self.has("quantization_config") && !self.has("lora_rank")
    }

    /// Returns the element type of the outputs, if the layer computes in half precision.
    pub(super) fn half(&self) -> Option<ElementType> {
        match self.text("dtype")? {
            "float16" | "mixed_float16" => Some(ElementType::F16),
            "bfloat16" | "mixed_bfloat16" => Some(ElementType::BF16),
            _ => None,
        }
    }

    /// Returns the mask that a layer of one input uses.
    pub(super) fn first_mask(&self) -> Option<ValueId> {
        self.mask.or_else(|| self.masks.first().copied().flatten())
    }

    /// Returns `true` if the layer has a class that a program registered.
    pub(super) fn is_registered(&self) -> bool {
        self.has("registered_name")
    }

    /// The layer that a setting has, with the same inputs and those variables that `is_own` finds.
    pub(super) fn inner(
        &self,
        setting: &str,
        name: String,
        is_own: impl Fn(&Variable) -> bool,
    ) -> Option<Self> {
        let config: serde_json::Value = serde_json::from_str(self.text(setting)?).ok()?;
        Some(Self {
            class: config::class(&config).to_owned(),
            name,
            attributes: config::attributes(&config),
            inputs: self.inputs.clone(),
            arguments: self.arguments.clone(),
            masks: self.masks.clone(),
            mask: self.mask,
            variables: self.variables.iter().filter(|one| is_own(one)).cloned().collect(),
        })
    }
}
