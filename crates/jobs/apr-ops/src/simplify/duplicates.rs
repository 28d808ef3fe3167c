//! Nodes and tensors that are the same as others.

use std::collections::{HashMap, HashSet};

use apr_core::{CheckpointReader, TensorInfo};
use apr_graph::{Body, ConstantData, Node, ValueId, ValueOrigin, WeightRef};

use super::edit::Edit;
use super::{is_quantized, is_random};

/// Maximum bytes of constants that are compared.
const SMALL: usize = 1 << 10;
/// Bytes of tensors that are compared first.
const SAMPLE: u64 = 256;
/// Bytes of the pieces of tensors that are compared then.
const PIECE: usize = 64 << 10;
/// Maximum number of tensors with the same first bytes that a tensor is compared with.
const MOST_COMPARED: usize = 16;

/// Domains whose operators have no state.
const PURE: [&str; 2] = ["", "ai.onnx.ml"];

/// Removes duplicate nodes, and returns their number.
pub(super) fn run(body: &mut Body, twins: &mut Twins, reader: &dyn CheckpointReader) -> u64 {
    twins.add(body, reader);
    let mut edit = Edit::of(body);
    let tensors = same_tensors(body, twins, &mut edit);
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (position, node) in body.nodes.iter().enumerate() {
        let is_pure = PURE.contains(&&*node.op.domain) && !is_random(node);
        if !is_pure || node.bodies().next().is_some() {
            continue;
        }
        let first = *seen.entry(key(node, &edit)).or_insert(position);
        if first == position {
            continue;
        }
        let pairs = || body.nodes[first].outputs.iter().zip(&node.outputs);
        let can_join = pairs().all(|pair| match pair {
            (Some(kept), Some(other)) => edit.can_join(body, *kept, *other),
            (None, None) => true,
            _ => false,
        });
        if can_join {
            let joined: Vec<(ValueId, ValueId)> =
                pairs().filter_map(|(kept, other)| Some(((*kept)?, (*other)?))).collect();
            joined.into_iter().for_each(|(kept, other)| edit.join(kept, other));
            edit.remove(position);
        }
    }
    edit.apply(body) + tensors
}

/// Returns a text that is equal for nodes that compute the same.
fn key(node: &Node, edit: &Edit) -> String {
    let inputs: Vec<_> = node.inputs.iter().map(|input| input.map(|id| edit.now(id))).collect();
    let mut attributes: Vec<_> = node.attributes.iter().collect();
    attributes.sort_by(|one, other| one.name.cmp(&other.name));
    format!("{:?} {inputs:?} {attributes:?} {}", node.op, node.outputs.len())
}

/// Joins equal small constants, and values that view equal tensors in the same way. Returns the
/// number of tensors that are not read any more.
fn same_tensors(body: &Body, twins: &Twins, edit: &mut Edit) -> u64 {
    let (inputs, outputs): (HashSet<_>, HashSet<_>) =
        (body.inputs.iter().copied().collect(), body.outputs.iter().copied().collect());
    let mut seen: HashMap<String, ValueId> = HashMap::new();
    let mut count = 0;
    for (id, value) in (0..).map(ValueId).zip(&body.values) {
        let key = match &value.origin {
            ValueOrigin::Constant(constant) => {
                let ConstantData::Bytes(bytes) = &constant.data else { continue };
                if bytes.len() > SMALL {
                    continue;
                }
                format!("{} {:?} {bytes:?}", constant.element, constant.shape)
            }
            ValueOrigin::Weight(weight) => {
                let tensor = twins.first(&weight.tensor).to_owned();
                let weight = WeightRef { tensor, views: weight.views.clone() };
                format!("{weight:?} {:?}", value.element())
            }
            ValueOrigin::Outer(of) => format!("{of:?}"),
            _ => continue,
        };
        let is_free = !inputs.contains(&id) && !outputs.contains(&id);
        if !is_free || value.element().is_some_and(is_quantized) {
            continue;
        }
        let first = *seen.entry(key).or_insert(id);
        if first != id {
            edit.join(first, id);
            count += 1;
        }
    }
    count
}

/// Tensors with equal elements.
#[derive(Default)]
pub(super) struct Twins {
    /// Names of tensors that were compared.
    seen: HashSet<String>,
    /// Tensors that differ, by dtype, shape and first bytes.
    kinds: HashMap<(String, Vec<u8>), Vec<usize>>,
    /// Names of the tensors that others are equal to.
    firsts: HashMap<String, String>,
}

impl Twins {
    /// Compares the tensors of a body that are new.
    fn add(&mut self, body: &Body, reader: &dyn CheckpointReader) {
        let names = body.weights().map(|(_, weight)| &weight.tensor);
        let new: HashSet<&str> =
            names.filter(|name| !self.seen.contains(*name)).map(String::as_str).collect();
        if new.is_empty() {
            return;
        }
        self.seen.extend(new.iter().map(|name| (*name).to_owned()));
        for (at, info) in reader.tensors().iter().enumerate() {
            if new.contains(info.name.as_str()) && !info.dtype.is_quantized() {
                self.add_tensor(at, info, reader);
            }
        }
    }

    /// Compares a tensor with the tensors of its dtype and shape. A tensor that can't be read
    /// equals no other.
    fn add_tensor(
        &mut self,
        at: usize,
        info: &TensorInfo,
        reader: &dyn CheckpointReader,
    ) -> Option<()> {
        let len = info.byte_len().ok()?;
        let sample = piece(reader, at, 0, len.min(SAMPLE))?;
        let others =
            self.kinds.entry((format!("{} {:?}", info.dtype, info.shape), sample)).or_default();
        let is_equal = |other: &&usize| {
            (SAMPLE..len).step_by(PIECE).all(|offset| {
                let size = (len - offset).min(PIECE as u64);
                let (one, other) =
                    (piece(reader, at, offset, size), piece(reader, **other, offset, size));
                one.is_some() && one == other
            })
        };
        match others.iter().take(MOST_COMPARED).find(is_equal) {
            Some(first) => {
                let first = reader.tensors()[*first].name.clone();
                self.firsts.insert(info.name.clone(), first);
            }
            None => others.push(at),
        }
        Some(())
    }

    /// Returns the name of the first tensor with the same elements.
    fn first<'n>(&'n self, name: &'n str) -> &'n str {
        self.firsts.get(name).map_or(name, String::as_str)
    }
}

fn piece(reader: &dyn CheckpointReader, at: usize, offset: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    reader.read_tensor(at, offset, &mut bytes).ok()?;
    Some(bytes)
}
