//! Nodes with known inputs, which the engine computes once.

use std::collections::{BTreeMap, HashSet};

use apr_core::{CheckpointReader, Result, Shape, TensorInfo};
use apr_graph::{
    AttributeValue, Body, Constant, ConstantData, Dim, ElementType, Graph, Node, Opset, Value,
    ValueId, ValueOrigin, ValueType, WeightRef,
};
use apr_view::View;

use super::edit::{only_output, reads, set_origins};
use super::engine::{self, Computed};
use super::facts::Facts;
use super::{is_quantized, is_random};

/// Bytes by which the outputs of a node may be larger than its inputs.
const MOST_ADDED: u64 = 1 << 20;
/// Bytes of all computed tensors beyond twice the tensors of the model.
const MOST_ALTOGETHER: u64 = 64 << 20;
/// Maximum bytes of integers that become a part of the graph, so that shapes are known.
const SMALL: usize = 64 << 10;
/// Maximum number of rounds of a turn. A round folds nodes with known output sizes and the nodes
/// that read them.
const MOST_ROUNDS: usize = 8;

/// Maximum number of nodes of a round that are computed one by one.
const MOST_ALONE: usize = 1000;

/// Operators that define how tensors are quantized. Runtimes look for them.
const KEPT: [&str; 3] = ["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"];

/// Results of folding so far.
#[derive(Default)]
pub(super) struct Folding {
    /// Number of computed tensors.
    pub(super) tensors: u64,
    /// Names of nodes with a too large output.
    pub(super) too_large: Vec<String>,
    /// Names of nodes that are not folded.
    failed: HashSet<String>,
    /// Names of tensors in quantized blocks.
    blocks: HashSet<String>,
    /// Bytes that more computed tensors may take.
    left: u64,
}

/// Tensors of the enclosing body that a body reads.
type Around = BTreeMap<ValueId, (ValueType, ValueOrigin)>;

/// A body whose nodes are folded.
struct Site<'s> {
    around: Around,
    opsets: &'s [Opset],
}

impl Folding {
    /// Creates the state for graphs of these tensors.
    pub(super) fn of(view: &View<'_>) -> Self {
        let blocks = view.tensors().iter().filter(|info| info.dtype.is_quantized());
        let blocks = blocks.map(|info| info.name.clone()).collect();
        let stored = view.tensors().iter().filter_map(|info| info.byte_len().ok());
        let stored = stored.fold(0, u64::saturating_add);
        let left = stored.saturating_mul(2).saturating_add(MOST_ALTOGETHER);
        Self { blocks, left, ..Self::default() }
    }

    /// Returns `true` if the engine can compute tensors of this many bytes.
    pub(super) fn can_hold(&self, bytes: u64) -> bool {
        engine::IS_BUILT && bytes <= self.left
    }

    /// Folds the nodes of a body, and returns their number. Tensors of floats are added to `view`.
    pub(super) fn run(
        &mut self,
        body: &mut Body,
        outer: Option<&Body>,
        facts: &Facts,
        opsets: &[Opset],
        view: &mut View<'_>,
    ) -> u64 {
        let site = Site { around: around(body, outer), opsets };
        let mut count = hold_constants(body) + self.shapes(body, facts);
        for _ in 0..MOST_ROUNDS {
            let ready = self.ready(body, &site.around);
            if ready.is_empty() {
                break;
            }
            count += self.fold(body, &ready, &site, view);
        }
        count
    }

    /// Replaces nodes by the integers that inference found for their outputs.
    fn shapes(&mut self, body: &mut Body, facts: &Facts) -> u64 {
        let found: Vec<(usize, ValueId, Constant)> = (0..body.nodes.len())
            .filter_map(|at| {
                let node = &body.nodes[at];
                let output = only_output(node).filter(|id| !body.outputs.contains(id))?;
                let value = body.value(output);
                let is_known = value.element() == Some(ElementType::I64)
                    && !is_random(node)
                    && node.bodies().next().is_none();
                let known = facts.integers(output).filter(|_| is_known)?;
                let shape = sizes(value)?;
                let count = known.shape[0];
                (shape.iter().product::<u64>() == count).then_some((
                    at,
                    output,
                    Constant { shape, ..known },
                ))
            })
            .collect();
        let count = found.len() as u64;
        self.tensors += count;
        let gone = found.iter().map(|(at, ..)| *at).collect();
        for (_, output, constant) in found {
            body.value_mut(output).origin = ValueOrigin::Constant(constant);
        }
        remove(body, &gone);
        count
    }

    /// Returns the positions of nodes that can be computed together.
    ///
    /// The inputs of such a node are tensors, or outputs of known size of the nodes before it.
    fn ready(&mut self, body: &Body, around: &Around) -> Vec<usize> {
        let outputs: HashSet<ValueId> = body.outputs.iter().copied().collect();
        let mut pending: HashSet<ValueId> = HashSet::new();
        let (mut ready, mut total) = (Vec::new(), 0_u64);
        for (at, node) in body.nodes.iter().enumerate() {
            let is_known = |id: &ValueId| pending.contains(id) || self.is_tensor(body, *id, around);
            let is_free = node.outputs.iter().flatten().all(|id| !outputs.contains(id));
            if !is_free || !node.inputs.iter().flatten().all(is_known) || !is_foldable(node) {
                continue;
            }
            let waits = node.inputs.iter().flatten().any(|id| pending.contains(id));
            let identity = identity(body, node);
            if self.failed.contains(&identity) {
                continue;
            }
            let Some(made) = made(body, node) else {
                // Its outputs must be looked at before others read them.
                if !waits {
                    ready.push(at);
                }
                continue;
            };
            if widens_quantized(body, node, made, around) {
                self.failed.insert(identity);
                continue;
            }
            if made > most(body, node) || total.saturating_add(made) > self.left {
                self.failed.insert(identity.clone());
                self.too_large.push(identity);
                continue;
            }
            total += made;
            pending.extend(node.outputs.iter().flatten().copied());
            ready.push(at);
        }
        ready
    }

    /// Returns `true` for a tensor that no caller replaces and that is not in quantized blocks.
    fn is_tensor(&self, body: &Body, id: ValueId, around: &Around) -> bool {
        let is_plain = |origin: &ValueOrigin| match origin {
            ValueOrigin::Weight(weight) => !self.blocks.contains(&weight.tensor),
            _ => true,
        };
        match around.get(&id) {
            Some((_, origin)) => is_plain(origin),
            None => is_constant(body, id) && is_plain(&body.value(id).origin),
        }
    }

    /// Computes nodes and stores the outputs that others read. Returns the number of nodes.
    fn fold(
        &mut self,
        body: &mut Body,
        ready: &[usize],
        site: &Site<'_>,
        view: &mut View<'_>,
    ) -> u64 {
        if let Ok(computed) = evaluate(body, ready, site, view) {
            return self.store(body, ready, computed, view);
        }
        // The engine may not know one of them.
        let mut count = 0;
        let mut alone = Vec::new();
        for &at in ready {
            let mut inputs = body.nodes[at].inputs.iter().flatten();
            if inputs.all(|id| self.is_tensor(body, *id, &site.around)) {
                alone.push(at);
            }
        }
        alone.truncate(MOST_ALONE);
        let mut computed = Vec::new();
        for at in alone {
            match evaluate(body, &[at], site, view) {
                Ok(tensors) => computed.push((at, tensors)),
                Err(_) => _ = self.failed.insert(identity(body, &body.nodes[at])),
            }
        }
        // Positions change when nodes are removed, so the last is first.
        for (at, tensors) in computed.into_iter().rev() {
            count += self.store(body, &[at], tensors, view);
        }
        count
    }

    /// Puts tensors in the place of the nodes that make them.
    fn store(
        &mut self,
        body: &mut Body,
        nodes: &[usize],
        computed: Vec<(ValueId, Computed)>,
        view: &mut View<'_>,
    ) -> u64 {
        let mut computed: BTreeMap<ValueId, Computed> = computed.into_iter().collect();
        let mut taken: HashSet<String> =
            view.tensors().iter().map(|info| info.name.clone()).collect();
        let mut gone = HashSet::new();
        for &at in nodes {
            let node = &body.nodes[at];
            let own: Vec<(ValueId, Computed)> = node
                .outputs
                .iter()
                .flatten()
                .filter_map(|id| Some((*id, computed.remove(id)?)))
                .collect();
            let bytes: u64 = own.iter().map(|(_, tensor)| tensor.bytes.len() as u64).sum();
            if made(body, node).is_none() && (bytes > most(body, node) || bytes > self.left) {
                let identity = identity(body, node);
                self.failed.insert(identity.clone());
                self.too_large.push(identity);
                continue;
            }
            self.left = self.left.saturating_sub(bytes);
            for (id, tensor) in own {
                self.tensors += 1;
                let shape = tensor.shape.iter().copied().map(Dim::fixed);
                body.value_mut(id).kind = ValueType::tensor(tensor.element, shape);
                let origin = stored(&body.value(id).name, tensor, view, &mut taken);
                body.value_mut(id).origin = origin;
            }
            gone.insert(at);
        }
        remove(body, &gone);
        gone.len() as u64
    }
}

/// Returns `true` if a value is a tensor that no caller replaces.
pub(super) fn is_constant(body: &Body, id: ValueId) -> bool {
    let is_stored =
        matches!(body.value(id).origin, ValueOrigin::Constant(_) | ValueOrigin::Weight(_));
    is_stored && !body.inputs.contains(&id)
}

/// Returns `true` if a node computes tensors from its inputs alone.
fn is_foldable(node: &Node) -> bool {
    let is_tensor = |attribute: &AttributeValue| {
        !matches!(attribute, AttributeValue::OfCall(_) | AttributeValue::Opaque(_))
    };
    node.bodies().next().is_none()
        && node.attributes.iter().all(|attribute| is_tensor(&attribute.value))
        && !is_random(node)
        && !KEPT.contains(&&*node.op.name)
}

/// Returns `true` if a node makes more bytes of quantized weights.
fn widens_quantized(body: &Body, node: &Node, made: u64, around: &Around) -> bool {
    let kind = |id: &ValueId| match around.get(id) {
        Some((ValueType::Tensor(kind), _)) => kind.element,
        _ => body.value(*id).element(),
    };
    let narrow = node.inputs.iter().flatten().filter(|id| kind(id).is_some_and(is_quantized));
    let read: Vec<u64> = narrow.map(|id| bytes(body.value(*id)).unwrap_or_default()).collect();
    !read.is_empty() && made > read.iter().sum::<u64>()
}

/// Returns the name of a node's first output, which identifies the node.
fn identity(body: &Body, node: &Node) -> String {
    let output = node.outputs.iter().flatten().next();
    output.map_or_else(|| node.name.clone(), |id| body.value(*id).name.clone())
}

/// Returns the tensors of the enclosing body that a body reads.
fn around(body: &Body, outer: Option<&Body>) -> Around {
    let Some(outer) = outer else { return Around::new() };
    let ids = (0..).map(ValueId).zip(&body.values);
    ids.filter_map(|(id, value)| match value.origin {
        ValueOrigin::Outer(of) if is_constant(outer, of) => {
            let value = outer.value(of);
            Some((id, (value.kind.clone(), value.origin.clone())))
        }
        _ => None,
    })
    .collect()
}

/// Makes constants of `Constant` nodes, and returns their number.
fn hold_constants(body: &mut Body) -> u64 {
    let mut held = Vec::new();
    for (at, node) in body.nodes.iter().enumerate() {
        let output = only_output(node).filter(|id| !body.outputs.contains(id));
        let (Some(output), true) = (output, node.op.is("Constant")) else { continue };
        let origin = match node.attribute("value") {
            Some(AttributeValue::Tensor(constant)) => ValueOrigin::Constant(constant.clone()),
            Some(AttributeValue::Weight(weight)) => ValueOrigin::Weight(weight.clone()),
            _ => continue,
        };
        held.push((at, output, origin));
    }
    let gone = held.iter().map(|(at, ..)| *at).collect();
    let count = held.len() as u64;
    for (_, output, origin) in held {
        if let ValueOrigin::Constant(constant) = &origin {
            let shape = constant.shape.iter().copied().map(Dim::fixed);
            body.value_mut(output).kind = ValueType::tensor(constant.element, shape);
        }
        body.value_mut(output).origin = origin;
    }
    remove(body, &gone);
    count
}

/// Removes nodes whose outputs have other origins now.
fn remove(body: &mut Body, gone: &HashSet<usize>) {
    if gone.is_empty() {
        return;
    }
    let mut position = 0;
    body.nodes.retain(|_| {
        position += 1;
        !gone.contains(&(position - 1))
    });
    set_origins(body);
}

/// Computes nodes, and returns the outputs that other nodes read.
fn evaluate(
    body: &Body,
    nodes: &[usize],
    site: &Site<'_>,
    reader: &dyn CheckpointReader,
) -> Result<Vec<(ValueId, Computed)>> {
    let mut graph = Graph { opsets: site.opsets.to_vec(), ..Graph::default() };
    let mut known: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut reads = reads(body);
    let mut made = Vec::new();
    let mut size = 0_u64;
    for &at in nodes {
        let mut node = body.nodes[at].clone();
        for id in node.inputs.iter_mut().flatten() {
            reads[id.0 as usize] -= 1;
            *id = *known.entry(*id).or_insert_with(|| {
                let own = body.value(*id);
                size = size.saturating_add(bytes(own).unwrap_or_default());
                let around = site.around.get(id).cloned();
                let (kind, origin) =
                    around.unwrap_or_else(|| (own.kind.clone(), own.origin.clone()));
                graph.body.add_value(format!("value {}", id.0), kind, origin)
            });
        }
        for id in node.outputs.iter_mut().flatten() {
            let (name, kind) = (format!("value {}", id.0), ValueType::Unknown);
            size = size.saturating_add(bytes(body.value(*id)).unwrap_or_default());
            let place = graph.body.add_value(name, kind, ValueOrigin::Missing);
            known.insert(*id, place);
            made.push((*id, place));
            *id = place;
        }
        graph.body.add_node(node);
    }
    made.retain(|(id, _)| reads[id.0 as usize] > 0);
    if made.is_empty() {
        return Ok(Vec::new());
    }
    graph.body.outputs = made.iter().map(|(_, place)| *place).collect();
    let computed = engine::evaluate(&graph, reader, size, nodes.len() as u64)?;
    Ok(made.into_iter().map(|(id, _)| id).zip(computed).collect())
}

/// Adds a tensor to the view, or returns it as a part of the graph.
///
/// Small integers are a part of the graph, and so are infinite values, which masks have.
fn stored(
    name: &str,
    tensor: Computed,
    view: &mut View<'_>,
    taken: &mut HashSet<String>,
) -> ValueOrigin {
    let Computed { element, shape, bytes, is_finite } = tensor;
    let is_number = shape.iter().product::<u64>() <= 1;
    let is_small = !element.is_float() && bytes.len() <= SMALL;
    let dtype = element.dtype().filter(|_| !is_number && !is_small && is_finite);
    let Some(dtype) = dtype else {
        let data = ConstantData::Bytes(bytes);
        return ValueOrigin::Constant(Constant { name: String::new(), element, shape, data });
    };
    let mut own = name.to_owned();
    let mut number = 1;
    while !taken.insert(own.clone()) {
        own = format!("{name}_{number}");
        number += 1;
    }
    view.add(TensorInfo { name: own.clone(), dtype, shape: Shape::from(shape) }, bytes);
    ValueOrigin::Weight(WeightRef::whole(own))
}

/// Returns the bytes that the outputs of a node take, if their sizes are known.
fn made(body: &Body, node: &Node) -> Option<u64> {
    node.outputs
        .iter()
        .flatten()
        .try_fold(0_u64, |sum, id| sum.checked_add(bytes(body.value(*id))?))
}

/// Returns the maximum number of bytes that the outputs of a node may take.
fn most(body: &Body, node: &Node) -> u64 {
    let inputs: HashSet<ValueId> = node.inputs.iter().flatten().copied().collect();
    let read = inputs.into_iter().map(|id| bytes(body.value(id)).unwrap_or_default());
    read.fold(MOST_ADDED, u64::saturating_add)
}

/// Returns the bytes of a tensor, if its type and shape are known.
pub(super) fn bytes(value: &Value) -> Option<u64> {
    if let ValueOrigin::Constant(Constant { data: ConstantData::Bytes(bytes), .. }) = &value.origin
    {
        return Some(bytes.len() as u64);
    }
    let count = sizes(value)?.iter().try_fold(1_u64, |count, size| count.checked_mul(*size))?;
    value.element()?.stored_len(count)
}

fn sizes(value: &Value) -> Option<Vec<u64>> {
    value.shape()?.iter().map(Dim::size).collect()
}
