//! Calls of functions: each kind of call is followed once.

use std::collections::HashSet;

use super::engine::{Around, Engine, Made, Scope};
use super::inference::Signature;
use super::merge::merge;
use crate::finding::node_path;
use crate::operators::{Input, Known};
use crate::{
    Attribute, AttributeValue, Body, Constant, ConstantData, FunctionId, Node, Origin, Severity,
    ValueType,
};

/// What tells calls apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    function: usize,
    /// `None` where an input is left out.
    inputs: Vec<Option<(ValueType, Option<Known>)>>,
    /// The attributes as text; calls with attributes are few.
    attributes: String,
}

/// Most elements of an input that tell calls apart: sizes and axes, not data.
const MAX_TELLING: usize = 64;

impl Engine<'_> {
    pub(super) fn call(
        &mut self,
        function: usize,
        node: &Node,
        around: Around<'_>,
        scope: &Scope<'_>,
        position: usize,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<Made, String> {
        // The place of this call in the list stays, however it ends.
        let place = calls.len();
        calls.push(None);
        let definition = &self.functions[function];
        if node.inputs.len() > definition.body.inputs.len() {
            let (given, taken) = (node.inputs.len(), definition.body.inputs.len());
            return Err(format!("it is called with {given} inputs, and the function has {taken}"));
        }

        let attributes = attributes(node, scope.of_call, &definition.defaults);
        let inputs =
            node.inputs.iter().map(|input| input.and_then(|id| around.input(id)).map(telling));
        let mut inputs: Vec<_> = inputs.collect();
        // The function may have more parameters than this call gives.
        inputs.resize(definition.body.inputs.len(), None);
        let text = if attributes.is_empty() { String::new() } else { format!("{attributes:?}") };
        let key = Key { function, inputs, attributes: text };
        let signature = match self.cache.get(&key) {
            Some(signature) => Some(*signature),
            None => {
                self.follow(key, &attributes, scope, &|| node_path(&scope.prefix, position, node))?
            }
        };

        let Some(signature) = signature else { return Ok(Made::nothing(node)) };
        calls[place] = Some(signature);
        let body = &self.signatures[signature].body;
        let mut kinds: Vec<_> =
            body.outputs.iter().map(|output| body.value(*output).kind.clone()).collect();
        kinds.resize(node.outputs.len(), ValueType::Unknown);
        Ok(Made::of(kinds))
    }

    /// Follows a function with the types of a call.
    fn follow(
        &mut self,
        key: Key,
        attributes: &[Attribute],
        scope: &Scope<'_>,
        path: &dyn Fn() -> String,
    ) -> Result<Option<usize>, String> {
        let function = key.function;
        if self.active.contains(&function) {
            return Err("the function calls itself".to_owned());
        }

        if self.left == 0 {
            if !std::mem::replace(&mut self.gave_up, true) {
                let message = "functions are called with too many kinds of inputs; what they make \
                    is not followed from here";
                self.findings.add(Severity::Notice, path(), message);
            }
            return Ok(None);
        }

        let definition = &self.functions[function];

        // The body is kept for each way of calling it, with the constants in it.
        self.left = self.left.saturating_sub(constant_bytes(&definition.body) / BYTES_OF_A_NODE);
        let mut body = definition.body.clone();
        let mut absent = HashSet::new();
        let parameters = body.inputs.clone();
        for (id, given) in parameters.iter().zip(&key.inputs) {
            match given {
                None => {
                    absent.insert(*id);
                }
                Some((kind, _)) => {
                    let value = body.value_mut(*id);
                    value.kind = merge(&value.kind, kind.clone())
                        .map_err(|error| format!("parameter '{}': {error}", value.name))?;
                }
            }
        }

        let opsets = if definition.opsets.is_empty() { self.opsets } else { &definition.opsets };
        let inner = Scope {
            prefix: format!("{}/", path()),
            opsets,
            of_call: attributes,
            depth: scope.depth + 1,
        };

        let mut calls = Vec::new();
        self.active.push(function);
        let given = parameters
            .iter()
            .copied()
            .zip(key.inputs.iter().map(|input| input.as_ref()?.1.clone()));
        self.function_body(&mut body, given.collect(), absent, &inner, &mut calls);
        self.active.pop();
        let id = FunctionId(u32::try_from(function).unwrap_or(u32::MAX));
        self.signatures.push(Signature { function: id, body, calls });
        self.cache.insert(key, self.signatures.len() - 1);
        Ok(Some(self.signatures.len() - 1))
    }
}

/// Bytes of constants that count as a node.
const BYTES_OF_A_NODE: u64 = 1024;

/// Bytes of the constants in a body, without those of bodies in it.
fn constant_bytes(body: &Body) -> u64 {
    let of = |constant: &Constant| match &constant.data {
        ConstantData::Bytes(bytes) => bytes.len(),
        ConstantData::Texts(texts) => texts.iter().map(Vec::len).sum(),
    };
    let values = body.values.iter().map(|value| match &value.origin {
        Origin::Constant(constant) => of(constant),
        _ => 0,
    });
    let attributes = body.nodes.iter().flat_map(|node| &node.attributes);
    let attributes = attributes.map(|attribute| match &attribute.value {
        AttributeValue::Tensor(constant) => of(constant),
        AttributeValue::Tensors(constants) => constants.iter().map(of).sum(),
        AttributeValue::Ints(numbers) => size_of_val(&numbers[..]),
        AttributeValue::Floats(numbers) => size_of_val(&numbers[..]),
        AttributeValue::Texts(texts) => texts.iter().map(Vec::len).sum(),
        AttributeValue::Text(bytes) | AttributeValue::Opaque(bytes) => bytes.len(),
        _ => 0,
    });
    values.chain(attributes).fold(0, |sum, bytes| sum.saturating_add(bytes as u64))
}

/// What of an input tells calls apart.
fn telling(input: Input<'_>) -> (ValueType, Option<Known>) {
    let whole = match input.kind {
        ValueType::Tensor(tensor) => tensor.element.is_some_and(|element| !element.is_float()),
        _ => false,
    };
    let known = input.known.filter(|known| whole && known.len() <= MAX_TELLING);
    (input.kind.clone(), known.cloned())
}

/// The attributes of a call: its own, with those of the call around put in, and the function's
/// defaults.
fn attributes(node: &Node, of_call: &[Attribute], defaults: &[Attribute]) -> Vec<Attribute> {
    let mut all = Vec::new();
    for attribute in &node.attributes {
        match &attribute.value {
            AttributeValue::OfCall(name) => {
                // Where the call around gives nothing and there is no default, this call has none.
                let outer = of_call.iter().find(|outer| outer.name == *name);
                all.extend(outer.map(|outer| Attribute {
                    name: attribute.name.clone(),
                    value: outer.value.clone(),
                }));
            }
            _ => all.push(attribute.clone()),
        }
    }

    for default in defaults {
        if !all.iter().any(|attribute| attribute.name == default.name) {
            all.push(default.clone());
        }
    }

    all
}
