//! Jobs that set the shapes of inputs and simplify graphs.

use std::collections::BTreeSet;

use apr_graph::{Graph, inline};
use apr_registry::{CheckpointReader, Computes, Escaped, Metadata};
use apr_view::View;

use super::computed::{WITH_FREE_WEIGHTS, properties, release_weights};
use super::description::Job;
use super::error::JobError;
use crate::simplify::{NamedShape, Simplified, set_shapes, simplify, used};

/// The graphs of a model's parts that are written.
pub(super) struct Reworked {
    /// By the names of the parts.
    pub(super) models: Vec<(String, Graph)>,
    /// Result of simplifying each graph.
    pub(super) reports: Vec<Simplified>,
    /// Warnings about outputs that were not compared.
    pub(super) warnings: Vec<String>,
    /// Names of tensors that the graphs do not use any more, among them computed ones.
    pub(super) replaced: BTreeSet<String>,
}

impl Job {
    /// Sets the requested shapes of inputs, and simplifies the graphs if requested.
    ///
    /// `view` has the tensors that the graphs name, and receives the computed tensors.
    pub(super) fn rework(
        &self,
        models: Vec<(String, Graph)>,
        view: &mut View<'_>,
        metadata: &Metadata,
        file: &str,
    ) -> Result<Reworked, JobError> {
        let (reports, warnings, replaced) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut reworked = Reworked { models, reports, warnings, replaced };
        if self.graph.shapes.is_empty() && !self.graph.simplify {
            return Ok(reworked);
        }
        let is_old = properties(metadata).ir_version < WITH_FREE_WEIGHTS;
        for (_, graph) in &mut reworked.models {
            // Passes do not look into functions.
            *graph = inline(graph)?;
            if is_old {
                release_weights(&mut graph.body);
            }
        }
        self.set_shapes(&mut reworked.models)?;
        if !self.graph.simplify {
            return Ok(reworked);
        }

        let names = |view: &View<'_>| -> BTreeSet<String> {
            view.tensors().iter().map(|info| info.name.clone()).collect()
        };
        let stored = names(view);
        let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
        for (name, graph) in &mut reworked.models {
            used(&graph.body, &mut before);
            let (simple, report, warning) = simplify(name, graph, view, self.validation.stop)
                .map_err(|error| error.in_file(file))?;
            used(&simple.body, &mut after);
            *graph = simple;
            reworked.reports.push(report);
            reworked.warnings.extend(warning);
        }
        reworked.replaced = before.difference(&after).cloned().collect();
        // Computed tensors that are not used any more are no tensors of the model.
        let computed = names(view).into_iter().filter(|name| !stored.contains(name));
        reworked.replaced.extend(computed.filter(|name| !after.contains(name)));
        Ok(reworked)
    }

    fn set_shapes(&self, models: &mut [(String, Graph)]) -> Result<(), JobError> {
        let mut asked = self.graph.shapes.clone();
        let mut found: Vec<NamedShape> = Vec::new();
        for (_, graph) in models.iter_mut() {
            let mut left = asked.clone();
            set_shapes(graph, &mut left).map_err(JobError::Request)?;
            // Parts may have inputs of the same name.
            found.extend(asked.iter().filter(|shape| !left.contains(shape)).cloned());
        }
        asked.retain(|shape| !found.contains(shape));
        let Some(NamedShape { input, .. }) = asked.first() else { return Ok(()) };
        let bodies = models.iter().map(|(_, graph)| &graph.body);
        let inputs = bodies.flat_map(|body| body.inputs.iter().map(|id| &body.value(*id).name));
        let inputs: BTreeSet<String> =
            inputs.map(|name| format!("'{}'", Escaped::short(name))).collect();
        Err(JobError::Request(format!(
            "`shape`: the model has no input '{}'; its inputs are {}",
            Escaped::short(input),
            inputs.into_iter().collect::<Vec<_>>().join(", ")
        )))
    }

    /// Rejects outputs and options that do not combine with `simplify` and `shape`.
    pub(super) fn check_simplification(&self) -> Result<(), JobError> {
        let is_asked = self.graph.simplify || !self.graph.shapes.is_empty();
        let message = if is_asked && self.computes() != Computes::Always {
            "`simplify` and `shape` apply to ONNX output only"
        } else if self.graph.simplify && self.weights.quantize.is_some() {
            "`simplify` does not combine with `quantize`: write the simplified model first, and \
             quantize that"
        } else {
            return Ok(());
        };
        Err(JobError::Request(message.to_owned()))
    }
}
