use super::*;
use crate::{
    Attribute, AttributeValue, BodyBuilder, Dim, ElementType, GraphBuilder, Meaning, Name, Opset,
    ValueType,
};

fn messages(graph: &Graph) -> Vec<String> {
    check(graph).list.iter().map(ToString::to_string).collect()
}

/// `x` through a chain of nodes with these operators.
fn chain(operators: &[&str]) -> Graph {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let mut value = main.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
    for (position, op) in operators.iter().enumerate() {
        value = main.op(op, [value]).output(&format!("layers.{position}"));
    }
    main.output("y", value, Meaning::Unknown);
    graph.finish()
}

#[test]
fn a_valid_graph_has_no_findings() {
    assert_eq!(messages(&chain(&["Relu", "Exp"])), Vec::<String>::new());
}

#[test]
fn qa_54_nodes_that_wait_for_each_other_are_named() {
    let mut graph = chain(&["Relu", "Exp", "Neg"]);
    let last = graph.body.nodes[1].outputs[0];
    graph.body.nodes[0].inputs[0] = last;
    let found = messages(&graph);
    assert_eq!(
        found,
        ["error: node 'layers.0': nodes wait for each other: layers.0 -> layers.1 -> layers.0"]
    );
    crate::infer(&mut graph);
}

#[test]
fn qa_54_a_circle_of_a_hundred_thousand_nodes_does_not_overflow_the_stack() {
    let mut graph = chain(&vec!["Relu"; 100_000]);
    let last = graph.body.nodes[99_999].outputs[0];
    graph.body.nodes[0].inputs[0] = last;
    assert_eq!(check(&graph).list.len(), 1);
}

#[test]
fn qa_54_functions_that_call_each_other_are_named() {
    let mut graph = GraphBuilder::new(17);
    let function = |calls: &str| {
        let mut body = BodyBuilder::default();
        let x = body.parameter("x");
        let y = body.call(&Op::new("apr", calls), [x]).output("inner");
        body.output("y", y, Meaning::Unknown);
        body
    };
    graph.function("apr", "a", function("b"));
    let b = graph.function("apr", "b", function("a"));
    let x = graph.body().input("x", ElementType::F32, [], Meaning::Unknown);
    let y = graph.body().call(&b, [x]).output("call");
    graph.body().output("y", y, Meaning::Unknown);
    let mut graph = graph.finish();
    assert_eq!(messages(&graph), ["error: functions call themselves: apr::a -> apr::b -> apr::a"]);
    let inference = crate::infer(&mut graph);
    assert_eq!(inference.findings.list[0].message, "apr::b: the function calls itself");
}

#[test]
fn a_node_before_its_producer_is_reported_with_the_producer() {
    let mut graph = chain(&["Relu", "Exp"]);
    graph.body.nodes.swap(0, 1);
    assert_eq!(
        messages(&graph),
        ["error: node 'layers.1': it uses 'layers.0', which 'layers.0' produces later"]
    );
}

#[test]
fn values_without_an_origin_and_twins_are_found() {
    let mut graph = chain(&["Relu", "Exp"]);
    let lost = graph.body.add_value("lost", ValueType::Unknown, ValueOrigin::Missing);
    graph.body.nodes[1].inputs[0] = Some(lost);
    graph.body.add_value("x", ValueType::Unknown, ValueOrigin::Missing);
    let found = messages(&graph);
    assert_eq!(
        found,
        ["error: value 'lost' is used, but has no producer", "error: two values are called 'x'"]
    );
}

#[test]
fn a_value_that_two_nodes_make_is_found() {
    let mut graph = chain(&["Relu", "Exp"]);
    graph.body.nodes[1].outputs = graph.body.nodes[0].outputs.clone();
    let found = messages(&graph);
    assert!(
        found.contains(&"error: node 'layers.1': duplicate value 'layers.0'".to_owned()),
        "{found:?}"
    );
}

#[test]
fn unsupported_inputs_and_attributes_of_an_operator_are_reported() {
    let mut graph = chain(&["Relu", "Softmax", "Concat"]);
    let x = graph.body.inputs[0];
    graph.body.nodes[0].inputs = vec![Some(x), Some(x)];
    let attribute = |name: &str, value: AttributeValue| Attribute { name: Name::from(name), value };
    graph.body.nodes[1].attributes.push(attribute("axis", AttributeValue::Float(1.0)));
    graph.body.nodes[1].attributes.push(attribute("angle", AttributeValue::Int(1)));
    assert_eq!(
        messages(&graph),
        [
            "error: node 'layers.0': it has 2 inputs, and Relu of version 14 has 1",
            "error: node 'layers.1': attribute 'axis' is FLOAT, but Softmax of version 13 \
             expects INT",
            "error: node 'layers.1': Softmax of version 13: unknown attribute 'angle'",
            "error: node 'layers.2': Concat needs the attribute 'axis'",
        ]
    );
}

#[test]
fn an_operator_of_another_version_is_reported_with_its_versions() {
    let found = messages(&chain(&["Swish", "Upsample"]));
    assert_eq!(
        found[0],
        "error: node 'layers.0': 'Swish' was added in version 24 of ai.onnx, and this is 17"
    );
    assert_eq!(found[1], "error: node 'layers.1': 'Upsample' is gone since version 10 of ai.onnx");
}

#[test]
fn an_unknown_domain_is_reported_once_as_a_notice() {
    let mut graph = chain(&["Relu", "Exp"]);
    for node in &mut graph.body.nodes {
        node.op = Op::new("com.example", "Magic");
    }
    assert_eq!(
        messages(&graph),
        ["notice: node 'layers.0': unknown operator domain 'com.example'"]
    );
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let mut graph = chain(&vec!["Relou"; 300]);
    assert_eq!(check(&graph).omitted, 100);
    assert!(crate::infer(&mut graph).findings.is_empty());
}

#[test]
fn bodies_nested_too_deep_are_an_error_not_an_overflow() {
    let mut inner = BodyBuilder::default().finish();
    for _ in 0..1000 {
        let mut body = BodyBuilder::default();
        let condition = body.int(1);
        let _ = body.op("If", [condition]).attribute("then_branch", inner).output("if");
        inner = body.finish();
    }
    let mut graph = Graph { body: inner, ..chain(&[]) };
    assert!(messages(&graph).iter().any(|message| message.contains("nested more than 64 deep")));
    let found = crate::infer(&mut graph).findings;
    assert!(found.list.iter().any(|finding| finding.message.contains("nested more than 64 deep")));
}

#[test]
fn versions_that_cannot_be_and_two_of_a_domain_are_found() {
    let mut graph = chain(&["Relu"]);
    let own = graph.opsets[0].clone();
    graph.opsets.push(own);
    for (domain, version) in [("", 16), ("com.microsoft", 0)] {
        graph.opsets.push(Opset { domain: domain.into(), version });
    }
    let found = messages(&graph);
    assert_eq!(
        found,
        [
            "error: domain '' has two versions",
            "error: domain 'com.microsoft' has version 0, which there is not"
        ]
    );
}

#[test]
fn duplicate_functions_functions_with_weights_and_bad_calls_are_reported() {
    let mut graph = GraphBuilder::new(17);
    let mut body = BodyBuilder::default();
    let x = body.parameter("x");
    let weight = body.weight("w", ElementType::F32, [4]);
    let y = body.op("Add", [x, weight]).output("sum");
    body.output("y", y, Meaning::Unknown);
    let op = graph.function("apr", "block", body);
    let x = graph.body().input("x", ElementType::F32, [4.into()], Meaning::Unknown);
    let [y, _] = graph.body().call(&op, [x, x]).outputs("call");
    graph.body().output("y", y, Meaning::Unknown);
    let mut graph = graph.finish();
    graph.functions[0].required.push("alpha".into());
    let call = [
        "error: node 'call': it is called with 2 inputs, and the function has 1",
        "error: node 'call': it has 2 outputs, and the function 1",
        "error: node 'call': the function needs the attribute 'alpha'",
    ];
    let weight = "error: node 'apr::block': it has the weight 'w' inside; a function gets its \
        weights as inputs";
    assert_eq!(messages(&graph), [&[weight], &call[..]].concat());
    assert!(
        crate::inline(&graph).unwrap_err().message().contains("is called with more than it has")
    );
    let found = crate::infer(&mut graph).findings;
    assert_eq!(
        found.list[0].message,
        "apr::block: it is called with 2 inputs, and the function has 1"
    );
    graph.functions.push(graph.functions[0].clone());
    assert_eq!(messages(&graph)[0], "error: there are two functions 'apr::block'");
}

#[test]
fn values_of_other_bodies_and_constants_without_their_bytes_are_found() {
    let mut graph = chain(&["Relu"]);
    graph.body.nodes[0].inputs = vec![Some(crate::ValueId(99))];
    assert_eq!(messages(&graph), ["error: it names values that the body does not have"]);

    let mut graph = chain(&["Relu"]);
    graph.body.add_value("around", ValueType::Unknown, ValueOrigin::Outer(crate::ValueId(0)));
    graph.body.add_value(
        "short",
        ValueType::Unknown,
        ValueOrigin::Constant(Constant { shape: vec![2], ..Constant::int(1) }),
    );
    let huge = Constant { shape: vec![u64::MAX, 2], ..Constant::int(1) };
    graph.body.add_value("huge", ValueType::Unknown, ValueOrigin::Constant(huge));
    let texts = Constant {
        data: ConstantData::Texts(Vec::new()),
        element: ElementType::Text,
        ..Constant::int(1)
    };
    graph.body.add_value("texts", ValueType::Unknown, ValueOrigin::Constant(texts));
    assert_eq!(
        messages(&graph),
        [
            "error: value 'around' is not in the body around",
            "error: constant 'short' does not have the elements of its shape",
            "error: constant 'huge' does not have the elements of its shape",
            "error: constant 'texts' does not have the elements of its shape",
        ]
    );
}

#[test]
fn branch_inputs_and_call_attributes_outside_a_function_are_reported() {
    let mut graph = chain(&["LeakyRelu", "If"]);
    let attribute = |name: &str, value: AttributeValue| Attribute { name: Name::from(name), value };
    graph.body.nodes[0].attributes.push(attribute("alpha", AttributeValue::OfCall("alpha".into())));
    for name in ["then_branch", "else_branch"] {
        let mut branch = BodyBuilder::default();
        let x = branch.parameter("inner");
        let y = branch.op("Relu", [x]).output("y");
        branch.output("y", y, Meaning::Unknown);
        graph.body.nodes[1].attributes.push(attribute(name, branch.finish().into()));
    }
    assert_eq!(
        messages(&graph),
        [
            "error: node 'layers.0': attribute 'alpha' refers to a function's attribute, outside \
             of a function",
            "error: node 'layers.1': a branch has 1 inputs, and gets none",
        ]
    );
}
