//! The path of a tensor through the graph, and back: from a tensor to the boxes that use it, from a
//! box to the tensors that it uses.

use apr_graph::outline::{Item, ItemKind, Scene};

use crate::explore::background::reports::BoxUse;
use crate::explore::background::request::Request;
use crate::explore::{Explorer, Loaded, View};
use crate::text::clean;

/// Groups within each other that are looked into.
const DEEPEST: usize = 64;

/// The boxes around a use, from the outermost in: positions in their scenes. The last one is the
/// node. One that is not drawn, such as a cast of weights, is what it is a part of: the node that
/// reads the weight, or the group.
fn boxes_of(scene: &Scene, used: &BoxUse) -> Vec<usize> {
    let path = located(scene, &used.node);
    let (mut inner, mut is_node) = (scene, false);
    for at in &path {
        is_node = matches!(inner.items[*at].kind, ItemKind::Node { .. });
        inner = inner.items[*at].scene().map_or(inner, |scene| &**scene);
    }
    if is_node {
        return path;
    }
    reading(scene, &used.name, 0).unwrap_or(path)
}

/// The first box that reads a weight of this name.
fn reading(scene: &Scene, weight: &str, depth: usize) -> Option<Vec<usize>> {
    if depth >= DEEPEST {
        return None;
    }
    scene.items.iter().enumerate().find_map(|(at, item)| match &item.kind {
        ItemKind::Node { weights, .. } => {
            weights.iter().any(|read| read.tensor == weight).then(|| vec![at])
        }
        // Weights in a function are its parameters.
        ItemKind::Group { function: None, scene } => {
            reading(scene, weight, depth + 1).map(|inner| [&[at], &inner[..]].concat())
        }
        _ => None,
    })
}

/// Returns the boxes around a node, as far as they are drawn.
fn located(scene: &Scene, node: &str) -> Vec<usize> {
    // Names of ONNX's nodes often begin with a slash, which boxes leave out.
    let parts: Vec<&str> = node.split('/').filter(|part| !part.is_empty()).collect();
    let (mut scene, mut node) = (scene, parts.join("/"));
    let mut path = Vec::new();
    while path.len() < DEEPEST {
        let Some((at, rest)) = entered(scene, &node) else { break };
        path.push(at);
        let Some(inner) = scene.items[at].scene() else { break };
        (scene, node) = (inner, rest);
    }
    path
}

/// The item of a scene that a node is, or that it is in, and its path within that item.
fn entered(scene: &Scene, node: &str) -> Option<(usize, String)> {
    let items = scene.items.iter().enumerate();
    let found = items.filter_map(|(at, item)| Some((at, within(item, node)?)));
    // The longest path says most; of repeated items the last that begins before the node.
    found.max_by_key(|(at, (length, _))| (*length, *at)).map(|(at, (_, rest))| (at, rest))
}

/// Returns the length of a node's path that an item covers, and the item's own path.
fn within(item: &Item, node: &str) -> Option<(usize, String)> {
    let (length, own) = match node.strip_prefix(item.path.as_str()) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            (item.path.len(), item.path.clone())
        }
        _ if item.times > 1 => repeated(&item.path, node)?,
        _ => return None,
    };
    let rest = node[length..].strip_prefix('/').unwrap_or_default();
    let inner = match &item.kind {
        // Paths in a function begin in it.
        ItemKind::Group { function: Some(_), .. } => rest.to_owned(),
        // Elsewhere the first of the repetitions is drawn.
        _ if rest.is_empty() => own,
        _ => format!("{own}/{rest}"),
    };
    Some((length, inner))
}

/// Returns the length of a node's path that is a repetition of an item, and the path of the first
/// one.
///
/// For example, `layers.7` is a repetition of `layers.0`.
fn repeated(first: &str, node: &str) -> Option<(usize, String)> {
    let end = first.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = first[..end].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let from: u64 = first[start..end].parse().ok()?;
    let rest = node.strip_prefix(&first[..start])?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = rest[..digits].parse().ok()?;
    let after = rest[digits..].strip_prefix(&first[end..])?;
    let is_whole = after.is_empty() || after.starts_with('/');
    (number >= from && is_whole).then(|| (node.len() - after.len(), first.to_owned()))
}

impl Explorer<'_> {
    /// Shows the boxes of the graph that use the tensor.
    pub(crate) fn show_path(&mut self) {
        let Some(tensor) = self.tensor() else { return };
        self.marked = Some(tensor);
        self.open(View::Graph);
        self.ask(Request::Uses(tensor));
    }

    /// Marks the boxes of the tensor and selects the first one, once both the graph and the uses
    /// are loaded.
    pub(crate) fn mark(&mut self) {
        let (Loaded::Ready(report), Loaded::Ready(uses), Some(tensor)) =
            (&self.graph, &self.uses, self.marked)
        else {
            return;
        };
        let located = |used: &BoxUse| {
            let scene = &report.parts.get(used.part)?.structure;
            Some((used.part, boxes_of(scene, used))).filter(|(_, path)| !path.is_empty())
        };
        let mut marks: Vec<(usize, Vec<usize>)> = uses.iter().filter_map(located).collect();
        marks.sort();
        marks.dedup();
        let name = clean(&self.job.model.reader.tensors()[tensor].name);
        if marks.is_empty() {
            self.message = Some(format!("no box of the graph uses '{name}'"));
        }
        self.graph_place.mark(report, name, marks);
    }

    /// Selects the next or previous box that uses the marked tensor.
    pub(super) fn next_mark(&mut self, is_forward: bool) {
        if let Loaded::Ready(report) = &self.graph
            && !self.graph_place.next_mark(report, is_forward)
        {
            self.message = Some("no tensor is marked: u marks one in the other views".to_owned());
        }
    }

    /// Lists the tensors that the box uses, or requests them.
    pub(super) fn ask_list_of_box(&mut self) {
        match &self.all_uses {
            Loaded::Ready(_) => self.list_of_box(),
            Loaded::Waiting => {}
            _ => self.ask(Request::AllUses),
        }
    }

    /// Lists the tensors that the box uses, once it is known which those are.
    pub(crate) fn list_of_box(&mut self) {
        let (Loaded::Ready(report), Loaded::Ready(uses)) = (&self.graph, &self.all_uses) else {
            return;
        };
        let Some((part, path, name)) = self.graph_place.here() else { return };
        let Some(scene) = report.parts.get(part).map(|part| &part.structure) else { return };
        let is_within =
            |used: &&BoxUse| used.part == part && boxes_of(scene, used).starts_with(&path);
        let mut tensors: Vec<usize> =
            uses.iter().filter(is_within).map(|used| used.tensor).collect();
        tensors.sort_unstable();
        tensors.dedup();
        self.list_chosen(tensors, &format!("box '{name}'"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_repetition_is_the_first_one_with_another_number() {
        assert_eq!(repeated("layers.0", "layers.7/attention"), Some((8, "layers.0".to_owned())));
        assert_eq!(repeated("layers.0", "layers.12"), Some((9, "layers.0".to_owned())));
        assert_eq!(repeated("layers.5", "layers.2/mlp"), None, "it is of items before");
        assert_eq!(repeated("h.1/mlp", "h.30/mlp/up"), Some((8, "h.1/mlp".to_owned())));
        assert_eq!(repeated("h.1/mlp", "h.3/attention"), None);
        assert_eq!(repeated("norm", "norm2"), None);
    }
}
