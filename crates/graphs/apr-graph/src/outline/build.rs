//! Scenes are made of a body's nodes: cut by names, folded, joined by edges.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::context::{Argument, Context, Flow};
use super::fold::{self, Run};
use super::members::{Member, members, parts};
use super::operand::Operands;
use super::scene::{Edge, End, Item, ItemKind, Port, Scene};
use crate::{AttributeValue, Function, Graph, Node, Op, ValueId, ValueOrigin};

/// Maximum number of groups in a path, and of nested functions and branches.
///
/// Anything nested deeper is shown as one node.
const DEEPEST: usize = 48;

/// Average number of ways of calling a function that are expanded, and the number of nodes and
/// inputs that are always allowed.
const WAYS: usize = 4;
const FREE: usize = 10_000;

/// Options for the outline of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutlineOptions {
    /// `true` to fold equal neighbours into one item.
    pub fold: bool,
}

impl Default for OutlineOptions {
    fn default() -> Self {
        Self { fold: true }
    }
}

/// Nodes and inputs of a function, and itself.
fn size(function: &Function) -> usize {
    1 + function.body.nodes.len() + function.body.inputs.len()
}

/// Makes the scenes of a graph.
pub(super) struct Outliner<'a> {
    graph: &'a Graph,
    options: OutlineOptions,
    /// Positions of functions.
    functions: HashMap<&'a Op, usize>,
    /// Scenes of functions by position and arguments, so that each is built once.
    scenes: HashMap<(usize, Vec<Argument>), Arc<Scene>>,
    /// The function that is looked at; `None` for the main body.
    function: Option<&'a Function>,
    /// Number of functions and branches around the current body.
    depth: usize,
    /// Nodes and inputs of functions that may still be looked at: a function is looked at again for
    /// each way of calling it, and there may be 2^48.
    left: usize,
}

/// Source of an item: the nodes of each repetition.
struct Folded<'a> {
    run: Run,
    members: &'a [Member],
}

impl<'a> Outliner<'a> {
    pub(super) fn new(graph: &'a Graph, options: OutlineOptions) -> Self {
        let functions = graph.functions.iter().map(|function| &function.op).zip(0..).collect();
        let all: usize = graph.functions.iter().map(size).sum();
        let left = all.saturating_mul(WAYS).saturating_add(FREE);
        Self { graph, options, functions, scenes: HashMap::new(), function: None, depth: 0, left }
    }

    /// The scene of the whole graph, with inputs and outputs as items.
    pub(super) fn main(mut self) -> Scene {
        let context = Context::new(&self.graph.body, HashMap::new());
        let inputs: Vec<ValueId> =
            self.graph.body.inputs.iter().copied().filter(|input| context.flows(*input)).collect();
        let members = members(&self.graph.body, &context.nodes(), 0);
        let scene = self.scene(&context, &members, 0, &inputs, &self.graph.body.outputs);
        self.with_ends(scene)
    }

    /// A scene whose border has become items.
    fn with_ends(&self, scene: Scene) -> Scene {
        let (mut items, inputs) = self.ends(&scene.inputs, &ItemKind::Input);
        let shift = items.len();
        items.extend(scene.items);
        let (outputs, mut output_items) = {
            let (found, positions) = self.ends(&scene.outputs, &ItemKind::Output);
            let shift = items.len();
            (positions.into_iter().map(|position| position + shift).collect::<Vec<_>>(), found)
        };
        items.append(&mut output_items);
        let moved = |end: End, border: &[usize]| match end {
            End::Item(item, port) => End::Item(item + shift, port),
            End::Border(port) => End::Item(border[port], 0),
        };
        let mut edges: Vec<Edge> = scene
            .edges
            .into_iter()
            .map(|edge| Edge { from: moved(edge.from, &inputs), to: moved(edge.to, &outputs) })
            .collect();

        // Ends that were folded leave edges that are the same.
        let mut seen = HashSet::new();
        edges.retain(|edge| seen.insert(edge.clone()));
        Scene { items, edges, is_partial: self.left == 0, ..Scene::default() }
    }

    /// Returns ports as items, and the item of each port. Ports that differ only in a number are
    /// folded.
    fn ends(&self, ports: &[Port], kind: &ItemKind) -> (Vec<Item>, Vec<usize>) {
        let mut items: Vec<Item> = Vec::new();
        let mut by_name: HashMap<(String, String, Option<String>), usize> = HashMap::new();
        let mut positions = Vec::with_capacity(ports.len());
        for port in ports {
            let pattern = fold::numbered(&port.name).filter(|_| self.options.fold);
            let key = pattern
                .map(|(before, _, after)| (before.to_owned(), after.to_owned(), port.kind.clone()));
            if let Some(&position) = key.as_ref().and_then(|key| by_name.get(key)) {
                let item: &mut Item = &mut items[position];
                item.times += 1;
                item.name = fold::range(&item.path, &port.name);
                positions.push(position);
                continue;
            }

            by_name.extend(key.map(|key| (key, items.len())));
            positions.push(items.len());
            items.push(Item {
                name: port.name.clone(),
                path: port.name.clone(),
                times: 1,
                kind: kind.clone(),
                output: port.kind.clone(),
                parameters: 0,
                cost: None,
                nodes: Vec::new(),
            });
        }

        (items, positions)
    }

    /// The scene of some members of a body, whose border is given.
    fn scene(
        &mut self,
        context: &Context<'a>,
        members: &[Member],
        depth: usize,
        inputs: &[ValueId],
        outputs: &[ValueId],
    ) -> Scene {
        let runs = if self.options.fold {
            fold::runs(
                &members
                    .iter()
                    .map(|member| self.signature(context, member, depth))
                    .collect::<Vec<_>>(),
            )
        } else {
            (0..members.len()).map(|start| Run { start, period: 1, times: 1 }).collect()
        };

        let folded: Vec<Folded<'_>> = runs
            .into_iter()
            .map(|run| Folded {
                members: &members[run.start..run.start + run.period * run.times],
                run,
            })
            .collect();
        let items = folded.iter().map(|folded| self.item(context, folded, depth)).collect();
        let edges = self.edges(context, &folded, inputs, outputs);
        let ports = |values: &[ValueId]| values.iter().map(|value| context.port(*value)).collect();
        Scene { items, edges, inputs: ports(inputs), outputs: ports(outputs), is_partial: false }
    }

    /// Returns a hash that is equal for members that do the same, or `None` if the member is not
    /// folded.
    fn signature(&self, context: &Context<'a>, member: &Member, depth: usize) -> Option<u64> {
        let is_call = |node: usize| self.functions.contains_key(&context.body.nodes[node].op);
        let (before, _, after) = fold::numbered(&member.name)?;
        // Single operators stay apart; groups and calls are what is folded.
        if member.single && !is_call(member.nodes[0]) {
            return None;
        }

        let mut hasher = DefaultHasher::new();
        // All of the name but its number counts.
        (before, after, member.nodes.len()).hash(&mut hasher);
        for &position in &member.nodes {
            let node = &context.body.nodes[position];
            node.op.hash(&mut hasher);
            parts(context.body, position).skip(depth + 1).for_each(|part| part.hash(&mut hasher));
            for value in node.inputs.iter().flatten() {
                // Layers of other sizes are other layers.
                (context.flows(*value), context.elements(*value)).hash(&mut hasher);
            }
            hash_attributes(node, &mut hasher);
        }

        Some(hasher.finish())
    }

    fn item(&mut self, context: &Context<'a>, folded: &Folded<'_>, depth: usize) -> Item {
        let Run { period, times, .. } = folded.run;
        let first = &folded.members[0];
        let last = &folded.members[folded.members.len() - 1];
        let nodes: Vec<usize> =
            folded.members.iter().flat_map(|member| &member.nodes).copied().collect();
        let kind = if period > 1 {
            self.pattern(context, &folded.members[..period], depth)
        } else if first.single {
            self.node(context, first.nodes[0])
        } else {
            self.group(context, first, depth)
        };

        let (name, kind) = joined(fold::range(&first.name, &last.name), kind);
        let mut outputs =
            self.flow(context, &last.nodes, last.single).outputs.into_iter().flatten();

        // What leaves a group last is what it is there for; a node or a function has its main
        // output first.
        let output = if last.single { outputs.next() } else { outputs.last() };
        Item {
            name,
            path: parts(context.body, first.nodes[0]).take(depth + 1).collect::<Vec<_>>().join("/"),
            times: times as u64,
            kind,
            output: output.and_then(|value| context.kind(value)),
            parameters: context.parameters(&nodes),
            cost: None,
            nodes,
        }
    }

    /// Returns a group for neighbours of different kinds that repeat together.
    fn pattern(&mut self, context: &Context<'a>, members: &[Member], depth: usize) -> ItemKind {
        let nodes: Vec<usize> = members.iter().flat_map(|member| &member.nodes).copied().collect();
        let Flow { inputs, outputs } = context.flow(&nodes);
        let inputs: Vec<ValueId> = inputs.into_iter().flatten().collect();
        let outputs: Vec<ValueId> = outputs.into_iter().flatten().collect();
        let scene = self.scene(context, members, depth, &inputs, &outputs);
        ItemKind::Group { function: None, scene: Arc::new(scene) }
    }

    /// Nodes that share a name.
    fn group(&mut self, context: &Context<'a>, member: &Member, depth: usize) -> ItemKind {
        let inner = if depth + 1 < DEEPEST {
            members(context.body, &member.nodes, depth + 1)
        } else {
            let single = |node: &usize| Member {
                name: context.body.nodes[*node].name.clone(),
                nodes: vec![*node],
                single: true,
            };
            member.nodes.iter().map(single).collect()
        };

        let Flow { inputs, outputs } = context.flow(&member.nodes);
        let inputs: Vec<ValueId> = inputs.into_iter().flatten().collect();
        let outputs: Vec<ValueId> = outputs.into_iter().flatten().collect();
        let scene = self.scene(context, &inner, depth + 1, &inputs, &outputs);
        ItemKind::Group { function: None, scene: Arc::new(scene) }
    }

    /// A single node: an operator, a call, or branches.
    fn node(&mut self, context: &Context<'a>, position: usize) -> ItemKind {
        let node = &context.body.nodes[position];
        let op = node.op.to_string();
        if let Some(function) = self.functions.get(&node.op).copied()
            && self.depth < DEEPEST
        {
            let scene = self.call(context, node, function);
            return ItemKind::Group { function: Some(op), scene };
        }
        if node.bodies().next().is_some() && self.depth < DEEPEST {
            return ItemKind::Group { function: Some(op), scene: Arc::new(self.branches(node)) };
        }
        let operands = Operands::of(self.graph, self.function, node);
        ItemKind::Node { op, weights: context.weights(node, &operands) }
    }

    /// Returns the scene of a function for the arguments of this call.
    fn call(&mut self, context: &Context<'a>, node: &Node, position: usize) -> Arc<Scene> {
        let argument = |input: &Option<ValueId>| match input {
            Some(value) if context.flows(*value) => Argument::Flows,
            Some(value) => {
                Argument::Fixed { elements: context.elements(*value), kind: context.kind(*value) }
            }
            None => Argument::Fixed { elements: 0, kind: None },
        };

        let arguments: Vec<Argument> = node.inputs.iter().map(argument).collect();
        let key = (position, arguments);
        if let Some(scene) = self.scenes.get(&key) {
            return scene.clone();
        }

        let function: &'a Function = &self.graph.functions[position];

        // A call may leave out inputs at the end.
        let absent = Argument::Fixed { elements: 0, kind: None };
        let given = key.1.iter().chain(std::iter::repeat(&absent));
        let fixed = function
            .body
            .inputs
            .iter()
            .zip(given)
            .filter(|(_, argument)| **argument != Argument::Flows);
        let fixed: HashMap<ValueId, Argument> =
            fixed.map(|(id, argument)| (*id, argument.clone())).collect();
        let inputs: Vec<ValueId> = function
            .body
            .inputs
            .iter()
            .copied()
            .filter(|input| !fixed.contains_key(input))
            .collect();
        let inner = Context::new(&function.body, fixed);
        self.left = self.left.saturating_sub(size(function));
        let members =
            if self.left == 0 { Vec::new() } else { members(&function.body, &inner.nodes(), 0) };
        self.depth += 1;
        let around = self.function.replace(function);
        let scene = Arc::new(self.scene(&inner, &members, 0, &inputs, &function.body.outputs));
        self.function = around;
        self.depth -= 1;
        self.scenes.insert(key, scene.clone());
        scene
    }

    /// The branches of a node, each a group.
    fn branches(&mut self, node: &'a Node) -> Scene {
        let mut items = Vec::new();
        for attribute in &node.attributes {
            for body in attribute.value.bodies() {
                let context = Context::new(body, HashMap::new());
                let nodes = context.nodes();
                let inner = members(body, &nodes, 0);
                self.depth += 1;
                let outer = body
                    .values
                    .iter()
                    .zip(0..)
                    .filter(|(value, _)| matches!(value.origin, ValueOrigin::Outer(_)));
                let inputs: Vec<ValueId> =
                    body.inputs.iter().copied().chain(outer.map(|(_, id)| ValueId(id))).collect();
                let scene = self.scene(&context, &inner, 0, &inputs, &body.outputs);
                self.depth -= 1;
                items.push(Item {
                    name: attribute.name.to_string(),
                    path: format!("{}/{}", node.name, attribute.name),
                    times: 1,
                    output: None,
                    parameters: context.parameters(&nodes),
                    kind: ItemKind::Group { function: None, scene: Arc::new(scene) },
                    cost: None,
                    nodes,
                });
            }
        }

        Scene { items, ..Scene::default() }
    }

    /// Returns the inputs and outputs of one repetition of an item. The ports of a call are the
    /// function's ports.
    fn flow(&self, context: &Context<'a>, nodes: &[usize], single: bool) -> Flow {
        let node = &context.body.nodes[nodes[0]];
        if single && self.functions.contains_key(&node.op) {
            let inputs = node
                .inputs
                .iter()
                .copied()
                .filter(|input| input.is_some_and(|value| context.flows(value)));
            return Flow { inputs: inputs.collect(), outputs: node.outputs.clone() };
        }
        context.flow(nodes)
    }

    fn edges(
        &self,
        context: &Context<'a>,
        folded: &[Folded<'_>],
        inputs: &[ValueId],
        outputs: &[ValueId],
    ) -> Vec<Edge> {
        let mut flows = Vec::new();
        let mut made: HashMap<ValueId, (usize, End)> = HashMap::new();
        for (position, folded) in folded.iter().enumerate() {
            for repetition in folded.members.chunks(folded.run.period) {
                let nodes: Vec<usize> =
                    repetition.iter().flat_map(|member| &member.nodes).copied().collect();
                let flow =
                    self.flow(context, &nodes, repetition.len() == 1 && repetition[0].single);
                let ports = flow
                    .outputs
                    .iter()
                    .enumerate()
                    .filter_map(|(port, value)| Some(((*value)?, port)));
                made.extend(
                    ports.map(|(value, port)| (value, (position, End::Item(position, port)))),
                );
                flows.push((position, flow.inputs));
            }
        }

        let border: HashMap<ValueId, usize> = inputs.iter().copied().zip(0..).collect();
        let from = |value: ValueId, reader: Option<usize>| match made.get(&value) {
            // What one repetition hands to the next stays inside the item.
            Some((maker, _)) if Some(*maker) == reader => None,
            Some((_, end)) => Some(*end),
            None => border.get(&value).map(|port| End::Border(*port)),
        };
        let into_items = flows.iter().flat_map(|(item, inputs)| {
            let ports =
                inputs.iter().enumerate().filter_map(|(port, value)| Some(((*value)?, port)));
            ports.map(|(value, port)| (value, Some(*item), End::Item(*item, port)))
        });
        let into_border =
            outputs.iter().zip(0..).map(|(value, port)| (*value, None, End::Border(port)));
        let mut seen = HashSet::new();
        into_items
            .chain(into_border)
            .filter_map(|(value, reader, to)| Some(Edge { from: from(value, reader)?, to }))
            .filter(|edge| seen.insert(edge.clone()))
            .collect()
    }
}

/// A group with a single thing in it becomes that thing, under both names: `input_layernorm/norm`.
fn joined(name: String, kind: ItemKind) -> (String, ItemKind) {
    if let ItemKind::Group { function: None, scene } = &kind
        && let [inner] = scene.items.as_slice()
        && inner.times == 1
        && !matches!(inner.kind, ItemKind::Group { function: Some(_), .. })
    {
        return (format!("{name}/{}", inner.name), inner.kind.clone());
    }
    (name, kind)
}

/// Attributes that make nodes of one operator different.
fn hash_attributes(node: &Node, hasher: &mut DefaultHasher) {
    for attribute in &node.attributes {
        attribute.name.hash(hasher);
        match &attribute.value {
            AttributeValue::Int(value) => value.hash(hasher),
            AttributeValue::Float(value) => value.to_bits().hash(hasher),
            AttributeValue::Text(text) => text.hash(hasher),
            AttributeValue::Ints(values) => values.hash(hasher),
            AttributeValue::Body(body) => body.nodes.len().hash(hasher),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
