//! Runs plans: one node after the other, values let go after their last use.

use std::borrow::Cow;
use std::collections::HashMap;

use apr_core::{Code, Error, Result, Work};
use apr_graph::{AttributeValue, Body, Node, ValueId, ValueOrigin};

use crate::action::Action;
use crate::call::{Call, Environment, Scope};
use crate::chain::{Chain, Link};
use crate::last_rows::LastRows;
use crate::live::Live;
use crate::moving;
use crate::operator::Operator;
use crate::ops::spelled_attention;
use crate::plan::{BodyPlan, PlannedNode};
use crate::session::Session;
use crate::store::Store;
use crate::tap::{Flow, Step, Tap};
use crate::value::{WeightHandle, WeightLook};
use crate::wanted;
use crate::weight::Weight;
use crate::workers::Workers;
use crate::{Tensor, Value};

/// Steps of work that a node is, whatever it computes.
const NODE: u64 = 1000;

/// The values of a body that is running.
pub(crate) struct Frame<'f> {
    body: &'f Body,
    values: Vec<Option<Value>>,
    around: Option<&'f Frame<'f>>,
    scope: Option<&'f Scope<'f>>,
    path: String,
}

impl<'f> Frame<'f> {
    pub(crate) fn new(body: &'f Body) -> Self {
        Self {
            body,
            values: vec![None; body.values.len()],
            around: None,
            scope: None,
            path: String::new(),
        }
    }

    pub(crate) fn has(&self, id: ValueId) -> bool {
        self.values[id.0 as usize].is_some()
    }
}

/// A run that is going on.
pub(crate) struct Machine<'m> {
    session: &'m Session<'m>,
    workers: &'m dyn Workers,
    tap: &'m mut dyn Tap,
    live: Live,
    work: &'m Work,
    /// Number of random draws so far.
    draws: u64,
    stopped: bool,
    /// Paths of requested values within calls. `within` contains the values that exist already.
    wanted: Vec<String>,
    within: HashMap<String, Value>,
    /// Nodes of the main body that compute only the last rows.
    last_rows: Option<LastRows>,
}

impl<'m> Machine<'m> {
    pub(crate) fn new(
        session: &'m Session<'m>,
        workers: &'m dyn Workers,
        work: &'m Work,
        tap: &'m mut dyn Tap,
        wanted: Vec<String>,
        last_rows: Option<LastRows>,
    ) -> Self {
        Self {
            session,
            workers,
            tap,
            live: Live::default(),
            work,
            draws: 0,
            stopped: false,
            wanted,
            within: HashMap::new(),
            last_rows,
        }
    }

    /// Returns the peak size of live values in bytes, `true` if the tap stopped the run, and the
    /// requested values within calls.
    pub(crate) fn finish(self) -> (u64, bool, HashMap<String, Value>) {
        (self.live.peak(), self.stopped, self.within)
    }

    pub(crate) fn put(&mut self, frame: &mut Frame<'_>, id: ValueId, value: Value) -> Result<()> {
        self.hold(&value)?;
        frame.values[id.0 as usize] = Some(value);
        Ok(())
    }

    /// Counts a value as alive.
    fn hold(&mut self, value: &Value) -> Result<()> {
        self.live.add(value);
        let (bytes, limit) = (self.live.bytes(), self.session.values_limit());
        if bytes > limit {
            return Err(Error::memory(format!(
                "values need {bytes} bytes, more than the limit of {limit}"
            )));
        }
        Ok(())
    }

    /// Runs a body whose inputs are in place; `None` when the tap stopped it.
    pub(crate) fn run_frame(
        &mut self,
        mut frame: Frame<'_>,
        plan: &BodyPlan,
        outputs: &[ValueId],
    ) -> Result<Option<Vec<Value>>> {
        for planned in self.nodes(&frame, plan) {
            let node = &frame.body.nodes[planned.node];
            self.run_node(&mut frame, plan, planned)
                .map_err(|error| at_node(error, &frame.path, node))?;
            if self.stopped {
                return Ok(None);
            }
        }

        let results =
            outputs.iter().map(|id| self.result(&frame, *id)).collect::<Result<Vec<_>>>()?;

        // What the body still holds dies with its frame.
        for value in frame.values.iter().flatten() {
            self.live.remove(&Live::identities(value));
        }

        Ok(Some(results))
    }

    /// Returns the nodes to run. Each chain runs as one, unless a value inside a chain is observed.
    fn nodes<'p>(&mut self, frame: &Frame<'_>, plan: &'p BodyPlan) -> &'p [PlannedNode] {
        let mut hidden = plan.chains.iter().flat_map(|chain| &chain.links[..chain.links.len() - 1]);
        let is_seen = hidden.any(|link| {
            let node = &frame.body.nodes[link.node];
            let is_wanted =
                |path: &String| wanted::output_at(frame.body, &frame.path, node, path).is_some();
            self.wanted.iter().any(is_wanted) || self.tap.splits(&path(&frame.path, node), node)
        });
        if is_seen || plan.chains.is_empty() { &plan.nodes } else { &plan.chained }
    }

    /// A value that leaves a body: weights are decoded.
    fn result(&self, frame: &Frame<'_>, id: ValueId) -> Result<Value> {
        match self.read(frame, id)? {
            Value::Weight(weight) => self.decode(&weight).map(Value::Tensor),
            value => Ok(value),
        }
    }

    /// Counts a node, or a round of a loop, whose body may be empty.
    fn step(&self) -> Result<()> {
        self.work.spend(NODE)
    }

    fn run_node(
        &mut self,
        frame: &mut Frame<'_>,
        plan: &BodyPlan,
        planned: &PlannedNode,
    ) -> Result<()> {
        self.step()?;
        let node = &frame.body.nodes[planned.node];
        let path = path(&frame.path, node);
        let watched = self.tap.wants(&path, node);
        if watched {
            self.tap.before(&path, node);
        }

        let mut gone = Vec::new();
        let outputs = match planned.action {
            Action::Operator { operator, opset } => {
                let reads = Reads::of(operator);
                let inputs = self.inputs(frame, &node.inputs, planned, reads, &mut gone)?;
                if watched {
                    self.tap.reads(&path, node, &seen_inputs(&inputs)?);
                }
                self.operate(frame, node, operator, opset, inputs)
            }
            Action::Function(position) => {
                let inputs = self.inputs(frame, &node.inputs, planned, Reads::ALL, &mut gone)?;
                self.call(frame, node, position, inputs, &path)
            }
            Action::Chain(number) => {
                let chain = &plan.chains[number];
                let inputs = self.inputs(frame, &chain.inputs, planned, Reads::ALL, &mut gone)?;
                self.chain(frame, chain, inputs)
            }
        };

        // A stop within a body comes up as an error, which nobody is to see.
        if self.stopped {
            return Ok(());
        }

        let mut outputs = outputs?;
        if watched && let Some(others) = self.tap.replacement(&path, node, &seen(&outputs)?) {
            outputs = others;
        }

        // Inputs count as alive until here, since the operator held them while it ran.
        self.live.remove(&gone);
        self.keep(frame, node, &outputs)?;
        for id in &planned.released {
            if let Some(value) = frame.values[id.0 as usize].take() {
                self.live.remove(&Live::identities(&value));
            }
        }

        if watched {
            let outputs = &seen(&outputs)?;
            let step = Step { path: &path, node, outputs, live_bytes: self.live.bytes() };
            self.stopped = self.tap.after(&step) == Flow::Stop;
        }

        Ok(())
    }

    /// Puts what a node made into the frame.
    fn keep(&mut self, frame: &mut Frame<'_>, node: &Node, outputs: &[Value]) -> Result<()> {
        for (position, id) in node.outputs.iter().enumerate() {
            let Some(id) = id else { continue };
            let missing = || Error::version(format!("output {position} is not computed here"));
            self.put(frame, *id, outputs.get(position).ok_or_else(missing)?.clone())?;
        }

        for path in self.wanted.clone() {
            let found = wanted::output_at(frame.body, &frame.path, node, &path)
                .and_then(|at| outputs.get(at));
            if let Some(value) = found {
                let value = match value {
                    Value::Weight(weight) => Value::Tensor(self.decode(weight)?),
                    value => value.clone().without_cache()?,
                };
                self.hold(&value)?;
                self.within.insert(path, value);
            }
        }

        Ok(())
    }

    /// Returns the inputs of a node. Values that are not needed afterwards are taken out of the
    /// frame. Weights and caches are converted to tensors, unless the node reads them itself.
    fn inputs(
        &mut self,
        frame: &mut Frame<'_>,
        ids: &[Option<ValueId>],
        planned: &PlannedNode,
        reads: Reads,
        gone: &mut Vec<usize>,
    ) -> Result<Vec<Option<Value>>> {
        let mut inputs = Vec::with_capacity(ids.len());
        for (position, id) in ids.iter().enumerate() {
            let Some(id) = *id else {
                inputs.push(None);
                continue;
            };

            // A value that is an input twice is taken out by the last of them.
            let again = ids[position + 1..].contains(&Some(id));
            let taken = if planned.last.contains(&id) && !again {
                frame.values[id.0 as usize].take()
            } else {
                None
            };
            let value = match taken {
                Some(value) => {
                    gone.extend(Live::identities(&value));
                    value
                }
                None => self.read(frame, id)?,
            };

            let value = self.readable(value, reads)?;
            inputs.push(Some(self.last_rows_of(frame, planned.node, position, value)?));
        }

        Ok(inputs)
    }

    /// Returns an input of a node, cut to the last rows if only those must be computed.
    fn last_rows_of(
        &self,
        frame: &Frame<'_>,
        node: usize,
        input: usize,
        value: Value,
    ) -> Result<Value> {
        let body = &self.session.graph.body;
        match (&self.last_rows, value) {
            (Some(last), Value::Tensor(read)) if std::ptr::eq(frame.body, body) => {
                let cut = last.cut(body, node, input, &read).transpose()?;
                Ok(Value::Tensor(cut.unwrap_or(read)))
            }
            (_, value) => Ok(value),
        }
    }

    /// A value as a node reads it.
    fn readable(&self, value: Value, reads: Reads) -> Result<Value> {
        match value {
            Value::Weight(weight) if !reads.weights => self.decode(&weight).map(Value::Tensor),
            Value::Cached(heads) if !reads.cache => {
                let bytes = size_of::<f32>() as u64 * heads.len() as u64;
                if bytes > self.free_bytes() {
                    return Err(Error::memory(format!(
                        "keys or values of {bytes} bytes do not fit the memory limit"
                    )));
                }
                heads.tensor().map(Value::Tensor)
            }
            value => Ok(value),
        }
    }

    fn decode(&self, handle: &WeightHandle) -> Result<Tensor> {
        let session = self.session;

        // Scales make `f32` of elements that may be bytes: four times as many.
        let free =
            self.free_bytes() / if handle.looks.is_empty() { 1 } else { size_of::<f32>() as u64 };
        let tensor = session.large[handle.number].decode_within(&session.store, free)?;
        handle.looks.iter().try_fold(tensor, |tensor, look| match look {
            WeightLook::Scaled(with) => with.apply(&tensor),
            WeightLook::Turned => moving::transposed(&tensor, &[1, 0]),
        })
    }

    /// A value, of this body or of one around.
    fn read(&self, frame: &Frame<'_>, id: ValueId) -> Result<Value> {
        if let Some(value) = &frame.values[id.0 as usize] {
            return Ok(value.clone());
        }
        if let Some(value) = self.session.given(frame.body, id) {
            return Ok(value.clone());
        }
        if let (ValueOrigin::Outer(outer), Some(around)) =
            (&frame.body.value(id).origin, frame.around)
        {
            return self.read(around, *outer);
        }
        Err(Error::format(format!(
            "the value '{}' is missing when it is needed",
            frame.body.value(id).name
        )))
    }

    fn operate(
        &mut self,
        frame: &Frame<'_>,
        node: &Node,
        operator: &Operator,
        opset: i64,
        inputs: Vec<Option<Value>>,
    ) -> Result<Vec<Value>> {
        if operator.reads_all() {
            self.work.spend(inputs.iter().flatten().map(Value::elements).sum())?;
        }
        let mut inner = Inner { machine: self, frame };
        let mut call = Call { node, scope: frame.scope, opset, inputs, environment: &mut inner };
        let outputs = operator.run(&mut call)?;
        self.work.spend(outputs.iter().map(Value::elements).sum())?;
        Ok(outputs)
    }

    /// Runs a chain as one, or node by node if its inputs do not fit attention.
    fn chain(
        &mut self,
        frame: &Frame<'_>,
        chain: &Chain,
        inputs: Vec<Option<Value>>,
    ) -> Result<Vec<Value>> {
        // Each link is a step, so that the limit does not depend on what runs as one.
        (1..chain.links.len()).try_for_each(|_| self.step())?;
        let softmax = chain.softmax;
        let node = &frame.body.nodes[softmax.node];
        let mut inner = Inner { machine: self, frame };
        let call = Call {
            node,
            scope: frame.scope,
            opset: softmax.opset,
            inputs,
            environment: &mut inner,
        };

        // The default axis of `Softmax` changed with opset 13.
        let axis = call.int("axis", if softmax.opset < 13 { 1 } else { -1 });
        if let Some(mixed) = spelled_attention::attend(&call, chain.divides, axis)? {
            return Ok(vec![mixed.into()]);
        }

        let inputs = call.inputs;
        let given = |id: &ValueId| {
            let position = chain.inputs.iter().position(|input| *input == Some(*id))?;
            inputs[position].clone()
        };
        let mut last: Vec<Value> = Vec::new();
        for link in &chain.links {
            let node = &frame.body.nodes[link.node];
            let mut made = last.into_iter().next();
            // What is not given to the chain is what the node before made.
            let of =
                |id: &Option<ValueId>| id.as_ref().and_then(|id| given(id).or_else(|| made.take()));
            let inputs = node.inputs.iter().map(of).collect();
            last = self.linked(frame, *link, inputs)?;
        }

        Ok(last)
    }

    /// Runs a node of a chain by itself.
    fn linked(
        &mut self,
        frame: &Frame<'_>,
        link: Link,
        inputs: Vec<Option<Value>>,
    ) -> Result<Vec<Value>> {
        let reads = Reads::of(link.operator);
        let readable =
            |input: Option<Value>| input.map(|value| self.readable(value, reads)).transpose();
        let inputs = inputs.into_iter().map(readable).collect::<Result<_>>()?;
        self.operate(frame, &frame.body.nodes[link.node], link.operator, link.opset, inputs)
    }

    /// Calls a function of the graph.
    fn call(
        &mut self,
        frame: &Frame<'_>,
        node: &Node,
        position: usize,
        inputs: Vec<Option<Value>>,
        path: &str,
    ) -> Result<Vec<Value>> {
        let function = &self.session.graph.functions[position];
        let scope = Scope {
            attributes: &node.attributes,
            defaults: &function.defaults,
            around: frame.scope,
        };
        self.work.spend(function.body.values.len() as u64)?;
        let mut called = Frame::new(&function.body);
        called.scope = Some(&scope);
        path.clone_into(&mut called.path);
        for (id, input) in function.body.inputs.iter().zip(inputs) {
            if let Some(input) = input {
                self.put(&mut called, *id, input)?;
            }
        }

        let plan = self.session.plans.get(&function.body);
        Ok(self.run_frame(called, plan, &function.body.outputs)?.unwrap_or_default())
    }
}

/// Kinds of values that a node reads itself. Other values are passed as tensors.
#[derive(Clone, Copy)]
struct Reads {
    weights: bool,
    cache: bool,
}

impl Reads {
    const ALL: Self = Self { weights: true, cache: true };

    fn of(operator: &Operator) -> Self {
        Self { weights: operator.decodes, cache: operator.reads_cache }
    }
}

/// Values as a tap sees them: keys and values of earlier tokens are tensors.
fn seen(values: &[Value]) -> Result<Cow<'_, [Value]>> {
    if !values.iter().any(|value| matches!(value, Value::Cached(_))) {
        return Ok(Cow::Borrowed(values));
    }
    values.iter().cloned().map(Value::without_cache).collect::<Result<_>>().map(Cow::Owned)
}

/// Returns inputs as a tap sees them, like `seen`.
fn seen_inputs(values: &[Option<Value>]) -> Result<Cow<'_, [Option<Value>]>> {
    if !values.iter().flatten().any(|value| matches!(value, Value::Cached(_))) {
        return Ok(Cow::Borrowed(values));
    }
    let of = |value: &Option<Value>| value.clone().map(Value::without_cache).transpose();
    values.iter().map(of).collect::<Result<_>>().map(Cow::Owned)
}

/// A machine as the operators of a frame see it.
struct Inner<'i, 'm, 'f> {
    machine: &'i mut Machine<'m>,
    frame: &'i Frame<'f>,
}

impl Machine<'_> {
    fn free_bytes(&self) -> u64 {
        self.session.values_limit().saturating_sub(self.live.bytes())
    }
}

impl Environment for Inner<'_, '_, '_> {
    fn workers(&self) -> &dyn Workers {
        self.machine.workers
    }

    fn free_bytes(&self) -> u64 {
        self.machine.free_bytes()
    }

    fn spend(&self, steps: u64) -> Result<()> {
        self.machine.work.spend(steps)
    }

    fn draw(&mut self) -> u64 {
        self.machine.draws += 1;
        self.machine.draws - 1
    }

    fn seed(&self) -> u64 {
        self.machine.session.limits.seed
    }

    fn run_body(&mut self, body: &Body, inputs: Vec<Value>) -> Result<Vec<Value>> {
        self.machine.step()?;
        self.machine.work.spend(body.values.len() as u64)?;
        let mut frame = Frame::new(body);
        frame.around = Some(self.frame);
        frame.scope = self.frame.scope;
        self.frame.path.clone_into(&mut frame.path);
        for (id, value) in body.inputs.iter().zip(inputs) {
            self.machine.put(&mut frame, *id, value)?;
        }
        let plan = self.machine.session.plans.get(body);
        let outputs = self.machine.run_frame(frame, plan, &body.outputs)?;
        outputs.ok_or_else(|| Error::format("stopped"))
    }

    fn attribute_tensor(&self, value: &AttributeValue) -> Result<Tensor> {
        self.machine.session.attribute_tensor(value)
    }

    fn weight(&self, handle: &WeightHandle) -> &Weight<'_> {
        &self.machine.session.large[handle.number]
    }

    fn store(&self) -> &Store<'_> {
        &self.machine.session.store
    }

    fn decode(&self, handle: &WeightHandle) -> Result<Tensor> {
        self.machine.decode(handle)
    }

    fn hold(&mut self, value: &Value) -> Result<()> {
        self.machine.hold(value)
    }

    fn let_go(&mut self, value: &Value) {
        self.machine.live.remove(&Live::identities(value));
    }
}

fn path(around: &str, node: &Node) -> String {
    match (around.is_empty(), node.name.is_empty()) {
        (true, _) => node.name.clone(),
        (false, true) => around.to_owned(),
        (false, false) => format!("{around}/{}", node.name),
    }
}

/// Adds the node to an error, unless the error already names an inner node.
fn at_node(error: Error, around: &str, node: &Node) -> Error {
    // What is wrong with a file is not about the node that reads it.
    let is_of_file = matches!(error.code(), Code::Io | Code::Checksum);
    if error.message().starts_with("node '") || is_of_file {
        return error;
    }
    let message = format!("node '{}' ({}): {}", path(around, node), node.op, error.message());
    let mut named = Error::new(error.code(), message);
    if let Some(tensor) = error.tensor() {
        named = named.for_tensor(tensor);
    }
    named
}
