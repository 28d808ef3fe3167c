//! A node on its way to another version, and what steps do with it.

use std::collections::HashSet;

use crate::{
    Attribute, AttributeKind, AttributeValue, Body, Constant, Dim, Node, Op, Operator, ValueId,
    ValueOrigin, ValueType,
};

/// Node that is edited, with the nodes inserted before and after it.
pub(super) struct Edit<'b> {
    pub(super) body: &'b mut Body,
    /// Outputs of the body, which the caller receives.
    pub(super) outputs: &'b HashSet<ValueId>,
    pub(super) node: Node,
    pub(super) before: Vec<Node>,
    pub(super) after: Vec<Node>,
}

impl Edit<'_> {
    /// Sets attributes explicitly if their default differs in the new version.
    pub(super) fn keep_meaning(&mut self, old: &Operator, new: &Operator) {
        for setting in &old.attributes {
            let Some(default) = &setting.default else { continue };
            let changed =
                new.setting(setting.name).is_some_and(|new| new.default.as_ref() != Some(default));
            if changed && self.node.attribute(setting.name).is_none() {
                self.set(setting.name, default.clone());
            }
        }
    }

    /// Checks that the operator supports the node's current number of inputs and its attributes.
    pub(super) fn fits(&self, operator: &Operator) -> Result<(), String> {
        let (fewest, most) = operator.input_count();
        let inputs = self.node.inputs.len();
        if inputs < fewest || most.is_some_and(|most| inputs > most) {
            return Err(format!("it has {inputs} inputs"));
        }
        for attribute in &self.node.attributes {
            let kind = operator.setting(&attribute.name).map(|setting| setting.kind);
            let given = AttributeKind::of(&attribute.value);
            // A reference to an attribute of the call may be of any kind.
            if kind.is_none() || given.is_some_and(|given| Some(given) != kind) {
                return Err(format!("attribute '{}' has no meaning there", attribute.name));
            }
        }
        Ok(())
    }

    /// Takes an attribute away.
    pub(super) fn take(&mut self, name: &str) -> Option<AttributeValue> {
        let at = self.node.attributes.iter().position(|attribute| &*attribute.name == name)?;
        Some(self.node.attributes.remove(at).value)
    }

    pub(super) fn set(&mut self, name: &str, value: impl Into<AttributeValue>) {
        self.take(name);
        self.node.attributes.push(Attribute { name: name.into(), value: value.into() });
    }

    /// Makes a constant an input at a position.
    pub(super) fn input(&mut self, position: usize, name: &str, constant: Constant) {
        let id = self.constant(name, constant);
        if self.node.inputs.len() <= position {
            self.node.inputs.resize(position + 1, None);
        }
        self.node.inputs[position] = Some(id);
    }

    pub(super) fn constant(&mut self, name: &str, constant: Constant) -> ValueId {
        let kind =
            ValueType::tensor(constant.element, constant.shape.iter().copied().map(Dim::fixed));
        let name = self.name(name);
        self.body.add_value(name, kind, ValueOrigin::Constant(constant))
    }

    /// A name of the node's own that no value has.
    pub(super) fn name(&self, name: &str) -> String {
        let first = self.node.outputs.iter().flatten().next();
        let own = first.map_or(self.node.name.as_str(), |id| self.body.value(*id).name.as_str());
        // No exporter writes such names, and a node gets each of them once.
        format!("{own}/{name}:{}", self.body.values.len())
    }

    /// Adds a node that makes one value.
    pub(super) fn made(
        &mut self,
        op: &str,
        name: &str,
        inputs: Vec<Option<ValueId>>,
        attributes: Vec<Attribute>,
    ) -> (ValueId, Node) {
        let output = self.body.add_value(self.name(name), ValueType::Unknown, ValueOrigin::Missing);
        let node = Node {
            name: format!("{}/{name}", self.node.name),
            op: Op::onnx(op),
            inputs,
            outputs: vec![Some(output)],
            attributes,
            doc: String::new(),
        };
        (output, node)
    }

    /// An attribute that is a list becomes an input of integers.
    pub(super) fn ints_to_input(&mut self, name: &str, position: usize) -> Result<(), String> {
        match self.take(name) {
            None => Ok(()),
            Some(AttributeValue::Ints(values)) => {
                self.input(position, name, Constant::ints(&values));
                Ok(())
            }
            Some(_) => Err(format!("'{name}' is not a list of numbers")),
        }
    }
}
