//! Functions written out where they are called.

use std::collections::{HashMap, HashSet};

use apr_core::{Error, Result, UniqueNames, Work};

use crate::finding::node_path;
use crate::infer::{Versions, attribute_bytes, constant_bytes, steps};
use crate::{
    Attribute, AttributeValue, Body, Function, Graph, MAX_DEPTH, Name, Node, Op, Opset, ValueId,
    ValueOrigin, ValueType,
};

/// Number of steps that any graph may take.
///
/// A node, a value, a list entry and a fixed number of name bytes are one step each. Functions that
/// call functions can expand to any number of nodes.
const FREE: u64 = 100_000;
/// Steps allowed for each step of one pass over the graph, enough for some hundred layers that call
/// one function.
const TIMES: u64 = 256;
/// Maximum number of steps for repeated parts: half a million nodes, in about three seconds.
const MOST: u64 = 4_000_000;
/// Bytes of names that are a step.
const BYTES_OF_A_STEP: usize = 16;

/// Returns the graph without functions: the nodes of each function replace its calls.
///
/// The nodes are named after the call: `layers.3/attention/scores`. Types within functions are
/// omitted, because they are known for one call only; run [`crate::infer`] on the result.
///
/// # Errors
/// E001 where functions call themselves, or are called with more than they take; E003 where a
/// function's operators are of another version than the graph's; E008 where that is much more work
/// than the graph's size justifies ([`Work`]).
pub fn inline(graph: &Graph) -> Result<Graph> {
    let bodies = graph.functions.iter().map(|function| &function.body).chain([&graph.body]);
    let once = bodies.map(steps).fold(0, u64::saturating_add);
    let more = once.saturating_mul(TIMES).saturating_add(FREE).min(MOST);
    up_to(&Work::of_file(once.saturating_mul(4).saturating_add(more)), graph)
}

fn up_to(work: &Work, graph: &Graph) -> Result<Graph> {
    let mut inliner = Inliner {
        functions: graph.functions.iter().map(|function| (&function.op, function)).collect(),
        versions: Versions::new(&graph.opsets),
        opsets: graph.opsets.clone(),
        agreed: HashSet::new(),
        active: Vec::new(),
        work,
    };

    let body = inliner.whole(&graph.body, Names::default(), Settings::Kept, 0)?;

    // The functions' domains go with them, unless a node still names one.
    let own: HashSet<_> = graph.functions.iter().map(|function| &function.op.domain).collect();
    let used: HashSet<_> = domains(&body);
    let opsets = inliner
        .opsets
        .iter()
        .filter(|set| !own.contains(&set.domain) || used.contains(&set.domain));
    Ok(Graph { opsets: opsets.cloned().collect(), functions: Vec::new(), body })
}

/// Attributes of a call, including the function's defaults.
type Given = HashMap<Name, AttributeValue>;

/// Replacement for references to the attributes of the enclosing call.
#[derive(Clone, Copy)]
enum Settings<'a> {
    /// References are kept, because there is no enclosing call.
    Kept,
    /// Values of the attributes of the enclosing call.
    OfCall(&'a Given),
}

/// New ids of a body's values in the body that it is copied to; `None` if the call omits a value.
type Places = Vec<Option<ValueId>>;

/// Source of unique names.
#[derive(Default)]
struct Names {
    prefix: String,
    taken: UniqueNames,
}

impl Names {
    fn unique(&mut self, name: String) -> String {
        if name.is_empty() {
            return name;
        }
        self.taken.unique(name)
    }
}

struct Inliner<'g> {
    work: &'g Work,
    functions: HashMap<&'g Op, &'g Function>,
    opsets: Vec<Opset>,
    versions: Versions,
    /// Functions whose operators are of the graph's versions.
    agreed: HashSet<&'g Op>,
    active: Vec<&'g Op>,
}

/// Source of a copy.
struct From<'a> {
    body: &'a Body,
    settings: Settings<'a>,
    depth: usize,
}

impl Inliner<'_> {
    /// Returns a copy of a body whose values keep their ids.
    fn whole(
        &mut self,
        body: &Body,
        mut names: Names,
        settings: Settings<'_>,
        depth: usize,
    ) -> Result<Body> {
        let mut copy = Body {
            nodes: Vec::with_capacity(body.nodes.len()),
            values: body.values.clone(),
            ..Body::default()
        };
        copy.name.clone_from(&body.name);
        copy.doc.clone_from(&body.doc);
        (copy.inputs, copy.outputs) = (body.inputs.clone(), body.outputs.clone());
        // Values of the body keep their names, so copies get others.
        body.values.iter().for_each(|value| _ = names.taken.take(&value.name));
        let places: Places =
            (0..body.values.len()).map(|at| u32::try_from(at).ok().map(ValueId)).collect();
        self.nodes(&From { body, settings, depth }, &mut copy, &places, &mut names)?;
        Ok(copy)
    }

    /// A copy of a body in a node's attribute, whose outer values are elsewhere now.
    fn inner(
        &mut self,
        from: &From<'_>,
        body: &Body,
        outer: &Places,
        prefix: &str,
    ) -> Result<Body> {
        if from.depth >= MAX_DEPTH {
            return Err(Error::format(format!(
                "bodies and calls are nested more than {MAX_DEPTH} deep"
            )));
        }

        self.spend_values(body, prefix)?;
        let mut moved = Body { values: body.values.clone(), ..Body::default() };
        (moved.inputs, moved.outputs) = (body.inputs.clone(), body.outputs.clone());
        moved.name.clone_from(&body.name);
        let mut absent = HashSet::new();
        for (at, value) in moved.values.iter_mut().enumerate() {
            match &mut value.origin {
                ValueOrigin::Outer(id) => match outer.get(id.0 as usize).copied().flatten() {
                    Some(place) => *id = place,
                    None => {
                        // What the call left out is left out here, too.
                        absent.insert(at);
                    }
                },
                _ if !value.name.is_empty() => value.name = format!("{prefix}{}", value.name),
                _ => {}
            }
        }

        let place =
            |at: usize| u32::try_from(at).ok().map(ValueId).filter(|_| !absent.contains(&at));
        let places: Places = (0..moved.values.len()).map(place).collect();
        let mut names = Names { prefix: prefix.to_owned(), ..Names::default() };
        moved.values.iter().for_each(|value| _ = names.taken.take(&value.name));
        let inside = From { body, settings: from.settings, depth: from.depth + 1 };
        self.nodes(&inside, &mut moved, &places, &mut names)?;
        Ok(moved)
    }

    /// Counts what is about to be copied: places in lists, and bytes.
    fn spend(&self, places: usize, bytes: usize) -> Result<()> {
        self.work.spend((places + bytes / BYTES_OF_A_STEP) as u64)
    }

    /// Counts a body's values, which get names that begin with this, and its constants.
    fn spend_values(&self, body: &Body, prefix: &str) -> Result<()> {
        body.values.iter().try_for_each(|value| {
            let constant = match &value.origin {
                ValueOrigin::Constant(constant) => constant_bytes(constant),
                _ => 0,
            };
            self.spend(1, prefix.len() + value.name.len() + constant)
        })
    }

    /// Copies the nodes of a body to the end of another.
    fn nodes(
        &mut self,
        from: &From<'_>,
        into: &mut Body,
        places: &Places,
        names: &mut Names,
    ) -> Result<()> {
        for (position, node) in from.body.nodes.iter().enumerate() {
            let place = |id: &Option<ValueId>| {
                id.and_then(|id| places.get(id.0 as usize).copied().flatten())
            };
            let lists = node.inputs.len() + node.outputs.len() + node.attributes.len();
            let bytes = 2 * names.prefix.len() + node.name.len();
            self.spend(1 + lists, bytes)?;
            let path = node_path(&names.prefix, position, node);
            let copy = Node {
                name: if node.name.is_empty() { String::new() } else { path.clone() },
                op: node.op.clone(),
                inputs: node.inputs.iter().map(place).collect(),
                outputs: node.outputs.iter().map(place).collect(),
                attributes: self.attributes(from, node, places, &format!("{path}/"))?,
                doc: node.doc.clone(),
            };

            match self.functions.get(&node.op).copied() {
                Some(function) => self.call(function, copy, &path, from.depth, into, names)?,
                None => {
                    into.add_node(copy);
                }
            }
        }

        Ok(())
    }

    fn attributes(
        &mut self,
        from: &From<'_>,
        node: &Node,
        places: &Places,
        prefix: &str,
    ) -> Result<Vec<Attribute>> {
        let mut attributes = Vec::with_capacity(node.attributes.len());

        // Within a call, names of inner bodies get its path; elsewhere they stay.
        let prefix = if matches!(from.settings, Settings::Kept) { "" } else { prefix };
        for attribute in &node.attributes {
            let value = match (&attribute.value, from.settings) {
                (AttributeValue::OfCall(name), Settings::OfCall(given)) => {
                    match given.get(name) {
                        Some(given) => {
                            self.spend(0, attribute_bytes(given))?;
                            given.clone()
                        }
                        // What the call does not give is left out here, too.
                        None => continue,
                    }
                }
                (AttributeValue::Body(body), _) => {
                    AttributeValue::Body(Box::new(self.inner(from, body, places, prefix)?))
                }
                (AttributeValue::Bodies(bodies), _) => {
                    let copies = bodies.iter().map(|body| self.inner(from, body, places, prefix));
                    AttributeValue::Bodies(copies.collect::<Result<_>>()?)
                }
                (value, _) => value.clone(),
            };

            attributes.push(Attribute { name: attribute.name.clone(), value });
        }

        Ok(attributes)
    }

    /// Writes a function's nodes in the place of a call.
    fn call(
        &mut self,
        function: &Function,
        call: Node,
        path: &str,
        depth: usize,
        into: &mut Body,
        names: &mut Names,
    ) -> Result<()> {
        let problem =
            |message: &str| Error::format(format!("node '{path}': {} {message}", function.op));
        // The key lives as long as the graph; the call is a copy.
        let Some((op, _)) = self.functions.get_key_value(&function.op) else { return Ok(()) };
        let op = *op;
        if self.active.contains(&op) {
            return Err(problem("calls itself"));
        }
        if depth >= MAX_DEPTH {
            return Err(problem(&format!("is called more than {MAX_DEPTH} deep")));
        }

        let body = &function.body;
        if call.inputs.len() > body.inputs.len() || call.outputs.len() > body.outputs.len() {
            return Err(problem("is called with more than it has"));
        }

        if self.agreed.insert(op) {
            self.same_opsets(function, path)?;
        }
        let mut settings = Given::new();
        let defaults = function.defaults.iter().cloned();
        for attribute in call.attributes.into_iter().chain(defaults) {
            self.spend(1, attribute_bytes(&attribute.value))?;
            settings.entry(attribute.name).or_insert(attribute.value);
        }

        self.spend_values(body, path)?;
        let outer = std::mem::replace(&mut names.prefix, format!("{path}/"));
        let (places, passed) = placed(body, &call.inputs, &call.outputs, into, names);
        self.active.push(op);
        let from = From { body, settings: Settings::OfCall(&settings), depth: depth + 1 };
        self.nodes(&from, into, &places, names)?;
        self.active.pop();
        names.prefix = outer;
        for (source, output) in passed {
            let input = places.get(source.0 as usize).copied().flatten();
            let name = names.unique(format!("{path}/{}", body.value(source).name));
            into.add_node(identity(name, input, output));
        }

        Ok(())
    }

    /// Checks that the graph and the function have the same operator versions.
    fn same_opsets(&mut self, function: &Function, path: &str) -> Result<()> {
        for opset in &function.opsets {
            match self.versions.of(&opset.domain) {
                None => {
                    self.versions.add(opset);
                    self.opsets.push(opset.clone());
                }
                Some(other) if other == opset.version => {}
                Some(other) => {
                    let domain = if opset.domain.is_empty() { "ai.onnx" } else { &opset.domain };
                    return Err(Error::version(format!(
                        "node '{path}': {} has version {} of {domain}, and the graph {}",
                        function.op, opset.version, other
                    )));
                }
            }
        }

        Ok(())
    }
}

/// Returns the ids of a function's values at a call, and the outputs that need a copy.
///
/// An output needs a copy if no node of the function produces it, or if it is the second output of
/// one value.
fn placed(
    body: &Body,
    inputs: &[Option<ValueId>],
    outputs: &[Option<ValueId>],
    into: &mut Body,
    names: &mut Names,
) -> (Places, Vec<(ValueId, ValueId)>) {
    let mut places: Places = vec![None; body.values.len()];
    let mut done = vec![false; body.values.len()];
    for (at, id) in body.inputs.iter().enumerate() {
        places[id.0 as usize] = inputs.get(at).copied().flatten();
        done[id.0 as usize] = true;
    }

    let mut passed = Vec::new();
    for (id, given) in body.outputs.iter().zip(outputs) {
        let Some(given) = given else { continue };
        let made = matches!(body.value(*id).origin, ValueOrigin::Node(_));
        // A value that is two outputs has one place; the second output is a copy.
        if made && !std::mem::replace(&mut done[id.0 as usize], true) {
            places[id.0 as usize] = Some(*given);
        } else {
            passed.push((*id, *given));
        }
    }

    for (at, value) in body.values.iter().enumerate() {
        if !done[at] {
            let name = names.unique(format!("{}{}", names.prefix, value.name));
            let fixed = matches!(value.origin, ValueOrigin::Constant(_) | ValueOrigin::Weight(_));
            let kind = if fixed { value.kind.clone() } else { ValueType::Unknown };
            places[at] = Some(into.add_value(name, kind, value.origin.clone()));
        }
    }

    (places, passed)
}

fn identity(name: String, input: Option<ValueId>, output: ValueId) -> Node {
    Node {
        name,
        op: Op::onnx("Identity"),
        inputs: vec![input],
        outputs: vec![Some(output)],
        attributes: Vec::new(),
        doc: String::new(),
    }
}

/// Domains of the operators in a body and the bodies in it.
fn domains(body: &Body) -> HashSet<crate::Name> {
    let mut found = HashSet::new();
    let mut open = vec![body];
    while let Some(body) = open.pop() {
        found.extend(body.nodes.iter().map(|node| node.op.domain.clone()));
        open.extend(body.nodes.iter().flat_map(Node::bodies));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyBuilder, Dim, ElementType, GraphBuilder, Meaning, check, infer};

    /// A block with an attribute, a part that may be left out, a branch that reads the block's
    /// values, and an output that is an input; called twice.
    fn model() -> Graph {
        let mut graph = GraphBuilder::new(17);
        let mut part = BodyBuilder::default();
        let (x, bias) = (part.parameter("x"), part.parameter("bias"));
        let y = part.op("Clip", [x]).optional(Some(bias)).output("clip");
        part.output("y", y, Meaning::Unknown);
        let part = graph.function("apr", "part", part);

        let mut block = BodyBuilder::default();
        let (x, which) = (block.parameter("x"), block.parameter("which"));
        let axis = AttributeValue::OfCall("axis".into());
        let soft = block.op("Softmax", [x]).attribute("axis", axis).output("scores");
        let node = block.op("If", [which]).attribute("then_branch", branch("Relu", soft));
        let chosen = node.attribute("else_branch", branch("Exp", soft)).output("chosen");
        let clipped = block.call(&part, [chosen]).output("part");
        block.output("y", clipped, Meaning::Unknown);
        let mut body = block.finish();
        body.outputs.push(body.inputs[1]);
        let op = Op::new("apr", "block");
        let mut finished = GraphBuilder::new(17);
        let main = finished.body();
        let mut x =
            main.input("x", ElementType::F32, [Dim::symbol("n"), Dim::fixed(8)], Meaning::Unknown);
        let mut which = main.input("which", ElementType::Bool, [], Meaning::Unknown);
        for layer in 0..2 {
            let call = main.call(&op, [x, which]).attribute("axis", 1);
            [x, which] = call.outputs(&format!("layers.{layer}"));
        }
        main.output("y", x, Meaning::Unknown);
        let mut finished = finished.finish();
        let mut graph = graph.finish();
        let blank = Function { op, body, ..graph.functions[0].clone() };
        finished.functions = vec![graph.functions.remove(0), blank];
        finished.opsets.push(Opset { domain: "apr".into(), version: 1 });
        finished
    }

    fn branch(op: &str, outer: ValueId) -> Body {
        let mut body = Body::default();
        let x = body.add_value("outer", ValueType::Unknown, ValueOrigin::Outer(outer));
        let y = body.add_value("result", ValueType::Unknown, ValueOrigin::Missing);
        let node = identity("inner".to_owned(), Some(x), y);
        body.add_node(Node { op: Op::onnx(op), ..node });
        body.outputs.push(y);
        body
    }

    #[test]
    fn calls_become_nodes_under_the_calls_names() {
        let mut graph = model();
        assert!(check(&graph).is_empty(), "{:?}", check(&graph));
        let mut flat = inline(&graph).unwrap();
        let names: Vec<_> = flat.body.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "layers.0/scores",
                "layers.0/chosen",
                "layers.0/part/clip",
                "layers.0/which",
                "layers.1/scores",
                "layers.1/chosen",
                "layers.1/part/clip",
                "layers.1/which"
            ]
        );
        assert_eq!(flat.body.nodes[4].int("axis"), Some(1));
        assert_eq!(flat.body.nodes[2].inputs.len(), 2);
        assert_eq!(flat.body.nodes[2].inputs[1], None, "the call left it out");
        assert!(flat.functions.is_empty());
        assert_eq!(flat.opsets.len(), 1, "the functions' domain is gone");
        assert!(check(&flat).is_empty(), "{:?}", check(&flat));
        infer(&mut graph);
        infer(&mut flat);
        let kind = |graph: &Graph| graph.body.value(graph.body.outputs[0]).kind.clone();
        assert_eq!(kind(&flat), kind(&graph));
        assert_eq!(
            flat.body.value(flat.body.outputs[0]).tensor().unwrap().to_string(),
            "f32[n, 8]"
        );
    }

    #[test]
    fn functions_that_stand_for_too_many_nodes_are_refused() {
        let mut graph = GraphBuilder::new(17);
        let mut callee = Op::onnx("Relu");
        for level in 0..40 {
            let mut body = BodyBuilder::default();
            let x = body.parameter("x");
            let once = body.call(&callee, [x]).output("a");
            let twice = body.call(&callee, [once]).output("b");
            body.output("y", twice, Meaning::Unknown);
            callee = graph.function("apr", &format!("f{level}"), body);
        }
        let x = graph.body().input("x", ElementType::F32, [], Meaning::Unknown);
        let y = graph.body().call(&callee, [x]).output("call");
        graph.body().output("y", y, Meaning::Unknown);
        let error = up_to(&Work::new(10_000), &graph.finish()).unwrap_err();
        assert_eq!(error.code(), apr_core::Code::Memory);
    }

    #[test]
    fn operators_of_another_version_are_refused() {
        let mut graph = model();
        graph.functions[0].opsets = vec![Opset { domain: "".into(), version: 13 }];
        let error = inline(&graph).unwrap_err().to_string();
        assert_eq!(
            error,
            "E003: node 'layers.0/part': apr::part has version 13 of ai.onnx, and the graph 17"
        );
    }
    #[test]
    fn names_that_the_graph_has_already_get_numbers() {
        let mut graph = GraphBuilder::new(17);
        let mut block = BodyBuilder::default();
        let x = block.parameter("x");
        let y = block.op("Relu", [x]).output("act");
        let y = block.op("Exp", [y]).output("out");
        block.output("y", y, Meaning::Unknown);
        let op = graph.function("apr", "block", block);
        let main = graph.body();
        let mut x = main.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
        for _ in 0..3 {
            x = main.call(&op, [x]).output("call");
        }
        main.output("y", x, Meaning::Unknown);
        let mut graph = graph.finish();
        graph.body.nodes.iter_mut().for_each(|node| node.name = "call".to_owned());
        let flat = inline(&graph).unwrap();
        let mut names: Vec<_> = flat.body.values.iter().map(|value| value.name.as_str()).collect();
        assert!(
            ["call/act", "call/act_1", "call/act_2"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_function_that_calls_itself_is_refused() {
        let mut graph = GraphBuilder::new(17);
        let mut body = BodyBuilder::default();
        let x = body.parameter("x");
        let y = body.call(&Op::new("apr", "f"), [x]).output("again");
        body.output("y", y, Meaning::Unknown);
        let op = graph.function("apr", "f", body);
        let x = graph.body().input("x", ElementType::F32, [], Meaning::Unknown);
        let y = graph.body().call(&op, [x]).output("call");
        graph.body().output("y", y, Meaning::Unknown);
        let error = inline(&graph.finish()).unwrap_err();
        assert_eq!(error.to_string(), "E001: node 'call/again': apr::f calls itself");
    }
}
