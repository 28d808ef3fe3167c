//! ONNX models of a few bytes, packed by hand.

/// A field of a protobuf message, whose number and length are small.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let len = u8::try_from(content.len()).expect("short");
    assert!(len < 128, "a length of one byte");
    [&[number << 3 | 2, len], content].concat()
}

/// Two nodes that wait for each other: `a = Relu(b)`, `b = Relu(a)`.
#[must_use]
pub fn cyclic() -> Vec<u8> {
    let node = |name: &[u8], input: &[u8], output: &[u8]| {
        let fields =
            [field(1, input), field(2, output), field(3, name), field(4, b"Relu")].concat();
        field(1, &fields)
    };
    let graph = [
        node(b"first", b"b", b"a"),
        node(b"second", b"a", b"b"),
        field(2, b"cyclic"),
        field(12, &field(1, b"a")),
    ];
    // ModelProto: ir_version 8, a graph, and version 17 of the operators.
    [&[8, 8][..], &field(7, &graph.concat()), &field(8, &[16, 17])].concat()
}
