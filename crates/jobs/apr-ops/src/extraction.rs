//! The part of a graph between values.

use std::collections::BTreeSet;

use apr_core::{Escaped, Result};
use apr_graph::{Body, Dim, Graph, NodeId, ValueId, ValueOrigin, ValueType, infer};
use apr_view::nearest_or_first;
use serde::Serialize;

use crate::simplify::{prepare, remove_dead};

/// Maximum number of similar names in an error.
const SHOWN: usize = 5;

/// Result of extracting a part of a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Extracted {
    /// Inputs of the part, by name.
    pub inputs: Vec<String>,
    /// Those of the inputs that the model has and that no `from` names: the outputs depend on them,
    /// too.
    pub kept_inputs: Vec<String>,
    /// Outputs of the part, by name.
    pub outputs: Vec<String>,
    /// Outputs of the model that the part does not compute.
    pub dropped_outputs: Vec<String>,
    /// Number of nodes of the model.
    pub nodes_before: u64,
    /// Number of nodes of the part.
    #[serde(rename = "node_count")]
    pub nodes: u64,
}

/// Reduces a graph without function calls to the part that begins at `from` and ends at `to`.
///
/// A name is the name of a value, or else of nodes. A value of `from` becomes an input, and a node
/// of `from` is the first of the part, so that its inputs become inputs. A value of `to` becomes an
/// output, and a node of `to` is the last of the part. Without `from`, the inputs stay. Without
/// `to`, the outputs stay that depend on a value of `from`.
///
/// # Errors
/// A message for names that the graph does not have, and for ends that are not connected; E001 for
/// a graph with a cycle.
pub(crate) fn extract(
    graph: &mut Graph,
    from: &[String],
    to: &[String],
) -> Result<std::result::Result<Extracted, String>> {
    prepare(&mut graph.body)?;
    infer(graph);
    Ok(Extraction { body: &mut graph.body }.run(from, to))
}

struct Extraction<'g> {
    body: &'g mut Body,
}

impl Extraction<'_> {
    fn run(self, from: &[String], to: &[String]) -> std::result::Result<Extracted, String> {
        let starts = self.starts(from)?;
        let ends = match to {
            [] => self.ends_after(&starts)?,
            to => self.ends(to, &starts)?,
        };
        let Self { body } = self;
        let nodes_before = body.nodes.len() as u64;
        let before: Vec<String> = names(body, &body.outputs);
        cut(body, &starts);
        body.outputs = ends;
        let reached = reached(body);
        if let Some(&idle) = starts.iter().find(|id| !reached.contains(id)) {
            let name = &body.value(idle).name;
            let is_made = |id: &&ValueId| {
                matches!(body.value(**id).origin, ValueOrigin::Node(_) | ValueOrigin::Input)
            };
            let others = reached.iter().filter(is_made).map(|id| body.value(*id).name.as_str());
            let others = nearest_or_first(name, others.filter(|other| other != name), SHOWN);
            return Err(format!(
                "`from`: no output depends on '{}'; outputs depend on {}",
                Escaped::short(name),
                listed(&others)
            ));
        }
        let mut inputs = starts.clone();
        let is_kept = |id: &ValueId| reached.contains(id) && !starts.contains(id);
        let kept: Vec<ValueId> = body.inputs.iter().copied().filter(is_kept).collect();
        inputs.extend(&kept);
        body.inputs = inputs;
        remove_dead(body);
        let kept = if from.is_empty() { Vec::new() } else { names(body, &kept) };
        let outputs = names(body, &body.outputs);
        Ok(Extracted {
            inputs: names(body, &body.inputs),
            kept_inputs: kept,
            dropped_outputs: before.into_iter().filter(|name| !outputs.contains(name)).collect(),
            outputs,
            nodes_before,
            nodes: body.nodes.len() as u64,
        })
    }

    /// Returns the values at which the part begins.
    fn starts(&self, names: &[String]) -> std::result::Result<Vec<ValueId>, String> {
        let mut starts = Vec::new();
        for name in names {
            let found = match self.named(name) {
                Named::Value(id) if self.is_computed(id) => vec![id],
                Named::Value(_) => {
                    let name = Escaped::short(name);
                    return Err(format!("`from`: '{name}' is a tensor of the file"));
                }
                Named::Nodes(nodes) => {
                    let inputs = nodes.iter().flat_map(|id| &self.body.node(*id).inputs).flatten();
                    inputs.copied().filter(|id| self.is_computed(*id)).collect()
                }
                Named::Nothing => return Err(self.unknown("from", name)),
            };
            if found.is_empty() {
                let name = Escaped::short(name);
                return Err(format!("`from`: the node '{name}' reads tensors of the file only"));
            }
            for id in found {
                self.check_type(id)?;
                if !starts.contains(&id) {
                    starts.push(id);
                }
            }
        }
        Ok(starts)
    }

    /// Returns the requested values at which the part ends.
    fn ends(
        &self,
        names: &[String],
        starts: &[ValueId],
    ) -> std::result::Result<Vec<ValueId>, String> {
        let mut ends = Vec::new();
        for name in names {
            let found = match self.named(name) {
                Named::Value(id) => vec![id],
                Named::Nodes(nodes) => {
                    let outputs =
                        nodes.iter().flat_map(|id| &self.body.node(*id).outputs).flatten();
                    outputs.copied().collect()
                }
                Named::Nothing => return Err(self.unknown("to", name)),
            };
            for id in found {
                let is_made = matches!(self.body.value(id).origin, ValueOrigin::Node(_));
                if !is_made || starts.contains(&id) {
                    let name = Escaped::short(&self.body.value(id).name);
                    return Err(format!("`to`: no node of the part computes '{name}'"));
                }
                if !ends.contains(&id) {
                    ends.push(id);
                }
            }
        }
        Ok(ends)
    }

    /// Returns the outputs that depend on values.
    fn ends_after(&self, starts: &[ValueId]) -> std::result::Result<Vec<ValueId>, String> {
        let mut after: BTreeSet<ValueId> = starts.iter().copied().collect();
        for node in &self.body.nodes {
            if reads(node).any(|id| after.contains(&id)) {
                after.extend(node.outputs.iter().flatten());
            }
        }
        let outputs = self.body.outputs.iter().copied();
        let ends: Vec<ValueId> =
            outputs.filter(|id| after.contains(id) && !starts.contains(id)).collect();
        match ends.is_empty() {
            true => Err("`from`: no output of the model depends on these values".to_owned()),
            false => Ok(ends),
        }
    }

    fn named(&self, name: &str) -> Named {
        let body = &*self.body;
        let ids = (0..).map(ValueId);
        let mut values = ids.zip(&body.values);
        let found = values
            .find(|(_, value)| value.name == name && !matches!(value.origin, ValueOrigin::Missing));
        if let Some((id, _)) = found {
            return Named::Value(id);
        }
        let nodes = (0..).map(NodeId).zip(&body.nodes);
        let nodes: Vec<NodeId> =
            nodes.filter(|(_, node)| node.name == name).map(|(id, _)| id).collect();
        if nodes.is_empty() { Named::Nothing } else { Named::Nodes(nodes) }
    }

    /// Returns `true` for a value that runs give or compute.
    fn is_computed(&self, id: ValueId) -> bool {
        matches!(self.body.value(id).origin, ValueOrigin::Node(_) | ValueOrigin::Input)
    }

    /// Rejects a value that can't be an input, because an input states its type.
    fn check_type(&self, id: ValueId) -> std::result::Result<(), String> {
        let value = self.body.value(id);
        let is_known = match &value.kind {
            ValueType::Tensor(tensor) => tensor.element.is_some(),
            kind => *kind != ValueType::Unknown,
        };
        match is_known {
            true => Ok(()),
            false => Err(format!(
                "`from`: the type of '{}' is not known, which an input needs",
                Escaped::short(&value.name)
            )),
        }
    }

    fn unknown(&self, setting: &str, name: &str) -> String {
        let made = self.body.nodes.iter().flat_map(|node| node.outputs.iter().flatten());
        let values = self.body.inputs.iter().chain(made);
        let values = values.map(|id| self.body.value(*id).name.as_str());
        let nodes = self.body.nodes.iter().map(|node| node.name.as_str());
        let all: BTreeSet<&str> = values.chain(nodes).filter(|name| !name.is_empty()).collect();
        let near = nearest(name, all);
        format!("`{setting}`: no value or node '{}'{near}", Escaped::short(name))
    }
}

/// What a name names.
enum Named {
    Value(ValueId),
    Nodes(Vec<NodeId>),
    Nothing,
}

/// Makes inputs of values that nodes compute.
fn cut(body: &mut Body, starts: &[ValueId]) {
    for node in &mut body.nodes {
        for output in &mut node.outputs {
            if output.is_some_and(|id| starts.contains(&id)) {
                *output = None;
            }
        }
    }
    for &id in starts {
        let value = body.value_mut(id);
        value.origin = ValueOrigin::Input;
        let shape = match &mut value.kind {
            ValueType::Tensor(tensor) => tensor.shape.as_mut(),
            _ => None,
        };
        for dim in shape.into_iter().flatten() {
            // An input can name a size, but not compute one.
            let is_plain = dim.symbols().first().is_some_and(|name| *dim == Dim::symbol(name));
            if dim.size().is_none() && !is_plain {
                *dim = Dim::Unknown;
            }
        }
    }
}

/// Returns the values that the outputs of a body depend on, and the outputs.
fn reached(body: &Body) -> BTreeSet<ValueId> {
    let mut reached: BTreeSet<ValueId> = body.outputs.iter().copied().collect();
    // Nodes that read a value follow the node that makes it.
    for node in body.nodes.iter().rev() {
        if node.outputs.iter().flatten().any(|id| reached.contains(id)) {
            reached.extend(reads(node));
        }
    }
    reached
}

/// Returns the values that a node and the bodies in it read.
fn reads(node: &apr_graph::Node) -> impl Iterator<Item = ValueId> {
    let outer =
        node.bodies().flat_map(|inner| &inner.values).filter_map(|value| match value.origin {
            ValueOrigin::Outer(of) => Some(of),
            _ => None,
        });
    node.inputs.iter().flatten().copied().chain(outer)
}

fn names(body: &Body, ids: &[ValueId]) -> Vec<String> {
    ids.iter().map(|id| body.value(*id).name.clone()).collect()
}

/// Returns the end of a message with the names nearest to an unknown one.
fn nearest<'n>(name: &str, all: impl IntoIterator<Item = &'n str>) -> String {
    let near = apr_view::nearest(name, all, SHOWN);
    if near.is_empty() { String::new() } else { format!("; nearest names: {}", listed(&near)) }
}

fn listed(names: &[&str]) -> String {
    let names: Vec<String> =
        names.iter().map(|name| format!("'{}'", Escaped::short(name))).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use apr_graph::{ElementType, GraphBuilder, Meaning};

    use super::*;

    /// `x -> a = Relu -> b = MatMul(a, w) -> c = Add(b, mask) -> y = Tanh`, and `z = Neg(x)`.
    fn graph() -> Graph {
        let mut builder = GraphBuilder::new(17);
        let main = builder.body();
        let dims = || [Dim::symbol("rows"), Dim::fixed(2)];
        let x = main.input("x", ElementType::F32, dims(), Meaning::Unknown);
        let mask = main.input("mask", ElementType::F32, dims(), Meaning::Unknown);
        let w = main.weight("w", ElementType::F32, [2, 2]);
        let a = main.op("Relu", [x]).output("a");
        let b = main.op("MatMul", [a, w]).output("b");
        let c = main.op("Add", [b, mask]).output("c");
        let y = main.op("Tanh", [c]).output("y");
        let z = main.op("Neg", [x]).output("z");
        main.output("y", y, Meaning::Unknown);
        main.output("z", z, Meaning::Unknown);
        builder.finish()
    }

    fn extracted(from: &[&str], to: &[&str]) -> std::result::Result<(Graph, Extracted), String> {
        let owned =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut graph = graph();
        let report = extract(&mut graph, &owned(from), &owned(to)).expect("no cycle")?;
        Ok((graph, report))
    }

    #[test]
    fn a_part_has_the_nodes_and_tensors_between_its_ends() {
        let (graph, report) = extracted(&["a"], &["b"]).expect("a part");
        assert_eq!((report.inputs, report.outputs), (vec!["a".into()], vec!["b".into()]));
        assert_eq!((report.nodes_before, report.nodes), (5, 1));
        assert_eq!(report.dropped_outputs, ["y", "z"]);
        assert_eq!(graph.body.weights().count(), 1);
        let (graph, report) = extracted(&["c"], &[]).expect("a part");
        assert_eq!((report.outputs, report.dropped_outputs), (vec!["y".into()], vec!["z".into()]));
        assert_eq!(graph.body.weights().count(), 0);
    }

    #[test]
    fn inputs_that_outputs_depend_on_are_kept_and_reported() {
        let (_, report) = extracted(&["b"], &["y"]).expect("a part");
        assert_eq!((report.inputs.len(), report.kept_inputs), (2, vec!["mask".to_owned()]));
        let (_, report) = extracted(&[], &["b"]).expect("a part");
        assert_eq!((report.inputs, report.kept_inputs.len()), (vec!["x".to_owned()], 0));
    }

    #[test]
    fn unknown_and_unconnected_names_list_the_nearest() {
        for (from, to, expected) in [
            ("mas", "y", "`from`: no value or node 'mas'; nearest names: 'mask'"),
            ("a", "maks", "`to`: no value or node 'maks'; nearest names: 'mask'"),
            ("zzz", "y", "`from`: no value or node 'zzz'"),
            ("c", "b", "`from`: no output depends on 'c'; outputs depend on '"),
            ("w", "y", "`from`: 'w' is a tensor of the file"),
            ("a", "a", "`to`: no node of the part computes 'a'"),
            ("z", "y", "`from`: no output depends on 'z'"),
        ] {
            let error = extracted(&[from], &[to]).expect_err("not a part");
            assert!(error.starts_with(expected), "{error}");
        }
        let error = extracted(&["y"], &[]).expect_err("nothing follows");
        assert!(error.contains("no output of the model depends"), "{error}");
    }
}
