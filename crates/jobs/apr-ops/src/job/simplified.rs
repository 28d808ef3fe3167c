//! Jobs that extract parts of graphs, set the shapes of inputs, and simplify graphs.

use std::collections::{BTreeMap, BTreeSet};

use apr_graph::{Graph, inline};
use apr_registry::{CheckpointReader, Computes, Escaped, Metadata};
use apr_view::View;

use super::computed::{WITH_FREE_WEIGHTS, properties, release_weights};
use super::description::Job;
use super::error::JobError;
use super::wishes::{GraphWishes, applying};
use crate::extraction::{Extracted, extract};
use crate::renames::rename;
use crate::simplify::{NamedShape, Simplified, set_shapes, simplify, used};

/// The graphs of a model's parts that are written.
pub(super) struct Reworked {
    /// By the names of the parts.
    pub(super) models: Vec<(String, Graph)>,
    /// Result of extracting a part of the graph, if that is requested.
    pub(super) extracted: Option<Extracted>,
    /// New names of values by the old ones.
    pub(super) renamed: BTreeMap<String, String>,
    /// Result of simplifying each graph.
    pub(super) reports: Vec<Simplified>,
    /// Warnings about kept inputs, and about outputs that were not compared.
    pub(super) warnings: Vec<String>,
    /// Names of tensors that the graphs do not use any more, among them computed ones.
    pub(super) replaced: BTreeSet<String>,
}

impl Job {
    /// Extracts the requested part of the graph, sets the requested shapes of inputs, simplifies
    /// the graphs, and renames values.
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
        let mut reworked = Reworked {
            models,
            extracted: None,
            renamed: BTreeMap::new(),
            reports,
            warnings,
            replaced,
        };
        if !self.graph.reworks() {
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
        self.extract(&mut reworked, file)?;
        self.set_shapes(&mut reworked.models)?;
        self.simplify(&mut reworked, view, file)?;
        if !self.graph.renames.is_empty() {
            let renamed = rename(&mut reworked.models, &self.graph.renames);
            reworked.renamed = renamed.map_err(|error| error.in_file(file))?;
        }
        Ok(reworked)
    }

    /// Simplifies the graphs if requested.
    fn simplify(
        &self,
        reworked: &mut Reworked,
        view: &mut View<'_>,
        file: &str,
    ) -> Result<(), JobError> {
        if !self.graph.simplify {
            return Ok(());
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
        reworked.replaced.extend(before.difference(&after).cloned());
        // Computed tensors that are not used any more are no tensors of the model.
        let computed = names(view).into_iter().filter(|name| !stored.contains(name));
        reworked.replaced.extend(computed.filter(|name| !after.contains(name)));
        Ok(())
    }

    /// Reduces the graph to the requested part.
    fn extract(&self, reworked: &mut Reworked, file: &str) -> Result<(), JobError> {
        let GraphWishes { from, to, .. } = &self.graph;
        if from.is_empty() && to.is_empty() {
            return Ok(());
        }
        let [(_, graph)] = &mut reworked.models[..] else {
            let parts: Vec<&str> = reworked.models.iter().map(|(name, _)| name.as_str()).collect();
            return Err(JobError::Request(format!(
                "`from` and `to` support models of one graph; this one has {}",
                parts.join(", ")
            )));
        };
        let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
        used(&graph.body, &mut before);
        let extracted = extract(graph, from, to).map_err(|error| error.in_file(file))?;
        let extracted = extracted.map_err(JobError::Request)?;
        used(&graph.body, &mut after);
        reworked.replaced = before.difference(&after).cloned().collect();
        if !extracted.kept_inputs.is_empty() {
            let kept: Vec<String> = extracted
                .kept_inputs
                .iter()
                .map(|name| format!("'{}'", Escaped::short(name)))
                .collect();
            reworked.warnings.push(format!(
                "inputs of the model kept in addition to `from`, because the outputs depend on \
                 them: {}",
                kept.join(", ")
            ));
        }
        reworked.extracted = Some(extracted);
        Ok(())
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
            "`shape`: unknown input '{}'; the inputs are {}",
            Escaped::short(input),
            inputs.into_iter().collect::<Vec<_>>().join(", ")
        )))
    }

    /// Rejects outputs and options that do not combine with reworking the graph.
    pub(super) fn check_simplification(&self) -> Result<(), JobError> {
        if self.graph.reworks() && self.computes() != Computes::Always {
            let reworks =
                |name: &&str| ["simplify", "shape", "from", "to", "rename"].contains(name);
            let asked: Vec<_> = self.graph.asked().into_iter().filter(reworks).collect();
            return Err(JobError::Request(applying(&asked, "ONNX output only")));
        }
        let message = if self.has_idle_exclusions() {
            return Err(self.idle_exclusions());
        } else if self.graph.simplify && self.weights.quantize.is_some() {
            "`simplify` does not combine with `quantize`: write the simplified model first, and \
             quantize that"
        } else {
            return Ok(());
        };
        Err(JobError::Request(message.to_owned()))
    }
}
