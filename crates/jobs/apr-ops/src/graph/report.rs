//! What is reported on graphs.

use std::collections::BTreeMap;

use apr_graph::outline::{OutlineOptions, Scene, outline};
use apr_graph::{Body, Cost, Dim, Findings, Graph, Meaning, ValueId, ValueOrigin};
use apr_registry::Format;
use apr_source::Source;
use serde::Serialize;

use super::{Computed, GraphOrigin, GraphPart, usual_size};

/// Report on a model's graphs, as printed by `apr graph`.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct GraphReport {
    /// Path or location of the opened model.
    pub path: String,
    /// Format of the model.
    pub format: &'static Format,
    /// Origin of the graphs.
    pub origin: GraphOrigin,
    /// Reports of the graphs.
    pub parts: Vec<PartReport>,
    /// Canonical names of tensors that none of them uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unused_tensors: Vec<String>,
    /// Warnings about the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A graph, as `apr graph` reports it.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct PartReport {
    /// Summary of the graph.
    #[serde(flatten)]
    pub summary: PartSummary,
    /// Findings in the graph.
    pub findings: Findings,
    /// Structure of the graph.
    pub structure: Scene,
}

/// A graph without its structure, as `apr inspect` reports it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PartSummary {
    /// Name of the graph.
    pub name: String,
    /// Versions of the operators by domain; ONNX's own is `ai.onnx`.
    pub opsets: BTreeMap<String, i64>,
    /// Inputs that the caller passes.
    pub inputs: Vec<EndReport>,
    /// Outputs that the caller receives.
    pub outputs: Vec<EndReport>,
    /// Number of runs of each operator, including called functions. The body of a loop counts once.
    pub operators: BTreeMap<String, u64>,
    /// Number of runs of all operators.
    #[serde(rename = "node_count")]
    pub nodes: u64,
    /// Elements of all weights.
    pub parameters: u64,
    /// Cost of one run.
    pub cost: CostReport,
}

/// Cost of one run of a graph.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CostReport {
    /// For inputs of these sizes.
    pub sizes: BTreeMap<String, u64>,
    /// Operations on floats: two for each multiplication that is added up.
    pub flops: u64,
    /// Bytes of weights that are read, as the graph computes with them.
    pub weight_bytes: u64,
    /// Peak size in bytes of the values in memory, without weights.
    pub peak_bytes: u64,
    /// The node that runs then.
    pub peak_at: String,
    /// Bytes that each token adds to the KV cache; 0 if there is no cache.
    pub cache_bytes_per_token: u64,
    /// Number of nodes with unknown sizes; they count as zero.
    pub unknown_nodes: u64,
}

/// An input or output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EndReport {
    /// Name of the input or output.
    pub name: String,
    /// Tensor type, or `None` if the value is not a tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Meaning of the value.
    pub meaning: Meaning,
}

/// Level of detail of a report on graphs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReportOptions {
    /// Fold equal neighbouring items, such as layers, into one.
    pub fold: bool,
    /// Include the cost of each item of the structure.
    pub costs: bool,
    /// Sizes of the inputs' symbolic dimensions for the cost estimates, by name.
    ///
    /// A dimension that is missing here has [`usual_size`].
    pub sizes: BTreeMap<String, u64>,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self { fold: true, costs: false, sizes: BTreeMap::new() }
    }
}

/// Reports on the graphs of a model.
#[must_use]
pub fn report(source: &Source<'_>, computed: &Computed, options: &ReportOptions) -> GraphReport {
    let part = |part: &GraphPart| {
        let structure = outline(&part.graph, OutlineOptions { fold: options.fold });
        PartReport {
            summary: PartSummary::new(part, &options.sizes),
            findings: part.findings.clone(),
            structure: match options.costs {
                true => structure.with_costs(&part.cost(&options.sizes)),
                false => structure,
            },
        }
    };
    GraphReport {
        path: source.name().to_owned(),
        format: source.reader().format(),
        origin: computed.origin.clone(),
        parts: computed.parts.iter().map(part).collect(),
        unused_tensors: computed.unused.clone(),
        warnings: source.reader().warnings().to_vec(),
    }
}

/// The graphs of a model in short.
#[must_use]
pub fn summaries(computed: &Computed) -> Vec<PartSummary> {
    computed.parts.iter().map(|part| PartSummary::new(part, &BTreeMap::new())).collect()
}

impl PartSummary {
    fn new(part: &GraphPart, sizes: &BTreeMap<String, u64>) -> Self {
        let GraphPart { name, graph, .. } = part;
        let body = &graph.body;
        let domain =
            |domain: &str| if domain.is_empty() { "ai.onnx".to_owned() } else { domain.to_owned() };

        // Old files list their weights among the inputs; the caller need not give them.
        let is_given = |id: &&ValueId| {
            !matches!(body.value(**id).origin, ValueOrigin::Weight(_) | ValueOrigin::Constant(_))
        };
        let ends = |ids: &[ValueId]| {
            ids.iter().filter(is_given).map(|id| EndReport::new(body, *id)).collect()
        };
        let operators = operators(graph);
        let cost = part.cost(sizes);
        Self {
            name: name.clone(),
            opsets: graph
                .opsets
                .iter()
                .map(|opset| (domain(&opset.domain), opset.version))
                .collect(),
            inputs: ends(&body.inputs),
            outputs: ends(&body.outputs),
            nodes: operators.values().fold(0, |sum, count| sum.saturating_add(*count)),
            operators,
            parameters: cost.parameters,
            cost: CostReport::new(part, cost, sizes),
        }
    }
}

impl CostReport {
    fn new(part: &GraphPart, cost: Cost, sizes: &BTreeMap<String, u64>) -> Self {
        let body = &part.graph.body;
        let symbols =
            body.inputs.iter().flat_map(|input| body.value(*input).shape().unwrap_or_default());
        let symbols = symbols.flat_map(Dim::symbols);
        Self {
            sizes: symbols
                .map(|symbol| {
                    (
                        symbol.to_string(),
                        sizes.get(&*symbol).copied().unwrap_or_else(|| usual_size(&symbol)),
                    )
                })
                .collect(),
            flops: cost.totals.flops,
            weight_bytes: cost.totals.weight_bytes,
            peak_bytes: cost.peak_bytes,
            peak_at: cost.peak_at,
            cache_bytes_per_token: cost.cache_bytes_per_token,
            unknown_nodes: cost.totals.unknown,
        }
    }
}

impl EndReport {
    fn new(body: &Body, id: ValueId) -> Self {
        let value = body.value(id);
        let kind = value.tensor().map(ToString::to_string);
        Self { name: value.name.clone(), kind, meaning: value.meaning }
    }
}

/// Returns the number of runs of each operator in the graph. A function counts once per call.
fn operators(graph: &Graph) -> BTreeMap<String, u64> {
    let mut of_functions: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    // A function that is called in another comes to be known before it, or after one more round.
    for _ in 0..graph.functions.len().min(apr_graph::MAX_DEPTH) {
        let before = of_functions.clone();
        for function in &graph.functions {
            of_functions.insert(function.op.to_string(), count(&function.body, &before));
        }
        if of_functions == before {
            break;
        }
    }
    count(&graph.body, &of_functions)
}

fn count(
    body: &Body,
    of_functions: &BTreeMap<String, BTreeMap<String, u64>>,
) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut bodies = vec![body];
    while let Some(body) = bodies.pop() {
        for node in &body.nodes {
            let op = node.op.to_string();
            match of_functions.get(&op) {
                Some(inner) => inner.iter().for_each(|(op, times)| {
                    let sum = counts.entry(op.clone()).or_default();
                    *sum = sum.saturating_add(*times);
                }),
                None => *counts.entry(op).or_default() += 1,
            }
            bodies.extend(node.bodies());
        }
    }

    counts
}
