//! What a family's table says about its graph: options of the blocks, and the weights by the part
//! that they play.
//!
//! This module reads the table, `settings` computes its expressions for one checkpoint, and
//! `comparison` holds two of those against each other. What the options mean is the blocks' affair.

mod comparison;
mod settings;

use std::collections::BTreeMap;

use apr_core::{Error, Result};
use serde::Deserialize;

use crate::expression::{Expression, Value};
use crate::name_list::Names;
use crate::pattern::Pattern;

pub use comparison::{OptionChange, OptionSource, OptionValues, are_alike};
pub use settings::GraphSettings;

/// Value of an option in the table: an expression, alternatives, or the value itself.
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

/// Tensors that checkpoints have and graphs may leave out, and why that is right.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnusedEntry {
    /// Canonical names of tensors, or of modules.
    tensors: Names,
    /// Condition, with numbers for the placeholders; without it, the entry always applies.
    when: Option<String>,
    /// `true` if the graph does not compute with the tensors even if it names them for a part.
    #[serde(default)]
    never: bool,
    why: String,
}

/// Settings of one of several stacks of layers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StackFile {
    index: Option<String>,
    #[serde(default)]
    options: BTreeMap<String, OptionEntry>,
    #[serde(default)]
    weights: BTreeMap<String, Names>,
}

/// The `[graph]` table before its expressions are parsed.
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
    #[serde(default)]
    unused: Vec<UnusedEntry>,
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
    /// Returns the table without weights that are not among the tensors with these names.
    pub(crate) fn of(&self, tensors: &[&str]) -> Self {
        let mut graph = self.clone();
        let stacks = graph.stacks.values_mut().map(|stack| &mut stack.weights);
        for weights in stacks.chain([&mut graph.weights]) {
            weights.retain(|_, names| names.iter().any(|name| is_there(name, tensors)));
        }
        graph.unused.retain(|entry| entry.tensors.iter().all(|name| is_there(name, tensors)));
        graph
    }

    /// Everything of `base`, with this table on top, entry by entry.
    pub(crate) fn on_top_of(self, base: &Self) -> Self {
        let general = |file: &Self| StackFile {
            index: None,
            options: file.options.clone(),
            weights: file.weights.clone(),
        };
        let StackFile { options, weights, .. } = general(&self).on_top_of(&general(base));
        let mut stacks = base.stacks.clone();
        for (name, stack) in self.stacks {
            let inherited = stacks.remove(&name).unwrap_or_default();
            stacks.insert(name, stack.on_top_of(&inherited));
        }
        let refused = base.refused.iter().cloned().chain(self.refused).collect();
        let unused = base.unused.iter().cloned().chain(self.unused).collect();
        let kind = self.kind.or_else(|| base.kind.clone());
        Self { kind, options, weights, stacks, refused, unused }
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
    fn parse(file: &StackFile, tensors: &[&str]) -> Result<Self> {
        let options = file.options.iter().map(|(name, entry)| Ok((name.clone(), entry.parse()?)));
        let mut weights = BTreeMap::new();
        for (part, names) in &file.weights {
            let mut patterns = Vec::new();
            // A child leaves out a weight of its base by naming nothing.
            for name in names.iter().filter(|name| !name.is_empty()) {
                if !is_there(name, tensors) {
                    let message = format!(
                        "[graph] names '{name}' for {part}, and the family has no such tensor"
                    );
                    return Err(Error::format(message));
                }
                patterns.push(Pattern::parse(name)?);
            }
            weights.insert(part.clone(), patterns);
        }

        Ok(Self { index: file.index.clone(), options: options.collect::<Result<_>>()?, weights })
    }
}

/// Returns `true` if one of the tensors has this name, or belongs to the module with this name.
fn is_there(name: &str, tensors: &[&str]) -> bool {
    tensors.iter().any(|tensor| is_of(tensor, name))
}

/// Returns `true` if a tensor has this name, or belongs to the module with this name.
fn is_of(tensor: &str, name: &str) -> bool {
    tensor.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Tensors that graphs may leave out.
#[derive(Debug)]
struct Unused {
    /// Positions among the family's.
    tensors: Vec<usize>,
    when: Option<Expression>,
    never: bool,
    why: String,
}

impl Unused {
    /// # Errors
    /// E001 when the condition is no expression, or the family has no such tensor.
    fn parse(entry: &UnusedEntry, tensors: &[&str]) -> Result<Self> {
        let mut positions = Vec::new();
        for name in entry.tensors.iter() {
            let of_name = tensors.iter().enumerate().filter(|(_, tensor)| is_of(tensor, name));
            let before = positions.len();
            positions.extend(of_name.map(|(position, _)| position));
            if positions.len() == before {
                return Err(Error::format(format!(
                    "[[graph.unused]] names '{name}', and the family has no such tensor"
                )));
            }
        }
        let when = entry.when.as_deref().map(Expression::parse).transpose()?;
        Ok(Self { tensors: positions, when, never: entry.never, why: entry.why.clone() })
    }
}

/// The `[graph]` table of a family.
#[derive(Debug)]
pub(crate) struct GraphTable {
    kind: Expression,
    general: Stack,
    stacks: BTreeMap<String, Stack>,
    refused: Vec<(Expression, String)>,
    unused: Vec<Unused>,
}

impl GraphTable {
    /// # Errors
    /// E001 when an expression is none, or a weight is a tensor that the family does not have.
    pub(crate) fn parse(file: &GraphFile, tensors: &[&str]) -> Result<Self> {
        let kind = file.kind.as_ref().ok_or_else(|| Error::format("missing 'kind' in [graph]"))?;
        let general =
            StackFile { index: None, options: file.options.clone(), weights: file.weights.clone() };
        let stacks = file
            .stacks
            .iter()
            .map(|(name, stack)| Ok((name.clone(), Stack::parse(stack, tensors)?)));
        let refused = file
            .refused
            .iter()
            .map(|entry| Ok((Expression::parse(&entry.when)?, entry.why.clone())));
        let unused = file.unused.iter().map(|entry| Unused::parse(entry, tensors));
        Ok(Self {
            kind: Expression::parse(kind)?,
            general: Stack::parse(&general, tensors)?,
            stacks: stacks.collect::<Result<_>>()?,
            refused: refused.collect::<Result<_>>()?,
            unused: unused.collect::<Result<_>>()?,
        })
    }
}
