//! Calls of functions: each kind of call is followed once.

use std::collections::{HashMap, HashSet};

use super::call_key::CallKey;
use super::engine::{Around, Engine, Made, Scope};
use super::inference::Signature;
use super::merge::merge;
use crate::finding::shown_path;
use crate::operators::{Input, Known};
use crate::{
    AttributeValue, Body, Constant, ConstantData, FunctionId, Name, Node, Severity, ValueOrigin,
    ValueType,
};

/// Maximum number of elements of an input by which calls are distinguished: sizes and axes, not
/// data.
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

        // What tells calls apart takes the time of what this node names, and of no more.
        let inputs =
            node.inputs.iter().map(|input| input.and_then(|id| around.input(id)).map(telling));
        let mut inputs: Vec<_> = inputs.collect();
        inputs.truncate(inputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        let handed = handed_on(node, scope.of_call) / BYTES_OF_A_STEP;
        self.left = self.left.saturating_sub(handed);
        if handed > 0 && self.left == 0 {
            self.give_up(&|| shown_path(&scope.prefix, position, node));
            return Ok(Made::nothing(node));
        }
        let attributes = attributes(node, scope.of_call);
        let text = if attributes.is_empty() { String::new() } else { format!("{attributes:?}") };
        let key = CallKey { function, inputs, attributes: text };
        let signature = match self.cache.get(&key) {
            Some(signature) => Some(*signature),
            None => {
                self.follow(key, attributes, scope, &|| shown_path(&scope.prefix, position, node))?
            }
        };

        let Some(signature) = signature else { return Ok(Made::nothing(node)) };
        calls[place] = Some(signature);
        let body = &self.signatures[signature].body;
        let wanted = body.outputs.iter().take(node.outputs.len());
        let mut kinds: Vec<_> = wanted.map(|output| body.value(*output).kind.clone()).collect();
        kinds.resize(node.outputs.len(), ValueType::Unknown);
        Ok(Made::of(kinds))
    }

    /// Follows a function with the types of a call.
    fn follow(
        &mut self,
        key: CallKey,
        attributes: Vec<(Name, AttributeValue)>,
        scope: &Scope<'_>,
        path: &dyn Fn() -> String,
    ) -> Result<Option<usize>, String> {
        let function = key.function;
        if self.active.contains(&function) {
            return Err("the function calls itself".to_owned());
        }

        if self.left == 0 {
            self.give_up(path);
            return Ok(None);
        }

        let definition = &self.functions[function];

        // The body is kept for each way of calling it, with the constants in it.
        let constants = constants_bytes(&definition.body) / BYTES_OF_A_NODE;
        self.left = self.left.saturating_sub(constants + definition.defaults.len() as u64);
        let mut of_call: HashMap<_, _> = HashMap::new();
        let defaults = definition.defaults.iter();
        let defaults = defaults.map(|default| (default.name.clone(), default.value.clone()));
        for (name, value) in attributes.into_iter().chain(defaults) {
            of_call.entry(name).or_insert(value);
        }
        let mut body = definition.body.clone();
        let mut absent = HashSet::new();
        let parameters = body.inputs.clone();
        // The function may have more parameters than this call gives.
        let given = key.inputs.iter().map(Option::as_ref).chain(std::iter::repeat(None));
        for (id, given) in parameters.iter().zip(given) {
            match given {
                None => {
                    absent.insert(*id);
                }
                Some((kind, _)) => {
                    let value = body.value_mut(*id);
                    let said = |message| format!("parameter '{}': {message}", value.name);
                    let merged = merge(&value.kind, kind.clone()).map_err(said)?;
                    if let Some(odd) = merged.odd.map(said) {
                        self.findings.add(Severity::Warning, path(), odd);
                    }
                    value.kind = merged.kind;
                }
            }
        }

        let opsets = self.versions(function);
        let inner = Scope {
            prefix: format!("{}/", path()),
            opsets: &opsets,
            of_call: &of_call,
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

    /// Reports once that further calls are not followed.
    fn give_up(&mut self, path: &dyn Fn() -> String) {
        if !std::mem::replace(&mut self.gave_up, true) {
            let message = "shape inference stopped: functions are called with too many input \
                           types";
            self.findings.add(Severity::Notice, path(), message);
        }
    }
}

/// Bytes of constants that count as a step.
const BYTES_OF_A_NODE: u64 = 1024;
/// Number of bytes of attributes that count as one step when they are formatted as text.
const BYTES_OF_A_STEP: u64 = 64;

/// Bytes of a constant's elements.
pub(crate) fn constant_bytes(constant: &Constant) -> usize {
    match &constant.data {
        ConstantData::Bytes(bytes) => bytes.len(),
        ConstantData::Texts(texts) => texts.iter().map(Vec::len).sum(),
    }
}

/// Returns the size in bytes of the constants in a body, without the constants of inner bodies.
fn constants_bytes(body: &Body) -> u64 {
    let values = body.values.iter().map(|value| match &value.origin {
        ValueOrigin::Constant(constant) => constant_bytes(constant),
        _ => 0,
    });
    let attributes = body.nodes.iter().flat_map(|node| &node.attributes);
    let attributes = attributes.map(|attribute| attribute_bytes(&attribute.value));
    values.chain(attributes).fold(0, |sum, bytes| sum.saturating_add(bytes as u64))
}

/// Bytes of the constants in an attribute.
pub(crate) fn attribute_bytes(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::Tensor(constant) => constant_bytes(constant),
        AttributeValue::Tensors(constants) => constants.iter().map(constant_bytes).sum(),
        AttributeValue::Ints(numbers) => size_of_val(&numbers[..]),
        AttributeValue::Floats(numbers) => size_of_val(&numbers[..]),
        AttributeValue::Texts(texts) => texts.iter().map(Vec::len).sum(),
        AttributeValue::Text(bytes) | AttributeValue::Opaque(bytes) => bytes.len(),
        _ => 0,
    }
}

/// Bytes of attributes that a call hands on from the call around.
fn handed_on(node: &Node, of_call: &HashMap<Name, AttributeValue>) -> u64 {
    let bytes = |value: &AttributeValue| match value {
        AttributeValue::OfCall(outer) => of_call.get(outer).map_or(0, attribute_bytes) as u64,
        _ => 0,
    };
    node.attributes.iter().map(|attribute| bytes(&attribute.value)).sum()
}

/// Returns the facts about an input by which calls are distinguished.
fn telling(input: Input<'_>) -> (ValueType, Option<Known>) {
    let whole = match input.kind {
        ValueType::Tensor(tensor) => tensor.element.is_some_and(|element| !element.is_float()),
        _ => false,
    };
    let known = input.known.filter(|known| whole && known.len() <= MAX_TELLING);
    (input.kind.clone(), known.cloned())
}

/// Returns the attributes of a call, without the function's defaults.
///
/// References to attributes of the enclosing call are replaced by their values.
fn attributes(node: &Node, of_call: &HashMap<Name, AttributeValue>) -> Vec<(Name, AttributeValue)> {
    let value = |value: &AttributeValue| match value {
        // Where the call around gives nothing and there is no default, this call has none.
        AttributeValue::OfCall(outer) => of_call.get(outer).cloned(),
        own => Some(own.clone()),
    };
    let attributes = node.attributes.iter();
    attributes.filter_map(|own| Some((own.name.clone(), value(&own.value)?))).collect()
}
