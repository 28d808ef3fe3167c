//! A family's `[graph]` table, computed for one checkpoint.

use serde_json::Value as Json;

use super::{GraphTable, Unused};
use crate::expression::{Expression, Value};
use crate::kind::TensorKind;
use crate::model::{FamilyModel, numbers};
use crate::text_part::text_task;

/// A family's `[graph]` table, computed for one checkpoint.
#[derive(Debug, Clone)]
pub struct GraphSettings<'a> {
    table: &'a GraphTable,
    model: &'a FamilyModel<'a>,
    task: String,
}

impl<'a> FamilyModel<'a> {
    /// Returns the graph settings in the family's table, or `None` if it has none.
    ///
    /// `task` replaces the text after `For` in the first name in `architectures`.
    #[must_use]
    pub fn graph_settings<'m>(&'m self, task: Option<&'m str>) -> Option<GraphSettings<'m>>
    where
        'a: 'm,
    {
        let table = self.family.graph.as_ref()?;
        let task = task.map_or_else(|| self.task(), str::to_owned);
        let task = match self.dimensions.has_other_parts() {
            true => text_task(&task).to_owned(),
            false => task,
        };
        Some(GraphSettings { table, model: self, task })
    }

    /// Returns the task of the configuration's class, including older class names of other forms.
    fn task(&self) -> String {
        let class = self
            .dimensions
            .entry("architectures")
            .and_then(|names| Some(names.get(0)?.as_str()?.to_owned()));
        // A backbone makes maps of several layers, which is another head; Marian's class
        // translates.
        for (end, task) in [
            ("LMHeadModel", "CausalLM"),
            ("Backbone", "Backbone"),
            ("MTModel", "ConditionalGeneration"),
        ] {
            if class.as_ref().is_some_and(|class| class.ends_with(end)) {
                return task.to_owned();
            }
        }
        self.dimensions
            .entry("task")
            .and_then(|task| Some(task.as_str()?.to_owned()))
            .unwrap_or_default()
    }
}

impl<'a> GraphSettings<'a> {
    /// Returns the model that the settings belong to.
    #[must_use]
    pub fn model(&self) -> &'a FamilyModel<'a> {
        self.model
    }

    /// Returns the kind of model, such as `decoder`, or `None` if the configuration does not
    /// determine it.
    #[must_use]
    pub fn kind(&self) -> Option<String> {
        match self.compute(&self.table.kind, &[])? {
            Value::Text(kind) => Some(kind),
            _ => None,
        }
    }

    /// Returns the task of the head, such as `CausalLM`; empty if there is no head.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.task
    }

    /// Returns the reason why the blocks can't compute this configuration, if the table has one.
    #[must_use]
    pub fn refusal(&self) -> Option<&'a str> {
        let applies = |when: &Expression| self.compute(when, &[]) == Some(Value::Truth(true));
        self.table.refused.iter().find(|(when, _)| applies(when)).map(|(_, why)| why.as_str())
    }

    /// Returns the reason why the graph may leave out the tensor at this position of the
    /// checkpoint.
    ///
    /// The tensor is a buffer, or the table lists it. Returns `None` for a tensor that the model's
    /// outputs depend on.
    #[must_use]
    pub fn may_be_unused(&self, position: usize) -> Option<&'a str> {
        let member = self.model.member(position)?;
        let tensor = &self.model.family.file.tensors[member.tensor];
        if tensor.kind == TensorKind::Buffer {
            return Some("buffers");
        }
        self.unused_entries(position).next().map(|entry| entry.why.as_str())
    }

    /// Returns `true` if the model does not compute with the tensor at this position of the
    /// checkpoint, although the table has a part for tensors of this name.
    #[must_use]
    pub fn is_never_used(&self, position: usize) -> bool {
        self.unused_entries(position).any(|entry| entry.never)
    }

    /// Entries of `[[graph.unused]]` that apply to the tensor at this position.
    fn unused_entries(&self, position: usize) -> impl Iterator<Item = &'a Unused> + '_ {
        let member = self.model.member(position);
        member.into_iter().flat_map(move |member| {
            let numbers = numbers(&self.model.family.tensors[member.tensor], member);
            self.table.unused.iter().filter(move |entry| {
                let holds = |when| self.compute(when, &numbers) == Some(Value::Truth(true));
                entry.tensors.contains(&member.tensor) && entry.when.as_ref().is_none_or(holds)
            })
        })
    }

    /// Names of the stacks of layers that have settings of their own.
    pub fn stacks(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.table.stacks.keys().map(String::as_str)
    }

    /// Names of all options, and of all parts that weights play, each once.
    #[must_use]
    pub fn names(&self) -> (Vec<&'a str>, Vec<&'a str>) {
        let all = || std::iter::once(&self.table.general).chain(self.table.stacks.values());
        let mut options: Vec<&str> =
            all().flat_map(|stack| stack.options.keys()).map(String::as_str).collect();
        let mut weights: Vec<&str> =
            all().flat_map(|stack| stack.weights.keys()).map(String::as_str).collect();
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

    /// An option of a stack, or else of all stacks: the first alternative that can be computed.
    /// `numbers` are those of placeholders.
    #[must_use]
    pub fn option(&self, stack: &str, name: &str, numbers: &[(&str, u64)]) -> Option<Json> {
        let alternatives = self.alternatives(stack, name)?;
        let task = Some(self.task.as_str());
        self.model.dimensions.first_of(alternatives, numbers, task)?.to_json()
    }

    /// Returns `true` if the table has an option for a stack, or for all, even if it can't be
    /// computed.
    #[must_use]
    pub fn has_option(&self, stack: &str, name: &str) -> bool {
        self.alternatives(stack, name).is_some()
    }

    fn alternatives(&self, stack: &str, name: &str) -> Option<&[Expression]> {
        let own = self.table.stacks.get(stack).and_then(|stack| stack.options.get(name));
        own.or_else(|| self.table.general.options.get(name)).map(Vec::as_slice)
    }

    /// Returns an option as llama.cpp computes it, for a configuration that was derived from a GGUF
    /// file.
    #[must_use]
    pub fn gguf_option(&self, stack: &str, name: &str, numbers: &[(&str, u64)]) -> Option<Json> {
        let gguf = self.model.family.gguf.as_ref();
        let computed = gguf.and_then(|gguf| gguf.computes.get(name));
        let computed = computed.and_then(|expression| self.compute(expression, numbers)?.to_json());
        computed.or_else(|| self.option(stack, name, numbers))
    }

    /// Canonical names of the tensors, or of the modules, that may play a part in a stack; the
    /// first that a checkpoint has does.
    #[must_use]
    pub fn weights(&self, stack: &str, part: &str, numbers: &[(&str, u64)]) -> Vec<String> {
        let own = self.table.stacks.get(stack).and_then(|stack| stack.weights.get(part));
        let patterns = own.or_else(|| self.table.general.weights.get(part)).into_iter().flatten();
        let number = |index: &str| {
            numbers.iter().find(|(name, _)| *name == index).map(|(_, number)| *number)
        };
        patterns.filter_map(|pattern| pattern.name("", number)).collect()
    }

    /// An entry of the configuration by its dotted path, or else the default that transformers'
    /// class has for it.
    #[must_use]
    pub fn config(&self, path: &str) -> Option<Json> {
        self.model.dimensions.entry(path)
    }

    /// An entry that the configuration itself has.
    #[must_use]
    pub fn stated(&self, path: &str) -> Option<Json> {
        self.model.dimensions.stated_entry(path)
    }

    fn compute(&self, expression: &Expression, numbers: &[(&str, u64)]) -> Option<Value> {
        self.model.dimensions.value_for(expression, numbers, Some(&self.task))
    }
}
