//! What a model computes: its graphs, and what can be said of them without a weight being read.

mod bound;
mod difference;
mod report;
mod runnable;
mod sentence;

use std::collections::BTreeMap;
use std::sync::Arc;

use apr_arch::Resemblance;
use apr_blocks::{GraphOptions, graphs};
use apr_core::Progress;
use apr_graph::outline::{NodeView, ValueEnd};
use apr_graph::{Cost, Findings, Graph, Inference, Use, check, cost, infer, upgrade, uses};
use apr_llama::is_in_gguf_layout;
use apr_registry::{
    CheckpointReader, Code, Error, Escaped, Pipeline, Result, keras, onnx, tensorflow,
};
use apr_source::Source;
use apr_source::sentence::Sentence;
use apr_view::check_decodable;
use apr_view::{View, named};
use serde::Serialize;

pub(crate) use bound::{BoundGraphs, bound_graphs, run_graphs};
pub use difference::{NodeChange, StructureDiff};
pub use report::{
    CostReport, EndReport, GraphReport, PartReport, PartSummary, ReportOptions, report, summaries,
};
pub use runnable::{Runnable, with_graphs};
pub use sentence::{SENTENCE_INPUTS, SENTENCE_OUTPUT, sentence_graph};

use crate::import::restore;
use crate::inline::ValidationConfig;
use crate::own_graph::{OwnGraphs, own_graphs, own_graphs_or_damage};
use crate::tensors::{TensorRow, TensorsOptions, list};

/// The graphs of a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Computed {
    /// Origin of the graphs.
    pub origin: GraphOrigin,
    /// One graph, or several if an encoder and a decoder run separately.
    ///
    /// The types of all values are inferred.
    pub parts: Vec<GraphPart>,
    /// Names of tensors that no graph uses: canonical names if a family has them.
    pub unused: Vec<String>,
}

/// A graph of a model.
#[derive(Debug, Clone)]
pub struct GraphPart {
    /// Name of the graph: `model`, `encoder_model`.
    pub name: String,
    /// The graph itself, with inferred types.
    pub graph: Graph,
    /// Findings in the graph.
    pub findings: Findings,
    /// The types that its functions are called with.
    inference: Arc<Inference>,
}

/// Origin of a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphOrigin {
    /// The file has it.
    File,
    /// The graph is built from the model's family, which has this name.
    Family(String),
}

/// Returns the graphs of a model: the graphs in its file, or those of its family.
///
/// # Errors
/// E003 when neither has one, or the configuration has an option that no block knows; E001 when it
/// lacks one that a block needs.
pub fn computed(source: &Source<'_>, options: &GraphOptions) -> Result<Computed> {
    if options.task.is_none()
        && let Some(own) = of_file(source)?
    {
        return Ok(own);
    }
    source.reader().container().check_shards()?;
    let view = for_graphs(source)?;
    let restored = source.through(&view);
    let Some(family) = restored.family()? else { return Err(without_family(source)) };
    let found = graphs(family, view.tensors(), options).map_err(|error| about(source, error))?;
    let parts = found.parts.into_iter().map(|part| GraphPart::new(part.name, part.graph)).collect();
    Ok(Computed {
        origin: GraphOrigin::Family(family.family().name().to_owned()),
        parts,
        unused: found.unused.into_iter().map(|tensor| tensor.name).collect(),
    })
}

/// The model as graphs of families expect it: with the names, the layout and the configuration of
/// Hugging Face, whatever the file has.
///
/// # Errors
/// E003 where no family is known, or the file of a GGUF model says what no configuration can; E001,
/// E002 and E007 where it can't be brought into that form.
pub(crate) fn for_graphs<'a>(source: &Source<'a>) -> Result<View<'a>> {
    if source.family()?.is_none() {
        return Err(without_family(source));
    }
    if !is_in_gguf_layout(source.reader()) {
        return Ok(restore(source, &onnx::FORMAT, ValidationConfig::integrity())?.prepared.view);
    }

    let restored = apr_llama::restore(source.reader(), source.families(), source.architecture())?;
    match restored.losses.iter().find(|loss| loss.name.starts_with(ROTARY)) {
        Some(loss) => Err(Error::version(loss.why.clone()).for_tensor(&loss.name)),
        None => Ok(restored.view),
    }
}

/// Attributes an out-of-memory error of a graph to the model.
///
/// The configuration requests too much, and more memory would not help.
fn about(source: &Source<'_>, error: Error) -> Error {
    match error.code() == Code::Memory && error.file().is_none() {
        true => error.in_file(source.name()),
        false => error,
    }
}

/// Prefix of GGUF's tensors of factors for rotary positions.
const ROTARY: &str = "rope_";

/// Returns the graphs in the model's file, or `None` if it has none.
///
/// # Errors
/// E002 when it is damaged, E007 when reading fails, E008 over the limits.
pub fn of_file(source: &Source<'_>) -> Result<Option<Computed>> {
    Ok(own_graphs(source)?.map(Computed::of_own))
}

/// The graphs of the model's file, or what is wrong with them: see [`own_graphs_or_damage`].
///
/// # Errors
/// E007 when reading fails, E008 over the limits.
pub(crate) fn of_file_or_damage(source: &Source<'_>) -> Result<Result<Option<Computed>>> {
    Ok(own_graphs_or_damage(source)?.map(|own| own.map(Computed::of_own)))
}

/// Returns the warning for a model whose graph can't be read.
pub(crate) fn unreadable(error: &Error) -> String {
    format!("the graph can't be read: {}", error.message())
}

/// Returns the default size of a symbolic dimension for cost estimates.
///
/// The default is one text, audio or image with 128 tokens and no past tokens.
#[must_use]
pub fn usual_size(symbol: &str) -> u64 {
    if symbol.contains("past") {
        0
    } else if symbol.contains("batch") || symbol == "N" {
        1
    } else {
        128
    }
}

/// Returns the error for a model without a known family and without a graph of its own.
pub(crate) fn without_family(source: &Source<'_>) -> Error {
    // Codes that nothing decodes have names that no family knows.
    let refused = check_decodable(source.reader()).err();
    refused.unwrap_or_else(|| Error::version(unknown_family(source))).in_file(source.name())
}

/// Returns a message for a model of an unknown family without a graph.
///
/// It contains the architecture that the model states, why it has no graph, the most similar
/// family, and how to set or define a family.
pub(crate) fn unknown_family(source: &Source<'_>) -> String {
    let reader = source.reader();
    if let Some(table) = Sentence::table_of(reader) {
        return format!(
            "the model is {table}, whose graph can't be exported: it can be run, and written as \
             .apr, safetensors or PyTorch"
        );
    }
    let why = without_graph(reader).map_or_else(String::new, |why| format!(" ({why})"));
    let no_graph = format!("and the file has no graph of its own{why}");
    let Some(name) = source.families().stranger(reader.metadata()) else {
        return format!(
            "unknown family: no metadata names it, and the tensor names match none, {no_graph}. \
             `architecture` NAME sets one of the known families, `family_table` FILE defines \
             another (docs/families.md)"
        );
    };

    // A model of another type may compute something else with tensors of the same names.
    let nearest = source.families().nearest(reader.tensors(), reader.metadata());
    let nearest = nearest.map_or_else(String::new, |nearest| {
        let Resemblance { title, known, total, .. } = nearest;
        format!(
            " {known} of {total} tensor names match {title}, which may compute something else; \
             `apr explain MODEL` shows the differences."
        )
    });
    format!(
        "unknown family '{name}', {no_graph}.{nearest} `family_table` FILE defines it \
         (docs/families.md)"
    )
}

/// Returns why a file has no graph although its format supports graphs.
fn without_graph(reader: &dyn CheckpointReader) -> Option<String> {
    let format = reader.format();
    if format == &tensorflow::CHECKPOINT {
        return Some("a checkpoint of TensorFlow has variables only".to_owned());
    }
    if format != &keras::HDF5 && format != &keras::ARCHIVE {
        return None;
    }
    let own = reader.metadata().object(keras::METADATA);
    Some(match own.and_then(|own| own.get("model_config")?.get("class_name")?.as_str()) {
        Some(class) => {
            format!("its configuration, of class '{}', lists no layers", Escaped::short(class))
        }
        None => "it has no configuration of a model".to_owned(),
    })
}

impl Computed {
    fn of_own(own: OwnGraphs) -> Self {
        let parts = own.parts.into_iter().map(|(name, graph)| GraphPart::new(&name, graph));
        Self { origin: GraphOrigin::File, parts: parts.collect(), unused: own.unused }
    }

    /// Returns the same graphs with ONNX operators, if the file has operators of another framework.
    ///
    /// # Errors
    /// E003 with the names of the operators when some have no counterpart.
    pub fn in_onnx(&self, source: &Source<'_>) -> Result<Self> {
        if self.origin != GraphOrigin::File {
            return Ok(self.clone());
        }
        let Some(own) = own_graphs(source)? else { return Ok(self.clone()) };
        let parts = own.in_onnx(source.reader()).map_err(|error| error.in_file(source.name()))?;
        let parts = parts.into_iter().map(|(name, graph)| GraphPart::new(&name, graph));
        Ok(Self { parts: parts.collect(), ..self.clone() })
    }

    /// Returns the graphs with the operators of another ONNX version.
    ///
    /// # Errors
    /// E003 where an operator does not go along: with its name and that of its node.
    pub fn upgraded(&self, opset: i64) -> Result<Self> {
        let parts = self.parts.iter().map(|part| match part.graph.opset("") == Some(opset) {
            true => Ok(part.clone()),
            false => Ok(GraphPart::new(&part.name, upgrade(&part.graph, opset)?)),
        });
        Ok(Self { parts: parts.collect::<Result<_>>()?, ..self.clone() })
    }

    /// The nodes that read a tensor of the checkpoint, which has this name and this canonical one.
    #[must_use]
    pub fn uses(&self, name: &str, canonical: Option<&str>) -> Vec<Use> {
        /// A tensor that is used more often is a buffer that everything reads.
        const MOST: usize = 100;
        let name = match self.origin {
            GraphOrigin::File => name,
            GraphOrigin::Family(_) => canonical.unwrap_or(name),
        };
        self.parts.iter().flat_map(|part| uses(&part.graph, name, MOST)).collect()
    }

    /// The tensor of the checkpoint that the graphs call so.
    fn position(&self, source: &Source<'_>, tensor: &str) -> Result<Option<usize>> {
        let tensors = source.reader().tensors();
        let family = source.family()?.filter(|_| self.origin != GraphOrigin::File);
        let is_it = |position: &usize| {
            let canonical = family.and_then(|family| family.canonical(*position));
            canonical.unwrap_or(&tensors[*position].name) == tensor
        };
        Ok((0..tensors.len()).find(is_it))
    }
}

impl GraphPart {
    /// A graph whose types are inferred and which is checked.
    #[must_use]
    pub fn new(name: &str, mut graph: Graph) -> Self {
        let mut findings = check(&graph);
        let inference = infer(&mut graph);
        for finding in &inference.findings.list {
            findings.add(finding.severity, &finding.node, &finding.message);
        }
        findings.omitted += inference.findings.omitted;
        Self { name: name.to_owned(), graph, findings, inference: Arc::new(inference) }
    }

    /// Returns the cost for inputs of these sizes, by symbol. A symbol without a size has
    /// [`usual_size`].
    #[must_use]
    pub fn cost(&self, sizes: &BTreeMap<String, u64>) -> Cost {
        let size =
            |symbol: &str| Some(sizes.get(symbol).copied().unwrap_or_else(|| usual_size(symbol)));
        cost(&self.graph, &self.inference, &size)
    }
}

/// A node, and the statistics of the weights that it reads.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct NodeReport {
    /// View of the node.
    #[serde(flatten)]
    pub node: NodeView,
    /// Weights of the node, with statistics.
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
                ValueEnd::Weight(tensor) => Some(tensor),
                _ => None,
            });
            let mut weights = Vec::new();
            for tensor in tensors {
                let Some(position) = computed.position(source, tensor)? else { continue };
                let filter = Some(named(&source.reader().tensors()[position].name));
                let options = TensorsOptions { filter, stats: true, ..TensorsOptions::default() };
                weights.extend(
                    list(source.reader(), source.name(), &options, pipeline, progress)?.tensors,
                );
            }
            Ok(NodeReport { node, weights })
        })
        .collect()
}
