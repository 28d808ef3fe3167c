//! Nodes and tensors that no output depends on.

use apr_graph::{Body, ValueId, ValueOrigin};

use super::edit::{Edit, reads};

/// Removes such nodes and tensors, and returns their number.
pub(crate) fn run(body: &mut Body) -> u64 {
    let mut reads = reads(body);
    let mut edit = Edit::of(body);
    // Nodes that read a value follow the node that makes it.
    for (position, node) in body.nodes.iter().enumerate().rev() {
        if node.outputs.iter().flatten().any(|id| reads[id.0 as usize] > 0) {
            continue;
        }
        edit.remove(position);
        let within = node.bodies().flat_map(|inner| &inner.values);
        let outer = within.filter_map(|value| match value.origin {
            ValueOrigin::Outer(of) => Some(of),
            _ => None,
        });
        for id in node.inputs.iter().flatten().copied().chain(outer) {
            reads[id.0 as usize] = reads[id.0 as usize].saturating_sub(1);
        }
    }
    edit.apply(body) + unused(body, &reads)
}

/// Removes tensors that nothing reads and no caller replaces.
fn unused(body: &mut Body, reads: &[u32]) -> u64 {
    let mut count = 0;
    for (position, reads) in (0..).zip(reads) {
        let id = ValueId(position);
        let is_stored = matches!(
            body.value(id).origin,
            ValueOrigin::Weight(_) | ValueOrigin::Constant(_) | ValueOrigin::Outer(_)
        );
        if is_stored && *reads == 0 && !body.inputs.contains(&id) {
            let is_own = !matches!(body.value(id).origin, ValueOrigin::Outer(_));
            body.value_mut(id).origin = ValueOrigin::Missing;
            count += u64::from(is_own);
        }
    }
    count
}
