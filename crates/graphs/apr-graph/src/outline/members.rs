//! Nodes by the paths of their names.

use std::collections::HashMap;

use crate::Body;

/// A node, or all nodes that share the beginning of a path.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// The part of the path that they share here.
    pub(super) name: String,
    /// Positions of the member's nodes in the body, in order.
    pub(super) nodes: Vec<usize>,
    /// `true` for a single node without further parts in its path.
    pub(super) single: bool,
}

/// The parts of a node's path. A node without a name has its operator as the only part.
pub(super) fn parts(body: &Body, node: usize) -> impl Iterator<Item = &str> {
    let node = &body.nodes[node];
    let name = if node.name.is_empty() { &*node.op.name } else { &node.name };
    name.split('/').filter(|part| !part.is_empty())
}

/// Returns the members of a group whose path has `depth` parts, in the order of their first nodes.
pub(super) fn members(body: &Body, nodes: &[usize], depth: usize) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for &node in nodes {
        let mut rest = parts(body, node).skip(depth);
        let name = rest.next().unwrap_or(&body.nodes[node].op.name);
        if rest.next().is_none() {
            members.push(Member { name: name.to_owned(), nodes: vec![node], single: true });
            continue;
        }
        let position = *by_name.entry(name).or_insert_with(|| {
            members.push(Member { name: name.to_owned(), nodes: Vec::new(), single: false });
            members.len() - 1
        });
        members[position].nodes.push(node);
    }

    members
}
