//! A layer with its settings.

use std::cell::RefCell;
use std::collections::BTreeSet;

use apr_graph::{AttributeValue, Body, Node, ValueId};

use crate::openvino::graph::VERSION;

/// A layer that records which settings were read.
///
/// A setting that was not read means that the layer has a feature that is not known here.
pub(super) struct Call<'g> {
    pub(super) op: &'g str,
    /// The name of the first output.
    pub(super) name: String,
    pub(super) inputs: &'g [Option<ValueId>],
    pub(super) outputs: &'g [Option<ValueId>],
    node: &'g Node,
    seen: RefCell<BTreeSet<String>>,
}

impl<'g> Call<'g> {
    /// Returns `None` for a layer without outputs.
    pub(super) fn new(node: &'g Node, body: &Body) -> Option<Self> {
        let first = node.outputs.first().copied().flatten()?;
        Some(Self {
            op: &node.op.name,
            name: body.value(first).name.clone(),
            inputs: &node.inputs,
            outputs: &node.outputs,
            node,
            seen: RefCell::default(),
        })
    }

    fn setting(&self, name: &str) -> Option<&'g AttributeValue> {
        self.seen.borrow_mut().insert(name.to_owned());
        self.node.attribute(name)
    }

    /// Returns `true` for a layer of one of these operator sets.
    pub(super) fn is_of(&self, opsets: &[&str]) -> bool {
        self.node.text(VERSION).is_some_and(|own| opsets.contains(&own))
    }

    pub(super) fn has_input(&self, position: usize) -> bool {
        self.inputs.get(position).is_some_and(Option::is_some)
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        match self.setting(name)? {
            AttributeValue::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// Returns integers; `default` for a missing setting.
    pub(super) fn ints_or(&self, name: &str, default: &[i64]) -> Option<Vec<i64>> {
        match self.setting(name) {
            None => Some(default.to_vec()),
            Some(AttributeValue::Int(int)) => Some(vec![*int]),
            Some(AttributeValue::Ints(ints)) => Some(ints.clone()),
            Some(AttributeValue::Text(text)) if text.is_empty() => Some(Vec::new()),
            Some(_) => None,
        }
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Option<i64> {
        if self.setting(name).is_none() { Some(default) } else { self.int(name) }
    }

    pub(super) fn number(&self, name: &str) -> Option<f32> {
        match self.setting(name)? {
            AttributeValue::Int(int) => Some(*int as f32),
            AttributeValue::Float(float) => Some(*float),
            _ => None,
        }
    }

    pub(super) fn number_or(&self, name: &str, default: f32) -> Option<f32> {
        if self.setting(name).is_none() { Some(default) } else { self.number(name) }
    }

    /// Returns `true` or `false`, which older files write as numbers.
    pub(super) fn flag_or(&self, name: &str, default: bool) -> Option<bool> {
        match self.setting(name) {
            None => Some(default),
            Some(AttributeValue::Int(int)) => Some(*int != 0),
            Some(AttributeValue::Text(text)) => match text.as_slice() {
                b"true" => Some(true),
                b"false" => Some(false),
                _ => None,
            },
            Some(_) => None,
        }
    }

    pub(super) fn text_or(&self, name: &str, default: &'g str) -> Option<&'g str> {
        match self.setting(name) {
            None => Some(default),
            Some(AttributeValue::Text(text)) => std::str::from_utf8(text).ok(),
            Some(_) => None,
        }
    }

    /// Lets a setting be that does not change what a layer computes.
    pub(super) fn ignore(&self, name: &str) {
        self.seen.borrow_mut().insert(name.to_owned());
    }

    /// Returns `true` if every setting was read.
    pub(super) fn is_understood(&self) -> bool {
        let seen = self.seen.borrow();
        let mut names = self.node.attributes.iter().map(|attribute| &*attribute.name);
        names.all(|name| name == VERSION || seen.contains(name))
    }

    /// A name for a step on the way to the first output.
    pub(super) fn step(&self, step: &str) -> String {
        format!("{}/{step}", self.name)
    }
}
