//! Which nodes read what later nodes make, and which wait for each other.

use crate::{Body, Node, ValueId, ValueOrigin};

/// Returns the values that a node reads: its inputs, and the outer values that its bodies use.
pub(crate) fn reads(node: &Node) -> impl Iterator<Item = ValueId> {
    let captured =
        node.bodies().flat_map(|body| &body.values).filter_map(|value| match value.origin {
            ValueOrigin::Outer(id) => Some(id),
            _ => None,
        });
    node.inputs.iter().copied().flatten().chain(captured)
}

/// The node that makes each value.
fn makers(body: &Body) -> Vec<Option<usize>> {
    let mut makers = vec![None; body.values.len()];
    for (position, node) in body.nodes.iter().enumerate() {
        for output in node.outputs.iter().flatten() {
            // The first maker counts; `single_origins` reports the second.
            makers[output.0 as usize].get_or_insert(position);
        }
    }
    makers
}

/// Returns (reading node, value, producing node) for each value that is read before it is produced.
pub(super) fn late(body: &Body) -> Vec<(usize, ValueId, usize)> {
    let makers = makers(body);
    let maker = |id: ValueId| makers.get(id.0 as usize).copied().flatten();
    let mut late = Vec::new();
    for (position, node) in body.nodes.iter().enumerate() {
        let read = reads(node).filter_map(|id| Some((position, id, maker(id)?)));
        late.extend(read.filter(|(reader, _, maker)| maker >= reader));
    }
    late
}

/// Returns, for each node, the nodes that read its outputs.
pub(crate) fn readers(body: &Body) -> Vec<Vec<usize>> {
    let makers = makers(body);
    let mut readers = vec![Vec::new(); body.nodes.len()];
    for (position, node) in body.nodes.iter().enumerate() {
        for id in reads(node) {
            if let Some(maker) = makers.get(id.0 as usize).copied().flatten() {
                readers[maker].push(position);
            }
        }
    }
    readers
}

/// Nodes that reach each other, by Tarjan's algorithm with a stack of its own: a chain may be as
/// long as the graph.
pub(super) fn circles(next: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut search = Search {
        next,
        index: vec![None; next.len()],
        low: vec![0; next.len()],
        waits: vec![false; next.len()],
        stack: Vec::new(),
        count: 0,
        found: Vec::new(),
    };

    for start in 0..next.len() {
        if search.index[start].is_none() {
            search.from(start);
        }
    }

    search.found
}

struct Search<'a> {
    next: &'a [Vec<usize>],
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    waits: Vec<bool>,
    stack: Vec<usize>,
    count: usize,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn from(&mut self, start: usize) {
        let mut path = vec![(start, 0)];
        self.enter(start);
        while let Some((node, edge)) = path.last_mut() {
            let (node, here) = (*node, *edge);
            *edge += 1;
            match self.next[node].get(here).copied() {
                Some(to) => match self.index[to] {
                    None => {
                        self.enter(to);
                        path.push((to, 0));
                    }
                    // Only nodes on the stack can be of the same circle.
                    Some(index) if self.waits[to] => self.low[node] = self.low[node].min(index),
                    Some(_) => {}
                },
                None => {
                    path.pop();
                    self.leave(node);
                    if let Some((parent, _)) = path.last() {
                        self.low[*parent] = self.low[*parent].min(self.low[node]);
                    }
                }
            }
        }
    }

    fn enter(&mut self, node: usize) {
        self.index[node] = Some(self.count);
        self.low[node] = self.count;
        self.count += 1;
        self.stack.push(node);
        self.waits[node] = true;
    }

    /// Takes a finished circle off the stack.
    fn leave(&mut self, node: usize) {
        if self.index[node] != Some(self.low[node]) {
            return;
        }

        let mut circle = Vec::new();
        while let Some(member) = self.stack.pop() {
            self.waits[member] = false;
            circle.push(member);
            if member == node {
                break;
            }
        }

        circle.reverse();
        if circle.len() > 1 || self.next[node].contains(&node) {
            self.found.push(circle);
        }
    }
}

/// Formats a cycle as `a -> b -> a`. Only the first names of a long cycle are shown.
pub(super) fn show(names: &[String]) -> String {
    const MOST: usize = 8;
    let mut shown: Vec<&str> = names.iter().take(MOST).map(String::as_str).collect();
    if names.len() > MOST {
        shown.push("...");
    }
    shown.extend(names.first().map(String::as_str));
    shown.join(" -> ")
}
