//! From a graph and its weights to a session that runs.

use std::borrow::Cow;
use std::collections::HashMap;

use apr_core::{CheckpointReader, Error, Result};
use apr_graph::{AttributeValue, Body, Graph, Origin, ValueId};

use crate::machine::{Frame, Machine};
use crate::plan::{Plan, Plans};
use crate::tap::Tap;
use crate::value::WeightHandle;
use crate::wanted::Wanted;
use crate::weight::{Store, Weight, Weights};
use crate::workers::Workers;
use crate::{Tensor, Value, constant};

/// Bounds of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunLimits {
    /// Bytes of all values that are alive at the same time, and of weights that are kept in memory; 4 GiB by default. Weights
    /// are kept where they take no more than half of it.
    pub max_memory: u64,
    /// Nodes that are run in all, those of loops counted each time; a thousand million by default.
    pub max_steps: u64,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { max_memory: 4 << 30, max_steps: 1_000_000_000 }
    }
}

/// Makes sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Engine;

impl Engine {
    /// Looks at all nodes of a graph, so that running it meets no surprise.
    ///
    /// # Errors
    /// E003 with the names of all operators that are not known, E001 where the graph names weights that the checkpoint
    /// does not have.
    pub fn prepare<'a>(graph: &'a Graph, weights: &'a dyn CheckpointReader, limits: RunLimits) -> Result<Session<'a>> {
        let plans = Plans::of(graph)?;
        let mut session = Session {
            graph,
            plans,
            weights: Weights::new(weights),
            store: Store::new(weights),
            limits,
            kept_bytes: 0,
            given: HashMap::new(),
            large: Vec::new(),
        };
        session.collect(&graph.body)?;
        for function in &graph.functions {
            session.collect(&function.body)?;
        }
        session.keep();
        Ok(session)
    }
}

/// A graph that is ready to run, any number of times.
pub struct Session<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plans: Plans,
    weights: Weights<'a>,
    pub(crate) store: Store<'a>,
    /// Weights that are decoded where they are used.
    pub(crate) large: Vec<Weight<'a>>,
    pub(crate) limits: RunLimits,
    /// Bytes that weights take once they are all read and kept.
    kept_bytes: u64,
    /// Constants, small weights and handles of large ones, by body and value.
    given: HashMap<(usize, ValueId), Value>,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What a run leaves.
#[derive(Debug)]
pub struct Outcome {
    /// What was asked for, in that order. Empty when a tap stopped the run.
    pub outputs: Vec<Value>,
    /// Most bytes that values took at the same time, between two nodes.
    pub peak_bytes: u64,
    /// Whether a tap stopped the run.
    pub stopped: bool,
}

/// Weights up to this size are decoded once; larger ones wherever they are used.
const SMALL: u64 = 64 << 10;

impl<'a> Session<'a> {
    /// Runs the graph.
    ///
    /// `inputs` are values by the names of the body's inputs; those that have a default may be left out. `wanted` are names
    /// of values, outputs or not, or of the nodes that make them; only what they need is run. Those within a function that
    /// is called begin with the name of the call: `layers.3/attention/shares`.
    ///
    /// # Errors
    /// With the name of the node at fault: E001 for inputs that do not fit, or numbers out of range; E008 over the
    /// limits; what reading weights ends with.
    pub fn run(
        &self,
        inputs: Vec<(String, Value)>,
        wanted: &[&str],
        workers: &dyn Workers,
        tap: &mut dyn Tap,
    ) -> Result<Outcome> {
        let body = &self.graph.body;
        let wanted = self.wanted(wanted)?;
        let needed = needed(&wanted);
        let plan: &Plan = &self.plan(&needed);
        let mut machine = Machine::new(self, workers, tap, within(&wanted));
        let mut frame = Frame::new(body);
        for (name, value) in inputs {
            let id = body.inputs.iter().copied().find(|id| body.value(*id).name == name);
            let id = id.ok_or_else(|| Error::format(format!("the model has no input '{name}'")))?;
            machine.put(&mut frame, id, value)?;
        }
        let missing = self.missing_of(plan, |id| frame.has(id));
        if !missing.is_empty() {
            return Err(Error::format(format!("the model needs inputs that are not given: {}", missing.join(", "))));
        }
        let own = machine.run_frame(frame, plan, &needed)?;
        let (peak_bytes, stopped, within) = machine.finish();
        let mut outputs = Vec::new();
        if let Some(own) = own {
            for wanted in &wanted {
                let missing = |name: &str| Error::format(format!("the value '{name}' was not computed"));
                outputs.push(match wanted {
                    Wanted::Own(id) => {
                        let at = needed.iter().position(|needed| needed == id);
                        at.map(|at| own[at].clone()).ok_or_else(|| missing(&body.value(*id).name))?
                    }
                    Wanted::Within { path, .. } => within.get(path).cloned().ok_or_else(|| missing(path))?,
                });
            }
        }
        Ok(Outcome { outputs, peak_bytes, stopped })
    }

    /// Names of the inputs that a run needs for what is `wanted`, and that are not `given`.
    ///
    /// # Errors
    /// E001 where a wanted value does not exist.
    pub fn missing(&self, given: &[(String, Value)], wanted: &[&str]) -> Result<Vec<&str>> {
        let plan = self.plan(&needed(&self.wanted(wanted)?));
        let is_given = |id| given.iter().any(|(name, _)| *name == self.graph.body.value(id).name);
        Ok(self.missing_of(&plan, is_given))
    }

    /// Whether there is a value with a name, as [`run`](Self::run) takes it.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        Wanted::named(self.graph, name).is_ok()
    }

    fn wanted(&self, names: &[&str]) -> Result<Vec<Wanted>> {
        names.iter().map(|name| Wanted::named(self.graph, name)).collect()
    }

    /// What has to run for some values.
    fn plan(&self, needed: &[ValueId]) -> Cow<'_, Plan> {
        let body = &self.graph.body;
        let plan = self.plans.get(body);
        if needed == body.outputs { Cow::Borrowed(plan) } else { Cow::Owned(plan.narrowed(body, needed)) }
    }

    fn missing_of(&self, plan: &Plan, is_given: impl Fn(ValueId) -> bool) -> Vec<&str> {
        let body = &self.graph.body;
        let reads = |id: &ValueId| plan.nodes.iter().any(|node| body.nodes[node.node].inputs.contains(&Some(*id)));
        let missing = |id: &&ValueId| body.value(**id).origin == Origin::Input && !is_given(**id) && reads(id);
        body.inputs.iter().filter(missing).map(|id| body.value(*id).name.as_str()).collect()
    }

    /// Decodes the constants and finds the weights of a body and of those in it.
    fn collect(&mut self, body: &Body) -> Result<()> {
        for (position, value) in body.values.iter().enumerate() {
            let given = match &value.origin {
                Origin::Constant(constant) => Value::Tensor(constant::tensor(constant)?),
                Origin::Weight(weight) => {
                    let weight = self.weights.find(weight, value.element())?;
                    self.ready(weight)?
                }
                _ => continue,
            };
            let id = ValueId(u32::try_from(position).unwrap_or(u32::MAX));
            self.given.insert((std::ptr::from_ref(body) as usize, id), given);
        }
        body.nodes.iter().flat_map(apr_graph::Node::bodies).try_for_each(|inner| self.collect(inner))
    }

    /// Keeps weights as they are stored, where they and as much again fit the memory; otherwise they are read from the
    /// checkpoint whenever they are used.
    fn keep(&mut self) {
        let mut tensors: Vec<_> = self.large.iter().flat_map(Weight::tensors).collect();
        tensors.sort_unstable();
        tensors.dedup();
        self.kept_bytes = self.store.keep(&tensors, self.limits.max_memory / 2);
    }

    /// Bytes that values may take beside the weights that are kept.
    pub(crate) fn values_limit(&self) -> u64 {
        self.limits.max_memory.saturating_sub(self.kept_bytes)
    }

    fn ready(&mut self, weight: Weight<'a>) -> Result<Value> {
        if weight.decoded_bytes() <= SMALL {
            return weight.decode(&self.store).map(Value::Tensor);
        }
        let handle = WeightHandle { number: self.large.len(), element: weight.element(), looks: Vec::new() };
        self.large.push(weight);
        Ok(Value::Weight(handle))
    }

    /// What a value is that no node makes.
    pub(crate) fn given(&self, body: &Body, id: ValueId) -> Option<&Value> {
        self.given.get(&(std::ptr::from_ref(body) as usize, id))
    }

    /// The tensor in an attribute.
    pub(crate) fn attribute_tensor(&self, value: &AttributeValue) -> Result<Tensor> {
        match value {
            AttributeValue::Tensor(constant) => constant::tensor(constant),
            AttributeValue::Weight(weight) => {
                self.weights.find(weight, None)?.decode_within(&self.store, self.limits.max_memory)
            }
            _ => Err(Error::format("the attribute must be a tensor")),
        }
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
