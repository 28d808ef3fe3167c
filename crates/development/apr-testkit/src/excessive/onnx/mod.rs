//! Constructs of ONNX models.

mod message;

use message::{
    Function, around, call, fixed, function, input, long, model, model_with, of_call, output,
    symbol, value, weight, with_functions,
};
pub(super) use message::{attribute, body, integer, integers, node, tensor, typed};

use super::Construct;
use super::protobuf::{each, field, number};

const fn onnx(name: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file: "model.onnx", make }
}

/// All constructs of this module.
pub(super) const ALL: &[Construct] = &[
    onnx("onnx: a shape of many dimensions, read by many nodes", many_dimensions),
    onnx("onnx: many declared shapes of a name each", named_dimensions),
    onnx("onnx: a chain of nodes over many dimensions", chain_of_dimensions),
    onnx("onnx: operator sets", operator_sets),
    onnx("onnx: operator sets of one domain", operator_sets_of_one_domain),
    onnx("onnx: calls of a function with many outputs", function_outputs),
    onnx("onnx: calls of a function with many inputs", function_inputs),
    onnx("onnx: calls of a function with many values", function_values),
    onnx("onnx: calls of a function with many defaults", function_defaults),
    onnx("onnx: a call with many attributes", call_attributes),
    onnx("onnx: a function that needs many attributes", required_attributes),
    onnx("onnx: calls in a function with many attributes", attributes_of_calls),
    onnx("onnx: functions that call each other twice", doubling_functions),
    onnx("onnx: a chain of functions", chain_of_functions),
    onnx("onnx: sizes that are squared", squares),
    onnx("onnx: sizes that are added to themselves", sums),
    onnx("onnx: quotients of sizes", quotients),
    onnx("onnx: initializers", initializers),
    onnx("onnx: initializers of one name", initializers_of_one_name),
    onnx("onnx: products with one weight", products_of_one_weight),
    onnx("onnx: a long chain of Identity", identities),
    onnx("onnx: transposed weights", transposed_weights),
    onnx("onnx: quantized weights", quantized_weights),
    onnx("onnx: nodes in reverse order", reverse_order),
    onnx("onnx: nodes of one name", nodes_of_one_name),
    onnx("onnx: nodes in a ring", ring),
    onnx("onnx: a long name around many nodes", long_names),
    onnx("onnx: a function with a long name of its call", long_call),
    onnx("onnx: nested branches", nested_branches),
    onnx("onnx: nested loops with states", nested_loops),
    onnx("onnx: a loop with many states", loop_states),
    onnx("onnx: branches that read many values", captured_values),
    onnx("onnx: a node with many inputs", many_inputs),
    onnx("onnx: joins of many inputs", joins),
    onnx("onnx: a node with many outputs", many_outputs),
    onnx("onnx: a node with many attributes", many_attributes),
    onnx("onnx: a transposition of many dimensions", transposition),
    onnx("onnx: known integers in a chain", known_integers),
    onnx("onnx: a constant of many integers in a chain", large_constants),
    onnx("onnx: metadata", metadata),
    onnx("onnx: metadata of one key", metadata_of_one_key),
    onnx("onnx: declared values of one name", declared_of_one_name),
    onnx("onnx: inputs", inputs),
    onnx("onnx: outputs of one value", outputs),
    onnx("onnx: texts", texts),
    onnx("onnx: a fan of nodes", fan),
    onnx("onnx: diamonds", diamonds),
    onnx("onnx: a triangle of readers", layers_of_readers),
    onnx("onnx: paths of names", paths),
    onnx("onnx: deep paths of names", deep_paths),
    onnx("onnx: a name of dots beside a product", name_of_dots),
    onnx("onnx: a long symbol", long_symbol),
    onnx("onnx: nested types", nested_types),
];

fn relu(count: usize) -> Vec<u8> {
    each(count, |at| node("", "Relu", &["x"], &[&format!("y{at}")], &[]))
}

fn many_dimensions(count: usize) -> Vec<u8> {
    let dims = vec![fixed(1); count];
    model(&[relu(count), input("x", &dims), output("y0", &[])].concat())
}

fn named_dimensions(count: usize) -> Vec<u8> {
    let declared =
        each(count, |at| field(13, value(&format!("y{at}"), &[symbol(&format!("s{at}"))])));
    model(&[relu(count), declared, input("x", &[symbol("a")]), output("y0", &[])].concat())
}

fn chain(count: usize, op: &str, more: &[u8]) -> Vec<u8> {
    each(count, |at| {
        let from = if at == 0 { "x".to_owned() } else { format!("y{}", at - 1) };
        node("", op, &[&from], &[&format!("y{at}")], more)
    })
}

fn chain_of_dimensions(count: usize) -> Vec<u8> {
    let dims = vec![symbol("a"); 60];
    let last = format!("y{}", count - 1);
    model(&[chain(count, "Relu", &[]), input("x", &dims), output(&last, &[])].concat())
}

fn operator_sets(count: usize) -> Vec<u8> {
    let sets = each(count, |at| field(8, [field(1, format!("d{at}")), number(2, 1)].concat()));
    let nodes = each(count, |at| node("", "O", &["x"], &[&format!("y{at}")], &field(7, "none")));
    model_with(&[nodes, around("y0")].concat(), &sets)
}

fn operator_sets_of_one_domain(count: usize) -> Vec<u8> {
    let sets = each(count, |_| field(8, [field(1, "d"), number(2, 1)].concat()));
    let nodes = each(count, |at| {
        node("", "Gelu", &["x"], &[&format!("y{at}")], &field(7, "com.microsoft"))
    });
    let last = field(8, [field(1, "com.microsoft"), number(2, 1)].concat());
    model_with(&[nodes, around("y0")].concat(), &[sets, last].concat())
}

fn calls(count: usize) -> Vec<u8> {
    each(count, |at| call("", "g", &["x"], &[&format!("y{at}")], &[]))
}

fn function_outputs(count: usize) -> Vec<u8> {
    let outputs = each(count, |_| field(5, "y"));
    let nodes = node("", "Relu", &["x"], &["y"], &[]);
    let function =
        function(&Function { name: "g", inputs: field(4, "x"), outputs, more: Vec::new(), nodes });
    with_functions(&[calls(count), around("y0")].concat(), &function)
}

fn function_inputs(count: usize) -> Vec<u8> {
    let inputs = each(count, |at| field(4, if at == 0 { "x".into() } else { format!("x{at}") }));
    let nodes = node("", "Relu", &["x"], &["y"], &[]);
    let function =
        function(&Function { name: "g", inputs, outputs: field(5, "y"), more: Vec::new(), nodes });
    with_functions(&[calls(count), around("y0")].concat(), &function)
}

fn function_values(count: usize) -> Vec<u8> {
    // One node of many outputs: many values and little else. Each call is of another kind.
    let outputs: Vec<String> = (0..count).map(|at| format!("y{at}")).collect();
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let nodes = node("", "Split", &["x"], &outputs, &[]);
    let function = function(&Function {
        name: "g",
        inputs: field(4, "x"),
        outputs: field(5, "y0"),
        more: Vec::new(),
        nodes,
    });
    let calls = each(count, |at| call("", "g", &[&format!("x{at}")], &[&format!("z{at}")], &[]));
    let inputs = each(count, |at| input(&format!("x{at}"), &[fixed(at as u64 + 1)]));
    with_functions(&[calls, inputs, output("z0", &[])].concat(), &function)
}

fn function_defaults(count: usize) -> Vec<u8> {
    let default =
        |at| field(11, [field(1, format!("a{at}")), number(3, 1), number(20, 2)].concat());
    let function = function(&Function {
        name: "g",
        inputs: field(4, "x"),
        outputs: field(5, "y"),
        more: each(count, default),
        nodes: node("", "Relu", &["x"], &["y"], &[]),
    });
    with_functions(&[calls(count), around("y0")].concat(), &function)
}

fn call_attributes(count: usize) -> Vec<u8> {
    let default =
        |at| field(11, [field(1, format!("a{at}")), number(3, 1), number(20, 2)].concat());
    let function = function(&Function {
        name: "g",
        inputs: field(4, "x"),
        outputs: field(5, "y"),
        more: each(count, default),
        nodes: node("", "Relu", &["x"], &["y"], &[]),
    });
    let own = each(count, |at| integer(&format!("b{at}"), 1));
    with_functions(&[call("", "g", &["x"], &["y"], &own), around("y")].concat(), &function)
}

fn required_attributes(count: usize) -> Vec<u8> {
    let function = function(&Function {
        name: "g",
        inputs: field(4, "x"),
        outputs: field(5, "y"),
        more: each(count, |at| field(6, format!("a{at}"))),
        nodes: node("", "Relu", &["x"], &["y"], &[]),
    });
    let own = each(count, |at| integer(&format!("a{at}"), 1));
    with_functions(&[call("", "g", &["x"], &["y"], &own), around("y")].concat(), &function)
}

fn attributes_of_calls(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        node("", "Softmax", &["x"], &[&format!("y{at}")], &of_call("axis", &format!("a{at}")))
    });
    let function = function(&Function {
        name: "g",
        inputs: field(4, "x"),
        outputs: field(5, "y0"),
        more: each(count, |at| field(6, format!("a{at}"))),
        nodes,
    });
    let own = each(count, |at| integer(&format!("a{at}"), 1));
    with_functions(&[call("", "g", &["x"], &["y"], &own), around("y")].concat(), &function)
}

fn doubling_functions(count: usize) -> Vec<u8> {
    let functions = each(count, |at| {
        let inner = if at == 0 { "none".to_owned() } else { format!("g{}", at - 1) };
        let nodes = [call("", &inner, &["x"], &["m"], &[]), call("", &inner, &["m"], &["y"], &[])];
        function(&Function {
            name: &format!("g{at}"),
            inputs: field(4, "x"),
            outputs: field(5, "y"),
            more: Vec::new(),
            nodes: nodes.concat(),
        })
    });
    let last = format!("g{}", count.min(50) - 1);
    with_functions(&[call("", &last, &["x"], &["y"], &[]), around("y")].concat(), &functions)
}

fn chain_of_functions(count: usize) -> Vec<u8> {
    let functions = each(count, |at| {
        let inner = format!("g{}", at + 1);
        function(&Function {
            name: &format!("g{at}"),
            inputs: field(4, "x"),
            outputs: field(5, "y"),
            more: Vec::new(),
            nodes: call("a/b", &inner, &["x"], &["y"], &[]),
        })
    });
    with_functions(&[call("", "g0", &["x"], &["y"], &[]), around("y")].concat(), &functions)
}

/// A value that is made from two times the one before, from the shape of `x` on, and a tensor of
/// that shape.
fn of_shape(count: usize, op: &str, second: Option<&str>) -> Vec<u8> {
    let steps = each(count, |at| {
        let from = format!("s{at}");
        let second = second.map_or(from.as_str(), |second| second);
        node("", op, &[&from, second], &[&format!("s{}", at + 1)], &[])
    });
    let first = node("", "Shape", &["x"], &["s0"], &[]);
    let last = node("", "ConstantOfShape", &[&format!("s{count}")], &["y"], &[]);
    let two = field(5, long(0, &[2, 2]));
    model(&[first, steps, last, two, around("y")].concat())
}

fn squares(count: usize) -> Vec<u8> {
    of_shape(count, "Mul", None)
}

fn sums(count: usize) -> Vec<u8> {
    of_shape(count, "Add", None)
}

fn quotients(count: usize) -> Vec<u8> {
    of_shape(count, "Div", Some("c0"))
}

fn initializers(count: usize) -> Vec<u8> {
    let weights = each(count, |at| weight(&format!("w{at}"), &[1], &[0; 4]));
    let nodes =
        each(count, |at| node("", "Add", &["x", &format!("w{at}")], &[&format!("y{at}")], &[]));
    model(&[nodes, weights, around("y0")].concat())
}

fn initializers_of_one_name(count: usize) -> Vec<u8> {
    let weights = each(count, |_| weight("w", &[1], &[0; 4]));
    model(&[node("", "Add", &["x", "w"], &["y"], &[]), weights, around("y")].concat())
}

/// A matrix of two rows and columns, which is a weight and no constant.
fn matrix(name: &str) -> Vec<u8> {
    weight(name, &[2, 2], &[1; 16])
}

fn products_of_one_weight(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        node(&format!("m{at}/MatMul"), "MatMul", &["x", "w"], &[&format!("y{at}")], &[])
    });
    model(&[nodes, matrix("w"), around("y0")].concat())
}

fn identities(count: usize) -> Vec<u8> {
    let last = format!("y{}", count - 1);
    let product = node("/a/MatMul", "MatMul", &["z", &last], &["p"], &[]);
    let nodes = chain(count, "Identity", &[]);
    model(
        &[nodes, product, matrix("x"), input("z", &[symbol("a"), fixed(2)]), output("p", &[])]
            .concat(),
    )
}

fn transposed_weights(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        let transposed = format!("t{at}");
        [
            node("", "Transpose", &["w"], &[&transposed], &[]),
            node(
                &format!("/m{at}/MatMul"),
                "MatMul",
                &["x", &transposed],
                &[&format!("y{at}")],
                &[],
            ),
        ]
        .concat()
    });
    model(&[nodes, matrix("w"), around("y0")].concat())
}

fn quantized_weights(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        let plain = format!("t{at}");
        [
            node("", "DequantizeLinear", &["q", "s"], &[&plain], &[]),
            node(&format!("/m{at}/MatMul"), "MatMul", &["x", &plain], &[&format!("y{at}")], &[]),
        ]
        .concat()
    });
    let weights = [field(5, tensor("q", &[2, 2], 3, &[1; 4])), weight("s", &[], &[1; 4])].concat();
    model(&[nodes, weights, around("y0")].concat())
}

fn reverse_order(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        let from = if at + 1 == count { "x".to_owned() } else { format!("y{}", at + 1) };
        node("", "Relu", &[&from], &[&format!("y{at}")], &[])
    });
    model(&[nodes, around("y0")].concat())
}

fn nodes_of_one_name(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| node("/a/b/Relu", "Relu", &["x"], &[&format!("y{at}")], &[]));
    model(&[nodes, around("y0")].concat())
}

fn ring(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        node("", "Add", &[&format!("y{}", (at + 1) % count), "y0"], &[&format!("y{at}")], &[])
    });
    model(&[nodes, around("y0")].concat())
}

fn long_names(count: usize) -> Vec<u8> {
    let inner = each(count, |at| node("", "Relu", &["x"], &[&format!("y{at}")], &[]));
    let graph = [inner, field(12, field(1, "y0"))].concat();
    let branches =
        [body("then_branch", &graph), body("else_branch", &field(12, field(1, "x")))].concat();
    let name = "n".repeat(count * 10);
    let condition = field(5, tensor("c", &[], 9, &[1]));
    model(&[node(&name, "If", &["c"], &["y"], &branches), condition, around("y")].concat())
}

fn long_call(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| node("", "Relu", &["x"], &[&format!("y{at}")], &[]));
    let function = function(&Function {
        name: "g",
        inputs: field(4, "x"),
        outputs: field(5, "y0"),
        more: Vec::new(),
        nodes,
    });
    let name = "n".repeat(count * 10);
    with_functions(&[call(&name, "g", &["x"], &["y"], &[]), around("y")].concat(), &function)
}

fn nested_branches(count: usize) -> Vec<u8> {
    let mut graph = [
        each(count, |at| node("", "Relu", &["x"], &[&format!("y{at}")], &[])),
        field(12, field(1, "y0")),
    ]
    .concat();
    for _ in 0..20 {
        let branches =
            [body("then_branch", &graph), body("else_branch", &field(12, field(1, "x")))];
        graph = [node("b", "If", &["c"], &["y"], &branches.concat()), field(12, field(1, "y"))]
            .concat();
    }
    let inputs = [input("x", &[symbol("a")]), field(11, typed("c", 9, &[]))].concat();
    model(&[graph, inputs].concat())
}

fn nested_loops(count: usize) -> Vec<u8> {
    let mut graph = [
        each(count, |at| node("", "Relu", &["x"], &[&format!("y{at}")], &[])),
        node("", "Concat", &["s", "s"], &["t"], &integer("axis", 0)),
        node("", "Identity", &["c"], &["d"], &[]),
    ]
    .concat();
    for _ in 0..20 {
        let ends = [field(12, field(1, "d")), field(12, field(1, "t"))].concat();
        let starts = [
            field(11, typed("i", 7, &[])),
            field(11, typed("c", 9, &[])),
            field(11, field(1, "s")),
        ];
        let inner = [graph, starts.concat(), ends].concat();
        graph = [
            node("l", "Loop", &["", "c", "s"], &["t"], &body("body", &inner)),
            node("", "Identity", &["c"], &["d"], &[]),
        ]
        .concat();
    }
    let inputs = [
        input("x", &[symbol("a")]),
        input("s", &[symbol("a")]),
        field(11, typed("c", 9, &[])),
        field(12, field(1, "t")),
    ];
    model(&[graph, inputs.concat()].concat())
}

fn loop_states(count: usize) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|at| format!("s{at}")).collect();
    let starts: Vec<u8> = names.iter().flat_map(|name| field(11, field(1, name))).collect();
    let ends: Vec<u8> = names.iter().flat_map(|name| field(12, field(1, name))).collect();
    let inner = [
        field(11, typed("i", 7, &[])),
        field(11, typed("d", 9, &[])),
        starts,
        field(12, field(1, "d")),
        ends,
    ]
    .concat();
    let mut inputs = vec!["", "c"];
    inputs.extend(vec!["x"; count]);
    let outputs: Vec<&str> = names.iter().map(String::as_str).collect();
    let around = [around("s0"), field(11, typed("c", 9, &[]))].concat();
    model(&[node("l", "Loop", &inputs, &outputs, &body("body", &inner)), around].concat())
}

fn captured_values(count: usize) -> Vec<u8> {
    let inner = each(count, |at| node("", "Relu", &[&format!("y{at}")], &[&format!("z{at}")], &[]));
    let graph = [inner, field(12, field(1, "z0"))].concat();
    let branches =
        [body("then_branch", &graph), body("else_branch", &field(12, field(1, "x")))].concat();
    let condition = field(11, typed("c", 9, &[]));
    model(
        &[relu(count), node("", "If", &["c"], &["o"], &branches), condition, around("o")].concat(),
    )
}

fn many_inputs(count: usize) -> Vec<u8> {
    let inputs = vec!["x"; count];
    model(&[node("", "Concat", &inputs, &["y"], &integer("axis", 0)), around("y")].concat())
}

fn joins(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        let from = if at == 0 { "x".to_owned() } else { format!("y{}", at - 1) };
        node("", "Concat", &[&from, &from], &[&format!("y{at}")], &integer("axis", 0))
    });
    model(&[nodes, around(&format!("y{}", count - 1))].concat())
}

fn many_outputs(count: usize) -> Vec<u8> {
    let outputs: Vec<String> = (0..count).map(|at| format!("y{at}")).collect();
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    model(&[node("", "Split", &["x"], &outputs, &[]), around("y0")].concat())
}

fn many_attributes(count: usize) -> Vec<u8> {
    let own = each(count, |at| integer(&format!("a{at}"), 1));
    model(&[node("", "Softmax", &["x"], &["y"], &own), around("y")].concat())
}

fn transposition(count: usize) -> Vec<u8> {
    let dims: Vec<_> = vec![fixed(1); count];
    let order = integers("perm", (0..count as u64).rev());
    model(
        &[chain(count.min(64), "Transpose", &order), input("x", &dims), output("y0", &[])].concat(),
    )
}

fn known_integers(count: usize) -> Vec<u8> {
    let first = field(5, long(0, &[3; 64]));
    let steps = each(count, |at| {
        node("", "Add", &[&format!("c{at}"), "c0"], &[&format!("c{}", at + 1)], &[])
    });
    let last = node("", "Reshape", &["x", &format!("c{count}")], &["y"], &[]);
    model(&[first, steps, last, around("y")].concat())
}

fn large_constants(count: usize) -> Vec<u8> {
    let first = field(5, long(0, &vec![3; count.min(8192)]));
    let nodes = each(count, |at| node("", "Reshape", &["x", "c0"], &[&format!("y{at}")], &[]));
    model(&[first, nodes, around("y0")].concat())
}

fn pair(key: &str) -> Vec<u8> {
    field(14, [field(1, key), field(2, "v")].concat())
}

fn metadata(count: usize) -> Vec<u8> {
    model_with(&[relu(1), around("y0")].concat(), &each(count, |at| pair(&format!("k{at}"))))
}

fn metadata_of_one_key(count: usize) -> Vec<u8> {
    model_with(&[relu(1), around("y0")].concat(), &each(count, |_| pair("k")))
}

fn declared_of_one_name(count: usize) -> Vec<u8> {
    let declared = each(count, |_| field(13, value("y0", &[symbol("a")])));
    model(&[relu(1), declared, around("y0")].concat())
}

fn inputs(count: usize) -> Vec<u8> {
    let inputs = each(count, |at| input(&format!("x{at}"), &[symbol("a")]));
    model(&[inputs, output("x0", &[])].concat())
}

fn outputs(count: usize) -> Vec<u8> {
    let outputs = each(count, |_| output("y0", &[]));
    model(&[relu(1), input("x", &[symbol("a")]), outputs].concat())
}

fn texts(count: usize) -> Vec<u8> {
    let texts = each(count, |_| field(6, "t"));
    let held = [number(1, count as u64), number(2, 8), texts, field(8, "t")].concat();
    model(&[relu(1), field(5, held), around("y0")].concat())
}

fn fan(count: usize) -> Vec<u8> {
    let ends: Vec<String> = (0..count).map(|at| format!("y{at}")).collect();
    let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
    model(&[relu(count), node("", "Sum", &ends, &["o"], &[]), around("o")].concat())
}

fn diamonds(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        let from = if at == 0 { "x".to_owned() } else { format!("y{}", at - 1) };
        let (left, right) = (format!("l{at}"), format!("r{at}"));
        [
            node("", "Relu", &[&from], &[&left], &[]),
            node("", "Tanh", &[&from], &[&right], &[]),
            node("", "Add", &[&left, &right], &[&format!("y{at}")], &[]),
        ]
        .concat()
    });
    model(&[nodes, around(&format!("y{}", count - 1))].concat())
}

fn layers_of_readers(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        let from = if at == 0 { "x".to_owned() } else { format!("y{}", at - 1) };
        node("", "Add", &[&from, "x"], &[&format!("y{at}")], &[])
    });
    let last = format!("y{}", count - 1);
    let all: Vec<String> = (0..count).map(|at| format!("y{at}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    model(&[nodes, node("", "Sum", &all, &["o"], &[]), around(&last)].concat())
}

fn paths(count: usize) -> Vec<u8> {
    let nodes = each(count, |at| {
        node(&format!("/l{at}/a/Relu"), "Relu", &["x"], &[&format!("y{at}")], &[])
    });
    model(&[nodes, around("y0")].concat())
}

fn deep_paths(count: usize) -> Vec<u8> {
    let name = "/a".repeat(count);
    let nodes = each(count.min(200), |at| node(&name, "Relu", &["x"], &[&format!("y{at}")], &[]));
    model(&[nodes, around("y0")].concat())
}

fn name_of_dots(count: usize) -> Vec<u8> {
    let product = node("/fc/MatMul", "MatMul", &["x", "onnx::MatMul_1"], &["y0"], &[]);
    let weights = [matrix("onnx::MatMul_1"), matrix(&"a.".repeat(count))].concat();
    model(&[product, weights, around("y0")].concat())
}

fn long_symbol(count: usize) -> Vec<u8> {
    let name = "a".repeat(count * 10);
    let inputs = [input("x", &[symbol(&name), symbol(&name)]), output("y0", &[])].concat();
    model(&[relu(count), inputs].concat())
}

fn nested_types(count: usize) -> Vec<u8> {
    let tensor = field(1, [number(1, 1), field(2, field(1, symbol("a")))].concat());
    let mut kind = tensor;
    for _ in 0..40 {
        kind = field(4, field(1, kind));
    }
    let inputs =
        each(count, |at| field(11, [field(1, format!("x{at}")), field(2, &kind)].concat()));
    model(&[inputs, output("x0", &[])].concat())
}
