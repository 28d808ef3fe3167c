//! Types and shapes that are inferred, beside those that operators make.
//!
//! The tests of operators say what their inputs are and what came out. Each is looked at in several
//! ways, which know more or less of the inputs: what is inferred may be less than what came out,
//! and never something else.

use std::collections::HashMap;

use apr_core::Limits;
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, ConstantData, Dim, ElementType, Graph, Node, Op,
    TensorType, Value, ValueId, ValueOrigin, ValueType, check, infer,
};
use serde_json::Value as Json;

use crate::node_tests::{bytes, tests};

/// Properties of the inputs that are given.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    /// Types and sizes.
    Sizes,
    /// Types and sizes, and the elements of small ones.
    Elements,
    /// Types, elements of small integers, and sizes above 1 as symbols.
    Symbols,
    /// Types without sizes.
    Types,
}

const WAYS: [Known; 4] = [Known::Sizes, Known::Elements, Known::Symbols, Known::Types];

/// Maximum number of elements of an input that are given, and of an output that are compared.
const MOST: usize = 60;

/// Number added to elements before they become sizes, which are not below zero.
const LIFT: i64 = 1000;

/// Name of the nodes that show elements.
const SHOWN: &str = "shown";

/// The type of a value as a test has it.
fn kind(json: &Json) -> ValueType {
    if let Some(items) = json.get("sequence").and_then(Json::as_array) {
        let shapes: Vec<_> = items.iter().map(kind).collect();
        let same =
            shapes.first().filter(|first| shapes.iter().all(|shape| shape == *first)).cloned();
        let element = shapes.first().map_or(ValueType::Unknown, |first| match first {
            ValueType::Tensor(tensor) => {
                ValueType::Tensor(TensorType { element: tensor.element, shape: None })
            }
            other => other.clone(),
        });
        return ValueType::Sequence(Box::new(same.unwrap_or(element)));
    }
    if let Some(map) = json.get("map") {
        let value = ValueType::tensor(element(&map[1]), []);
        return ValueType::Map(element(&map[0]), Box::new(value));
    }
    match json.get("optional") {
        Some(Json::Null) => ValueType::Optional(Box::default()),
        Some(inner) => ValueType::Optional(Box::new(kind(inner))),
        None => {
            let shape = shape(json).into_iter().map(Dim::fixed);
            ValueType::tensor(element(json), shape)
        }
    }
}

fn element(json: &Json) -> ElementType {
    let code = i32::try_from(json["type"].as_i64().expect("a type")).expect("a code");
    ElementType::from_onnx_code(code).expect("a known type")
}

fn shape(json: &Json) -> Vec<u64> {
    json["shape"]
        .as_array()
        .expect("a shape")
        .iter()
        .map(|size| size.as_u64().expect("a size"))
        .collect()
}

/// Returns the elements of a tensor, if it is small enough to be given.
fn constant(json: &Json) -> Option<Constant> {
    let (element, shape) = (element_of(json)?, shape(json));
    let whole =
        matches!(element, ElementType::I64 | ElementType::I32 | ElementType::U8 | ElementType::I8);
    let told = whole || matches!(element, ElementType::Bool | ElementType::F32);
    let few = shape.iter().product::<u64>() <= MOST as u64;
    let data = ConstantData::Bytes(bytes(json.get("hex").filter(|_| told && few)?));
    Some(Constant { name: String::new(), element, shape, data })
}

fn element_of(json: &Json) -> Option<ElementType> {
    json.get("type").map(|_| element(json))
}

/// Returns the elements of an output as whole numbers, if all are whole.
fn numbers(json: &Json) -> Option<Vec<i64>> {
    let constant = constant(json)?;
    if let Some(floats) = constant.as_floats() {
        let whole =
            |value: &f32| (value.fract() == 0.0 && value.abs() < 1.0e6).then_some(*value as i64);
        return floats.iter().map(whole).collect();
    }
    constant.as_ints()
}

/// Returns a size above 1 as a symbol that contains the size.
fn symbol(size: u64) -> Dim {
    if size < 2 { Dim::fixed(size) } else { Dim::symbol(&format!("size_{size}")) }
}

/// Returns the size that a symbol represents.
fn size_of(symbol: &str) -> Option<u64> {
    symbol.strip_prefix("size_")?.parse().ok()
}

fn with_symbols(kind: ValueType) -> ValueType {
    match kind {
        ValueType::Tensor(TensorType { element, shape: Some(shape) }) => {
            let shape = shape.iter().map(|dim| dim.size().map_or(Dim::Unknown, symbol)).collect();
            ValueType::Tensor(TensorType { element, shape: Some(shape) })
        }
        ValueType::Sequence(inner) => ValueType::Sequence(Box::new(with_symbols(*inner))),
        ValueType::Optional(inner) => ValueType::Optional(Box::new(with_symbols(*inner))),
        other => other,
    }
}

fn without_shapes(kind: ValueType) -> ValueType {
    match kind {
        ValueType::Tensor(tensor) => ValueType::Tensor(TensorType { shape: None, ..tensor }),
        ValueType::Sequence(inner) => ValueType::Sequence(Box::new(without_shapes(*inner))),
        ValueType::Optional(inner) => ValueType::Optional(Box::new(without_shapes(*inner))),
        other => other,
    }
}

/// Removes the types in the file, and adds the known properties of the inputs.
fn prepare(graph: &mut Graph, inputs: &HashMap<String, &Json>, known: Known) {
    let body = &mut graph.body;
    let holds = weights(body);
    for value in &mut body.values {
        match (&value.origin, inputs.get(&value.name)) {
            (ValueOrigin::Input, Some(json)) => tell(value, json, known),
            (ValueOrigin::Node(node), _) if !holds[node.0 as usize] => {
                value.kind = ValueType::Unknown;
            }
            _ => {}
        }
    }
    // What a body within declares has symbols of its own.
    for attribute in body.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
        let AttributeValue::Body(inner) = &mut attribute.value else { continue };
        let holds = weights(inner);
        for value in &mut inner.values {
            if !matches!(value.origin, ValueOrigin::Node(node) if holds[node.0 as usize]) {
                value.kind = ValueType::Unknown;
            }
        }
    }
}

/// Returns `true` for each node that holds a weight. Only the node's output declares the weight's
/// type.
fn weights(body: &Body) -> Vec<bool> {
    let is_weight = |attribute: &Attribute| matches!(attribute.value, AttributeValue::Weight(_));
    body.nodes.iter().map(|node| node.attributes.iter().any(is_weight)).collect()
}

/// Adds the known properties of an input.
fn tell(value: &mut Value, json: &Json, known: Known) {
    // An optional value that is given says nothing of the type that is declared.
    if !matches!(value.kind, ValueType::Optional(_)) {
        value.kind = kind(json);
    }
    let wanted = |element| {
        known == Known::Elements || known == Known::Symbols && element == ElementType::I64
    };
    if let Some(constant) = constant(json).filter(|constant| wanted(constant.element)) {
        value.origin = ValueOrigin::Constant(constant);
        return;
    }
    value.kind = match (known, std::mem::take(&mut value.kind)) {
        (Known::Symbols, kind) => with_symbols(kind),
        (Known::Types, kind) => without_shapes(kind),
        (_, kind) => kind,
    };
}

/// Makes the elements of a value the sizes of another, whose shape then shows what is known of
/// them.
fn as_sizes(body: &mut Body, value: ValueId) -> ValueId {
    let flat = body.add_value("", ValueType::Unknown, ValueOrigin::Constant(Constant::ints(&[-1])));
    let lift =
        body.add_value("", ValueType::Unknown, ValueOrigin::Constant(Constant::ints(&[LIFT])));
    let mut made = |op: &str, inputs: &[ValueId], attributes: Vec<Attribute>| {
        let output = body.add_value("", ValueType::Unknown, ValueOrigin::Missing);
        body.add_node(Node {
            name: SHOWN.to_owned(),
            op: Op::onnx(op),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
            attributes,
            doc: String::new(),
        });
        output
    };
    let value = made("Reshape", &[value, flat], Vec::new());
    let to = Attribute { name: "to".into(), value: AttributeValue::Int(7) };
    let value = made("Cast", &[value], vec![to]);
    let value = made("Add", &[value, lift], Vec::new());
    made("ConstantOfShape", &[value], Vec::new())
}

/// Number of inferred types, sizes and elements, over all tests.
#[derive(Default, Debug)]
struct Tally {
    types: usize,
    types_known: usize,
    sizes: usize,
    sizes_known: usize,
    elements_known: usize,
}

/// Compares an inferred type with the expected type, and returns the difference as an error.
fn compare(ours: &ValueType, theirs: &ValueType, tally: &mut Tally) -> Result<(), String> {
    let (ours, theirs) = match (ours, theirs) {
        (ValueType::Unknown, _) => {
            tally.types += 1;
            return Ok(());
        }
        (ValueType::Tensor(ours), ValueType::Tensor(theirs)) => (ours, theirs),
        (ValueType::Sequence(ours), ValueType::Sequence(theirs))
        | (ValueType::Optional(ours), ValueType::Optional(theirs)) => {
            return compare(ours, theirs, tally);
        }
        (ValueType::Map(key, ours), ValueType::Map(other, theirs)) if key == other => {
            return compare(ours, theirs, tally);
        }
        // An optional value that is there looks like the value.
        (ValueType::Optional(ours), theirs) => return compare(ours, theirs, tally),
        (ours, ValueType::Optional(theirs)) => return compare(ours, theirs, tally),
        (_, ValueType::Unknown) => return Ok(()),
        _ => return Err("it is of another kind".to_owned()),
    };
    tally.types += 1;
    tally.types_known += usize::from(ours.element.is_some());
    if ours.element.is_some() && theirs.element.is_some() && ours.element != theirs.element {
        return Err(format!("{ours} and not {theirs}"));
    }
    let Some(theirs_shape) = &theirs.shape else { return Ok(()) };
    tally.sizes += theirs_shape.len();
    let Some(ours_shape) = &ours.shape else { return Ok(()) };
    if ours_shape.len() != theirs_shape.len() {
        return Err(format!("{ours} and not {theirs}"));
    }
    for (ours_size, theirs_size) in ours_shape.iter().zip(theirs_shape) {
        if let Dim::Known(_) = ours_size {
            tally.sizes_known += 1;
            if ours_size.value(&size_of) != theirs_size.size() {
                return Err(format!("{ours} and not {theirs}"));
            }
        }
    }
    Ok(())
}

/// Infers the types of one test in one way.
fn look(test: &Json, known: Known, tally: &mut Tally) -> Result<(), String> {
    let reader = apr_onnx::open(bytes(&test["model"]), "", &Limits::default())
        .map_err(|error| error.to_string())?;
    let original = reader.graph().map_err(|error| error.to_string())?.expect("a graph");
    let found = check(&original);
    if let Some(error) = found.errors().next() {
        return Err(error.to_string());
    }
    for set in test["sets"].as_array().expect("sets") {
        let values = set["inputs"].as_array().expect("inputs");
        let name = |id: &ValueId| original.body.value(*id).name.clone();
        let names: Vec<String> = match set.get("names").and_then(Json::as_array) {
            Some(names) => {
                names.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
            }
            None => original.body.inputs.iter().map(name).collect(),
        };
        let inputs: HashMap<_, _> = names.into_iter().zip(values).collect();
        let mut graph = original.clone();
        prepare(&mut graph, &inputs, known);
        let outputs = graph.body.outputs.clone();
        let expected = set["outputs"].as_array().expect("outputs");
        let shown: Vec<_> =
            outputs.iter().map(|output| as_sizes(&mut graph.body, *output)).collect();
        let findings = infer(&mut graph).findings;
        if let Some(error) = findings.errors().find(|error| error.node != SHOWN) {
            return Err(error.to_string());
        }
        for ((output, json), shown) in outputs.iter().zip(expected).zip(shown) {
            compare(&graph.body.value(*output).kind, &kind(json), tally)
                .map_err(|why| format!("output {why}"))?;
            let Some(numbers) = numbers(json) else { continue };
            let Some(sizes) = graph.body.value(shown).shape() else { continue };
            for (ours, theirs) in sizes.iter().zip(numbers) {
                if let Dim::Known(_) = ours {
                    tally.elements_known += 1;
                    if ours.value(&size_of) != u64::try_from(theirs + LIFT).ok() {
                        return Err(format!("the elements are {sizes:?}, and one is {theirs}"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Returns the maximum number of element types and sizes that may stay unknown, because they depend
/// on the elements of inputs or on the computation.
fn most_unknown(known: Known) -> (usize, usize) {
    match known {
        Known::Sizes => (13, 804),
        Known::Elements => (13, 103),
        Known::Symbols => (13, 284),
        Known::Types => (24, usize::MAX),
    }
}

/// Returns the operator tests that are run elsewhere, and those that only have types and shapes.
fn all() -> Vec<Json> {
    let archives =
        ["infer/node_tests.zip", "infer/microsoft.zip", "infer/learning.zip", "graph/nodes.zip"]
            .map(tests);
    archives
        .iter()
        .flat_map(|text| text.lines())
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn inferred_types_match_the_outputs_of_operators() {
    let mut problems = Vec::new();
    let tests = all();
    for known in WAYS {
        let mut tally = Tally::default();
        for test in tests.iter().filter(|test| test.get("refused").is_none()) {
            if let Err(why) = look(test, known, &mut tally) {
                problems.push(format!("{known:?}: {}: {why}", test["name"]));
            }
        }
        let (types, sizes) = most_unknown(known);
        assert!(tally.types - tally.types_known <= types, "{known:?}: {tally:?}");
        assert!(tally.sizes - tally.sizes_known <= sizes, "{known:?}: {tally:?}");
        if known == Known::Elements {
            assert!(tally.elements_known > 1200, "{tally:?}");
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn nodes_that_onnx_or_onnxruntime_reject_are_rejected() {
    let (mut refused, mut missed) = (0, Vec::new());
    for test in all().iter().filter(|test| test.get("refused").is_some()) {
        match look(test, Known::Elements, &mut Tally::default()) {
            Ok(()) => missed.push(format!("{}: {}", test["name"], test["refused"])),
            Err(_) => refused += 1,
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(refused > 80);
}
