//! The graphs of a family, bound to a checkpoint to be run or written.

use apr_arch::FamilyModel;
use apr_blocks::{GraphOptions, Graphs, graphs};
use apr_registry::Result;
use apr_source::Source;
use apr_view::check_decodable;

use super::about;
use crate::tied::with_untied;

/// Graphs that use every tensor of the checkpoint which the outputs depend on.
pub(crate) struct BoundGraphs {
    pub(crate) graphs: Graphs,
    /// Heads that are not tied although the configuration ties them, and tensors that are left out.
    pub(crate) warnings: Vec<String>,
}

/// The graphs of a model whose tensors have Hugging Face's names and layout.
///
/// # Errors
/// E001 when the graphs leave out tensors that the outputs depend on, and those of [`graphs`]; E002
/// and E007 when tensors that are tied can't be compared.
pub(crate) fn bound_graphs(
    source: &Source<'_>,
    family: &FamilyModel<'_>,
    options: &GraphOptions,
) -> Result<BoundGraphs> {
    let (options, mut warnings) = with_untied(source, options)?;
    let found = graphs(family, source.reader().tensors(), &options);
    let graphs = found.map_err(|error| about(source, error))?;
    check_decodable(source.reader()).map_err(|error| error.in_file(source.name()))?;
    graphs.check_complete().map_err(|error| error.in_file(source.name()))?;
    warnings.extend(graphs.left_out());
    Ok(BoundGraphs { graphs, warnings })
}
