//! What is known of a body before it runs: which operator each node is, and when each value is
//! needed for the last time.

use std::collections::HashMap;

use apr_core::{Error, Result};
use apr_graph::{AttributeKind, Body, Graph, Node, Op, Opset, ValueId, ValueOrigin};

use crate::action::{Action, read_by_bodies};
use crate::chain::Chain;
use crate::registry;

/// Maximum nesting depth of bodies and calls.
const MAX_DEPTH: usize = 64;

#[derive(Clone)]
pub(crate) struct PlannedNode {
    /// Position in the body's nodes.
    pub(crate) node: usize,
    pub(crate) action: Action,
    /// Inputs that are not needed after the node. The node may change them in place.
    pub(crate) last: Vec<ValueId>,
    /// Other values that are not needed after the node, such as values that bodies in the node
    /// read.
    pub(crate) released: Vec<ValueId>,
}

/// The nodes of a body that have to run, in order.
#[derive(Clone)]
pub(crate) struct BodyPlan {
    pub(crate) nodes: Vec<PlannedNode>,
    /// Chains of nodes that can run as one.
    pub(crate) chains: Vec<Chain>,
    /// Nodes with each chain in the place of its last node; empty if there are no chains.
    pub(crate) chained: Vec<PlannedNode>,
}

/// Plans of all bodies of a graph, by the address of the body.
#[derive(Default)]
pub(crate) struct BodyPlans(HashMap<usize, BodyPlan>);

impl BodyPlans {
    /// Plans a graph.
    ///
    /// # Errors
    /// E003 with the names of all operators that are not known, E001 for functions that call
    /// themselves.
    pub(crate) fn of(graph: &Graph) -> Result<Self> {
        // Of two functions of one name, the first counts.
        let ops = graph.functions.iter().enumerate().map(|(at, function)| (&function.op, at));
        let mut planner = Planner {
            graph,
            by_op: ops.rev().collect(),
            plans: Self::default(),
            functions: vec![Known::Nothing; graph.functions.len()],
            unknown: Vec::new(),
        };
        planner.body(&graph.body, &graph.opsets, 0)?;
        let Planner { plans, mut unknown, .. } = planner;
        if unknown.is_empty() {
            return Ok(plans);
        }
        unknown.sort();
        unknown.dedup();
        Err(Error::version(format!("unsupported operators: {}", unknown.join(", "))))
    }

    /// The plan of a body of the graph.
    ///
    /// # Panics
    /// For a body of another graph.
    pub(crate) fn get(&self, body: &Body) -> &BodyPlan {
        &self.0[&key(body)]
    }
}

fn key(body: &Body) -> usize {
    std::ptr::from_ref(body) as usize
}

/// Refuses attributes of another kind than the operator's: they would be taken for ones that are
/// left out.
fn check_attributes(node: &Node, opset: i64) -> Result<()> {
    let Some(operator) = apr_graph::Operator::of(&node.op, opset) else { return Ok(()) };
    for attribute in &node.attributes {
        let (given, setting) =
            (AttributeKind::of(&attribute.value), operator.setting(&attribute.name));
        if let (Some(given), Some(setting)) = (given, setting)
            && given != setting.kind
        {
            let (name, op, kind) = (&node.name, &node.op, setting.kind);
            let message = format!(
                "node '{name}' ({op}): '{}' must be {kind}, and is {given}",
                attribute.name
            );
            return Err(Error::format(message));
        }
    }

    Ok(())
}

/// Planning state of a function.
#[derive(Clone, Copy)]
enum Known {
    Nothing,
    /// A function that is being planned. A call of it from here is recursive.
    Entered,
    /// Nesting depth of the bodies in the function, including its own.
    Planned(usize),
}

struct Planner<'a> {
    graph: &'a Graph,
    /// Positions of functions, by the operator that calls them.
    by_op: HashMap<&'a Op, usize>,
    plans: BodyPlans,
    /// Planning states, in the order of the graph's functions.
    functions: Vec<Known>,
    unknown: Vec<String>,
}

impl Planner<'_> {
    /// Plans a body at the nesting depth `depth`, and returns the nesting depth inside it.
    fn body(&mut self, body: &Body, opsets: &[Opset], depth: usize) -> Result<usize> {
        let mut actions = Vec::with_capacity(body.nodes.len());
        let mut height = checked_height(depth, 1)?;
        for node in &body.nodes {
            let (action, within) = self.action(&node.op, opsets, depth + 1)?;
            if let Some(Action::Operator { opset, .. }) = action {
                check_attributes(node, opset)?;
            }
            actions.push(action);
            height = height.max(1 + within);
            for inner in node.bodies() {
                height = height.max(1 + self.body(inner, opsets, depth + 1)?);
            }
        }

        if let Some(actions) = actions.into_iter().collect::<Option<Vec<_>>>() {
            let all = vec![true; body.nodes.len()];
            self.plans.0.insert(key(body), BodyPlan::new(body, &actions, &all, &body.outputs));
        }

        Ok(height)
    }

    /// Returns the action of a node (`None` if it is unknown), and the nesting depth of the bodies
    /// that it calls.
    fn action(
        &mut self,
        op: &Op,
        opsets: &[Opset],
        depth: usize,
    ) -> Result<(Option<Action>, usize)> {
        if let Some(&position) = self.by_op.get(op) {
            let height = self.function(position, depth)?;
            return Ok((Some(Action::Function(position)), height));
        }
        let version =
            opsets.iter().find(|opset| opset.domain == op.domain).map(|opset| opset.version);

        // Exporters forget to state the version of domains other than ONNX's.
        let version = version.or((!op.domain.is_empty()).then_some(1));
        let found = version.and_then(|version| Some((registry::find(op, version)?, version)));
        if found.is_none() {
            self.unknown.push(match version {
                Some(version) => format!("{op} (version {version})"),
                None => format!("{op} (no version stated)"),
            });
        }

        Ok((found.map(|(operator, opset)| Action::Operator { operator, opset }), 0))
    }

    /// Plans a function, once however often it is called.
    fn function(&mut self, position: usize, depth: usize) -> Result<usize> {
        let function = &self.graph.functions[position];
        match self.functions[position] {
            Known::Planned(height) => return checked_height(depth, height),
            Known::Entered => {
                return Err(Error::format(format!("the function {} calls itself", function.op)));
            }
            Known::Nothing => self.functions[position] = Known::Entered,
        }
        let opsets = if function.opsets.is_empty() { &self.graph.opsets } else { &function.opsets };
        let height = self.body(&function.body, opsets, depth)?;
        self.functions[position] = Known::Planned(height);
        Ok(height)
    }
}

/// Returns the height if it does not exceed the limit at that depth. Each level of a run uses stack
/// space.
fn checked_height(depth: usize, height: usize) -> Result<usize> {
    if depth + height > MAX_DEPTH {
        return Err(Error::format(format!(
            "more than {MAX_DEPTH} functions and branches are inside each other"
        )));
    }
    Ok(height)
}

impl BodyPlan {
    /// Plans the needed nodes of a body. `kept` values live until the end.
    fn new(body: &Body, actions: &[Action], needed: &[bool], kept: &[ValueId]) -> Self {
        let chains = Chain::all(body, actions, needed, kept);
        let order: Vec<_> =
            in_order(body).into_iter().filter(|position| needed[*position]).collect();
        let of_node = |position: &usize| Unit::of_node(body, *position, actions[*position]);
        let nodes = with_last_uses(body, order.iter().map(of_node).collect(), kept);
        let mut in_chain = vec![false; body.nodes.len()];
        chains.iter().flat_map(|chain| &chain.links).for_each(|link| in_chain[link.node] = true);
        let unit =
            |position: &usize| match chains.iter().position(|chain| chain.last() == *position) {
                Some(number) => Some(Unit::of_chain(body, *position, number, &chains[number])),
                None if in_chain[*position] => None,
                None => Some(of_node(position)),
            };

        let chained =
            if chains.is_empty() { Vec::new() } else { order.iter().filter_map(unit).collect() };
        Self { nodes, chained: with_last_uses(body, chained, kept), chains }
    }

    /// Returns a plan that runs the body only as far as these values need it.
    pub(crate) fn narrowed(&self, body: &Body, wanted: &[ValueId]) -> Self {
        // A body's own plan has all its nodes, so that its actions can be sorted by position.
        let mut by_position: Vec<_> =
            self.nodes.iter().map(|node| (node.node, node.action)).collect();
        by_position.sort_unstable_by_key(|(position, _)| *position);
        let actions: Vec<_> = by_position.into_iter().map(|(_, action)| action).collect();
        let mut needed = vec![false; body.nodes.len()];
        let mut open: Vec<_> = wanted.to_vec();
        while let Some(id) = open.pop() {
            let ValueOrigin::Node(node) = body.value(id).origin else { continue };
            if !std::mem::replace(&mut needed[node.0 as usize], true) {
                let node = body.node(node);
                open.extend(node.inputs.iter().flatten());
                open.extend(read_by_bodies(node));
            }
        }

        Self::new(body, &actions, &needed, wanted)
    }
}

/// A node, or a chain in its place, with its inputs and outputs.
struct Unit {
    node: usize,
    action: Action,
    inputs: Vec<ValueId>,
    /// Values that bodies in the unit read.
    within: Vec<ValueId>,
    outputs: Vec<ValueId>,
}

impl Unit {
    fn of_node(body: &Body, position: usize, action: Action) -> Self {
        let node = &body.nodes[position];
        let [inputs, outputs] =
            [&node.inputs, &node.outputs].map(|ids| ids.iter().flatten().copied().collect());
        Self { node: position, action, inputs, within: read_by_bodies(node), outputs }
    }

    fn of_chain(body: &Body, last: usize, number: usize, chain: &Chain) -> Self {
        let inputs = chain.inputs.iter().flatten().copied().collect();
        Self { inputs, ..Self::of_node(body, last, Action::Chain(number)) }
    }
}

/// Adds the last use of each value to the units. `kept` values live until the end.
fn with_last_uses(body: &Body, units: Vec<Unit>, kept: &[ValueId]) -> Vec<PlannedNode> {
    let mut seen = vec![false; body.values.len()];
    kept.iter().for_each(|id| seen[id.0 as usize] = true);
    let mut nodes = Vec::with_capacity(units.len());

    // From the back, where a value is met first is where it is needed last.
    for Unit { node, action, inputs, within, outputs } in units.into_iter().rev() {
        let mut planned = PlannedNode { node, action, last: Vec::new(), released: Vec::new() };
        let released = within.iter().map(|id| (*id, true));
        let inputs = inputs.iter().map(|id| (*id, within.contains(id)));
        // What nothing reads is let go at once.
        let outputs = outputs.iter().map(|id| (*id, true));
        for (id, is_within) in released.chain(inputs).chain(outputs) {
            if !std::mem::replace(&mut seen[id.0 as usize], true) {
                if is_within { planned.released.push(id) } else { planned.last.push(id) }
            }
        }
        nodes.push(planned);
    }

    nodes.reverse();
    nodes
}

/// Returns the positions of the nodes, each after the nodes whose values it reads. Files should
/// have this order, but some do not. Nodes that read each other's values keep their places. Running
/// them reports the missing value.
fn in_order(body: &Body) -> Vec<usize> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum State {
        New,
        Entered,
        Placed,
    }
    let mut order = Vec::with_capacity(body.nodes.len());
    let mut states = vec![State::New; body.nodes.len()];

    // A stack of its own: recursion through a million nodes would overflow the thread's.
    let mut open = Vec::new();
    for first in 0..body.nodes.len() {
        open.push(first);
        while let Some(&position) = open.last() {
            if states[position] == State::New {
                states[position] = State::Entered;
                let node = &body.nodes[position];
                let reads = node.inputs.iter().flatten().copied().chain(read_by_bodies(node));
                open.extend(reads.filter_map(|id| match body.value(id).origin {
                    ValueOrigin::Node(maker) => {
                        Some(maker.0 as usize).filter(|&maker| states[maker] == State::New)
                    }
                    _ => None,
                }));
                continue;
            }

            if states[position] == State::Entered {
                states[position] = State::Placed;
                order.push(position);
            }

            open.pop();
        }
    }

    order
}
