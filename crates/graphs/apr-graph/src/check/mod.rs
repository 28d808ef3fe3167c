//! Whether a graph is one that ONNX allows.

mod nodes;
pub(crate) mod order;

use std::collections::{HashMap, HashSet};

use crate::finding::{cut, shown_path};
use crate::infer::Versions;
use crate::{
    Body, Constant, ConstantData, Findings, Function, Graph, MAX_DEPTH, Node, Op, Operator,
    Severity, Value, ValueOrigin, foreign,
};

/// Checks names, order, operators and functions. Types are checked by [`crate::infer`].
///
/// Everything is reported, up to [`Findings::MOST`]. Errors: what `onnx.checker` refuses. Notices:
/// operators of domains that are not known here.
///
/// ```
/// use apr_graph::{ElementType, GraphBuilder, Meaning, check};
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let x = main.input("x", ElementType::F32, [2.into()], Meaning::Unknown);
/// let y = main.op("Relou", [x]).output("layers.0/act");
/// main.output("y", y, Meaning::Unknown);
///
/// let findings = check(&graph.finish());
/// assert!(
///     findings.list[0]
///         .to_string()
///         .starts_with("error: node 'layers.0/act': no operator 'Relou'")
/// );
/// ```
#[must_use]
pub fn check(graph: &Graph) -> Findings {
    let mut checker = Checker {
        graph,
        findings: Findings::default(),
        functions: HashMap::new(),
        said: HashSet::new(),
        is_foreign: graph.opsets.iter().any(|opset| foreign(&opset.domain).is_some()),
    };
    checker.opsets();
    checker.functions();
    let versions = Versions::new(&graph.opsets);
    let place = BodyPosition { prefix: String::new(), opsets: &versions, function: None, depth: 0 };
    checker.body(&graph.body, None, &place);
    checker.model();
    checker.findings
}

struct Checker<'g> {
    graph: &'g Graph,
    findings: Findings,
    functions: HashMap<&'g Op, &'g Function>,
    /// Messages reported so far that are reported once instead of for every node.
    said: HashSet<String>,
    /// `true` if the operators belong to another program.
    is_foreign: bool,
}

/// Position of a body in the graph.
struct BodyPosition<'p> {
    prefix: String,
    opsets: &'p Versions,
    /// The function that it is in.
    function: Option<&'p Function>,
    depth: usize,
}

impl<'g> Checker<'g> {
    fn error(&mut self, place: &BodyPosition<'_>, message: impl Into<String>) {
        self.findings.add(Severity::Error, place.prefix.trim_end_matches('/'), message);
    }

    fn once(&mut self, severity: Severity, node: &dyn Fn() -> String, message: String) {
        if self.said.insert(message.clone()) {
            self.findings.add(severity, node(), message);
        }
    }

    fn opsets(&mut self) {
        // Exporters repeat a domain; only versions that contradict each other are wrong.
        let mut seen = HashMap::new();
        for opset in &self.graph.opsets {
            if *seen.entry(&opset.domain).or_insert(opset.version) != opset.version {
                self.findings.add(
                    Severity::Error,
                    "",
                    format!("domain '{}' has two versions", opset.domain),
                );
            }

            if opset.version < 1 {
                let message = format!(
                    "domain '{}' has version {}, which there is not",
                    opset.domain, opset.version
                );
                self.findings.add(Severity::Error, "", message);
            }

            if opset.domain.is_empty() && opset.version > Operator::newest() {
                let message = format!(
                    "opset {} is newer than {}, the latest supported: its operators are read as \
                     the latest version",
                    opset.version,
                    Operator::newest()
                );
                self.findings.add(Severity::Warning, "", message);
            }
        }
    }

    fn functions(&mut self) {
        let graph = self.graph;
        for function in &graph.functions {
            if self.functions.insert(&function.op, function).is_some() {
                self.findings.add(
                    Severity::Error,
                    "",
                    format!("there are two functions '{}'", function.op),
                );
            }
        }

        self.self_calls();
        let of_graph = Versions::new(&graph.opsets);
        for function in &graph.functions {
            let has_own = !function.opsets.is_empty();
            let own = has_own.then(|| Versions::new(&function.opsets));
            let opsets = own.as_ref().unwrap_or(&of_graph);
            let prefix = format!("{}/", cut(&function.op.to_string()));
            let place = BodyPosition { prefix, opsets, function: Some(function), depth: 0 };
            self.body(&function.body, None, &place);
            // Other programs keep constants in functions.
            let is_foreign = foreign(&function.op.domain).is_some();
            if let Some((value, _)) = function.body.weights().next().filter(|_| !is_foreign) {
                let message = format!(
                    "it has the weight '{}' inside; a function gets its weights as inputs",
                    value.name
                );
                self.error(&place, message);
            }
        }
    }

    /// Reports functions that call themselves, directly or through other functions.
    fn self_calls(&mut self) {
        let functions = &self.graph.functions;
        let index: HashMap<&Op, usize> =
            functions.iter().enumerate().map(|(at, function)| (&function.op, at)).collect();
        let calls = |function: &Function| {
            let mut calls: Vec<usize> =
                operators(&function.body).filter_map(|op| index.get(op).copied()).collect();
            // A function that is called twice is one edge.
            calls.sort_unstable();
            calls.dedup();
            calls
        };

        let calls: Vec<_> = functions.iter().map(calls).collect();
        for circle in order::circles(&calls) {
            let names: Vec<_> = circle.iter().map(|at| functions[*at].op.to_string()).collect();
            let message = format!("functions call themselves: {}", order::show(&names));
            self.findings.add(Severity::Error, "", message);
        }
    }

    /// Checks the rules that apply to a model, but not to a branch or a function.
    fn model(&mut self) {
        let body = &self.graph.body;
        for id in &body.inputs {
            // Ids of other bodies were reported before.
            let Some(value) = body.values.get(id.0 as usize) else { continue };
            if matches!(value.kind, crate::ValueType::Unknown) {
                self.findings.add(
                    Severity::Error,
                    "",
                    format!("input '{}' has no type", value.name),
                );
            }
        }

        if body.outputs.is_empty() {
            self.findings.add(Severity::Warning, "", "the graph has no outputs");
        }
    }

    fn body(&mut self, body: &'g Body, around: Option<&Body>, place: &BodyPosition<'_>) {
        if place.depth > MAX_DEPTH {
            self.error(
                place,
                format!(
                    "bodies are nested more than {MAX_DEPTH} deep, and are not checked further"
                ),
            );
            return;
        }

        // What follows takes values by their ids.
        if !self.ids(body, place) {
            return;
        }

        self.values(body, around, place);
        self.single_origins(body, place);
        self.order(body, place);
        for (position, node) in body.nodes.iter().enumerate() {
            self.node(node, position, place);
            for attribute in &node.attributes {
                for inner in attribute.value.bodies() {
                    let prefix = format!(
                        "{}/{}/",
                        shown_path(&place.prefix, position, node),
                        cut(&attribute.name)
                    );
                    let inside = BodyPosition { prefix, depth: place.depth + 1, ..*place };
                    self.body(inner, Some(body), &inside);
                }
            }
        }
    }

    /// Returns `true` if all ids are ids of this body's values; otherwise reports an error.
    ///
    /// Programs that build bodies by hand can mix ids up; readers do not.
    fn ids(&mut self, body: &Body, place: &BodyPosition<'_>) -> bool {
        let of_nodes =
            body.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.outputs)).flatten();
        let mut all = body.inputs.iter().chain(&body.outputs).chain(of_nodes);
        let fine = all.all(|id| (id.0 as usize) < body.values.len());
        if !fine {
            self.error(place, "it names values that the body does not have");
        }
        fine
    }

    fn values(&mut self, body: &Body, around: Option<&Body>, place: &BodyPosition<'_>) {
        let used = used(body);
        let mut names = HashSet::new();
        for (value, used) in body.values.iter().zip(used) {
            if !value.name.is_empty() && !names.insert(value.name.as_str()) {
                self.error(place, format!("two values are called '{}'", value.name));
            }
            if value.name.is_empty() && used {
                self.error(place, "a value that is used has no name");
            }
            self.origin(value, used, around, place);
        }
    }

    fn origin(
        &mut self,
        value: &Value,
        used: bool,
        around: Option<&Body>,
        place: &BodyPosition<'_>,
    ) {
        match &value.origin {
            ValueOrigin::Missing if used => {
                // Other programs read what nothing wrote: scratch memory, parts of a graph.
                let severity = if self.is_foreign { Severity::Warning } else { Severity::Error };
                let message = format!("value '{}' is used, but has no producer", value.name);
                self.findings.add(severity, place.prefix.trim_end_matches('/'), message);
            }
            ValueOrigin::Outer(id)
                if around.is_none_or(|around| around.values.len() <= id.0 as usize) =>
            {
                self.error(place, format!("value '{}' is not in the body around", value.name));
            }
            ValueOrigin::Constant(constant) if !has_its_bytes(constant) => {
                self.error(
                    place,
                    format!("constant '{}' does not have the elements of its shape", value.name),
                );
            }
            _ => {}
        }
    }

    /// Values that two nodes make, or a node and somebody else.
    fn single_origins(&mut self, body: &Body, place: &BodyPosition<'_>) {
        let mut made = vec![false; body.values.len()];
        for (position, node) in body.nodes.iter().enumerate() {
            for output in node.outputs.iter().flatten() {
                let value = body.value(*output);
                let again = std::mem::replace(&mut made[output.0 as usize], true);
                if again || !matches!(value.origin, ValueOrigin::Node(_)) {
                    let path = shown_path(&place.prefix, position, node);
                    let message = format!("duplicate value '{}'", value.name);
                    self.findings.add(Severity::Error, path, message);
                }
            }
        }

        for (value, made) in body.values.iter().zip(made) {
            if matches!(value.origin, ValueOrigin::Node(_)) && !made {
                self.error(place, format!("value '{}' is not an output of its node", value.name));
            }
        }
    }

    fn order(&mut self, body: &Body, place: &BodyPosition<'_>) {
        // A circle has a node that reads what comes later.
        let late = order::late(body);
        if late.is_empty() {
            return;
        }

        let circles = order::circles(&order::readers(body));
        let mut of_circle = vec![None; body.nodes.len()];
        for (number, circle) in circles.iter().enumerate() {
            circle.iter().for_each(|node| of_circle[*node] = Some(number));
            let path = |node: &usize| shown_path(&place.prefix, *node, &body.nodes[*node]);
            let names: Vec<_> = circle.iter().map(path).collect();
            self.findings.add(
                Severity::Error,
                names[0].clone(),
                format!("nodes wait for each other: {}", order::show(&names)),
            );
        }

        for (reader, value, maker) in late {
            // The circle was reported as a whole.
            if of_circle[reader].is_some() && of_circle[reader] == of_circle[maker] {
                continue;
            }
            let path = |node: usize| shown_path(&place.prefix, node, &body.nodes[node]);
            let message = format!(
                "it uses '{}', which '{}' produces later",
                body.value(value).name,
                path(maker)
            );
            self.findings.add(Severity::Error, path(reader), message);
        }
    }
}

/// Returns, for each value, `true` if a node reads it or it is an output.
fn used(body: &Body) -> Vec<bool> {
    let mut used = vec![false; body.values.len()];
    let reads = body.nodes.iter().flat_map(order::reads);
    for id in body.outputs.iter().copied().chain(reads) {
        if let Some(used) = used.get_mut(id.0 as usize) {
            *used = true;
        }
    }
    used
}

/// Returns the operators of all nodes, including nodes of inner bodies down to the maximum depth.
fn operators(body: &Body) -> impl Iterator<Item = &Op> {
    let mut open = vec![(body, 0)];
    let mut nodes: Vec<&Node> = Vec::new();
    while let Some((body, depth)) = open.pop() {
        nodes.extend(&body.nodes);
        if depth < MAX_DEPTH {
            open.extend(body.nodes.iter().flat_map(Node::bodies).map(|inner| (inner, depth + 1)));
        }
    }
    nodes.into_iter().map(|node| &node.op)
}

/// Returns `true` if the constant has as many elements as its shape requires.
fn has_its_bytes(constant: &Constant) -> bool {
    let count = constant.shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
    match (&constant.data, count) {
        (_, None) => false,
        (ConstantData::Texts(texts), Some(count)) => texts.len() as u64 == count,
        (ConstantData::Bytes(bytes), Some(count)) => {
            constant.element.stored_len(count) == Some(bytes.len() as u64)
        }
    }
}

#[cfg(test)]
mod tests;
