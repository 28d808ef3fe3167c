//! Nodes as a body.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use apr_core::protobuf::{Message, Walker};
use apr_core::{Limits, Result};
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, ConstantData, Dim, ElementType, Node, Op, ValueId,
    ValueOrigin, ValueType, WeightRef,
};

use super::attributes::{self, Value, named, tensor_type};
use super::nodes::{FunctionDef, NodeDef};
use super::{DOMAIN, VARIABLES, Weights, positions};
use crate::constants::{TensorProto, Values};

/// Maximum size in bytes of a constant in the graph itself.
const SMALL: u64 = apr_skeleton::SMALL;

/// Operators without outputs.
const SILENT: [&str; 3] = ["NoOp", "Assert", "SaveV2"];

/// Makes a body of nodes.
pub(super) struct Builder<'b, 'w> {
    walker: &'b mut Walker<'w>,
    weights: &'b Weights,
    /// Names of the library's functions.
    functions: &'b HashSet<&'b str>,
    limits: &'b Limits,
    /// Prefix of the names of constants.
    prefix: &'b str,
    body: Body,
    /// Values by the names that inputs use for them.
    values: HashMap<String, ValueId>,
}

impl<'b, 'w> Builder<'b, 'w> {
    pub(super) fn new(
        walker: &'b mut Walker<'w>,
        weights: &'b Weights,
        functions: &'b HashSet<&'b str>,
        limits: &'b Limits,
        prefix: &'b str,
    ) -> Self {
        let (body, values) = (Body::default(), HashMap::new());
        Self { walker, weights, functions, limits, prefix, body, values }
    }

    /// The main body. It returns the values of these names, or else what no node reads.
    ///
    /// # Errors
    /// E002 for damaged attributes, E007 when reading fails, E008 over the limit.
    pub(super) fn main(mut self, nodes: &[NodeDef], outputs: &[String]) -> Result<Body> {
        self.nodes(nodes, outputs)?;
        let mut returned = BTreeSet::new();
        for name in outputs {
            if let Some(value) = self.values.get(key(name))
                && returned.insert(*value)
            {
                self.body.outputs.push(*value);
            }
        }
        if self.body.outputs.is_empty() {
            let read: HashSet<&str> = nodes
                .iter()
                .flat_map(|node| &node.inputs)
                .map(|input| owner(input.trim_start_matches('^')))
                .collect();
            for node in nodes.iter().filter(|node| !read.contains(node.name.as_str())) {
                let is_end = !SILENT.contains(&node.op.as_str());
                if let Some(value) = self.values.get(node.name.as_str()).filter(|_| is_end)
                    && matches!(self.body.value(*value).origin, ValueOrigin::Node(_))
                {
                    self.body.outputs.push(*value);
                }
            }
        }
        Ok(self.body)
    }

    /// The body of a function.
    ///
    /// # Errors
    /// Those of [`main`](Self::main).
    pub(super) fn function(mut self, function: &FunctionDef) -> Result<Body> {
        self.body.name.clone_from(&function.name);
        for (name, dtype) in &function.arguments {
            let kind = ValueType::Tensor(tensor_type(Some(*dtype), None, true));
            let value = self.body.add_value(name, kind, ValueOrigin::Input);
            self.body.inputs.push(value);
            self.values.insert(name.clone(), value);
        }
        let returned: Vec<String> =
            function.returns.iter().map(|(_, value)| value.clone()).collect();
        self.nodes(&function.nodes, &returned)?;
        let returns: BTreeMap<&str, &str> =
            function.returns.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        for name in &function.results {
            let Some(value) = returns.get(name.as_str()) else { continue };
            let value = self.find(value);
            self.body.outputs.push(value);
        }
        Ok(self.body)
    }

    fn nodes(&mut self, nodes: &[NodeDef], returned: &[String]) -> Result<()> {
        let positions = positions(nodes);
        let outputs = outputs(nodes, &positions, returned);
        // All values first: a node may read what a later one makes.
        let mut made: Vec<Vec<ValueId>> = Vec::with_capacity(nodes.len());
        let mut kept: Vec<Vec<(String, Value)>> = Vec::with_capacity(nodes.len());
        for node in nodes {
            self.walker.keep(size_of::<Node>() as u64)?;
            let mut attributes = Vec::with_capacity(node.attributes.len());
            for attribute in &node.attributes {
                self.walker.keep(size_of::<Value>() as u64)?;
                attributes.push(attributes::entry(self.walker, *attribute)?);
            }
            made.push(self.declare(node, &attributes, outputs.get(node.name.as_str()))?);
            kept.push(attributes);
        }
        for ((node, attributes), made) in nodes.iter().zip(kept).zip(&made) {
            self.node(node, attributes, made, &positions, nodes);
        }
        self.body.sort_nodes();
        Ok(())
    }

    /// Adds the output values of a node. Returns an empty list if the values do not need a node.
    fn declare(
        &mut self,
        node: &NodeDef,
        attributes: &[(String, Value)],
        used: Option<&Outputs>,
    ) -> Result<Vec<ValueId>> {
        let find = |name: &str| attributes.iter().find(|(other, _)| other == name);
        let dtype = find("dtype").and_then(|(_, value)| value.dtype);
        let shape = find("shape").and_then(|(_, value)| value.shape.as_ref());
        if node.op.starts_with("Placeholder") && node.op != "PlaceholderWithDefault" {
            let kind = ValueType::Tensor(tensor_type(dtype, shape, true));
            let value = self.body.add_value(&node.name, kind, ValueOrigin::Input);
            self.body.inputs.push(value);
            self.values.insert(node.name.clone(), value);
            return Ok(Vec::new());
        }
        if node.op == "Const"
            && let Some(tensor) = find("value").and_then(|(_, value)| value.tensor)
            && let Some((kind, origin)) = self.constant(node, tensor)?
        {
            let value = self.body.add_value(&node.name, kind, origin);
            self.values.insert(node.name.clone(), value);
            return Ok(Vec::new());
        }

        let shapes = find("_output_shapes").map(|(_, value)| value.shapes.as_slice());
        let mut made = Vec::new();
        // Those between are there, too, so that each has its position.
        let last = used.and_then(|used| used.last_key_value()).map_or(0, |(last, _)| *last);
        for number in 0..=last {
            self.walker.keep(size_of::<apr_graph::Value>() as u64)?;
            let output = used.and_then(|used| used.get(&number));
            let shape = shapes.and_then(|shapes| shapes.get(number));
            let kind = match shape {
                Some(shape) => ValueType::Tensor(tensor_type(None, Some(shape), false)),
                None => ValueType::Unknown,
            };
            let name = match (number, output) {
                (0, _) => node.name.clone(),
                (_, Some(output)) => format!("{}:{output}", node.name),
                (_, None) => format!("{}:{number}", node.name),
            };
            let value = self.body.add_value(&name, kind, ValueOrigin::Missing);
            self.values.insert(name, value);
            made.push(value);
        }
        Ok(made)
    }

    /// The type and the origin of a constant; `None` for one that no tensor holds.
    fn constant(
        &mut self,
        node: &NodeDef,
        tensor: Message,
    ) -> Result<Option<(ValueType, ValueOrigin)>> {
        let proto = TensorProto::read(self.walker, tensor)?;
        let Ok((dtype, values)) = proto.constant(self.walker, self.limits) else {
            return Ok(None);
        };
        let Some(element) = ElementType::from_dtype(dtype) else { return Ok(None) };
        let dims = proto.dims();
        let kind = ValueType::tensor(element, dims.iter().copied().map(Dim::fixed));
        let name = format!("{}{}", self.prefix, node.name);
        let elements = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
        let len = elements.and_then(|count| element.stored_len(count));
        let is_setting = dims.is_empty() || !element.is_float();
        let is_tensor = self.weights.tensors.contains(&name);
        let Some(len) = len.filter(|len| is_setting && !is_tensor && *len <= SMALL) else {
            return Ok(Some((kind, ValueOrigin::Weight(WeightRef::whole(name)))));
        };
        let bytes = match values {
            Values::Flat(span) => self.walker.bytes(span)?,
            Values::Repeated(bytes) => {
                let len = usize::try_from(len).unwrap_or_default();
                let width = usize::try_from(dtype.block_bytes()).unwrap_or(8).max(1);
                let last = bytes.len().saturating_sub(width);
                let repeated = bytes[last..].iter().copied().cycle();
                bytes.iter().copied().chain(repeated).take(len).collect()
            }
        };
        let data = ConstantData::Bytes(bytes);
        let constant = Constant { name: String::new(), element, shape: dims.to_vec(), data };
        Ok(Some((kind, ValueOrigin::Constant(constant))))
    }

    fn node(
        &mut self,
        node: &NodeDef,
        values: Vec<(String, Value)>,
        made: &[ValueId],
        positions: &HashMap<&str, usize>,
        nodes: &[NodeDef],
    ) {
        if made.is_empty() {
            return;
        }
        let mut attributes: Vec<Attribute> = Vec::new();
        let (mut inputs, mut control) = (Vec::new(), Vec::new());
        if VARIABLES.contains(&node.op.as_str()) {
            inputs.extend(self.variable(node, &values).map(Some));
        }
        for input in &node.inputs {
            if let Some(before) = input.strip_prefix('^') {
                control.push(before.as_bytes().to_vec());
                continue;
            }
            let is_back = node.op == "Merge"
                && positions
                    .get(owner(input))
                    .is_some_and(|position| nodes[*position].op == "NextIteration");
            if is_back {
                attributes.push(named("next_iteration", AttributeValue::from(input.as_str())));
                continue;
            }
            let value = self.find(input);
            inputs.push(Some(value));
        }
        let mut op = Op::new(DOMAIN, &node.op);
        for (name, value) in values {
            if let Some(function) = value.function.filter(|_| name == "f")
                && self.functions.contains(function.as_str())
            {
                attributes.push(named("operator", AttributeValue::from(node.op.as_str())));
                op = Op::new(DOMAIN, &function);
                continue;
            }
            // Programs note there what they know; names with an underscore are not of the operator.
            if let Some(shown) = value.shown.filter(|_| !name.starts_with('_')) {
                let is_twice = attributes.iter().any(|other| *other.name == *name);
                attributes.extend((!is_twice).then(|| named(&name, shown)));
            }
        }
        if !control.is_empty() {
            attributes.push(named("control_inputs", AttributeValue::Texts(control)));
        }
        self.body.add_node(Node {
            name: node.name.clone(),
            op,
            inputs,
            outputs: made.iter().copied().map(Some).collect(),
            attributes,
            doc: String::new(),
        });
    }

    /// Returns the weight of a variable, if the checkpoint has it.
    fn variable(&mut self, node: &NodeDef, values: &[(String, Value)]) -> Option<ValueId> {
        let find = |name: &str| values.iter().find(|(other, _)| other == name);
        let shared = find("shared_name").and_then(|(_, value)| match &value.shown {
            Some(AttributeValue::Text(name)) => String::from_utf8(name.clone()).ok(),
            _ => None,
        });
        let shared = shared.filter(|name| !name.is_empty());
        let restored = self.weights.restored(&node.name);
        let by_name = || {
            shared
                .and_then(|name| self.weights.variable(&name))
                .or_else(|| self.weights.variable(&node.name))
        };
        let tensor = restored.or_else(by_name)?;
        let dtype = find("dtype").and_then(|(_, value)| value.dtype);
        let shape = find("shape").and_then(|(_, value)| value.shape.as_ref());
        let kind = ValueType::Tensor(tensor_type(dtype, shape, false));
        let origin = ValueOrigin::Weight(WeightRef::whole(tensor));
        let name = format!("{}:value", node.name);
        Some(self.body.add_value(name, kind, origin))
    }

    /// Returns the value of an input. A missing value has no origin.
    fn find(&mut self, input: &str) -> ValueId {
        let key = key(input);
        let found = self.values.get(key).or_else(|| {
            // The first output of a function's node has a name of its own: `MatMul:product:0`.
            let is_first = input.ends_with(":0");
            is_first.then(|| self.values.get(owner(input)))?
        });
        if let Some(value) = found {
            return *value;
        }
        let value = self.body.add_value(key, ValueType::Unknown, ValueOrigin::Missing);
        self.values.insert(key.to_owned(), value);
        value
    }
}

/// The node that an input is of.
pub(super) fn owner(input: &str) -> &str {
    input.split(':').next().unwrap_or_default()
}

/// Returns the key of an input. The first output has the name of its node.
fn key(input: &str) -> &str {
    match input.strip_suffix(":0") {
        Some(node) if !node.contains(':') => node,
        _ => input,
    }
}

/// Outputs of a node after its first, by their positions, with the names that inputs use for them.
type Outputs = BTreeMap<usize, String>;

/// Maximum number of outputs of a node.
const MOST_OUTPUTS: usize = 4096;

/// Operators with several outputs that have names of their own.
const NAMED: [(&str, &[&str]); 8] = [
    ("FusedBatchNorm", &["y", "batch_mean", "batch_variance"]),
    ("FusedBatchNormV2", &["y", "batch_mean", "batch_variance"]),
    ("FusedBatchNormV3", &["y", "batch_mean", "batch_variance"]),
    ("MaxPoolWithArgmax", &["output", "argmax"]),
    ("TopK", &["values", "indices"]),
    ("TopKV2", &["values", "indices"]),
    ("Unique", &["y", "idx"]),
    ("UniqueV2", &["y", "idx"]),
];

/// The position of an output that a node of this operator has: `1`, or in functions the name of a
/// list and the position there, `indices:0`.
fn output_position(op: &str, output: &str) -> usize {
    let Some((name, number)) = output.rsplit_once(':') else {
        return output.parse().unwrap_or(usize::MAX);
    };
    let named = NAMED.iter().find(|(own, _)| *own == op);
    let position = named.and_then(|(_, names)| names.iter().position(|own| *own == name));
    position.or_else(|| number.parse().ok()).unwrap_or(usize::MAX)
}

/// Outputs beside the first that inputs or the caller name, by nodes.
fn outputs<'n>(
    nodes: &'n [NodeDef],
    positions: &HashMap<&str, usize>,
    returned: &'n [String],
) -> HashMap<&'n str, Outputs> {
    let mut outputs: HashMap<&str, Outputs> = HashMap::new();
    for input in nodes.iter().flat_map(|node| &node.inputs).chain(returned) {
        if let Some((node, output)) = input.split_once(':')
            && !input.starts_with('^')
            && let Some(at) = positions.get(node)
        {
            let number = output_position(&nodes[*at].op, output);
            if number > 0 && number < MOST_OUTPUTS {
                outputs.entry(node).or_default().insert(number, output.to_owned());
            }
        }
    }
    outputs
}
