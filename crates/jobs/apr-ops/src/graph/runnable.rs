//! Graphs that can run, with the tensors that they use.

use apr_blocks::GraphOptions;
use apr_graph::Graph;
use apr_registry::{CheckpointReader, Error, Result};
use apr_source::Source;
use apr_source::naming::canonical;

use super::sentence::{SENTENCE_OUTPUT, table_graph};
use super::{BoundGraphs, for_graphs, run_graphs, without_family};
use crate::own_graph::own_graphs;

/// A graph that can run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Runnable {
    /// Name of the graph: `model`, `encoder_model`.
    pub name: String,
    /// The graph itself.
    pub graph: Graph,
    /// Differences from the model's own runtime, and parts that are left out.
    pub warnings: Vec<String>,
}

impl Runnable {
    /// A graph to be run in the place of another one.
    #[must_use]
    pub fn new(name: String, graph: Graph) -> Self {
        Self { name, graph, warnings: Vec::new() }
    }
}

/// Calls `then` with the graphs of a model, and with the tensors under the names that the graphs
/// use.
///
/// # Errors
/// E003 when the model has no graph and its family is not known; E001 when a family's graph leaves
/// out tensors that the outputs depend on; what reading the model ends with, and what `then` ends
/// with.
pub fn with_graphs<R, E: From<Error>>(
    source: &Source<'_>,
    options: &GraphOptions,
    then: impl FnOnce(&dyn CheckpointReader, &[Runnable]) -> Result<R, E>,
) -> Result<R, E> {
    // The graph in the file has the head that it has: another one is the family's. The task of
    // modules is met by a graph that they are written in.
    if (options.task.is_none() || options.is_own_task)
        && let Some(own) = own_graphs(source)?
    {
        let said = [own.widened(), own.left_out()];
        match own.in_onnx(source.reader()) {
            Ok(parts) if options.task.is_some() && !parts.iter().any(makes_vectors) => {}
            Ok(parts) => {
                let parts = parts.into_iter().map(|(name, graph)| Runnable::new(name, graph));
                let mut parts: Vec<Runnable> = parts.collect();
                if let Some(first) = parts.first_mut() {
                    first.warnings.extend(said.into_iter().flatten());
                }
                return then(source.reader(), &parts);
            }
            Err(error) if source.family()?.is_none() => {
                return Err(error.in_file(source.name()).into());
            }
            // The family says the same in operators that run.
            Err(_) => {}
        }
    }
    if source.family()?.is_none()
        && let Some(graph) = table_graph(source.reader())?
    {
        return then(source.reader(), &[Runnable::new("model".to_owned(), graph)]);
    }
    let view = for_graphs(source)?;
    let restored = source.through(&view);
    let Some(family) = restored.family()? else { return Err(without_family(source).into()) };
    let BoundGraphs { graphs, warnings } = run_graphs(&restored, family, options)?;
    let parts = graphs.parts.into_iter();
    let mut parts: Vec<Runnable> =
        parts.map(|part| Runnable::new(part.name.to_owned(), part.graph)).collect();
    if let Some(first) = parts.first_mut() {
        first.warnings.extend(warnings);
    }
    let mut named = canonical(&view, family);
    if let Some(vision) = family.vision().filter(|_| options.images) {
        named.rename(|position, _| vision.canonical(position).map(str::to_owned));
    }
    then(&named, &parts)
}

/// Returns `true` if a graph computes text embeddings.
fn makes_vectors((_, graph): &(String, Graph)) -> bool {
    let body = &graph.body;
    body.outputs.iter().any(|id| body.value(*id).name == SENTENCE_OUTPUT)
}
