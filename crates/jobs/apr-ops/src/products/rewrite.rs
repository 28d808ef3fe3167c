//! Replaces products of floats by products of integers in a graph.

use std::collections::{BTreeMap, HashMap, HashSet};

use apr_core::{CheckpointReader, DType, Result, UniqueNames};
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, ConstantData, Dim, ElementType, Graph, Node, NodeId,
    Op, ValueId, ValueOrigin, ValueType, View, WeightRef,
};

use super::candidates::{Candidates, Scales, WEIGHT, weight_of};
use super::integers::IntegerTensor;
use super::range::Range;
use super::{IntegerProducts, UnchangedProduct};

/// Position of the bias among the inputs of `Conv` and `Gemm`.
const BIAS: usize = 2;

/// Replaces the products of a graph whose weights are candidates. Biases that become integers are
/// added to `tensors`.
pub(super) fn rewrite(
    graph: &mut Graph,
    candidates: &Candidates,
    reader: &dyn CheckpointReader,
    tensors: &mut BTreeMap<usize, IntegerTensor>,
    ranges: Option<&BTreeMap<String, Range>>,
    report: &mut IntegerProducts,
) -> Result<()> {
    let body = &mut graph.body;
    let readers = readers(body);
    let mut rewriting = Rewriting {
        unclamped: only_clamped(body, &readers),
        readers,
        clamped: HashSet::new(),
        values: UniqueNames::of_values(),
        nodes: UniqueNames::of_values(),
        made: Vec::with_capacity(body.nodes.len()),
        replaced: HashMap::new(),
        activations: HashMap::new(),
        weights: HashMap::new(),
        reader,
        tensors,
        ranges,
    };
    body.values.iter().for_each(|value| _ = rewriting.values.take(&value.name));
    body.nodes.iter().for_each(|node| _ = rewriting.nodes.take(&node.name));
    for mut node in std::mem::take(&mut body.nodes) {
        rewriting.read_replaced(&mut node);
        let Some(weight) = weight_of(body, &node).cloned() else {
            rewriting.keep(body, node);
            continue;
        };
        report.products += 1;
        let found = candidates.weight(&weight.tensor);
        let why = match found {
            Ok(found) => rewriting.product(body, &node, &weight, found)?.err(),
            Err(why) => Some(why.to_owned()),
        };
        let Some(why) = why else {
            report.quantized += 1;
            continue;
        };
        let made = node.outputs.iter().flatten().next();
        let output = made.map(|id| body.value(*id).name.as_str()).unwrap_or_default();
        let name = if node.name.is_empty() { output } else { &node.name };
        report.unchanged.push(UnchangedProduct {
            node: name.to_owned(),
            op: node.op.to_string(),
            why,
        });
        rewriting.keep(body, node);
    }
    body.nodes = rewriting.made;
    let integers = tensors.keys().map(|position| reader.tensors()[*position].name.as_str());
    drop_floats(body, &integers.collect());
    for (position, node) in (0..).zip(&body.nodes) {
        for output in node.outputs.iter().flatten() {
            body.values[output.0 as usize].origin = ValueOrigin::Node(NodeId(position));
        }
    }
    Ok(())
}

/// Removes the origins of weights that nothing reads any more, since their tensors are `integers`
/// now. Their ids stay valid.
fn drop_floats(body: &mut Body, integers: &HashSet<&str>) {
    let readers = readers(body);
    for (value, readers) in body.values.iter_mut().zip(readers) {
        if let ValueOrigin::Weight(weight) = &value.origin
            && readers == 0
            && integers.contains(weight.tensor.as_str())
        {
            value.origin = ValueOrigin::Missing;
        }
    }
}

/// Returns the number of reads of each value, by nodes, bodies in nodes, and the outputs.
fn readers(body: &Body) -> Vec<u32> {
    let mut readers = vec![0_u32; body.values.len()];
    let inner = body.nodes.iter().flat_map(Node::bodies).flat_map(|inner| &inner.values);
    let outer = inner.filter_map(|value| match value.origin {
        ValueOrigin::Outer(of) => Some(of),
        _ => None,
    });
    let read = body.nodes.iter().flat_map(|node| node.inputs.iter().flatten().copied());
    for value in read.chain(outer).chain(body.outputs.iter().copied()) {
        readers[value.0 as usize] = readers[value.0 as usize].saturating_add(1);
    }
    readers
}

/// An activation as integers.
#[derive(Clone, Copy)]
enum Activation {
    /// The value after `QuantizeLinear` and `DequantizeLinear`, and the scale.
    Static { value: ValueId, scale: f32 },
    /// The outputs of `DynamicQuantizeLinear`.
    Dynamic { codes: ValueId, scale: ValueId, zero_point: ValueId },
}

/// A weight as integers.
#[derive(Clone, Copy)]
struct Weight {
    codes: ValueId,
    scale: ValueId,
    /// The value after `DequantizeLinear`, in graphs with ranges.
    value: Option<ValueId>,
}

struct Rewriting<'r> {
    readers: Vec<u32>,
    /// Values that only an activation function reads.
    unclamped: HashSet<ValueId>,
    /// Those of them that quantized convolutions compute: runtimes make one operator of both, so
    /// the output of the function is quantized instead.
    clamped: HashSet<ValueId>,
    /// Names of values and nodes.
    values: UniqueNames,
    nodes: UniqueNames,
    made: Vec<Node>,
    /// Values that are read in place of others.
    replaced: HashMap<ValueId, ValueId>,
    activations: HashMap<ValueId, Activation>,
    weights: HashMap<WeightRef, Weight>,
    reader: &'r dyn CheckpointReader,
    tensors: &'r mut BTreeMap<usize, IntegerTensor>,
    ranges: Option<&'r BTreeMap<String, Range>>,
}

impl Rewriting<'_> {
    /// Lets a node and the bodies in it read what replaced other values.
    fn read_replaced(&self, node: &mut Node) {
        if self.replaced.is_empty() {
            return;
        }
        let now = |id: &mut ValueId| *id = self.replaced.get(id).copied().unwrap_or(*id);
        node.inputs.iter_mut().flatten().for_each(now);
        for attribute in &mut node.attributes {
            let bodies = match &mut attribute.value {
                AttributeValue::Body(body) => std::slice::from_mut(&mut **body),
                AttributeValue::Bodies(bodies) => bodies.as_mut_slice(),
                _ => &mut [],
            };
            for value in bodies.iter_mut().flat_map(|body| &mut body.values) {
                if let ValueOrigin::Outer(of) = &mut value.origin {
                    now(of);
                }
            }
        }
    }

    /// Keeps a node, and quantizes its output if it is the activation function of a convolution.
    fn keep(&mut self, body: &mut Body, node: Node) {
        let is_end = node.input(0).is_some_and(|input| self.clamped.contains(&input));
        let output = node.outputs.first().copied().flatten();
        self.made.push(node);
        if let Some(output) = output.filter(|_| is_end) {
            self.quantize_output(body, output);
        }
    }

    /// Adds a product of integers in place of a product of floats, or returns the reason that it
    /// can't be added.
    fn product(
        &mut self,
        body: &mut Body,
        node: &Node,
        weight: &WeightRef,
        (position, scales): (usize, Scales),
    ) -> Result<Result<(), String>> {
        let (Some(input), Some(output)) = (node.input(0), node.outputs.first().copied().flatten())
        else {
            return Ok(Err("it has no input or no output".to_owned()));
        };
        let Some(activation) = self.activation(body, input) else {
            return Ok(Err("the range of its input is unknown".to_owned()));
        };
        let weight = self.weight(body, weight, position, scales);
        match activation {
            Activation::Static { value, scale } => {
                let mut node = node.clone();
                node.inputs[0] = Some(value);
                node.inputs[WEIGHT] = weight.value;
                self.bias(body, &mut node, position, scale)?;
                let is_convolution = node.op.is("Conv");
                self.made.push(node);
                if is_convolution {
                    self.end_convolution(body, output);
                }
            }
            Activation::Dynamic { codes, scale, zero_point } => {
                self.multiply(body, node, output, weight, (codes, scale, zero_point));
            }
        }
        Ok(Ok(()))
    }

    /// Quantizes the output of a convolution, or of the activation function behind it.
    fn end_convolution(&mut self, body: &mut Body, output: ValueId) {
        if self.unclamped.contains(&output) {
            self.clamped.insert(output);
        } else {
            self.quantize_output(body, output);
        }
    }

    /// Lets all later nodes read a value after quantization, if its range is known.
    fn quantize_output(&mut self, body: &mut Body, output: ValueId) {
        if body.outputs.contains(&output) {
            return;
        }
        let made = self.activation(body, output);
        if let Some(activation @ Activation::Static { value, .. }) = made {
            self.replaced.insert(output, value);
            self.activations.insert(value, activation);
        }
    }

    /// Returns an activation as integers, with the nodes that quantize it, or `None` if its range
    /// is unknown.
    fn activation(&mut self, body: &mut Body, value: ValueId) -> Option<Activation> {
        if let Some(known) = self.activations.get(&value) {
            return Some(*known);
        }
        let name = body.value(value).name.clone();
        let made = match self.ranges {
            Some(ranges) => {
                let (scale, zero_point) = ranges.get(&name)?.scale();
                let factor = self.constant(body, &format!("{name}_scale"), Constant::float(scale));
                let zero_point = bytes(&[zero_point], &[]);
                let zero_point = self.constant(body, &format!("{name}_zero_point"), zero_point);
                let inputs = [value, factor, zero_point];
                let codes = self.node(body, "QuantizeLinear", &name, &inputs, Vec::new());
                let inputs = [codes, factor, zero_point];
                let value = self.node(body, "DequantizeLinear", &name, &inputs, Vec::new());
                Activation::Static { value, scale }
            }
            None => {
                let codes = self.value(body, format!("{name}_quantized"));
                let scale = self.value(body, format!("{name}_scale"));
                let zero_point = self.value(body, format!("{name}_zero_point"));
                self.made.push(Node {
                    name: self.nodes.unique(format!("{name}_QuantizeLinear")),
                    op: Op::onnx("DynamicQuantizeLinear"),
                    inputs: vec![Some(value)],
                    outputs: vec![Some(codes), Some(scale), Some(zero_point)],
                    attributes: Vec::new(),
                    doc: String::new(),
                });
                Activation::Dynamic { codes, scale, zero_point }
            }
        };
        self.activations.insert(value, made);
        Some(made)
    }

    /// Returns a weight as integers, with the node that dequantizes it in graphs with ranges.
    fn weight(
        &mut self,
        body: &mut Body,
        weight: &WeightRef,
        position: usize,
        scales: Scales,
    ) -> Weight {
        if let Some(known) = self.weights.get(weight) {
            return *known;
        }
        let tensor = weight.tensor.as_str();
        let dims = self.reader.tensors()[position].shape.dims().to_vec();
        let (order, views) = match &weight.views[..] {
            [View::Transposed(order)] => (order.clone(), weight.views.clone()),
            _ => ((0..dims.len()).collect(), Vec::new()),
        };
        let dims: Vec<u64> = order.iter().map(|at| dims[*at]).collect();
        let place = WeightRef { tensor: tensor.to_owned(), views };
        let codes = self.tensor(body, place, ElementType::I8, &dims);
        let factors = &self.tensors[&position].scales;
        let (scale, axis) = match scales {
            Scales::Along(dimension) => {
                (Constant::floats(factors), order.iter().position(|at| *at == dimension))
            }
            Scales::One => (Constant::float(factors[0]), None),
        };
        let zeros = bytes(&vec![0; factors.len()], &scale.shape);
        let scale = self.constant(body, &format!("{tensor}_scale"), scale);
        let value = self.ranges.is_some().then(|| {
            let zeros = self.constant(body, &format!("{tensor}_zero_point"), zeros);
            let axis = axis.and_then(|axis| i64::try_from(axis).ok());
            let attributes = axis.map(|axis| int("axis", axis)).into_iter().collect();
            self.node(body, "DequantizeLinear", tensor, &[codes, scale, zeros], attributes)
        });
        let made = Weight { codes, scale, value };
        self.weights.insert(weight.clone(), made);
        made
    }

    /// Lets a product read its bias as integers that have the scale of its sums, if nothing else
    /// reads the bias.
    fn bias(
        &mut self,
        body: &mut Body,
        node: &mut Node,
        position: usize,
        scale: f32,
    ) -> Result<()> {
        let is_one = |name: &str| node.float(name).unwrap_or(1.0) == 1.0;
        let Some(value) = node.input(BIAS).filter(|_| is_one("alpha") && is_one("beta")) else {
            return Ok(());
        };
        let ValueOrigin::Weight(WeightRef { tensor, views }) = body.value(value).origin.clone()
        else {
            return Ok(());
        };
        let infos = self.reader.tensors();
        let bias = infos.iter().position(|info| info.name == tensor);
        let scales: Vec<f32> =
            self.tensors[&position].scales.iter().map(|weight| scale * weight).collect();
        let fits = |bias: &usize| {
            let info = &infos[*bias];
            info.dtype == DType::F32
                && info.shape.dims() == [scales.len() as u64]
                && views.is_empty()
                && self.readers.get(value.0 as usize) == Some(&1)
                && body.weights().filter(|(_, weight)| weight.tensor == tensor).count() == 1
                && !self.tensors.contains_key(bias)
        };
        let Some(bias) = bias.filter(fits) else { return Ok(()) };
        let count = scales.len() as u64;
        let Some(integers) = IntegerTensor::bias(self.reader, bias, scales.clone())? else {
            return Ok(());
        };
        self.tensors.insert(bias, integers);
        let place = WeightRef::whole(&*tensor);
        let codes = self.tensor(body, place, ElementType::I32, &[count]);
        let scale =
            self.constant(body, &format!("{tensor}_quantized_scale"), Constant::floats(&scales));
        let attributes = vec![int("axis", 0)];
        let inputs = [codes, scale];
        node.inputs[BIAS] = Some(self.node(body, "DequantizeLinear", &tensor, &inputs, attributes));
        Ok(())
    }

    /// Adds `MatMulInteger` and the nodes around it, in place of a product.
    fn multiply(
        &mut self,
        body: &mut Body,
        node: &Node,
        output: ValueId,
        weight: Weight,
        (codes, scale, zero_point): (ValueId, ValueId, ValueId),
    ) {
        let name = body.value(output).name.clone();
        let mut matrix = weight.codes;
        if node.int("transB").unwrap_or(0) != 0 {
            let order = vec![Attribute { name: "perm".into(), value: vec![1_i64, 0].into() }];
            matrix = self.node(body, "Transpose", &format!("{name}_weight"), &[matrix], order);
        }
        // All zero points of weights are 0, for which one serves as well as a list.
        let zero = self.constant(body, &format!("{name}_weight_zero_point"), bytes(&[0], &[]));
        let inputs = [codes, matrix, zero_point, zero];
        let sums = self.node(body, "MatMulInteger", &name, &inputs, Vec::new());
        let floats = self.node(body, "Cast", &name, &[sums], vec![int("to", 1)]);
        let scales =
            self.node(body, "Mul", &format!("{name}_scales"), &[scale, weight.scale], Vec::new());
        let made = match node.input(BIAS) {
            None => Vec::from([floats, scales].map(Some)),
            Some(bias) => {
                let inputs = [floats, scales];
                let product =
                    self.node(body, "Mul", &format!("{name}_product"), &inputs, Vec::new());
                Vec::from([product, bias].map(Some))
            }
        };
        let op = Op::onnx(if node.input(BIAS).is_some() { "Add" } else { "Mul" });
        // The last node keeps the name of the product.
        self.made.push(Node {
            op,
            inputs: made,
            outputs: vec![Some(output)],
            attributes: Vec::new(),
            ..node.clone()
        });
    }

    /// Adds a node with one output, both named after `name`, and returns the output.
    fn node(
        &mut self,
        body: &mut Body,
        op: &str,
        name: &str,
        inputs: &[ValueId],
        attributes: Vec<Attribute>,
    ) -> ValueId {
        let output = self.value(body, format!("{name}_{op}_Output"));
        self.made.push(Node {
            name: self.nodes.unique(format!("{name}_{op}")),
            op: Op::onnx(op),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
            attributes,
            doc: String::new(),
        });
        output
    }

    fn value(&mut self, body: &mut Body, name: String) -> ValueId {
        let name = self.values.unique(name);
        body.add_value(name, ValueType::Unknown, ValueOrigin::Missing)
    }

    fn constant(&mut self, body: &mut Body, name: &str, constant: Constant) -> ValueId {
        let name = self.values.unique(name.to_owned());
        let dims = constant.shape.iter().copied().map(Dim::fixed);
        let kind = ValueType::tensor(constant.element, dims);
        body.add_value(name, kind, ValueOrigin::Constant(constant))
    }

    /// Adds the value of a tensor that is read as integers.
    fn tensor(
        &mut self,
        body: &mut Body,
        weight: WeightRef,
        element: ElementType,
        dims: &[u64],
    ) -> ValueId {
        let name = self.values.unique(format!("{}_quantized", weight.tensor));
        let kind = ValueType::tensor(element, dims.iter().copied().map(Dim::fixed));
        body.add_value(name, kind, ValueOrigin::Weight(weight))
    }
}

/// Returns the values that one node reads, which runtimes compute within a convolution of integers.
fn only_clamped(body: &Body, readers: &[u32]) -> HashSet<ValueId> {
    let clamps = body.nodes.iter().filter(|node| node.op.is("Relu") || node.op.is("Clip"));
    let inputs = clamps.filter_map(|node| node.input(0));
    inputs.filter(|input| readers[input.0 as usize] == 1).collect()
}

fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.into(), value: AttributeValue::Int(value) }
}

/// A constant of 8-bit integers.
fn bytes(values: &[i8], shape: &[u64]) -> Constant {
    Constant {
        name: String::new(),
        element: ElementType::I8,
        shape: shape.to_vec(),
        data: ConstantData::Bytes(values.iter().map(|value| value.to_le_bytes()[0]).collect()),
    }
}
