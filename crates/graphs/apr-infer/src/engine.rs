//! From a graph and its weights to a session that runs.

use std::collections::HashSet;
use std::sync::Arc;

use apr_core::{CheckpointReader, Error, Result, Work};
use apr_graph::{Graph, ValueId, ValueOrigin};

use crate::Value;
use crate::action::read_by_bodies;
use crate::last_rows::LastRows;
use crate::machine::{Frame, Machine};
use crate::plan::BodyPlan;
use crate::session::{RunLimits, Session};
use crate::tap::Tap;
use crate::wanted::Wanted;
use crate::workers::Workers;

/// Plans for values that were wanted, of which a session keeps the last ones.
const PLANS_KEPT: usize = 8;

/// Makes sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Engine;

impl Engine {
    /// Checks all nodes of a graph, so that unsupported operators fail before the run.
    ///
    /// # Errors
    /// E003 with the names of all unknown operators, E001 if the graph names weights that the
    /// checkpoint does not have.
    pub fn prepare<'a>(
        graph: &'a Graph,
        weights: &'a dyn CheckpointReader,
        limits: RunLimits,
    ) -> Result<Session<'a>> {
        Session::new(graph, weights, limits)
    }
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Requested values, in the requested order. Empty if a tap stopped the run.
    pub outputs: Vec<Value>,
    /// Peak size in bytes of all live values, measured between nodes.
    pub peak_bytes: u64,
    /// Steps of work that it took ([`apr_core::Work`]).
    pub work: u64,
    /// `true` if a tap stopped the run.
    pub stopped: bool,
}

impl Session<'_> {
    /// Runs the graph.
    ///
    /// `inputs` are values by the names of the body's inputs; those that have a default may be left
    /// out. `wanted` are names of values, outputs or not, or of the nodes that make them; only what
    /// they need is run. Those within a function that is called begin with the name of the call:
    /// `layers.3/attention/probs`.
    ///
    /// Unless [`RunLimits::max_work`] says otherwise, a run may take 10^5 steps of work for each
    /// element of `inputs`, and 8 times as many as there are elements of weights; and 10^10 more,
    /// less what earlier runs took of those, but at least a 64th of them.
    ///
    /// # Errors
    /// With the name of the node at fault: E001 for inputs that do not fit, or numbers out of
    /// range; E008 over the limits; what reading weights ends with.
    pub fn run(
        &self,
        inputs: Vec<(String, Value)>,
        wanted: &[&str],
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Outcome> {
        self.run_for(inputs, wanted, None, workers, tap)
    }

    /// Runs the graph when only the last rows of the last `wanted` value are needed.
    ///
    /// `rows` is the number of rows of that value. Nodes that lead only to it may be computed for
    /// two rows. The results of these rows are bit-identical.
    pub(crate) fn run_for(
        &self,
        inputs: Vec<(String, Value)>,
        wanted: &[&str],
        rows: Option<usize>,
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Outcome> {
        let body = &self.graph.body;
        let wanted = self.wanted(wanted)?;
        let needed = needed(&wanted);
        let plan: &BodyPlan = &self.plan(&needed);
        let last_rows = match (needed.split_last(), rows) {
            (Some((value, others)), Some(rows)) => LastRows::of(body, plan, *value, others, rows),
            _ => None,
        };
        let given = inputs.iter().map(|(_, value)| value.elements()).sum();
        let work = Work::new(self.work_limit(given));
        let mut machine = Machine::new(self, workers, &work, tap, within(&wanted), last_rows);
        let mut frame = Frame::new(body);
        for (name, value) in inputs {
            let id = body.inputs.iter().copied().find(|id| body.value(*id).name == name);
            let id = id.ok_or_else(|| Error::format(format!("unknown input '{name}'")))?;
            machine.put(&mut frame, id, value)?;
        }

        let missing = self.missing_of(plan, |id| frame.has(id));
        if !missing.is_empty() {
            return Err(Error::format(format!(
                "the model needs inputs that are not given: {}",
                missing.join(", ")
            )));
        }

        let own = machine.run_frame(frame, plan, &needed);
        self.count_work(given, work.spent());
        let own = own?;
        let (peak_bytes, stopped, within) = machine.finish();
        let mut outputs = Vec::new();
        if let Some(own) = own {
            for wanted in &wanted {
                let missing =
                    |name: &str| Error::format(format!("the value '{name}' was not computed"));
                outputs.push(match wanted {
                    Wanted::Own(id) => {
                        let at = needed.iter().position(|needed| needed == id);
                        at.map(|at| own[at].clone())
                            .ok_or_else(|| missing(&body.value(*id).name))?
                    }
                    Wanted::Within { path, .. } => {
                        within.get(path).cloned().ok_or_else(|| missing(path))?
                    }
                });
            }
        }

        Ok(Outcome { outputs, peak_bytes, work: work.spent(), stopped })
    }

    /// Returns the names of the inputs that a run needs for the `wanted` values and that are not
    /// `given`.
    ///
    /// # Errors
    /// E001 if a wanted value does not exist.
    pub fn missing(&self, given: &[(String, Value)], wanted: &[&str]) -> Result<Vec<&str>> {
        let plan = self.plan(&needed(&self.wanted(wanted)?));
        let is_given = |id| given.iter().any(|(name, _)| *name == self.graph.body.value(id).name);
        Ok(self.missing_of(&plan, is_given))
    }

    /// Returns the missing inputs, including inputs that only a branch or a loop body reads. A run
    /// needs those only if it reaches the branch or the loop.
    ///
    /// # Errors
    /// E001 if a wanted value does not exist.
    pub fn absent(&self, given: &[(String, Value)], wanted: &[&str]) -> Result<Vec<&str>> {
        let plan = self.plan(&needed(&self.wanted(wanted)?));
        let body = &self.graph.body;
        let is_given = |id| given.iter().any(|(name, _)| *name == body.value(id).name);
        let within = plan.nodes.iter().flat_map(|node| read_by_bodies(&body.nodes[node.node]));
        let within: HashSet<ValueId> = within.collect();
        Ok(self.unmet(&plan, is_given, |id| within.contains(id)))
    }

    /// Returns `true` if a value has this name, in the form that [`run`](Self::run) accepts.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        Wanted::named(self.graph, name).is_ok()
    }

    fn wanted(&self, names: &[&str]) -> Result<Vec<Wanted>> {
        names.iter().map(|name| Wanted::named(self.graph, name)).collect()
    }

    /// Returns the plan for the needed values. Plans are cached, because generation requests the
    /// same values for each token.
    fn plan(&self, needed: &[ValueId]) -> Arc<BodyPlan> {
        let Ok(mut narrowed) = self.narrowed.lock() else { return self.narrowed_plan(needed) };
        if let Some((_, plan)) = narrowed.iter().find(|(values, _)| values == needed) {
            return Arc::clone(plan);
        }
        let plan = self.narrowed_plan(needed);
        if narrowed.len() == PLANS_KEPT {
            narrowed.remove(0);
        }
        narrowed.push((needed.to_vec(), Arc::clone(&plan)));
        plan
    }

    fn narrowed_plan(&self, needed: &[ValueId]) -> Arc<BodyPlan> {
        let body = &self.graph.body;
        Arc::new(self.plans.get(body).narrowed(body, needed))
    }

    fn missing_of(&self, plan: &BodyPlan, is_given: impl Fn(ValueId) -> bool) -> Vec<&str> {
        self.unmet(plan, is_given, |_| false)
    }

    /// Returns the names of inputs that are not given and that nodes read or `wanted` selects.
    fn unmet(
        &self,
        plan: &BodyPlan,
        is_given: impl Fn(ValueId) -> bool,
        wanted: impl Fn(&ValueId) -> bool,
    ) -> Vec<&str> {
        let body = &self.graph.body;
        let reads = |id: &ValueId| {
            let mut nodes = plan.nodes.iter().map(|node| &body.nodes[node.node]);
            wanted(id) || nodes.any(|node| node.inputs.contains(&Some(*id)))
        };
        let missing = |id: &&ValueId| {
            body.value(**id).origin == ValueOrigin::Input && !is_given(**id) && reads(id)
        };
        body.inputs.iter().filter(missing).map(|id| body.value(*id).name.as_str()).collect()
    }
}

/// Values of the main body that are wanted, or that are made by calls in which something is.
fn needed(wanted: &[Wanted]) -> Vec<ValueId> {
    let mut needed = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        match wanted {
            Wanted::Own(id) => needed.push(*id),
            Wanted::Within { outputs, .. } => needed.extend(outputs),
        }
    }
    needed
}

/// Paths of values within calls.
fn within(wanted: &[Wanted]) -> Vec<String> {
    let path = |wanted: &Wanted| match wanted {
        Wanted::Own(_) => None,
        Wanted::Within { path, .. } => Some(path.clone()),
    };
    wanted.iter().filter_map(path).collect()
}
