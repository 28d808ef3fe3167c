//! The walk over a body's nodes.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::call_key::CallKey;
use super::inference::{Inference, MAX_DEPTH, Signature};
use super::merge::{merge, without_shape};
use super::versions::Versions;
use crate::finding::shown_path;
use crate::operators::{self, Call, Input, Known, elements, known, type_of};
use crate::{
    AttributeValue, Body, Dim, Findings, Function, Graph, MAX_RANK, Name, Node, Op, Operator,
    Opset, Severity, ValueId, ValueOrigin, ValueType,
};

/// State shared by all bodies.
pub(super) struct Engine<'g> {
    pub(super) functions: &'g [Function],
    pub(super) by_op: HashMap<&'g Op, usize>,
    /// Versions of the graph's operators, and of each function's that has its own.
    opsets: Rc<Versions>,
    of_functions: Vec<Option<Rc<Versions>>>,
    pub(super) cache: HashMap<CallKey, usize>,
    pub(super) signatures: Vec<Signature>,
    /// Functions that are being followed now.
    pub(super) active: Vec<usize>,
    pub(super) findings: Findings,
    /// Steps that may still be done before repeated work is given up: a node, a value, a place in
    /// a list each.
    pub(super) left: u64,
    /// Number of sizes that may still be stored. It limits the memory for types in proportion to
    /// the graph.
    room: u64,
    room_said: bool,
    pub(super) gave_up: bool,
}

/// Position of a body in the graph.
pub(super) struct Scope<'s> {
    /// Path of the node around, with a slash; empty for the main body.
    pub(super) prefix: String,
    pub(super) opsets: &'s Versions,
    /// Attributes of the call of the function around.
    pub(super) of_call: &'s HashMap<Name, AttributeValue>,
    pub(super) depth: usize,
}

/// Facts about a body's values besides their types.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) known: Vec<Option<Known>>,
    /// Parameters that the call left out.
    pub(super) absent: HashSet<ValueId>,
}

/// The body around, for values that are its.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) body: &'a Body,
    pub(super) facts: &'a Facts,
}

/// Inferred outputs of a node.
pub(super) struct Made {
    pub(super) kinds: Vec<ValueType>,
    pub(super) known: Vec<Option<Known>>,
    /// Contradictions that were found.
    pub(super) problems: Vec<String>,
}

impl Made {
    pub(super) fn nothing(node: &Node) -> Self {
        Self::of(vec![ValueType::Unknown; node.outputs.len()])
    }

    pub(super) fn of(kinds: Vec<ValueType>) -> Self {
        Self { kinds, known: Vec::new(), problems: Vec::new() }
    }
}

impl<'g> Engine<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self::of(&graph.functions, &graph.opsets)
    }

    /// An engine for bodies with these functions and versions of operators.
    pub(super) fn of(functions: &'g [Function], opsets: &[Opset]) -> Self {
        let by_op = functions
            .iter()
            .enumerate()
            .map(|(position, function)| (&function.op, position))
            .collect();
        Self {
            functions,
            by_op,
            opsets: Rc::new(Versions::new(opsets)),
            of_functions: vec![None; functions.len()],
            cache: HashMap::new(),
            signatures: Vec::new(),
            active: Vec::new(),
            findings: Findings::default(),
            left: 0,
            room: 0,
            room_said: false,
            gave_up: false,
        }
    }

    pub(super) fn run(mut self, body: &mut Body) -> Inference {
        let functions: u64 = self.functions.iter().map(|function| size(&function.body)).sum();

        // Both grow with the graph, so that a small file can't ask for much work or memory.
        self.room = (size(body) + functions).saturating_mul(32).saturating_add(1 << 20);
        let steps_of_functions: u64 =
            self.functions.iter().map(|function| steps(&function.body)).sum();
        self.left = (steps(body) + steps_of_functions).saturating_mul(8).saturating_add(100_000);
        let opsets = Rc::clone(&self.opsets);
        let of_call = HashMap::new();
        let scope = Scope { prefix: String::new(), opsets: &opsets, of_call: &of_call, depth: 0 };
        let mut calls = Vec::new();
        self.body(body, None, HashSet::new(), &scope, &mut calls);
        Inference { findings: self.findings, calls, signatures: self.signatures }
    }

    /// Follows the nodes of a body whose inputs have their types.
    pub(super) fn body(
        &mut self,
        body: &mut Body,
        around: Option<Around<'_>>,
        absent: HashSet<ValueId>,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) -> Facts {
        let facts = Facts { known: vec![None; body.values.len()], absent };
        self.nodes(body, around, facts, scope, calls)
    }

    /// Follows the nodes of a function, whose parameters may be known element by element.
    pub(super) fn function_body(
        &mut self,
        body: &mut Body,
        given: Vec<(ValueId, Option<Known>)>,
        absent: HashSet<ValueId>,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) {
        let mut facts = Facts { known: vec![None; body.values.len()], absent };
        for (id, known) in given {
            facts.known[id.0 as usize] = known;
        }
        self.nodes(body, None, facts, scope, calls);
    }

    fn nodes(
        &mut self,
        body: &mut Body,
        around: Option<Around<'_>>,
        mut facts: Facts,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) -> Facts {
        if scope.depth > MAX_DEPTH {
            let message = format!(
                "bodies and calls are nested more than {MAX_DEPTH} deep, and are not followed \
                 further"
            );
            self.findings.add(Severity::Error, scope.prefix.trim_end_matches('/'), message);
            return facts;
        }

        self.ranks(body, scope);
        self.origins(0, body, around, &mut facts, scope);
        self.ranks(body, scope);
        self.left = self.left.saturating_sub(own_steps(body));
        for position in 0..body.nodes.len() {
            self.step(body, &mut facts, position, scope, calls);
        }

        facts
    }

    /// Follows what was written to a body since the facts were last brought up to date: from this
    /// node on. Bodies and values around it there are none.
    pub(super) fn extend(&mut self, body: &mut Body, facts: &mut Facts, from: usize) {
        let first = facts.known.len();
        let (nodes, values) = (body.nodes.len() - from, body.values.len() - first);
        self.room = self.room.saturating_add((nodes as u64).saturating_mul(32));
        self.left = self.left.saturating_add(((nodes + values) as u64).saturating_mul(8));
        facts.known.resize(body.values.len(), None);
        let (opsets, of_call) = (Rc::clone(&self.opsets), HashMap::new());
        let scope = Scope { prefix: String::new(), opsets: &opsets, of_call: &of_call, depth: 0 };
        self.origins(first, body, None, facts, &scope);
        for position in from..body.nodes.len() {
            self.step(body, facts, position, &scope, &mut Vec::new());
        }
    }

    /// Follows one node.
    fn step(
        &mut self,
        body: &mut Body,
        facts: &mut Facts,
        position: usize,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) {
        // The node is taken out meanwhile, so that the body can be read and changed.
        let mut node = std::mem::replace(&mut body.nodes[position], placeholder());
        let path = |node: &Node| shown_path(&scope.prefix, position, node);
        match self.node(&mut node, Around { body, facts }, scope, position, calls) {
            Ok(made) => {
                for problem in &made.problems {
                    self.findings.add(
                        Severity::Error,
                        path(&node),
                        format!("{}: {problem}", node.op),
                    );
                }
                self.write(body, facts, &node, made, &path);
            }
            Err(message) => {
                let message = format!("{}: {message}", node.op);
                self.findings.add(Severity::Error, path(&node), message);
            }
        }
        body.nodes[position] = node;
    }

    /// Types of values that no node makes, from a position on.
    fn origins(
        &mut self,
        first: usize,
        body: &mut Body,
        around: Option<Around<'_>>,
        facts: &mut Facts,
        scope: &Scope<'_>,
    ) {
        let values = body.values.iter_mut().zip(&mut facts.known).enumerate().skip(first);
        for (number, (value, known)) in values {
            let kind = match &value.origin {
                ValueOrigin::Constant(constant) => {
                    *known = Known::of(constant);
                    type_of(constant)
                }
                ValueOrigin::Outer(id) => {
                    let Some(around) = around else { continue };
                    let Some(outer) = around.body.values.get(id.0 as usize) else { continue };
                    known.clone_from(&around.facts.known[id.0 as usize]);
                    outer.kind.clone()
                }
                _ => continue,
            };

            let (severity, message) = match merge(&value.kind, kind) {
                Ok(merged) => {
                    value.kind = merged.kind;
                    let Some(odd) = merged.odd else { continue };
                    // A caller may give an input, and would give one of the sizes that it declares.
                    let is_input = body.inputs.iter().any(|input| input.0 as usize == number);
                    (if is_input { Severity::Error } else { Severity::Warning }, odd)
                }
                Err(message) => (Severity::Error, message),
            };
            let message = format!("value '{}': {message}", value.name);
            self.findings.add(severity, scope.prefix.trim_end_matches('/'), message);
        }
    }

    /// Takes declared shapes away that no tensor has, so that no node copies them.
    fn ranks(&mut self, body: &mut Body, scope: &Scope<'_>) {
        for value in &mut body.values {
            if let Some(problem) = impossible_rank(&mut value.kind) {
                let message = format!("value '{}': {problem}", value.name);
                self.findings.add(Severity::Error, scope.prefix.trim_end_matches('/'), message);
            }
        }
    }

    /// The versions that a function's operators have.
    pub(super) fn versions(&mut self, function: usize) -> Rc<Versions> {
        let own = &self.functions[function].opsets;
        if own.is_empty() {
            return Rc::clone(&self.opsets);
        }
        let known = self.of_functions[function].get_or_insert_with(|| Rc::new(Versions::new(own)));
        Rc::clone(known)
    }

    fn node(
        &mut self,
        node: &mut Node,
        around: Around<'_>,
        scope: &Scope<'_>,
        position: usize,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<Made, String> {
        if let Some(function) = self.by_op.get(&node.op) {
            return self.call(*function, node, around, scope, position, calls);
        }

        // What is not known makes values of unknown types; `check` reports the operator.
        let Some(operator) = operator(node, scope.opsets).filter(|operator| !operator.deprecated)
        else {
            return Ok(Made::nothing(node));
        };
        if node.bodies().next().is_some() {
            let prefix = format!("{}/", shown_path(&scope.prefix, position, node));
            return self.control(node, operator, around, scope, prefix, calls);
        }

        let mut call = read(node, operator, around, scope);

        // What the inputs' types or shapes contradict is said, and the rest is known all the same.
        let shapes = operators::rule(operator).map_or(Ok(()), |rule| rule(&mut call)).err();
        let elements = elements::apply(&mut call).err();
        known::fill(&mut call);
        let nested = call.outputs.iter_mut().filter_map(impossible_nesting).next();
        let mut made = Made { kinds: call.outputs, known: call.known, problems: Vec::new() };
        let sizes = made.kinds.iter_mut().filter_map(impossible_sizes).next();
        made.problems.extend(elements.into_iter().chain(shapes).chain(nested).chain(sizes));
        Ok(made)
    }

    /// Returns the type and contents of a value, without shape and contents if the memory budget is
    /// used up.
    fn affordable(
        &mut self,
        kind: ValueType,
        known: Option<Known>,
        node: &Node,
        path: &dyn Fn(&Node) -> String,
    ) -> (ValueType, Option<Known>) {
        let weight = weight(&kind, known.as_ref());
        if let Some(room) = self.room.checked_sub(weight) {
            self.room = room;
            return (kind, known);
        }
        if !std::mem::replace(&mut self.room_said, true) {
            let message = "shape inference stopped: shapes need more memory than the graph's \
                           size justifies";
            self.findings.add(Severity::Notice, path(node), message);
        }
        (without_shape(&kind), None)
    }

    /// Writes what a node makes to its outputs.
    fn write(
        &mut self,
        body: &mut Body,
        facts: &mut Facts,
        node: &Node,
        made: Made,
        path: &dyn Fn(&Node) -> String,
    ) {
        let mut known = made.known.into_iter();
        for (output, kind) in node.outputs.iter().zip(made.kinds) {
            // Taken even for an output that is left out, so that both lists stay in step.
            let known = known.next().flatten();
            let Some(output) = output else { continue };
            let (kind, known) = self.affordable(kind, known, node, path);
            let Some(value) = body.values.get_mut(output.0 as usize) else { continue };
            let said = match merge(&value.kind, kind) {
                Ok(merged) => {
                    value.kind = merged.kind;
                    merged.odd.map(|odd| (Severity::Warning, odd))
                }
                Err(message) => Some((Severity::Error, message)),
            };
            if let Some((severity, message)) = said {
                let message = format!("{}: output '{}': {message}", node.op, value.name);
                self.findings.add(severity, path(node), message);
            }
            facts.known[output.0 as usize] = known;
        }
    }
}

/// Removes sizes or a shape that no tensor can have, and returns a description of the problem.
fn impossible_sizes(kind: &mut ValueType) -> Option<String> {
    let ValueType::Tensor(tensor) = kind else { return None };
    let shape = tensor.shape.as_mut()?;
    if shape.len() > MAX_RANK {
        let problem = format!("the result has {} dimensions, more than {MAX_RANK}", shape.len());
        tensor.shape = None;
        return Some(problem);
    }
    let below = shape.iter_mut().find(|size| size.as_integer().is_some_and(|size| size < 0))?;
    let problem = format!("the result has the size {below}");
    *below = Dim::Unknown;
    Some(problem)
}

/// Maximum nesting of types. ONNX uses optional sequences of tensors, and maps in sequences.
const MAX_NESTED: usize = 8;

/// Removes a type that is nested too deeply, and returns a description of the problem.
///
/// A chain of nodes could nest any number of types.
fn impossible_nesting(kind: &mut ValueType) -> Option<String> {
    let (mut inner, mut depth) = (&*kind, 0);
    while let ValueType::Sequence(next) | ValueType::Optional(next) | ValueType::Map(_, next) =
        inner
    {
        (inner, depth) = (next, depth + 1);
    }
    (depth > MAX_NESTED).then(|| {
        *kind = ValueType::Unknown;
        format!("the result has more than {MAX_NESTED} types within each other")
    })
}

/// Removes a shape with more dimensions than a tensor can have, and returns a description of the
/// problem.
fn impossible_rank(kind: &mut ValueType) -> Option<String> {
    let (ValueType::Tensor(tensor) | ValueType::SparseTensor(tensor)) = kind else { return None };
    let rank = tensor.shape.as_ref().map_or(0, Vec::len);
    (rank > MAX_RANK).then(|| {
        tensor.shape = None;
        format!("it is declared with {rank} dimensions, more than {MAX_RANK}")
    })
}

/// Returns the share of the memory budget that a type and contents use.
fn weight(kind: &ValueType, known: Option<&Known>) -> u64 {
    let shape = match kind {
        ValueType::Tensor(tensor) => tensor.shape.as_deref().unwrap_or_default(),
        _ => &[],
    };
    let dims = shape.iter().chain(known.and_then(Known::dims).unwrap_or_default());
    dims.map(|dim| dim.weight() as u64).sum()
}

/// Returns the operator of a node in the version that the body declares, or the newest if it
/// declares none.
fn operator(node: &Node, opsets: &Versions) -> Option<&'static Operator> {
    Operator::of(&node.op, opsets.of(&node.op.domain).unwrap_or(i64::MAX))
}

/// Returns a node together with the known facts about its inputs.
pub(super) fn read<'a>(
    node: &'a Node,
    operator: &'static Operator,
    around: Around<'a>,
    scope: &Scope<'a>,
) -> Call<'a> {
    let inputs = node.inputs.iter().map(|input| input.and_then(|id| around.input(id))).collect();
    let mut call = Call::new(node, operator, inputs);
    call.of_call = Some(scope.of_call);
    call
}

impl<'a> Around<'a> {
    /// Returns the known facts about a value, or `None` if the call of the function omits it.
    pub(super) fn input(self, id: ValueId) -> Option<Input<'a>> {
        if self.facts.absent.contains(&id) {
            return None;
        }
        let value = self.body.values.get(id.0 as usize)?;
        Some(Input { kind: &value.kind, known: self.facts.known[id.0 as usize].as_ref() })
    }
}

/// Returns the number of nodes in a body and its inner bodies, down to the maximum depth.
pub(super) fn size(body: &Body) -> u64 {
    let mut count = 0;
    let mut open = vec![(body, 0)];
    while let Some((body, depth)) = open.pop() {
        count += body.nodes.len() as u64;
        if depth < MAX_DEPTH {
            open.extend(body.nodes.iter().flat_map(Node::bodies).map(|inner| (inner, depth + 1)));
        }
    }
    count
}

/// Returns the number of steps for one pass over a body and its inner bodies.
pub(crate) fn steps(body: &Body) -> u64 {
    let mut count = 0;
    let mut open = vec![(body, 0)];
    while let Some((body, depth)) = open.pop() {
        count += own_steps(body);
        if depth < MAX_DEPTH {
            open.extend(body.nodes.iter().flat_map(Node::bodies).map(|inner| (inner, depth + 1)));
        }
    }
    count
}

/// Returns the number of steps for a body without its inner bodies: its values, nodes, and the
/// nodes' operands.
fn own_steps(body: &Body) -> u64 {
    let of_node = |node: &Node| 1 + node.inputs.len() + node.outputs.len() + node.attributes.len();
    let nodes: usize = body.nodes.iter().map(of_node).sum();
    (nodes + body.values.len() + body.inputs.len() + body.outputs.len()) as u64
}

/// Returns the node that replaces another node while that node is processed.
fn placeholder() -> Node {
    use std::sync::OnceLock;
    static OP: OnceLock<Op> = OnceLock::new();
    Node {
        name: String::new(),
        op: OP.get_or_init(|| Op::onnx("")).clone(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        attributes: Vec::new(),
        doc: String::new(),
    }
}

/// The bodies of a node's attributes, with the attributes' names.
pub(super) fn bodies_mut(node: &mut Node) -> impl Iterator<Item = (&str, &mut Body)> {
    node.attributes.iter_mut().filter_map(|attribute| match &mut attribute.value {
        AttributeValue::Body(body) => Some((&*attribute.name, &mut **body)),
        _ => None,
    })
}
