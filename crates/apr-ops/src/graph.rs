//! What a model computes: its graphs, and what can be said of them without a weight being read.

use std::collections::BTreeMap;

use apr_blocks::{GraphOptions, graphs};
use apr_core::Progress;
use apr_graph::outline::{NodeView, OutlineOptions, Place, Scene, outline};
use apr_graph::{Body, Dim, Findings, Graph, Meaning, Use, ValueId, check, infer, uses};
use apr_registry::{Error, Format, Pipeline, Result};
use apr_source::Source;
use apr_view::named;
use serde::Serialize;

use crate::own_graph::own_graph;
use crate::tensors::{TensorRow, TensorsOptions, list};

/// The graphs of a model.
#[derive(Debug, Clone)]
pub struct Computed {
    /// Where they come from.
    pub origin: Origin,
    /// One, or several where an encoder and a decoder run apart; types of all values are inferred.
    pub parts: Vec<Part>,
    /// Canonical names of tensors that none of them uses.
    pub unused: Vec<String>,
}

/// A graph of a model.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its name: `model`, `encoder_model`.
    pub name: String,
    /// What it computes.
    pub graph: Graph,
    /// What is odd or wrong in it.
    pub findings: Findings,
}

/// Where a graph comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The file has it.
    File,
    /// The model's family says what its models compute.
    Family(String),
}

/// The graphs of a model: those of its file, or those of its family.
///
/// # Errors
/// E003 when neither has one, or the configuration has an option that no block knows; E001 when it lacks one that a block
/// needs.
pub fn computed(source: &Source<'_>, options: &GraphOptions) -> Result<Computed> {
    if options.task.is_none()
        && let Some((graph, unused)) = own_graph(source)?
    {
        return Ok(Computed { origin: Origin::File, parts: vec![Part::new("model", graph)], unused });
    }
    let Some(family) = source.family()? else { return Err(without_family(source.name())) };
    let found = graphs(family, source.reader().tensors(), options)?;
    let parts = found.parts.into_iter().map(|part| Part::new(part.name, part.graph)).collect();
    Ok(Computed { origin: Origin::Family(family.family().name().to_owned()), parts, unused: found.unused })
}

/// What a model without a family and a graph of its own ends with.
pub(crate) fn without_family(name: &str) -> Error {
    let message = "apr does not know this model's family, and so not what it computes; --arch NAME names a family, \
                   --arch-file FILE describes one";
    Error::version(message).in_file(name)
}

impl Computed {
    /// The nodes that read a tensor of the checkpoint, which has this name and this canonical one.
    #[must_use]
    pub fn uses(&self, name: &str, canonical: Option<&str>) -> Vec<Use> {
        /// A tensor that is used more often is a buffer that everything reads.
        const MOST: usize = 100;
        let name = match self.origin {
            Origin::File => name,
            Origin::Family(_) => canonical.unwrap_or(name),
        };
        self.parts.iter().flat_map(|part| uses(&part.graph, name, MOST)).collect()
    }

    /// The tensor of the checkpoint that the graphs call so.
    fn position(&self, source: &Source<'_>, tensor: &str) -> Result<Option<usize>> {
        let tensors = source.reader().tensors();
        let family = source.family()?.filter(|_| self.origin != Origin::File);
        let is_it = |position: &usize| {
            let canonical = family.and_then(|family| family.canonical(*position));
            canonical.unwrap_or(&tensors[*position].name) == tensor
        };
        Ok((0..tensors.len()).find(is_it))
    }
}

impl Part {
    /// A graph whose types are inferred and which is checked.
    #[must_use]
    pub fn new(name: &str, mut graph: Graph) -> Self {
        let mut findings = check(&graph);
        let inferred = infer(&mut graph).findings;
        for finding in inferred.list {
            findings.add(finding.severity, finding.node, finding.message);
        }
        findings.omitted += inferred.omitted;
        Self { name: name.to_owned(), graph, findings }
    }
}

/// What a model computes, as `apr graph` reports it.
#[derive(Debug, Serialize)]
pub struct GraphReport {
    /// What was opened.
    pub file: String,
    /// Its format.
    pub format: &'static Format,
    /// Where the graphs come from.
    pub origin: Origin,
    /// The graphs.
    pub parts: Vec<PartReport>,
    /// Canonical names of tensors that none of them uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unused_tensors: Vec<String>,
}

/// A graph, as `apr graph` reports it.
#[derive(Debug, Serialize)]
pub struct PartReport {
    /// Its name.
    pub name: String,
    /// Versions of the operators by domain; ONNX's own is `ai.onnx`.
    pub opsets: BTreeMap<String, i64>,
    /// What the caller gives.
    pub inputs: Vec<EndReport>,
    /// What the caller gets.
    pub outputs: Vec<EndReport>,
    /// How often each operator runs, functions called included. What a loop repeats counts once.
    pub operators: BTreeMap<String, u64>,
    /// Sum of them.
    pub nodes: u64,
    /// Elements of all weights.
    pub parameters: u64,
    /// What is odd or wrong.
    pub findings: Findings,
    /// The structure.
    pub structure: Scene,
}

/// An input or output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndReport {
    /// Its name.
    pub name: String,
    /// Its type, where it is a tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What it is for.
    pub meaning: Meaning,
}

/// Reports on the graphs of a model.
#[must_use]
pub fn report(source: &Source<'_>, computed: &Computed, fold: bool) -> GraphReport {
    GraphReport {
        file: source.name().to_owned(),
        format: source.reader().format(),
        origin: computed.origin.clone(),
        parts: computed.parts.iter().map(|part| PartReport::new(part, fold)).collect(),
        unused_tensors: computed.unused.clone(),
    }
}

impl PartReport {
    fn new(part: &Part, fold: bool) -> Self {
        let Part { name, graph, findings } = part;
        let body = &graph.body;
        let domain = |domain: &str| if domain.is_empty() { "ai.onnx".to_owned() } else { domain.to_owned() };
        let ends = |ids: &[ValueId]| ids.iter().map(|id| EndReport::new(body, *id)).collect();
        let structure = outline(graph, OutlineOptions { fold });
        let operators = operators(graph);
        Self {
            name: name.clone(),
            opsets: graph.opsets.iter().map(|opset| (domain(&opset.domain), opset.version)).collect(),
            inputs: ends(&body.inputs),
            outputs: ends(&body.outputs),
            nodes: operators.values().fold(0, |sum, count| sum.saturating_add(*count)),
            operators,
            parameters: parameters(body),
            findings: findings.clone(),
            structure,
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

/// Elements of the weights; one that is used in several ways counts once.
fn parameters(body: &Body) -> u64 {
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    for (value, weight) in body.weights() {
        let sizes_of = value.shape().into_iter().flatten().map(Dim::size);
        let size = sizes_of.into_iter().try_fold(1_u64, |product, size| product.checked_mul(size?)).unwrap_or(0);
        let known = sizes.entry(&weight.tensor).or_default();
        *known = size.max(*known);
    }
    sizes.values().fold(0, |sum, size| sum.saturating_add(*size))
}

/// A node, and the statistics of the weights that it reads.
#[derive(Debug, Serialize)]
pub struct NodeReport {
    /// The node.
    #[serde(flatten)]
    pub node: NodeView,
    /// Its weights, with statistics.
    pub weights: Vec<TensorRow>,
}

/// Reports on the nodes with this path, or that make a value of this name. Their weights are read.
///
/// # Errors
/// E002 and E007 when bytes can't be read.
pub fn nodes<P: Pipeline>(
    source: &Source<'_>,
    computed: &Computed,
    name: &str,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<NodeReport>> {
    let nodes = computed.parts.iter().flat_map(|part| NodeView::find(&part.graph, name));
    nodes
        .map(|node| {
            let tensors = node.inputs.iter().filter_map(|input| match &input.place {
                Place::Weight(tensor) => Some(tensor),
                _ => None,
            });
            let mut weights = Vec::new();
            for tensor in tensors {
                let Some(position) = computed.position(source, tensor)? else { continue };
                let filter = Some(named(&source.reader().tensors()[position].name)?);
                let options = TensorsOptions { filter, stats: true, ..TensorsOptions::default() };
                weights.extend(list(source.reader(), source.name(), &options, pipeline, progress)?.tensors);
            }
            Ok(NodeReport { node, weights })
        })
        .collect()
}

/// How often each operator is in the graph, with that of a function as often as it is called.
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

fn count(body: &Body, of_functions: &BTreeMap<String, BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
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
