//! One node or value, as a person asks for it by name.

use serde::Serialize;

use super::operand::Operands;
use super::scene::shown;
use crate::{
    AttributeValue, Body, Constant, ConstantData, Function, Graph, MAX_DEPTH, Node, ValueId,
    ValueOrigin, ValueType,
};

/// A node with all that it reads, makes and is set to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NodeView {
    /// Path of the node.
    pub name: String,
    /// Operator of the node.
    pub op: String,
    /// Function that contains the node; `None` in the main body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Inputs of the node.
    pub inputs: Vec<ValueView>,
    /// Outputs of the node.
    pub outputs: Vec<ValueView>,
    /// Attributes of the node.
    pub attributes: Vec<AttributeView>,
    /// A note for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub doc: String,
}

/// A value that a node reads or makes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ValueView {
    /// Name of the operator's input or output that it is, such as `W` of a convolution; `None` for
    /// operators that are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operand: Option<String>,
    /// Name of the value; empty for an omitted optional value.
    pub name: String,
    /// Type of the value, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Source or readers of the value.
    pub place: ValueEnd,
}

/// Source or readers of a value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueEnd {
    /// An optional value that is left out.
    LeftOut,
    /// The caller gives it.
    Input,
    /// A node makes it.
    Node(String),
    /// A tensor of the checkpoint.
    Weight(String),
    /// Constant in the graph, as text.
    Constant(String),
    /// Value of the enclosing body.
    Outer,
    /// Value that no node produces.
    Missing,
    /// Nodes that read the value; contains `output` if the caller receives it.
    Readers(Vec<String>),
}

/// A setting of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttributeView {
    /// Name of the attribute.
    pub name: String,
    /// Value of the attribute as text.
    pub value: String,
}

/// Maximum number of elements of a list that are shown.
const MOST_ELEMENTS: usize = 16;

/// A body, and the call whose function it is.
#[derive(Clone, Copy)]
struct Scope<'g> {
    body: &'g Body,
    call: Option<(&'g Body, &'g Node)>,
    function: Option<&'g Function>,
}

impl NodeView {
    /// Returns the nodes with this path, or that produce a value with this name.
    ///
    /// A path may lead through a call, `layers.3/attention/scores`, or start in a function,
    /// `attention/scores`.
    #[must_use]
    pub fn find(graph: &Graph, name: &str) -> Vec<Self> {
        let main = Scope { body: &graph.body, call: None, function: None };
        let found = find_in(graph, main, name, 0);
        if !found.is_empty() {
            return found;
        }
        let scopes = graph.functions.iter().map(|function| Scope {
            body: &function.body,
            call: None,
            function: Some(function),
        });
        scopes.flat_map(|scope| find_in(graph, scope, name, 0)).collect()
    }

    /// Returns up to `most` paths that [`find`](Self::find) accepts.
    ///
    /// Paths of the main body, including paths through calls, come first, then paths of the
    /// functions.
    #[must_use]
    pub fn paths(graph: &Graph, most: usize) -> Vec<String> {
        let mut paths = Vec::new();
        let functions = graph.functions.iter().map(|function| &function.body);
        for body in std::iter::once(&graph.body).chain(functions) {
            add_paths(graph, body, "", (most, MAX_DEPTH), &mut paths);
        }
        paths
    }

    fn new(graph: &Graph, place: Scope<'_>, node: &Node) -> Self {
        let body = place.body;
        let view = |operand, id: &Option<ValueId>, from: &dyn Fn(ValueId) -> ValueEnd| match id {
            None => {
                ValueView { operand, name: String::new(), kind: None, place: ValueEnd::LeftOut }
            }
            Some(id) => {
                let value = body.value(*id);
                ValueView {
                    operand,
                    name: value.name.clone(),
                    kind: shown(value.tensor()),
                    place: from(*id),
                }
            }
        };

        let attributes = node.attributes.iter().map(|attribute| AttributeView {
            name: attribute.name.to_string(),
            value: attribute_text(&attribute.value),
        });
        let operands = Operands::of(graph, place.function, node);
        let inputs = node.inputs.iter().enumerate();
        let outputs = node.outputs.iter().enumerate();
        Self {
            name: node.name.clone(),
            op: node.op.to_string(),
            function: place.function.map(|function| function.op.to_string()),
            inputs: inputs
                .map(|(at, id)| view(operands.input(at), id, &|id| place.source(id)))
                .collect(),
            outputs: outputs
                .map(|(at, id)| view(operands.output(at), id, &|id| readers(body, id)))
                .collect(),
            attributes: attributes.collect(),
            doc: node.doc.clone(),
        }
    }
}

/// The nodes of a body, or of a function that it calls, with this path or value.
fn find_in(graph: &Graph, place: Scope<'_>, name: &str, depth: usize) -> Vec<NodeView> {
    let body = place.body;
    let fits = |node: &&Node| {
        let makes = |output: &ValueId| body.value(*output).name == name;
        node.name == name || node.outputs.iter().flatten().any(makes)
    };
    let mut found: Vec<NodeView> =
        body.nodes.iter().filter(fits).map(|node| NodeView::new(graph, place, node)).collect();

    // In a graph that nobody checked, functions may call themselves.
    if !found.is_empty() || depth > MAX_DEPTH {
        return found;
    }

    for node in &body.nodes {
        let rest = name.strip_prefix(&node.name).and_then(|rest| rest.strip_prefix('/'));
        if let Some((rest, function)) = rest.zip(graph.function(&node.op)) {
            let inner =
                Scope { body: &function.body, call: Some((body, node)), function: Some(function) };
            found.extend(find_in(graph, inner, rest, depth + 1));
        }
    }

    found
}

/// Adds the paths of a body's nodes, until there are `most`, through calls that are `depth` deep.
fn add_paths(
    graph: &Graph,
    body: &Body,
    prefix: &str,
    (most, depth): (usize, usize),
    into: &mut Vec<String>,
) {
    for node in &body.nodes {
        if into.len() >= most {
            return;
        }
        let path = format!("{prefix}{}", node.name);
        if let Some(function) = graph.function(&node.op).filter(|_| depth > 0) {
            add_paths(graph, &function.body, &format!("{path}/"), (most, depth - 1), into);
        }
        into.push(path);
    }
}

impl Scope<'_> {
    /// Returns the source of a value. A parameter resolves to the passed argument if that is a
    /// weight or constant.
    fn source(&self, id: ValueId) -> ValueEnd {
        let argument = self.call.and_then(|(outer, call)| {
            let position = self.body.inputs.iter().position(|input| *input == id)?;
            Some(source(outer, call.input(position)?))
        });
        match argument {
            Some(place @ (ValueEnd::Weight(_) | ValueEnd::Constant(_))) => place,
            _ => source(self.body, id),
        }
    }
}

fn source(body: &Body, id: ValueId) -> ValueEnd {
    match &body.value(id).origin {
        ValueOrigin::Input => ValueEnd::Input,
        ValueOrigin::Node(node) => ValueEnd::Node(body.node(*node).name.clone()),
        ValueOrigin::Weight(weight) => ValueEnd::Weight(weight.tensor.clone()),
        ValueOrigin::Constant(constant) => ValueEnd::Constant(constant_text(constant)),
        ValueOrigin::Outer(_) => ValueEnd::Outer,
        ValueOrigin::Missing => ValueEnd::Missing,
    }
}

/// Formats a node in one line: `Clip(x, [6])`, `Concat(a, b; axis=1)`.
///
/// Weights are shown as tensor names, constants as values.
#[must_use]
pub fn node_text(body: &Body, node: &Node) -> String {
    let input = |input: &Option<ValueId>| {
        let Some(id) = input else { return String::new() };
        match source(body, *id) {
            ValueEnd::Weight(name) | ValueEnd::Constant(name) => name,
            _ => body.value(*id).name.clone(),
        }
    };

    let mut text =
        format!("{}({}", node.op, node.inputs.iter().map(input).collect::<Vec<_>>().join(", "));
    for (position, attribute) in node.attributes.iter().enumerate() {
        let before = if position == 0 { "; " } else { ", " };
        text.push_str(&format!("{before}{}={}", attribute.name, attribute_text(&attribute.value)));
    }

    text.push(')');
    text
}

fn readers(body: &Body, id: ValueId) -> ValueEnd {
    let reads = |node: &&Node| super::context::reads(node).any(|value| value == id);
    let mut names: Vec<String> =
        body.nodes.iter().filter(reads).map(|node| node.name.clone()).collect();
    if body.outputs.contains(&id) {
        names.push("output".to_owned());
    }
    ValueEnd::Readers(names)
}

fn attribute_text(value: &AttributeValue) -> String {
    match value {
        AttributeValue::Int(value) => value.to_string(),
        AttributeValue::Float(value) => value.to_string(),
        AttributeValue::Text(text) => String::from_utf8_lossy(text).into_owned(),
        AttributeValue::Tensor(constant) => constant_text(constant),
        AttributeValue::Weight(weight) => format!("tensor {}", weight.tensor),
        AttributeValue::Body(body) => format!("a body of {} nodes", body.nodes.len()),
        AttributeValue::Type(kind) => type_text(kind),
        AttributeValue::Ints(values) => list(values.iter()),
        AttributeValue::Floats(values) => list(values.iter()),
        AttributeValue::Texts(texts) => {
            list(texts.iter().map(|text| String::from_utf8_lossy(text)))
        }
        AttributeValue::Tensors(constants) => list(constants.iter().map(constant_text)),
        AttributeValue::Bodies(bodies) => format!("{} bodies", bodies.len()),
        AttributeValue::Types(kinds) => list(kinds.iter().map(type_text)),
        AttributeValue::OfCall(name) => format!("the attribute {name} of the call"),
        AttributeValue::Opaque(bytes) => format!("{} bytes that are not read", bytes.len()),
    }
}

fn type_text(kind: &ValueType) -> String {
    match kind {
        ValueType::Unknown => "?".to_owned(),
        ValueType::Tensor(tensor) => tensor.to_string(),
        ValueType::SparseTensor(tensor) => format!("sparse {tensor}"),
        ValueType::Sequence(inner) => format!("sequence of {}", type_text(inner)),
        ValueType::Optional(inner) => format!("optional {}", type_text(inner)),
        ValueType::Map(key, inner) => format!("map of {key} to {}", type_text(inner)),
    }
}

fn constant_text(constant: &Constant) -> String {
    let numbers = constant.as_ints().map(|values| list(values.iter()));
    let numbers = numbers.or_else(|| constant.as_floats().map(|values| list(values.iter())));
    let texts = || match &constant.data {
        ConstantData::Texts(texts) => {
            Some(list(texts.iter().map(|text| String::from_utf8_lossy(text))))
        }
        ConstantData::Bytes(_) => None,
    };

    let sizes = list(constant.shape.iter());
    match numbers.or_else(texts) {
        Some(values) if constant.shape.is_empty() => values.trim_matches(['[', ']']).to_owned(),
        Some(values) => values,
        None => format!("{}{sizes}", constant.element),
    }
}

/// Formats a list as `[1, 2, 3]`; a long list is shown as its first elements and its length.
fn list<T: ToString>(values: impl ExactSizeIterator<Item = T>) -> String {
    let count = values.len();
    let mut texts: Vec<String> =
        values.take(MOST_ELEMENTS).map(|value| value.to_string()).collect();
    if count > MOST_ELEMENTS {
        texts.push(format!("... {count} in all"));
    }
    format!("[{}]", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyBuilder, Dim, ElementType, GraphBuilder, Meaning};

    #[test]
    fn a_node_shows_where_its_values_come_from_and_go() {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let x =
            main.input("x", ElementType::F32, [Dim::symbol("n"), Dim::fixed(4)], Meaning::Unknown);
        let w = main.weight("w", ElementType::F32, [4, 2]);
        let y = main.scope("mlp", |main| main.op("MatMul", [x, w]).output("up"));
        let shape = main.ints(&[-1]);
        let flat = main.op("Reshape", [y, shape]).attribute("allowzero", 0).output("flat");
        main.output("y", flat, Meaning::Unknown);
        let graph = graph.finish();

        let found = NodeView::find(&graph, "mlp/up");
        assert_eq!(found[0].inputs[0].place, ValueEnd::Input);
        assert_eq!(found[0].inputs[0].kind.as_deref(), Some("f32[n, 4]"));
        assert_eq!(found[0].inputs[1].place, ValueEnd::Weight("w".to_owned()));
        // The names are those of ONNX's documentation of MatMul.
        assert_eq!(found[0].inputs[1].operand.as_deref(), Some("B"));
        assert_eq!(found[0].outputs[0].operand.as_deref(), Some("Y"));
        assert_eq!(found[0].outputs[0].place, ValueEnd::Readers(vec!["flat".to_owned()]));

        let found = NodeView::find(&graph, "y");
        assert_eq!(found[0].inputs[1].place, ValueEnd::Constant("[-1]".to_owned()));
        assert_eq!(found[0].attributes[0].value, "0");
        assert_eq!(found[0].outputs[0].place, ValueEnd::Readers(vec!["output".to_owned()]));
        assert!(NodeView::find(&graph, "nothing").is_empty());
    }

    #[test]
    fn a_path_through_a_call_shows_the_weight_that_is_handed_over() {
        let mut graph = GraphBuilder::new(17);
        let mut block = BodyBuilder::default();
        let (x, w) = (block.parameter("x"), block.parameter("weight"));
        let y = block.op("MatMul", [x, w]).output("query");
        block.output("y", y, Meaning::Unknown);
        let block = graph.function("apr", "Block", block);
        let main = graph.body();
        let x = main.input("x", ElementType::F32, [2.into(), 2.into()], Meaning::Unknown);
        let w = main.weight("w3", ElementType::F32, [2, 2]);
        let y = main.call(&block, [x, w]).output("layers.3");
        main.output("y", y, Meaning::Unknown);
        let graph = graph.finish();
        let found = NodeView::find(&graph, "layers.3/query");
        assert_eq!(found[0].inputs[1].place, ValueEnd::Weight("w3".to_owned()));
        assert_eq!(NodeView::paths(&graph, 10), ["layers.3/query", "layers.3", "query"]);
        assert_eq!(NodeView::paths(&graph, 1).len(), 2, "a call is named where its nodes are");
        let found = NodeView::find(&graph, "query");
        assert_eq!((found.len(), &found[0].inputs[1].place), (1, &ValueEnd::Input));
    }
    #[test]
    fn every_kind_of_attribute_is_shown() {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let x = main.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
        let texts =
            |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        let words = Constant {
            element: ElementType::Text,
            data: ConstantData::Texts(texts(&["a", "bc"])),
            ..Constant::ints(&[0, 0])
        };
        let halves = Constant { element: ElementType::F16, ..Constant::ints(&[0]) };
        let nested =
            ValueType::Optional(Box::new(ValueType::Sequence(Box::new(ValueType::Unknown))));
        let map = ValueType::Map(
            ElementType::I64,
            Box::new(ValueType::tensor(ElementType::F32, [Dim::fixed(2)])),
        );
        let sparse = ValueType::SparseTensor(crate::TensorType::default());
        let values: [(AttributeValue, &str); 15] = [
            (7.into(), "7"),
            (0.5.into(), "0.5"),
            ("text".into(), "text"),
            (Constant::int(3).into(), "3"),
            (words.into(), "[a, bc]"),
            (halves.clone().into(), "f16[1]"),
            (AttributeValue::Weight(crate::WeightRef::whole("w")), "tensor w"),
            (crate::Body::default().into(), "a body of 0 nodes"),
            (AttributeValue::Type(nested), "optional sequence of ?"),
            (AttributeValue::Types(vec![map, sparse]), "[map of i64 to f32[2], sparse ?[?]]"),
            (AttributeValue::Floats(vec![0.5, 1.0]), "[0.5, 1]"),
            (AttributeValue::Texts(texts(&["x", "y"])), "[x, y]"),
            (
                AttributeValue::Tensors(vec![Constant::float(1.5), Constant::ints(&[4])]),
                "[1.5, [4]]",
            ),
            (AttributeValue::Bodies(vec![crate::Body::default()]), "1 bodies"),
            (AttributeValue::Opaque(vec![0; 9]), "9 bytes that are not read"),
        ];
        let mut node = main.op("Every", [x]);
        for (position, (value, _)) in values.iter().enumerate() {
            node = node.attribute(&format!("a{position}"), value.clone());
        }
        let y = node.attribute("of", AttributeValue::OfCall("alpha".into())).output("every");
        main.output("y", y, Meaning::Unknown);
        let mut graph = graph.finish();
        let lost = graph.body.add_value("lost", ValueType::Unknown, crate::ValueOrigin::Missing);
        let outer = graph.body.add_value("outer", ValueType::Unknown, crate::ValueOrigin::Outer(x));
        graph.body.nodes[0].inputs.extend([None, Some(lost), Some(outer)]);
        let found = NodeView::find(&graph, "y").remove(0);
        let shown: Vec<_> =
            found.attributes.iter().map(|attribute| attribute.value.as_str()).collect();
        let mut expected: Vec<_> = values.iter().map(|(_, text)| *text).collect();
        expected.push("the attribute alpha of the call");
        assert_eq!(shown, expected);
        let places: Vec<_> = found.inputs.into_iter().map(|input| input.place).collect();
        assert_eq!(
            places,
            [ValueEnd::Input, ValueEnd::LeftOut, ValueEnd::Missing, ValueEnd::Outer]
        );
        assert!(
            node_text(&graph.body, &graph.body.nodes[0])
                .starts_with("Every(x, , lost, outer; a0=7, a1=0.5, ")
        );
    }
}
