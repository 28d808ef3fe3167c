//! Tensors that may be infinite: what a graph clips, compares and masks with is no weight.
//!
//! A network multiplies with its weights, and one that is infinite makes every output infinite or
//! not a number. The limit of a `Clip` or `Max`, what a `Where` fills with and what is added in
//! front of a `Softmax` are infinite in healthy models. Which of the two a tensor is, its uses say;
//! a single number that no family knows as a weight, or that it knows as a buffer, is a constant.
//! Files without a graph have masks too: TorchScript keeps them as buffers and constants. Such a
//! mask consists of zeros and infinities, which no weight does.

use std::collections::HashSet;

use apr_arch::{TensorExpectation, TensorKind};
use apr_graph::{AttributeValue, Body, Node, Op, ValueId, ValueOrigin, View, WeightRef};
use apr_registry::{CheckpointReader, Limits, graphs_of};
use apr_tensor::stats::Stats;

/// The tensors of a model that may be infinite. Its graphs are read when one is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Constants {
    names: Option<HashSet<String>>,
    /// Tensors that are infinite, and may be.
    pub(crate) infinite: usize,
    /// Those of them that may be because of their use in a graph.
    pub(crate) by_graph: Vec<String>,
}

impl Constants {
    /// Returns the statistics to judge a tensor by.
    ///
    /// Infinities are removed from them if the tensor may have some.
    pub(crate) fn judged(
        &mut self,
        reader: &dyn CheckpointReader,
        tensor: usize,
        stats: Stats,
        expected: Option<TensorExpectation>,
    ) -> Stats {
        let holds = |this: &mut Self| {
            expected.is_none() && is_mask(&stats) || this.holds(reader, tensor, expected)
        };
        if stats.inf == 0 || !holds(self) {
            return stats;
        }
        self.infinite += 1;
        Stats { inf: 0, ..stats }
    }

    fn holds(
        &mut self,
        reader: &dyn CheckpointReader,
        tensor: usize,
        expected: Option<TensorExpectation>,
    ) -> bool {
        let info = &reader.tensors()[tensor];
        let is_number = info.shape.elements().is_some_and(|count| count <= 1);
        if is_number && expected.is_none_or(|expected| expected.kind == TensorKind::Buffer) {
            return true;
        }
        let is_limit = self.names.get_or_insert_with(|| names(reader)).contains(&info.name);
        self.by_graph.extend(is_limit.then(|| info.name.clone()));
        is_limit
    }
}

/// Returns `true` for the values of a mask: zeros, and infinities in at least an eighth of the
/// places.
///
/// A causal mask of any size has more. Damage makes a few values infinite, and rarely in a tensor
/// of zeros.
fn is_mask(stats: &Stats) -> bool {
    let is_zero_beside = stats.min == Some(0.0) && stats.max == Some(0.0);
    is_zero_beside && stats.nan == 0 && stats.inf >= stats.count.div_ceil(8)
}

/// Names of tensors that the model's graphs use as limits and masks alone. A graph that can't be
/// read has none: what is wrong with it is said elsewhere.
fn names(reader: &dyn CheckpointReader) -> HashSet<String> {
    let graphs = graphs_of(reader, &Limits::default()).ok().flatten();
    let mut found = Found::default();
    for (_, graph) in graphs.iter().flat_map(|(_, graphs)| graphs) {
        let functions = graph.functions.iter().map(|function| &function.op).collect();
        found.body(&graph.body, &functions);
        for function in &graph.functions {
            found.body(&function.body, &functions);
        }
    }
    found.limits.difference(&found.weights).cloned().collect()
}

/// Combined effect of all readers of a value on infinities in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fate {
    /// `true` if something reads the value.
    is_read: bool,
    /// `true` if infinities in the value only act as limits and masks.
    ends: bool,
    /// `true` if a sum with infinities in it ends in a softmax.
    fades: bool,
}

impl Fate {
    /// Fate of a value without readers so far.
    const UNREAD: Self = Self { is_read: false, ends: true, fades: true };
    /// Fate of a value that is used in computations or whose use is unknown.
    const COMPUTED: Self = Self { is_read: true, ends: false, fades: false };

    fn ends(self) -> bool {
        self.is_read && self.ends
    }

    fn fades(self) -> bool {
        self.is_read && self.fades
    }

    fn and(self, ends: bool, fades: bool) -> Self {
        Self { is_read: true, ends: self.ends && ends, fades: self.fades && fades }
    }
}

/// Tensors by their use in graph bodies; a tensor with both uses is a weight.
#[derive(Debug, Default)]
struct Found {
    limits: HashSet<String>,
    weights: HashSet<String>,
}

impl Found {
    /// Looks at a body and those within it, and returns what becomes of its values.
    fn body(&mut self, body: &Body, functions: &HashSet<&Op>) -> Vec<Fate> {
        let mut fates = vec![Fate::UNREAD; body.values.len()];
        let see = |fates: &mut Vec<Fate>, id: ValueId, ends, fades| {
            if let Some(fate) = fates.get_mut(id.0 as usize) {
                *fate = fate.and(ends, fades);
            }
        };

        for output in &body.outputs {
            see(&mut fates, *output, false, false);
        }
        // What reads a value comes after what makes it.
        for node in body.nodes.iter().rev() {
            for inner in node.bodies() {
                let within = self.body(inner, functions);
                for (value, fate) in inner.values.iter().zip(within) {
                    if let ValueOrigin::Outer(id) = value.origin {
                        see(&mut fates, id, fate.ends(), fate.fades());
                    }
                }
            }

            let made = made_of(node, &fates);
            let is_known = !functions.contains(&node.op);
            let held = if is_known && node.op.is("Constant") { made } else { Fate::COMPUTED };
            for attribute in &node.attributes {
                if let AttributeValue::Weight(weight) = &attribute.value {
                    self.add(weight, held);
                }
            }
            for (position, input) in node.inputs.iter().enumerate() {
                let Some(input) = input else { continue };
                let fate = if is_known { use_of(node, position, made) } else { Fate::COMPUTED };
                see(&mut fates, *input, fate.ends, fate.fades);
            }
        }

        for (value, fate) in body.values.iter().zip(&fates) {
            if let ValueOrigin::Weight(weight) = &value.origin {
                self.add(weight, *fate);
            }
        }
        fates
    }

    /// Adds the tensors of a weight whose value has this fate.
    fn add(&mut self, weight: &WeightRef, fate: Fate) {
        let list = if fate.ends() { &mut self.limits } else { &mut self.weights };
        list.insert(weight.tensor.clone());
        for view in &weight.views {
            if let View::Joined { with, .. } | View::Stacked(with) = view {
                list.extend(with.iter().cloned());
            }
        }
    }
}

/// Returns the combined fate of all outputs of a node.
fn made_of(node: &Node, fates: &[Fate]) -> Fate {
    let outputs = node.outputs.iter().flatten();
    let fates = outputs.filter_map(|output| fates.get(output.0 as usize));
    let read = fates.filter(|fate| fate.is_read);
    read.fold(Fate::UNREAD, |all, fate| all.and(fate.ends, fate.fades))
}

/// Returns the fate of an input of a node whose outputs have the fate `made`.
///
/// Operators of TensorFlow Lite are written `STRIDED_SLICE`, and those of TensorFlow
/// `StridedSlice`.
fn use_of(node: &Node, position: usize, made: Fate) -> Fate {
    let name = node.op.name.replace('_', "").to_ascii_uppercase();
    let (ends, fades) = (made.ends(), made.fades());
    let fate = |ends, fades| Fate { is_read: true, ends, fades };
    match (name.as_str(), position) {
        // The elements or some of them, elsewhere or as another type.
        (
            "CAST" | "IDENTITY" | "RESHAPE" | "TRANSPOSE" | "FLATTEN" | "SQUEEZE" | "UNSQUEEZE",
            0,
        )
        | ("EXPAND" | "EXPANDDIMS" | "TILE" | "BROADCASTTO" | "TRILU" | "CASTLIKE", 0)
        | ("SLICE" | "STRIDEDSLICE" | "SPLIT" | "GATHER" | "GATHERV2" | "GATHERND", 0)
        | ("GATHERELEMENTS", 0)
        | ("CONCAT" | "CONCATENATION" | "CONCATV2", _) => fate(ends, fades),
        // Limits, and what is put in the place of others.
        ("CLIP" | "WHERE" | "SELECT" | "SELECTV2", 1 | 2) => fate(true, fades),
        ("MAX" | "MIN" | "MAXIMUM" | "MINIMUM", _) => fate(true, fades),
        ("PAD" | "PADV2", 2) => fate(true, fades),
        ("EQUAL" | "NOTEQUAL" | "LESS" | "GREATER" | "ISINF" | "ISNAN", _)
        | ("LESSOREQUAL" | "GREATEROREQUAL" | "LESSEQUAL" | "GREATEREQUAL", _) => fate(true, true),
        // Masks are added to scores, which may be scaled before a softmax takes them.
        ("ADD" | "ADDV2", _) | ("SUB", 0) => fate(fades, fades),
        ("MUL" | "DIV", _) => fate(false, fades),
        ("SOFTMAX" | "LOGSOFTMAX", 0) => fate(true, true),
        _ => Fate::COMPUTED,
    }
}

#[cfg(test)]
mod tests {
    use apr_graph::{BodyBuilder, Dim, ElementType, Graph, GraphBuilder, Meaning};

    use super::*;

    /// Returns whether the tensor passed to `write` is a limit or mask, and if it is a weight.
    ///
    /// The graph has two other inputs, `x` and `ids`.
    fn is_limit(write: impl FnOnce(&mut BodyBuilder, [ValueId; 3]) -> ValueId) -> (bool, bool) {
        let mut graph = GraphBuilder::new(17);
        let body = graph.body();
        let dims = || [2, 3].map(Dim::fixed);
        let x = body.input("x", ElementType::F32, dims(), Meaning::Unknown);
        let ids = body.input("ids", ElementType::I64, dims(), Meaning::Unknown);
        let table = body.weight("table", ElementType::F32, [2, 3]);
        let y = write(body, [x, ids, table]);
        body.output("y", y, Meaning::Unknown);
        let graph: Graph = graph.finish();
        let mut found = Found::default();
        found.body(&graph.body, &HashSet::new());
        (found.limits.contains("table"), found.weights.contains("table"))
    }

    #[test]
    fn limits_masks_and_fill_values_may_be_infinite() {
        let limit = |op: &'static str, weight_at: usize| {
            is_limit(move |body, [x, _, table]| {
                let mut inputs = vec![x; 3];
                inputs[weight_at] = table;
                body.op(op, inputs).output("y")
            })
        };
        for (op, at) in [("Clip", 1), ("Clip", 2), ("Where", 2), ("Max", 0), ("Min", 1)] {
            assert_eq!(limit(op, at), (true, false), "{op} {at}");
        }
        for (op, at) in [("Clip", 0), ("Where", 0), ("MatMul", 1), ("Mul", 1), ("Add", 0)] {
            assert_eq!(limit(op, at), (false, true), "{op} {at}");
        }
    }

    #[test]
    fn a_table_of_masks_is_gathered_and_added_in_front_of_a_softmax() {
        let masked = |last: &'static str| {
            is_limit(move |body, [x, ids, table]| {
                let rows = body.op("Gather", [table, ids]).output("rows");
                let turned = body.op("Transpose", [rows]).output("turned");
                let scores = body.op("Add", [x, turned]).output("scores");
                body.op(last, [scores]).output("y")
            })
        };
        assert_eq!(masked("Softmax"), (true, false));
        assert_eq!(masked("Relu"), (false, true));
    }

    #[test]
    fn the_tensor_of_a_constant_node_is_what_becomes_of_the_node() {
        let held = |last: &'static str| {
            let mut graph = GraphBuilder::new(17);
            let body = graph.body();
            let dims = [2, 3].map(Dim::fixed);
            let x = body.input("x", ElementType::F32, dims, Meaning::Unknown);
            let value = AttributeValue::Weight(WeightRef::whole("mask"));
            let mask = body.op("Constant", []).attribute("value", value).output("mask");
            let scores = body.op("Add", [x, mask]).output("scores");
            let y = body.op(last, [scores]).output("y");
            body.output("y", y, Meaning::Unknown);
            let graph: Graph = graph.finish();
            let mut found = Found::default();
            found.body(&graph.body, &HashSet::new());
            (found.limits.contains("mask"), found.weights.contains("mask"))
        };
        assert_eq!(held("Softmax"), (true, false));
        assert_eq!(held("Relu"), (false, true));
    }

    #[test]
    fn zeros_and_infinities_are_a_mask_and_a_few_infinities_are_not() {
        let mask = |values: &[f32]| {
            let moments = apr_tensor::stats::Moments::of_values(values, &mut Default::default());
            is_mask(&moments.finish())
        };
        let endless = f32::NEG_INFINITY;
        assert!(mask(&[0.0, endless, 0.0, 0.0]), "the mask of two tokens");
        assert!(mask(&[0.0, endless, endless, 0.0, 0.0, endless, 0.0, 0.0, 0.0]));
        for other in [
            &[0.0, endless, 1e-3][..],
            &[0.0, endless, f32::NAN],
            &[endless, endless],
            &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, endless],
        ] {
            assert!(!mask(other), "{other:?}");
        }
    }

    #[test]
    fn a_tensor_used_as_mask_and_as_weight_is_a_weight() {
        let both = is_limit(|body, [x, _, table]| {
            let limited = body.op("Max", [x, table]).output("limited");
            body.op("MatMul", [limited, table]).output("y")
        });
        assert_eq!(both, (false, true));
        let returned = is_limit(|body, [x, _, table]| {
            body.op("Max", [x, table]).output("limited");
            table
        });
        assert_eq!(returned, (false, true), "who gets it may do anything with it");
    }
}
