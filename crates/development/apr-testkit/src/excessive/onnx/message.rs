//! Messages of ONNX.

use crate::excessive::protobuf::{field, number};

pub(super) fn model_with(graph: &[u8], more: &[u8]) -> Vec<u8> {
    [&number(1, 8)[..], &field(8, number(2, 17)), &field(7, graph), more].concat()
}

pub(super) fn model(graph: &[u8]) -> Vec<u8> {
    model_with(graph, &[])
}

pub(in crate::excessive) fn node(
    name: &str,
    op: &str,
    inputs: &[&str],
    outputs: &[&str],
    more: &[u8],
) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(1, input)).collect();
    let outputs: Vec<u8> = outputs.iter().flat_map(|output| field(2, output)).collect();
    field(1, [inputs, outputs, field(3, name), field(4, op), more.to_vec()].concat())
}

/// A call of a function of the domain `f`.
pub(super) fn call(
    name: &str,
    function: &str,
    inputs: &[&str],
    outputs: &[&str],
    more: &[u8],
) -> Vec<u8> {
    node(name, function, inputs, outputs, &[more, &field(7, "f")].concat())
}

pub(in crate::excessive) fn attribute(name: &str, kind: u64, value: &[u8]) -> Vec<u8> {
    field(5, [&field(1, name)[..], value, &number(20, kind)].concat())
}

pub(in crate::excessive) fn integer(name: &str, value: u64) -> Vec<u8> {
    attribute(name, 2, &number(3, value))
}

pub(in crate::excessive) fn integers(name: &str, values: impl Iterator<Item = u64>) -> Vec<u8> {
    attribute(name, 7, &values.flat_map(|value| number(8, value)).collect::<Vec<_>>())
}

pub(in crate::excessive) fn body(name: &str, graph: &[u8]) -> Vec<u8> {
    attribute(name, 5, &field(6, graph))
}

/// Writes an attribute of a function's node that takes its value from the call.
pub(super) fn of_call(name: &str, outer: &str) -> Vec<u8> {
    field(5, [field(1, name), field(21, outer), number(20, 2)].concat())
}

/// A `ValueInfoProto` of floats.
pub(super) fn value(name: &str, dims: &[Vec<u8>]) -> Vec<u8> {
    typed(name, 1, dims)
}

pub(in crate::excessive) fn typed(name: &str, element: u64, dims: &[Vec<u8>]) -> Vec<u8> {
    let shape: Vec<u8> = dims.iter().flat_map(|dim| field(1, dim)).collect();
    let tensor = [number(1, element), field(2, shape)].concat();
    [field(1, name), field(2, field(1, tensor))].concat()
}

pub(super) fn fixed(size: u64) -> Vec<u8> {
    number(1, size)
}

pub(super) fn symbol(name: &str) -> Vec<u8> {
    field(2, name)
}

pub(super) fn input(name: &str, dims: &[Vec<u8>]) -> Vec<u8> {
    field(11, value(name, dims))
}

pub(super) fn output(name: &str, dims: &[Vec<u8>]) -> Vec<u8> {
    field(12, value(name, dims))
}

/// An input `x` of the sizes `a` and `b`, and an output of that name.
pub(super) fn around(last: &str) -> Vec<u8> {
    [input("x", &[symbol("a"), symbol("b")]), field(12, field(1, last))].concat()
}

pub(in crate::excessive) fn tensor(name: &str, dims: &[u64], element: u64, data: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| number(1, *dim)).collect();
    [dims, number(2, element), field(8, name), field(9, data)].concat()
}

pub(super) fn weight(name: &str, dims: &[u64], data: &[u8]) -> Vec<u8> {
    field(5, tensor(name, dims, 1, data))
}

pub(super) fn long(count: usize, values: &[i64]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(&format!("c{count}"), &[values.len() as u64], 7, &data)
}

/// A function of a model, in parts.
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    pub(super) inputs: Vec<u8>,
    pub(super) outputs: Vec<u8>,
    pub(super) more: Vec<u8>,
    pub(super) nodes: Vec<u8>,
}

/// Writes a function. `nodes` are encoded as nodes of a graph, and get the field number of
/// functions.
pub(super) fn function(function: &Function<'_>) -> Vec<u8> {
    let opset = field(9, number(2, 17));
    let own = field(9, [field(1, "f"), number(2, 1)].concat());
    let parts = [
        &field(1, function.name)[..],
        &function.inputs,
        &function.outputs,
        &function.more,
        &renumbered(&function.nodes),
        &opset,
        &own,
        &field(10, "f"),
    ];
    field(25, parts.concat())
}

/// Changes nodes of a graph (field 1) to nodes of a function (field 7). Both tags are one byte.
fn renumbered(nodes: &[u8]) -> Vec<u8> {
    let (mut all, mut at) = (nodes.to_vec(), 0);
    while at < all.len() {
        all[at] = 7 << 3 | 2;
        let (mut len, mut shift) = (0, 0);
        loop {
            at += 1;
            len |= usize::from(all[at] & 127) << shift;
            shift += 7;
            if all[at] < 128 {
                break;
            }
        }
        at += 1 + len;
    }
    all
}

pub(super) fn with_functions(graph: &[u8], functions: &[u8]) -> Vec<u8> {
    let own = field(8, [field(1, "f"), number(2, 1)].concat());
    model_with(graph, &[&own, functions].concat())
}
