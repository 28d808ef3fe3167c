//! Weights of graphs that can become integers.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, DType, Escaped, Result};
use apr_graph::{AttributeValue, Body, Graph, Node, ValueId, ValueOrigin, View, WeightRef};

use super::IsNode;
use super::integers::IntegerTensor;
use super::range::Ranges;

/// The operators that multiply by a weight, which is their second input.
const PRODUCTS: [&str; 3] = ["Conv", "Gemm", "MatMul"];
/// Position of the weight among the inputs of a product.
pub(super) const WEIGHT: usize = 1;

/// Dimension of a tensor that has a scale for each index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// A scale for each index of this dimension.
    Along(usize),
    /// One scale for the whole tensor.
    One,
}

impl Scales {
    /// Returns the scales of the tensor that a weight looks at.
    fn of_tensor(self, weight: &WeightRef) -> Result<Self, String> {
        match (self, weight.views.as_slice()) {
            (scales, []) => Ok(scales),
            (Self::One, [View::Transposed(_)]) => Ok(Self::One),
            (Self::Along(dimension), [View::Transposed(order)]) if dimension < order.len() => {
                Ok(Self::Along(order[dimension]))
            }
            _ => Err("its weight is a part of a tensor or joined from several".to_owned()),
        }
    }
}

/// The weights of a model's products.
pub(super) struct Candidates {
    /// Position and scales of each weight that can become integers, or the reason that it can't, by
    /// the tensor's name.
    found: BTreeMap<String, Result<(usize, Scales), String>>,
}

impl Candidates {
    /// Finds the weights of products in graphs. A weight counts only if each use of it in every
    /// graph can read integers.
    pub(super) fn find(
        graphs: &[(String, Graph)],
        reader: &dyn CheckpointReader,
        ranges: Option<&Ranges>,
        (keeps, excludes): (&dyn Fn(&str) -> bool, IsNode<'_>),
    ) -> Self {
        let tensors = reader.tensors().iter().enumerate();
        let positions: BTreeMap<&str, usize> =
            tensors.map(|(position, info)| (info.name.as_str(), position)).collect();
        let mut found: BTreeMap<String, Result<(usize, Scales), String>> = BTreeMap::new();
        for (name, graph) in graphs {
            let body = &graph.body;
            let uses = Uses::of(body);
            let measured = ranges.map(|ranges| ranges.of_part(name));
            let is_known = |value: ValueId| {
                measured.is_none_or(|measured| measured.contains_key(&body.value(value).name))
            };
            for (value, weight) in weights(body) {
                let Some(&position) = positions.get(weight.tensor.as_str()) else { continue };
                let info = &reader.tensors()[position];
                let rank = info.shape.dims().len();
                let scales = if keeps(&info.name) {
                    Err("the rules for types keep its weight in floats".to_owned())
                } else if info.dtype != DType::F32 {
                    Err(format!("its weight is {}, not f32", info.dtype))
                } else if info.shape.elements().is_none_or(|elements| elements == 0) {
                    // A dimension may be of any size beside one of 0.
                    Err("its weight has no elements".to_owned())
                } else {
                    let scales =
                        uses.scales((body, value), rank, measured.is_some(), (&is_known, excludes));
                    scales.and_then(|scales| scales.of_tensor(weight))
                };
                let scales = scales.map(|scales| (position, scales));
                found
                    .entry(weight.tensor.clone())
                    .and_modify(|known| {
                        if known.is_ok() && *known != scales {
                            *known = match &scales {
                                Ok(_) => Err("its weight is read along two dimensions".to_owned()),
                                Err(why) => Err(why.clone()),
                            };
                        }
                    })
                    .or_insert(scales);
            }
        }
        Self { found }
    }

    /// Returns the position of a weight and its scales, or the reason that it stays in floats.
    pub(super) fn weight(&self, tensor: &str) -> Result<(usize, Scales), &str> {
        match self.found.get(tensor) {
            Some(Ok(found)) => Ok(*found),
            Some(Err(why)) => Err(why),
            None => Err("its weight is missing from the file"),
        }
    }

    /// Returns the weights as integers, by their positions.
    pub(super) fn quantized(
        &self,
        reader: &dyn CheckpointReader,
    ) -> Result<BTreeMap<usize, IntegerTensor>> {
        let found = self.found.values().flatten();
        let quantized = found.map(|&(position, scales)| {
            let along = match scales {
                Scales::Along(dimension) => Some(dimension),
                Scales::One => None,
            };
            Ok((position, IntegerTensor::weight(reader, position, along)?))
        });
        quantized.collect()
    }
}

/// Returns `true` if a node is one of the operators that multiply by weights.
pub(super) fn is_product(node: &Node) -> bool {
    PRODUCTS.iter().any(|product| node.op.is(product))
}

/// Returns the weight that a product reads, or `None` if it reads none.
pub(super) fn weight_of<'b>(body: &'b Body, node: &Node) -> Option<&'b WeightRef> {
    match &body.value(node.input(WEIGHT)?).origin {
        ValueOrigin::Weight(weight) if is_product(node) => Some(weight),
        _ => None,
    }
}

fn weights(body: &Body) -> impl Iterator<Item = (ValueId, &WeightRef)> {
    let values = (0..).map(ValueId).zip(&body.values);
    values.filter_map(|(id, value)| match &value.origin {
        ValueOrigin::Weight(weight) => Some((id, weight)),
        _ => None,
    })
}

/// The reads of each value of a body.
struct Uses {
    /// Positions of the nodes that read a value, by value.
    readers: BTreeMap<ValueId, Vec<usize>>,
    /// Values that a body in a node reads, or an attribute names.
    within: Vec<ValueId>,
    /// Tensors that attributes and bodies in nodes name.
    named: Vec<String>,
}

impl Uses {
    fn of(body: &Body) -> Self {
        let mut uses = Self { readers: BTreeMap::new(), within: Vec::new(), named: Vec::new() };
        for (position, node) in body.nodes.iter().enumerate() {
            for value in node.inputs.iter().flatten() {
                uses.readers.entry(*value).or_default().push(position);
            }
            for inner in node.bodies() {
                let outer = inner.values.iter().filter_map(|value| match value.origin {
                    ValueOrigin::Outer(of) => Some(of),
                    _ => None,
                });
                uses.within.extend(outer);
            }
            uses.add_named(node);
        }
        uses
    }

    /// Adds the tensors that a node names other than as inputs.
    fn add_named(&mut self, node: &Node) {
        for attribute in &node.attributes {
            if let AttributeValue::Weight(weight) = &attribute.value {
                self.named.push(weight.tensor.clone());
            }
        }
        for inner in node.bodies() {
            self.named.extend(inner.weights().map(|(_, weight)| weight.tensor.clone()));
            inner.nodes.iter().for_each(|node| self.add_named(node));
        }
    }

    /// Returns how a weight is scaled for all its readers, or the reason that it stays in floats.
    fn scales(
        &self,
        (body, value): (&Body, ValueId),
        rank: usize,
        is_static: bool,
        (is_known, excludes): (&dyn Fn(ValueId) -> bool, IsNode<'_>),
    ) -> Result<Scales, String> {
        let is_named = match &body.value(value).origin {
            ValueOrigin::Weight(weight) => self.named.contains(&weight.tensor),
            _ => false,
        };
        if body.outputs.contains(&value) || self.within.contains(&value) || is_named {
            return Err("its weight is also read elsewhere".to_owned());
        }
        let mut all = None;
        for &reader in self.readers.get(&value).into_iter().flatten() {
            let node = &body.nodes[reader];
            let places = node.inputs.iter().filter(|input| **input == Some(value)).count();
            if !is_product(node) || node.input(WEIGHT) != Some(value) || places != 1 {
                return Err(format!("its weight is also read by {}", node.op));
            }
            if excludes(node) {
                return Err("`exclude_node` keeps it, or another reader of its weight".to_owned());
            }
            let scales = of_product(node, rank, is_static)?;
            let Some(input) = node.input(0) else { return Err("it has no input".to_owned()) };
            if matches!(body.value(input).origin, ValueOrigin::Weight(_) | ValueOrigin::Constant(_))
            {
                return Err("it multiplies two weights".to_owned());
            }
            if !is_known(input) {
                let input = Escaped::short(&body.value(input).name);
                return Err(format!("no calibration run computed '{input}'"));
            }
            if all.is_some_and(|all| all != scales) {
                return Err("its weight is read along two dimensions".to_owned());
            }
            all = Some(scales);
        }
        all.ok_or_else(|| "nothing reads its weight".to_owned())
    }
}

/// Returns how the weight of a product is scaled: by its output channels.
fn of_product(node: &Node, rank: usize, is_static: bool) -> Result<Scales, String> {
    let is_set = |name: &str| node.int(name).unwrap_or(0) != 0;
    let is_one = |name: &str| node.float(name).unwrap_or(1.0) == 1.0;
    if node.op.is("Conv") {
        return match is_static {
            true => Ok(Scales::Along(0)),
            false => Err("convolutions are quantized with calibration data only".to_owned()),
        };
    }
    if node.op.is("Gemm") {
        return match is_static || !is_set("transA") && is_one("alpha") && is_one("beta") {
            true => Ok(Scales::Along(usize::from(!is_set("transB")))),
            false => Err("factors and a transposed input require calibration data".to_owned()),
        };
    }
    // A stack of matrices has channels in each, which one list of scales can't have.
    Ok(if rank == 2 { Scales::Along(1) } else { Scales::One })
}
