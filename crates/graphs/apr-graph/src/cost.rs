//! What a graph costs: operations, bytes, memory.

mod activations;
mod flops;
mod memory;
mod sizes;

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

pub use self::activations::{Activations, activations};
pub use self::sizes::Sizes;
use self::sizes::{bytes, elements};
use crate::finding::node_path;
use crate::{
    Body, Dim, FunctionId, Graph, Inference, Meaning, Node, Op, Opset, Value, ValueOrigin, View,
    foreign,
};

/// Cost of one or more nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Operations on floats: two for each multiplication that is added up, one for each element of
    /// what else computes, none for what only moves elements.
    pub flops: u64,
    /// Bytes of weights that are read.
    pub weight_bytes: u64,
    /// Bytes of other values that are read.
    pub read_bytes: u64,
    /// Bytes that are written.
    pub written_bytes: u64,
    /// Number of nodes whose sizes are not all known; they add nothing to the other totals.
    pub unknown: u64,
}

impl Totals {
    /// Adds another's, this many times.
    pub(crate) fn add(&mut self, other: &Self, times: u64) {
        let add =
            |own: &mut u64, other: u64| *own = own.saturating_add(other.saturating_mul(times));
        add(&mut self.flops, other.flops);
        add(&mut self.weight_bytes, other.weight_bytes);
        add(&mut self.read_bytes, other.read_bytes);
        add(&mut self.written_bytes, other.written_bytes);
        add(&mut self.unknown, other.unknown);
    }
}

/// A node of the main body or of a function, with all that it calls and repeats.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeCost {
    /// Path of the node.
    pub path: String,
    /// Operator of the node.
    pub op: Op,
    /// Cost of the node.
    pub totals: Totals,
    /// Position of the called function in [`Cost::functions`], if the node calls one.
    pub callee: Option<usize>,
}

/// A function, as one kind of call has it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FunctionCost {
    /// Id of the function.
    pub function: FunctionId,
    /// Number of calls of this kind, including calls through other functions.
    pub calls: u64,
    /// Cost of one call.
    pub each: Totals,
    /// The nodes of its body, in their order, as one call has them.
    pub nodes: Vec<NodeCost>,
}

/// Cost of a graph for inputs of given sizes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Cost {
    /// Totals of all nodes.
    pub totals: Totals,
    /// The nodes of the main body, in their order.
    pub nodes: Vec<NodeCost>,
    /// The functions that they call.
    pub functions: Vec<FunctionCost>,
    /// Elements of the weights; one that is used twice counts once.
    pub parameters: u64,
    /// Bytes of the weights, as the graph computes with them. The file may hold them in fewer.
    pub parameter_bytes: u64,
    /// Peak memory for values in bytes, without weights.
    ///
    /// A value is in memory from the node that produces it to the last node that reads it.
    /// Operators that only change the shape need no memory.
    pub peak_bytes: u64,
    /// The node that runs then.
    pub peak_at: String,
    /// Bytes that each token adds to the KV cache of one sequence; 0 if the model has no KV cache.
    pub cache_bytes_per_token: u64,
}

impl Cost {
    /// Returns the total cost of the nodes below a path.
    ///
    /// `layers.3` includes `layers.3/attention/scores`, but not `layers.30/norm`.
    #[must_use]
    pub fn below(&self, path: &str) -> Totals {
        let mut totals = Totals::default();
        let inside = |node: &&NodeCost| {
            node.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.nodes.iter().filter(inside).for_each(|node| totals.add(&node.totals, 1));
        totals
    }

    /// The totals of each first part of a path, in the order of the nodes.
    #[must_use]
    pub fn by_part(&self) -> Vec<(String, Totals)> {
        let mut places = BTreeMap::new();
        let mut parts: Vec<(String, Totals)> = Vec::new();
        for node in &self.nodes {
            let part = node.path.split('/').find(|part| !part.is_empty()).unwrap_or_default();
            let at = *places.entry(part).or_insert_with(|| {
                parts.push((part.to_owned(), Totals::default()));
                parts.len() - 1
            });
            parts[at].1.add(&node.totals, 1);
        }
        parts
    }
}

/// Returns the cost of a graph whose types were inferred by [`crate::infer`].
///
/// `inference` is the result of that call. For an `If`, the branch with the higher cost counts. A
/// loop is multiplied by its number of iterations, or counts once if that number is not known.
///
/// ```
/// use apr_graph::{Dim, ElementType, GraphBuilder, Meaning, cost, infer};
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let x = main.input(
///     "x",
///     ElementType::F32,
///     [Dim::symbol("sequence"), Dim::fixed(320)],
///     Meaning::Unknown,
/// );
/// let w = main.weight("w", ElementType::F32, [320, 64]);
/// let y = main.op("MatMul", [x, w]).output("y");
/// main.output("y", y, Meaning::Logits);
///
/// let mut graph = graph.finish();
/// let inference = infer(&mut graph);
/// let cost = cost(&graph, &inference, &|_| Some(128));
/// assert_eq!(cost.totals.flops, 2 * 128 * 320 * 64);
/// assert_eq!(cost.parameters, 320 * 64);
/// ```
#[must_use]
pub fn cost(graph: &Graph, inference: &Inference, sizes: Sizes<'_>) -> Cost {
    let counter = Counter::new(graph, inference, sizes);
    let mut nodes = Vec::with_capacity(graph.body.nodes.len());
    let mut calls = Calls { list: &inference.calls, next: 0 };
    let main = counter.body(&graph.body, &graph.opsets, &mut calls, &mut |node| nodes.push(node));
    let (parameters, parameter_bytes) = parameters(graph);
    Cost {
        totals: main.totals,
        nodes,
        functions: counter.functions(),
        parameters,
        parameter_bytes,
        peak_bytes: main.peak,
        peak_at: main.peak_at,
        cache_bytes_per_token: cache_bytes_per_token(graph),
    }
}

/// The signatures of the calls in a body, in the order of its nodes.
struct Calls<'a> {
    list: &'a [Option<usize>],
    next: usize,
}

impl Calls<'_> {
    fn next(&mut self) -> Option<usize> {
        self.next += 1;
        self.list.get(self.next - 1).copied().flatten()
    }
}

/// Counted cost of a body or a node.
#[derive(Debug, Clone, Default)]
struct Counted {
    totals: Totals,
    peak: u64,
    peak_at: String,
    /// Signature that a node calls; set for nodes only.
    callee: Option<usize>,
}

struct Counter<'a> {
    graph: &'a Graph,
    functions: HashSet<&'a Op>,
    inference: &'a Inference,
    sizes: Sizes<'a>,
    /// Costs of the signatures counted so far.
    signatures: Vec<Counted>,
    /// Nodes of the signatures so far.
    nodes: Vec<Vec<NodeCost>>,
}

impl<'a> Counter<'a> {
    /// Creates a counter and counts the function bodies of all inferred signatures.
    fn new(graph: &'a Graph, inference: &'a Inference, sizes: Sizes<'a>) -> Self {
        let functions = graph.functions.iter().map(|function| &function.op).collect();
        let mut counter = Counter {
            graph,
            functions,
            inference,
            sizes,
            signatures: Vec::new(),
            nodes: Vec::new(),
        };
        for signature in &inference.signatures {
            let function = &graph.functions[signature.function.0 as usize];
            let opsets = if function.opsets.is_empty() { &graph.opsets } else { &function.opsets };
            let mut calls = Calls { list: &signature.calls, next: 0 };
            let mut nodes = Vec::with_capacity(signature.body.nodes.len());
            // A signature comes after those that it calls.
            let counted =
                counter.body(&signature.body, opsets, &mut calls, &mut |node| nodes.push(node));
            counter.signatures.push(counted);
            counter.nodes.push(nodes);
        }
        counter
    }

    fn body(
        &self,
        body: &Body,
        opsets: &[Opset],
        calls: &mut Calls<'_>,
        each: &mut dyn FnMut(NodeCost),
    ) -> Counted {
        let mut counted = Counted::default();
        let mut memory =
            memory::Memory::new(body, self.sizes, std::ptr::eq(body, &self.graph.body));
        for (position, node) in body.nodes.iter().enumerate() {
            let of_node = self.node(body, node, opsets, calls);
            counted.totals.add(&of_node.totals, 1);
            let used = memory.run(position, node, of_node.peak);
            if used > counted.peak {
                counted.peak = used;
                counted.peak_at = node_path("", position, node);
            }
            each(NodeCost {
                path: node_path("", position, node),
                op: node.op.clone(),
                totals: of_node.totals,
                callee: of_node.callee,
            });
        }

        counted
    }

    fn node(&self, body: &Body, node: &Node, opsets: &[Opset], calls: &mut Calls<'_>) -> Counted {
        if self.functions.contains(&node.op) {
            let callee = calls
                .next()
                // The caller may hand over what was inferred of another graph.
                .filter(|at| self.is_of(*at, node));
            let unknown = Totals { unknown: 1, ..Totals::default() };
            let counted = callee.and_then(|at| self.signatures.get(at)).cloned();
            let counted =
                counted.unwrap_or_else(|| Counted { totals: unknown, ..Counted::default() });
            return Counted { callee, ..counted };
        }

        // Every body takes its calls off the list, whether it counts or not.
        let mut bodies = Vec::new();
        for inner in node.bodies() {
            bodies.push(self.body(inner, opsets, calls, &mut |_| {}));
        }

        if bodies.is_empty() {
            return Counted { totals: self.plain(body, node), ..Counted::default() };
        }

        let times = if node.op.is("If") { Some(1) } else { flops::times(body, node, self.sizes) };
        let most =
            bodies.into_iter().max_by_key(|counted| counted.totals.flops).unwrap_or_default();
        let mut totals = Totals { unknown: u64::from(times.is_none()), ..Totals::default() };
        totals.add(&most.totals, times.unwrap_or(1));
        Counted { totals, peak: most.peak, peak_at: most.peak_at, callee: None }
    }

    /// Returns `true` if a signature is of the function that a node calls.
    fn is_of(&self, signature: usize, node: &Node) -> bool {
        let function =
            self.inference.signatures.get(signature).map(|signature| signature.function.0 as usize);
        function
            .and_then(|function| self.graph.functions.get(function))
            .is_some_and(|function| function.op == node.op)
    }

    fn plain(&self, body: &Body, node: &Node) -> Totals {
        let mut totals = if foreign(&node.op.domain).is_some() {
            // What another program's operator computes is not known here; what it reads is.
            Totals { unknown: 1, ..Totals::default() }
        } else {
            let Some(flops) = flops::flops(body, node, self.sizes) else {
                return Totals { unknown: 1, ..Totals::default() };
            };
            Totals { flops, ..Totals::default() }
        };
        if flops::is_free(node) {
            return totals;
        }

        for value in node.inputs.iter().flatten().map(|id| body.value(*id)) {
            let bytes = bytes(value, self.sizes).unwrap_or(0);
            let bytes = if flops::reads_part(node) {
                bytes.min(written(body, node, self.sizes))
            } else {
                bytes
            };
            match value.origin {
                ValueOrigin::Weight(_) => {
                    totals.weight_bytes = totals.weight_bytes.saturating_add(bytes);
                }
                _ => totals.read_bytes = totals.read_bytes.saturating_add(bytes),
            }
        }

        totals.written_bytes = written(body, node, self.sizes);
        totals
    }

    /// Returns the functions with their call counts: calls from the main body and from other
    /// functions.
    fn functions(self) -> Vec<FunctionCost> {
        let signatures = &self.inference.signatures;
        let mut times = vec![0_u64; signatures.len()];
        self.inference.calls.iter().flatten().for_each(|signature| times[*signature] += 1);

        // Callers come after what they call, so from the end on their own counts are complete.
        for at in (0..signatures.len()).rev() {
            for called in signatures[at].calls.iter().flatten() {
                times[*called] = times[*called].saturating_add(times[at]);
            }
        }

        let counted = signatures.iter().zip(&self.signatures).zip(times).zip(self.nodes);
        counted
            .map(|(((signature, counted), calls), nodes)| FunctionCost {
                function: signature.function,
                calls,
                each: counted.totals,
                nodes,
            })
            .collect()
    }
}

fn written(body: &Body, node: &Node, sizes: Sizes<'_>) -> u64 {
    let outputs = node.outputs.iter().flatten().filter_map(|id| bytes(body.value(*id), sizes));
    outputs.fold(0, u64::saturating_add)
}

/// Elements and bytes of all weights, each once.
fn parameters(graph: &Graph) -> (u64, u64) {
    let mut seen = HashSet::new();
    let (mut count, mut len) = (0_u64, 0_u64);
    let functions = graph.functions.iter().map(|function| &function.body);
    let mut open: Vec<_> = std::iter::once(&graph.body).chain(functions).collect();
    while let Some(body) = open.pop() {
        for (value, weight) in body.weights().chain(body.constant_weights()) {
            // A tensor that is looked at from another side is still one tensor; other parts of it
            // are others.
            let sides = |view: &&View| {
                !matches!(view, View::Transposed(_) | View::Reshaped(_) | View::Plus(_))
            };
            let parts: Vec<_> = weight.views.iter().filter(sides).collect();
            if seen.insert((&weight.tensor, parts)) {
                let sizes: Sizes<'_> = &|_| None;
                count = count.saturating_add(
                    value.tensor().and_then(|tensor| elements(tensor, sizes)).unwrap_or(0),
                );
                len = len.saturating_add(bytes(value, sizes).unwrap_or(0));
            }
        }

        open.extend(body.nodes.iter().flat_map(Node::bodies));
    }

    (count, len)
}

/// Returns the bytes per token of the KV cache inputs, which are `[batch, heads, past, size]` each.
fn cache_bytes_per_token(graph: &Graph) -> u64 {
    let body = &graph.body;
    let of = |ids: &[crate::ValueId], meanings: [Meaning; 2]| {
        let values =
            ids.iter().map(|id| body.value(*id)).filter(|value| meanings.contains(&value.meaning));
        values.filter_map(token_bytes).fold(0, u64::saturating_add)
    };
    match of(&body.inputs, [Meaning::PastKey, Meaning::PastValue]) {
        0 => of(&body.outputs, [Meaning::PresentKey, Meaning::PresentValue]),
        bytes => bytes,
    }
}

fn token_bytes(value: &Value) -> Option<u64> {
    let [_, heads, _, size] = value.shape()? else { return None };
    let one: fn(&Dim) -> Option<u64> = Dim::size;
    value.element()?.stored_len(one(heads)?.checked_mul(one(size)?)?)
}

#[cfg(test)]
mod tests;
