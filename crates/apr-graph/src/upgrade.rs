//! Operators of an older version of ONNX, in the words of a newer one.

mod steps;

use std::collections::HashSet;

use apr_core::{Error, Result};

use crate::finding::node_path;
use crate::{
    Attribute, AttributeKind, AttributeValue, Body, Constant, Dim, Graph, MAX_DEPTH, Node, Op, Operator, Opset, Origin,
    ValueId, ValueType,
};

/// The same graph with the operators of a newer version of ONNX. Other domains stay.
///
/// Some conversions need types: run [`crate::infer`] before. Values that are added have no types yet.
///
/// # Errors
/// E003 where the version is older than the graph's or not known, or where an operator does not go along: with its name
/// and that of the node.
pub fn upgrade(graph: &Graph, to: i64) -> Result<Graph> {
    let from = graph.opset("").ok_or_else(|| Error::version("the graph does not say which version of ONNX it has"))?;
    if to < from || to > Operator::newest() {
        let newest = Operator::newest();
        return Err(Error::version(format!(
            "operators of version {from} become those of {from} to {newest}, not {to}"
        )));
    }
    let mut graph = graph.clone();
    set_version(&mut graph.opsets, to);
    Upgrade { from, to }.body(&mut graph.body, "", 0)?;
    for function in &mut graph.functions {
        let own = function.opsets.iter().find(|set| set.domain.is_empty()).map_or(from, |set| set.version);
        if own > to {
            let message = format!("the function {} has version {own} already, not {to}", function.op);
            return Err(Error::version(message));
        }
        set_version(&mut function.opsets, to);
        Upgrade { from: own, to }.body(&mut function.body, &format!("{}/", function.op), 0)?;
    }
    Ok(graph)
}

fn set_version(opsets: &mut [Opset], to: i64) {
    opsets.iter_mut().filter(|set| set.domain.is_empty()).for_each(|set| set.version = to);
}

#[derive(Clone, Copy)]
struct Upgrade {
    from: i64,
    to: i64,
}

impl Upgrade {
    fn body(self, body: &mut Body, prefix: &str, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::format(format!("bodies are nested more than {MAX_DEPTH} deep")));
        }
        let nodes = std::mem::take(&mut body.nodes);
        let outputs: HashSet<_> = body.outputs.iter().copied().collect();
        for (position, mut node) in nodes.into_iter().enumerate() {
            let path = node_path(prefix, position, &node);
            for attribute in &mut node.attributes {
                let prefix = format!("{path}/{}/", attribute.name);
                match &mut attribute.value {
                    AttributeValue::Body(inner) => self.body(inner, &prefix, depth + 1)?,
                    AttributeValue::Bodies(inner) => {
                        inner.iter_mut().try_for_each(|inner| self.body(inner, &prefix, depth + 1))?;
                    }
                    _ => {}
                }
            }
            let op = node.op.clone();
            let mut edit = Edit { body, outputs: &outputs, node, before: Vec::new(), after: Vec::new() };
            self.node(&mut edit).map_err(|problem| {
                Error::version(format!("node '{path}': {op} does not go to version {}: {problem}", self.to))
            })?;
            let Edit { node, before, after, .. } = edit;
            before.into_iter().chain([node]).chain(after).for_each(|node| {
                body.add_node(node);
            });
        }
        Ok(())
    }

    /// Takes a node from version to version.
    fn node(self, edit: &mut Edit<'_>) -> Result<(), String> {
        let mut version = self.from;
        while edit.node.op.domain.is_empty() {
            let versions = Operator::versions("", &edit.node.op.name);
            let Some(next) = versions.iter().find(|next| next.since > version && next.since <= self.to) else { break };
            let old = Operator::of(&edit.node.op, version);
            version = next.since;
            let Some(old) = old else { continue };
            match steps::step(old.name, next.since) {
                Some(step) => step(edit)?,
                None if next.deprecated => return Err(format!("it is gone since version {version}")),
                None => edit.keep_meaning(old, next),
            }
            // The step may have made another operator of it.
            let Some(now) = Operator::of(&edit.node.op, version) else { continue };
            edit.fits(now)?;
        }
        Ok(())
    }
}

/// A node that is changed, with nodes that come before and after it.
struct Edit<'b> {
    body: &'b mut Body,
    /// What the caller of the body gets.
    outputs: &'b HashSet<ValueId>,
    node: Node,
    before: Vec<Node>,
    after: Vec<Node>,
}

impl Edit<'_> {
    /// Where a default changes, what was the default is said.
    fn keep_meaning(&mut self, old: &Operator, new: &Operator) {
        for setting in &old.attributes {
            let Some(default) = &setting.default else { continue };
            let changed = new.setting(setting.name).is_some_and(|new| new.default.as_ref() != Some(default));
            if changed && self.node.attribute(setting.name).is_none() {
                self.set(setting.name, default.clone());
            }
        }
    }

    /// Whether the operator takes the node as it is now.
    fn fits(&self, operator: &Operator) -> Result<(), String> {
        let (fewest, most) = operator.input_count();
        let inputs = self.node.inputs.len();
        if inputs < fewest || most.is_some_and(|most| inputs > most) {
            return Err(format!("it has {inputs} inputs"));
        }
        for attribute in &self.node.attributes {
            let kind = operator.setting(&attribute.name).map(|setting| setting.kind);
            let given = AttributeKind::of(&attribute.value);
            if kind.is_none() || given.is_some_and(|given| Some(given) != kind) {
                return Err(format!("attribute '{}' has no meaning there", attribute.name));
            }
        }
        Ok(())
    }

    /// Takes an attribute away.
    fn take(&mut self, name: &str) -> Option<AttributeValue> {
        let at = self.node.attributes.iter().position(|attribute| &*attribute.name == name)?;
        Some(self.node.attributes.remove(at).value)
    }

    fn set(&mut self, name: &str, value: impl Into<AttributeValue>) {
        self.take(name);
        self.node.attributes.push(Attribute { name: name.into(), value: value.into() });
    }

    /// Makes a constant an input at a position.
    fn input(&mut self, position: usize, name: &str, constant: Constant) {
        let id = self.constant(name, constant);
        if self.node.inputs.len() <= position {
            self.node.inputs.resize(position + 1, None);
        }
        self.node.inputs[position] = Some(id);
    }

    fn constant(&mut self, name: &str, constant: Constant) -> ValueId {
        let kind = ValueType::tensor(constant.element, constant.shape.iter().copied().map(Dim::fixed));
        let name = self.name(name);
        self.body.add_value(name, kind, Origin::Constant(constant))
    }

    /// A name of the node's own that no value has.
    fn name(&self, name: &str) -> String {
        let first = self.node.outputs.iter().flatten().next();
        let own = first.map_or(self.node.name.as_str(), |id| self.body.value(*id).name.as_str());
        // No exporter writes such names, and a node gets each of them once.
        format!("{own}/{name}:{}", self.body.values.len())
    }

    /// Adds a node that makes one value.
    fn made(
        &mut self,
        op: &str,
        name: &str,
        inputs: Vec<Option<ValueId>>,
        attributes: Vec<Attribute>,
    ) -> (ValueId, Node) {
        let output = self.body.add_value(self.name(name), ValueType::Unknown, Origin::Missing);
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
    fn ints_to_input(&mut self, name: &str, position: usize) -> Result<(), String> {
        match self.take(name) {
            None => Ok(()),
            Some(AttributeValue::Ints(values)) => {
                self.input(position, name, Constant::ints(&values));
                Ok(())
            }
            Some(_) => Err(format!("'{name}' is no list of numbers")),
        }
    }
}

#[cfg(test)]
mod tests;
