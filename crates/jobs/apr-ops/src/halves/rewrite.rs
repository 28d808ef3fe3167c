//! Halves in place of single precision, with casts at the borders.

use std::collections::{BTreeSet, HashMap, HashSet};

use apr_core::{CheckpointReader, DType, Result, UniqueNames};
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, ConstantData, ElementType, Node, Op, Operator,
    Parameter, ValueId, ValueOrigin, ValueType,
};
use apr_tensor::cast::cast_float;

use super::Halves;
use super::rules::{Way, is_float};
use crate::simplify::{bodies_mut, reads, set_origins, used};

/// The largest half.
pub(super) const LARGEST: f32 = 65504.0;
/// The smallest half above 0.
const SMALLEST: f32 = 5.960_464_5e-8;

/// Changes a body.
pub(super) struct Rewrite<'g> {
    body: &'g mut Body,
    reader: &'g dyn CheckpointReader,
    /// Positions of the tensors by name.
    positions: HashMap<&'g str, usize>,
    report: &'g mut Halves,
    /// Names of tensors that nodes read in halves.
    pub(super) halved: BTreeSet<String>,
    /// Names of tensors that nodes read in single precision.
    pub(super) kept: BTreeSet<String>,
    values: UniqueNames,
    nodes: UniqueNames,
    made: Vec<Node>,
    /// Values that are halves now and were floats.
    now_halves: HashSet<ValueId>,
    /// Values with the same elements in the other type.
    others: HashMap<ValueId, ValueId>,
}

impl<'g> Rewrite<'g> {
    pub(super) fn new(
        body: &'g mut Body,
        reader: &'g dyn CheckpointReader,
        report: &'g mut Halves,
    ) -> Self {
        let (mut values, mut nodes) = (UniqueNames::of_values(), UniqueNames::of_values());
        body.values.iter().for_each(|value| _ = values.take(&value.name));
        body.nodes.iter().for_each(|node| _ = nodes.take(&node.name));
        let tensors = reader.tensors().iter().enumerate();
        let positions = tensors.map(|(position, info)| (info.name.as_str(), position));
        Self {
            body,
            reader,
            positions: positions.collect(),
            report,
            halved: BTreeSet::new(),
            kept: BTreeSet::new(),
            values,
            nodes,
            made: Vec::new(),
            now_halves: HashSet::new(),
            others: HashMap::new(),
        }
    }

    /// Makes nodes compute in the given ways.
    pub(super) fn run(&mut self, ways: &[Way], keep_io: bool) -> Result<()> {
        if !keep_io {
            for id in self.body.inputs.clone() {
                // Tensors of an old file are inputs, too, and callers do not pass them.
                let is_given = self.body.value(id).origin == ValueOrigin::Input;
                if is_given && is_float(self.body, id) {
                    self.become_half(id);
                }
            }
        }
        let nodes = std::mem::take(&mut self.body.nodes);
        for (node, way) in nodes.into_iter().zip(ways) {
            match way {
                Way::Neutral => self.made.push(node),
                Way::Floats(why) => self.in_floats(node, why)?,
                Way::Halves(operator, labels) => self.in_halves(node, operator, labels)?,
            }
        }
        self.outputs(keep_io)?;
        self.body.nodes = std::mem::take(&mut self.made);
        set_origins(self.body);
        Ok(())
    }

    /// Adds a node that computes in single precision.
    fn in_floats(&mut self, mut node: Node, why: &'static str) -> Result<()> {
        self.report.nodes += 1;
        let of_operator = self.report.unchanged.entry(why).or_default();
        *of_operator.entry(node.op.to_string()).or_default() += 1;
        for input in node.inputs.iter_mut().flatten() {
            *input = self.as_float(*input)?;
        }
        for inner in bodies_mut(&mut node) {
            used(inner, &mut self.kept);
            for value in &mut inner.values {
                if let ValueOrigin::Outer(of) = &mut value.origin {
                    *of = self.as_float(*of)?;
                }
            }
        }
        self.made.push(node);
        Ok(())
    }

    /// Adds a node that computes in halves as far as its parameters have the type labels.
    fn in_halves(
        &mut self,
        mut node: Node,
        operator: &'static Operator,
        labels: &BTreeSet<&'static str>,
    ) -> Result<()> {
        self.report.nodes += 1;
        self.report.halves += 1;
        let is_half = |parameter: Option<&Parameter>| {
            parameter.is_some_and(|parameter| labels.contains(parameter.label))
        };
        for position in 0..node.inputs.len() {
            let Some(id) = node.inputs[position] else { continue };
            node.inputs[position] = Some(match is_half(operator.input(position)) {
                true => self.as_half(id)?,
                false => self.as_float(id)?,
            });
        }
        for position in 0..node.outputs.len() {
            let Some(id) = node.outputs[position] else { continue };
            if is_float(self.body, id) && is_half(operator.output(position)) {
                self.become_half(id);
            }
        }
        self.made.push(node);
        Ok(())
    }

    /// Casts the outputs that do not have the type that callers get.
    fn outputs(&mut self, keep_io: bool) -> Result<()> {
        for position in 0..self.body.outputs.len() {
            let id = self.body.outputs[position];
            let is_half = self.now_halves.contains(&id);
            let is_made = matches!(self.body.value(id).origin, ValueOrigin::Node(_));
            if !is_made || is_half != keep_io || !is_half && !is_float(self.body, id) {
                self.note_output(id);
                continue;
            }
            // The output keeps its name.
            let name = self.body.value(id).name.clone();
            let inner =
                self.values.unique(format!("{name}_{}", if is_half { "f16" } else { "f32" }));
            self.body.value_mut(id).name = inner;
            let meaning = self.body.value(id).meaning;
            let output =
                self.cast(id, name, if is_half { ElementType::F32 } else { ElementType::F16 });
            self.body.value_mut(output).meaning = meaning;
            self.body.outputs[position] = output;
        }
        Ok(())
    }

    /// Records that callers get a tensor of the file as it is.
    fn note_output(&mut self, id: ValueId) {
        if let ValueOrigin::Weight(weight) = &self.body.value(id).origin {
            self.kept.insert(weight.tensor.clone());
        }
    }

    /// Returns a value in single precision.
    fn as_float(&mut self, id: ValueId) -> Result<ValueId> {
        if let ValueOrigin::Weight(weight) = &self.body.value(id).origin
            && is_float(self.body, id)
        {
            self.kept.insert(weight.tensor.clone());
        }
        if !self.now_halves.contains(&id) {
            return Ok(id);
        }
        if let Some(other) = self.others.get(&id) {
            return Ok(*other);
        }
        let name = self.values.unique(format!("{}_f32", self.body.value(id).name));
        let other = self.cast(id, name, ElementType::F32);
        self.others.insert(id, other);
        Ok(other)
    }

    /// Returns a value in halves.
    fn as_half(&mut self, id: ValueId) -> Result<ValueId> {
        if !is_float(self.body, id) || self.now_halves.contains(&id) {
            return Ok(id);
        }
        if let Some(other) = self.others.get(&id) {
            return Ok(*other);
        }
        let name = self.values.unique(format!("{}_f16", self.body.value(id).name));
        let other = match self.stored(id)? {
            Some(origin) => {
                let mut kind = self.body.value(id).kind.clone();
                set_element(&mut kind, ElementType::F16);
                self.body.add_value(name, kind, origin)
            }
            None => self.cast(id, name, ElementType::F16),
        };
        self.others.insert(id, other);
        Ok(other)
    }

    /// Returns the origin in halves of a constant or a weight.
    fn stored(&mut self, id: ValueId) -> Result<Option<ValueOrigin>> {
        let constant = match &self.body.value(id).origin {
            ValueOrigin::Constant(constant) => constant.clone(),
            ValueOrigin::Weight(weight) => {
                let tensors = self.reader.tensors();
                let position = self.positions.get(weight.tensor.as_str()).copied();
                let one = position.filter(|position| {
                    let info = &tensors[*position];
                    let is_one = info.shape.elements() == Some(1) && info.dtype == DType::F32;
                    is_one && weight.views.is_empty()
                });
                let Some(position) = one else {
                    self.halved.insert(weight.tensor.clone());
                    return Ok(Some(ValueOrigin::Weight(weight.clone())));
                };
                // A number, such as an epsilon, must not become 0.
                let mut bytes = [0; 4];
                self.reader.read_tensor(position, 0, &mut bytes)?;
                Constant {
                    name: String::new(),
                    element: ElementType::F32,
                    shape: tensors[position].shape.dims().to_vec(),
                    data: ConstantData::Bytes(bytes.to_vec()),
                }
            }
            _ => return Ok(None),
        };
        Ok(self.half_of(constant).map(ValueOrigin::Constant))
    }

    /// Returns a constant in halves. Finite numbers stay finite, and numbers other than 0 do not
    /// become 0.
    fn half_of(&mut self, constant: Constant) -> Option<Constant> {
        let values = constant.as_floats()?;
        let mut bytes = Vec::with_capacity(values.len() * 4);
        for value in values {
            let size = value.abs();
            let is_beyond = size.is_finite() && size > LARGEST || size > 0.0 && size < SMALLEST;
            let clamped =
                if is_beyond { size.clamp(SMALLEST, LARGEST).copysign(value) } else { value };
            self.report.clamped += u64::from(is_beyond);
            bytes.extend_from_slice(&clamped.to_le_bytes());
        }
        let mut halves = Vec::with_capacity(bytes.len() / 2);
        cast_float(DType::F32, DType::F16, &bytes, &mut halves);
        Some(Constant { element: ElementType::F16, data: ConstantData::Bytes(halves), ..constant })
    }

    /// Adds a cast of a value, and returns its output.
    fn cast(&mut self, id: ValueId, name: String, to: ElementType) -> ValueId {
        let mut kind = self.body.value(id).kind.clone();
        set_element(&mut kind, to);
        let node = self.nodes.unique(format!("{name}_Cast"));
        let output = self.body.add_value(name, kind, ValueOrigin::Missing);
        let code = AttributeValue::Int(i64::from(to.onnx_code()));
        self.made.push(Node {
            name: node,
            op: Op::onnx("Cast"),
            inputs: vec![Some(id)],
            outputs: vec![Some(output)],
            attributes: vec![Attribute { name: "to".into(), value: code }],
            doc: String::new(),
        });
        self.report.casts += 1;
        output
    }

    /// Sets the type of an input or of a node's output.
    fn become_half(&mut self, id: ValueId) {
        set_element(&mut self.body.value_mut(id).kind, ElementType::F16);
        self.now_halves.insert(id);
    }
}

/// Removes casts of stored floats: the values that they make look at the tensors directly.
pub(super) fn uncast(body: &mut Body) {
    let readers = reads(body);
    let mut rest = Vec::with_capacity(body.nodes.len());
    for node in std::mem::take(&mut body.nodes) {
        let (&[Some(input)], &[Some(output)]) = (&node.inputs[..], &node.outputs[..]) else {
            rest.push(node);
            continue;
        };
        let is_stored = matches!(body.value(input).origin, ValueOrigin::Weight(_))
            && body.value(input).element().is_some_and(ElementType::is_float)
            && readers[input.0 as usize] == 1;
        let is_free = !body.inputs.contains(&input) && !body.outputs.contains(&output);
        if !(node.op.is("Cast") && is_stored && is_free && is_float(body, output)) {
            rest.push(node);
            continue;
        }
        // The tensor keeps its name.
        let name = std::mem::take(&mut body.value_mut(input).name);
        let free = std::mem::replace(&mut body.value_mut(output).name, name);
        body.value_mut(input).name = free;
        let origin = std::mem::replace(&mut body.value_mut(input).origin, ValueOrigin::Missing);
        body.value_mut(output).origin = origin;
    }
    body.nodes = rest;
    set_origins(body);
}

/// Turns `Constant` nodes with floats into constants of the body, except outputs.
pub(super) fn hoist(body: &mut Body) {
    let mut rest = Vec::with_capacity(body.nodes.len());
    for node in std::mem::take(&mut body.nodes) {
        let value = node.attributes.first().map(|attribute| &attribute.value);
        let constant = match value {
            Some(AttributeValue::Tensor(constant)) => Some(constant.clone()),
            Some(AttributeValue::Float(value)) => Some(Constant::float(*value)),
            Some(AttributeValue::Floats(values)) => Some(Constant::floats(values)),
            _ => None,
        };
        let floats = constant.filter(|constant| constant.element == ElementType::F32);
        match (floats, &node.outputs[..]) {
            (Some(constant), &[Some(output)])
                if node.op.is("Constant") && !body.outputs.contains(&output) =>
            {
                body.value_mut(output).origin = ValueOrigin::Constant(constant);
            }
            _ => rest.push(node),
        }
    }
    body.nodes = rest;
    set_origins(body);
}

fn set_element(kind: &mut ValueType, element: ElementType) {
    if let ValueType::Tensor(tensor) = kind {
        tensor.element = Some(element);
    }
}
