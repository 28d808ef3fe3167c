//! Which values are in memory while a node runs.

use super::flops;
use super::sizes::{Sizes, bytes};
use crate::check::order;
use crate::{Body, Node, Value, ValueOrigin};

/// The values of a body that are in memory.
#[derive(Clone)]
pub(super) struct Memory {
    /// Bytes of each value; 0 for values that share another value's memory or belong to another
    /// body.
    bytes: Vec<u64>,
    /// Values by the node after which they are freed.
    goes: Vec<Vec<usize>>,
    live: u64,
}

impl Memory {
    /// Creates the memory state before the first node.
    ///
    /// If `given` is `true`, the inputs are in memory because of this body and not because of a
    /// caller.
    pub(super) fn new(body: &Body, sizes: Sizes<'_>, given: bool) -> Self {
        let holder = holders(body);
        let mut memory = Self {
            bytes: body.values.iter().map(|value| bytes(value, sizes).unwrap_or(0)).collect(),
            goes: vec![Vec::new(); body.nodes.len()],
            live: 0,
        };
        for (at, value) in body.values.iter().enumerate() {
            let own = matches!(value.origin, ValueOrigin::Node(_))
                || (given && value.origin == ValueOrigin::Input);
            if holder[at] != at || !own {
                memory.bytes[at] = 0;
            }
        }

        for (at, last) in last_uses(body, &holder).into_iter().enumerate() {
            if let Some(goes) = last.and_then(|last| memory.goes.get_mut(last)) {
                goes.push(at);
            }
        }

        memory.live = memory.of_inputs(body);
        memory
    }

    /// Returns the memory before the first node, without some of the values.
    pub(super) fn without(&self, body: &Body, leaves_out: impl Fn(&Value) -> bool) -> Self {
        let mut memory = self.clone();
        for (bytes, value) in memory.bytes.iter_mut().zip(&body.values) {
            if leaves_out(value) {
                *bytes = 0;
            }
        }
        memory.live = memory.of_inputs(body);
        memory
    }

    fn of_inputs(&self, body: &Body) -> u64 {
        body.inputs.iter().map(|id| self.bytes[id.0 as usize]).fold(0, u64::saturating_add)
    }

    /// Runs a node, which needs `inside` bytes of its own: returns the bytes in memory meanwhile.
    pub(super) fn run(&mut self, position: usize, node: &Node, inside: u64) -> u64 {
        let made = node
            .outputs
            .iter()
            .flatten()
            .map(|id| self.bytes[id.0 as usize])
            .fold(0, u64::saturating_add);
        // What runs inside counts what becomes the outputs.
        let used = self.live.saturating_add(made.max(inside));
        self.live = self.live.saturating_add(made);
        for gone in std::mem::take(&mut self.goes[position]) {
            self.live = self.live.saturating_sub(self.bytes[gone]);
        }
        used
    }
}

/// Returns the last node that reads each value or a value that shares its memory.
///
/// The entry is `None` for values that the caller receives.
fn last_uses(body: &Body, holder: &[usize]) -> Vec<Option<usize>> {
    let mut last = vec![None; body.values.len()];
    for (position, node) in body.nodes.iter().enumerate() {
        // What nobody reads goes after the node that makes it.
        for id in order::reads(node).chain(node.outputs.iter().copied().flatten()) {
            if let Some(holder) = holder.get(id.0 as usize) {
                last[*holder] = Some(position);
            }
        }
    }
    for output in &body.outputs {
        last[holder[output.0 as usize]] = None;
    }
    last
}

/// For each value the one whose memory it is in: itself, or what it is another shape of.
fn holders(body: &Body) -> Vec<usize> {
    let mut holder: Vec<usize> = (0..body.values.len()).collect();
    for node in &body.nodes {
        let (Some(from), Some(Some(to))) = (node.input(0), node.outputs.first()) else { continue };
        // Three of the free ones make a value that is no other shape of their input.
        let same = flops::is_free(node) && !matches!(&*node.op.name, "Constant" | "Shape" | "Size");
        if same {
            holder[to.0 as usize] = holder[from.0 as usize];
        }
    }
    holder
}
