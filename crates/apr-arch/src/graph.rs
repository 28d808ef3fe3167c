//! What a family's table says about its graph: options of the blocks, and the weights by the part that they play.
//!
//! This module reads the table and computes its expressions. What the options mean is the blocks' affair.

use std::collections::BTreeMap;

use apr_core::{Error, Result};
use serde::Deserialize;
use serde_json::Value as Json;

use crate::expression::{Expression, Value};
use crate::file::TensorEntry;
use crate::model::FamilyModel;
use crate::name_list::Names;
use crate::pattern::Pattern;

/// The value of an option as it is written: an expression, alternatives, or the value itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum OptionEntry {
    One(String),
    Alternatives(Vec<String>),
    Truth(bool),
    Number(f64),
}

impl OptionEntry {
    fn parse(&self) -> Result<Vec<Expression>> {
        match self {
            Self::One(text) => Ok(vec![Expression::parse(text)?]),
            Self::Alternatives(texts) => texts.iter().map(|text| Expression::parse(text)).collect(),
            Self::Truth(truth) => Ok(vec![Expression::Constant(Value::Truth(*truth))]),
            Self::Number(number) => Ok(vec![Expression::Constant(Value::Number(*number))]),
        }
    }
}

/// A configuration that the blocks can't compute, and why.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefusedEntry {
    pub(crate) when: String,
    pub(crate) why: String,
}

/// What is particular to one of several stacks of layers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StackFile {
    index: Option<String>,
    #[serde(default)]
    options: BTreeMap<String, OptionEntry>,
    #[serde(default)]
    weights: BTreeMap<String, Names>,
}

/// The `[graph]` table as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GraphFile {
    kind: Option<String>,
    #[serde(default)]
    options: BTreeMap<String, OptionEntry>,
    /// Canonical names of tensors, or of modules that have a `weight` and maybe a `bias`.
    #[serde(default)]
    weights: BTreeMap<String, Names>,
    #[serde(default)]
    stacks: BTreeMap<String, StackFile>,
    #[serde(default)]
    refused: Vec<RefusedEntry>,
}

impl StackFile {
    fn on_top_of(self, base: &Self) -> Self {
        let mut options = base.options.clone();
        options.extend(self.options);
        let mut weights = base.weights.clone();
        weights.extend(self.weights);
        Self { index: self.index.or_else(|| base.index.clone()), options, weights }
    }
}

impl GraphFile {
    /// The table without weights that are none of these tensors.
    pub(crate) fn of(&self, tensors: &[TensorEntry]) -> Self {
        let mut graph = self.clone();
        let stacks = graph.stacks.values_mut().map(|stack| &mut stack.weights);
        for weights in stacks.chain([&mut graph.weights]) {
            weights.retain(|_, names| names.iter().any(|name| is_there(name, tensors)));
        }
        graph
    }

    /// Everything of `base`, with this table on top, entry by entry.
    pub(crate) fn on_top_of(self, base: &Self) -> Self {
        let general =
            |file: &Self| StackFile { index: None, options: file.options.clone(), weights: file.weights.clone() };
        let StackFile { options, weights, .. } = general(&self).on_top_of(&general(base));
        let mut stacks = base.stacks.clone();
        for (name, stack) in self.stacks {
            let inherited = stacks.remove(&name).unwrap_or_default();
            stacks.insert(name, stack.on_top_of(&inherited));
        }
        let refused = base.refused.iter().cloned().chain(self.refused).collect();
        Self { kind: self.kind.or_else(|| base.kind.clone()), options, weights, stacks, refused }
    }
}

#[derive(Debug, Default)]
struct Stack {
    /// Name of the placeholder that numbers the layers.
    index: Option<String>,
    options: BTreeMap<String, Vec<Expression>>,
    weights: BTreeMap<String, Vec<Pattern>>,
}

impl Stack {
    fn parse(file: &StackFile, tensors: &[TensorEntry]) -> Result<Self> {
        let options = file.options.iter().map(|(name, entry)| Ok((name.clone(), entry.parse()?)));
        let mut weights = BTreeMap::new();
        for (part, names) in &file.weights {
            let mut patterns = Vec::new();
            // A child leaves out a weight of its base by naming nothing.
            for name in names.iter().filter(|name| !name.is_empty()) {
                if !is_there(name, tensors) {
                    let message = format!("[graph] names '{name}' for {part}, and the family has no such tensor");
                    return Err(Error::format(message));
                }
                patterns.push(Pattern::parse(name)?);
            }
            weights.insert(part.clone(), patterns);
        }
        Ok(Self { index: file.index.clone(), options: options.collect::<Result<_>>()?, weights })
    }
}

/// Whether a tensor has this name, or is of the module that has it.
fn is_there(name: &str, tensors: &[TensorEntry]) -> bool {
    let is_of_module = |tensor: &str| tensor.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    tensors.iter().any(|tensor| tensor.name == *name || is_of_module(&tensor.name))
}

/// The `[graph]` table of a family.
#[derive(Debug)]
pub(crate) struct GraphTable {
    kind: Expression,
    general: Stack,
    stacks: BTreeMap<String, Stack>,
    refused: Vec<(Expression, String)>,
}

impl GraphTable {
    /// # Errors
    /// E001 when an expression is none, or a weight is a tensor that the family does not have.
    pub(crate) fn parse(file: &GraphFile, tensors: &[TensorEntry]) -> Result<Self> {
        let kind = file.kind.as_ref().ok_or_else(|| Error::format("[graph] does not say its 'kind'"))?;
        let general = StackFile { index: None, options: file.options.clone(), weights: file.weights.clone() };
        let stacks = file.stacks.iter().map(|(name, stack)| Ok((name.clone(), Stack::parse(stack, tensors)?)));
        let refused = file.refused.iter().map(|entry| Ok((Expression::parse(&entry.when)?, entry.why.clone())));
        Ok(Self {
            kind: Expression::parse(kind)?,
            general: Stack::parse(&general, tensors)?,
            stacks: stacks.collect::<Result<_>>()?,
            refused: refused.collect::<Result<_>>()?,
        })
    }
}

/// A family's `[graph]` table, computed for one checkpoint.
#[derive(Debug, Clone)]
pub struct GraphSettings<'a> {
    table: &'a GraphTable,
    model: &'a FamilyModel<'a>,
    task: String,
}

impl<'a> FamilyModel<'a> {
    /// What the family's table says about the graph; `None` where it says nothing. `task` takes the place of what the
    /// first of `architectures` has after `For`.
    #[must_use]
    pub fn graph_settings<'m>(&'m self, task: Option<&'m str>) -> Option<GraphSettings<'m>>
    where
        'a: 'm,
    {
        let table = self.family.graph.as_ref()?;
        let task = task.map_or_else(|| self.task(), str::to_owned);
        Some(GraphSettings { table, model: self, task })
    }

    /// What the configuration's class is for. Older names of classes say it in another way.
    fn task(&self) -> String {
        let class = self.dimensions.entry("architectures").and_then(|names| Some(names.get(0)?.as_str()?.to_owned()));
        if class.is_some_and(|class| class.ends_with("LMHeadModel")) {
            return "CausalLM".to_owned();
        }
        self.dimensions.entry("task").and_then(|task| Some(task.as_str()?.to_owned())).unwrap_or_default()
    }
}

impl<'a> GraphSettings<'a> {
    /// The model.
    #[must_use]
    pub fn model(&self) -> &'a FamilyModel<'a> {
        self.model
    }

    /// What kind of model it is: `decoder`. `None` where the configuration does not say.
    #[must_use]
    pub fn kind(&self) -> Option<String> {
        match self.compute(&self.table.kind, &[])? {
            Value::Text(kind) => Some(kind),
            _ => None,
        }
    }

    /// The task that a head is for, such as `CausalLM`; no text where there is no head.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.task
    }

    /// Why the blocks can't compute this configuration, where the table says so.
    #[must_use]
    pub fn refusal(&self) -> Option<&'a str> {
        let applies = |when: &Expression| self.compute(when, &[]) == Some(Value::Truth(true));
        self.table.refused.iter().find(|(when, _)| applies(when)).map(|(_, why)| why.as_str())
    }

    /// Names of the stacks of layers that have settings of their own.
    pub fn stacks(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.table.stacks.keys().map(String::as_str)
    }

    /// Names of all options, and of all parts that weights play, each once.
    #[must_use]
    pub fn names(&self) -> (Vec<&'a str>, Vec<&'a str>) {
        let all = || std::iter::once(&self.table.general).chain(self.table.stacks.values());
        let mut options: Vec<&str> = all().flat_map(|stack| stack.options.keys()).map(String::as_str).collect();
        let mut weights: Vec<&str> = all().flat_map(|stack| stack.weights.keys()).map(String::as_str).collect();
        for names in [&mut options, &mut weights] {
            names.sort_unstable();
            names.dedup();
        }
        (options, weights)
    }

    /// Name of the placeholder that numbers the layers of a stack.
    #[must_use]
    pub fn layer_index(&self, stack: &str) -> &'a str {
        self.table.stacks.get(stack).and_then(|stack| stack.index.as_deref()).unwrap_or("layer")
    }

    /// An option of a stack, or else of all stacks: the first alternative that can be computed. `numbers` are those of
    /// placeholders.
    #[must_use]
    pub fn option(&self, stack: &str, name: &str, numbers: &[(&str, u64)]) -> Option<Json> {
        let own = self.table.stacks.get(stack).and_then(|stack| stack.options.get(name));
        let alternatives = own.or_else(|| self.table.general.options.get(name))?;
        alternatives.iter().find_map(|alternative| self.compute(alternative, numbers)?.to_json())
    }

    /// Canonical names of the tensors, or of the modules, that may play a part in a stack; the first that a checkpoint has
    /// does.
    #[must_use]
    pub fn weights(&self, stack: &str, part: &str, numbers: &[(&str, u64)]) -> Vec<String> {
        let own = self.table.stacks.get(stack).and_then(|stack| stack.weights.get(part));
        let patterns = own.or_else(|| self.table.general.weights.get(part)).into_iter().flatten();
        let number = |index: &str| numbers.iter().find(|(name, _)| *name == index).map(|(_, number)| *number);
        patterns.filter_map(|pattern| pattern.name("", number)).collect()
    }

    /// An entry of the configuration by its dotted path.
    #[must_use]
    pub fn config(&self, path: &str) -> Option<Json> {
        self.model.dimensions.entry(path)
    }

    fn compute(&self, expression: &Expression, numbers: &[(&str, u64)]) -> Option<Value> {
        self.model.dimensions.value_for(expression, numbers, Some(&self.task))
    }
}
