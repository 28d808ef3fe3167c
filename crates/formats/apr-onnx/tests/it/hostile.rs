//! Files that somebody made to harm.

use apr_core::{CheckpointReader, Code, Error, Limits};
use apr_onnx::{open, open_in};
use apr_testkit::{FolderInMemory, peak_memory, read_everything};

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(u8::try_from(value & 127).expect("seven bits") | 128);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).expect("seven bits"));
    bytes
}

/// A field that is delimited by a length.
fn field(number: u64, content: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A model with this graph.
fn model(graph: &[u8]) -> Vec<u8> {
    [number(1, 8), field(8, &number(2, 17)), field(7, graph)].concat()
}

/// A tensor of floats with a name, dimensions, and more fields.
fn tensor(name: &str, dims: &[u64], more: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| number(1, *dim)).collect();
    [dims, number(2, 1), field(8, name.as_bytes()), more.to_vec()].concat()
}

fn external(entries: &[(&str, &str)]) -> Vec<u8> {
    let entry = |(key, value): &(&str, &str)| {
        field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
    };
    [entries.iter().flat_map(entry).collect(), number(14, 1)].concat()
}

fn refused(file: Vec<u8>) -> Error {
    let (result, peak) = peak_memory(|| open(file, "model.onnx", &Limits::default()).map(drop));
    assert!(peak < 16 << 20, "{peak}");
    result.expect_err("it is refused")
}

#[test]
fn graphs_ten_thousand_deep_are_refused() {
    let mut graph = Vec::new();
    for _ in 0..10_000 {
        // A node with an attribute that holds the graph so far.
        graph = field(1, &field(5, &[field(1, b"body"), field(6, &graph)].concat()));
    }
    let error = refused(model(&graph));
    assert_eq!(error.code(), Code::Format);
    assert!(error.message().contains("100 levels"), "{error}");
}

#[test]
fn impossible_lengths_and_counts_are_rejected_before_any_allocation() {
    // An attribute whose packed integers claim 2^40 bytes.
    let claim = [varint(8 << 3 | 2), varint(1 << 40)].concat();
    assert_eq!(refused(model(&field(1, &field(5, &claim)))).code(), Code::Corrupt);
    let shapes: [(&[u64], Code); 3] = [
        (&[1 << 40, 1 << 40], Code::Format),
        (&[1 << 40], Code::Corrupt),
        (&[u64::MAX], Code::Format),
    ];
    for (dims, code) in shapes {
        let error = refused(model(&field(5, &tensor("w", dims, &field(9, &[0; 8])))));
        assert_eq!(error.code(), code, "{error}");
        assert_eq!(error.tensor(), Some("w"));
    }
    // A sparse tensor of one element in 2^50.
    let values = tensor("s", &[1], &field(9, &[0; 4]));
    let indices = [number(1, 1), number(2, 7), field(9, &[0; 8])].concat();
    let sparse = [field(1, &values), field(2, &indices), number(3, 1 << 50)].concat();
    assert_eq!(refused(model(&field(15, &sparse))).code(), Code::Memory);
}

#[test]
fn data_outside_the_folder_are_refused_and_data_past_the_end_are_corrupt() {
    let file = |place: &[(&str, &str)]| model(&field(5, &tensor("w", &[2], &external(place))));
    let open = |file: Vec<u8>| {
        let folder = FolderInMemory(
            [("model.onnx".to_owned(), file), ("w.bin".to_owned(), vec![0; 12])].into(),
        );
        open_in(&folder, "model.onnx", &Limits::default())
    };
    for location in ["/etc/passwd", "../w.bin", "a/../../w.bin", "C:\\w.bin", "*/_ORT_MEM_ADDR_/*"]
    {
        let error = open(file(&[("location", location)])).expect_err(location);
        assert_eq!((error.code(), error.tensor()), (Code::Format, Some("w")), "{error}");
    }
    let reader = open(file(&[("location", "w.bin"), ("offset", "4"), ("length", "8")]))
        .expect("it is there");
    assert_eq!(read_everything(&reader).map(drop), Ok(()));
    for (offset, code) in
        [("8", Code::Corrupt), ("18446744073709551615", Code::Corrupt), ("-1", Code::Format)]
    {
        let error = open(file(&[("location", "w.bin"), ("offset", offset)])).expect_err(offset);
        assert_eq!(error.code(), code, "{error}");
    }
    let error = open(file(&[("location", "absent.bin")])).expect_err("it is not there");
    assert_eq!(error.code(), Code::Io);
}

#[test]
fn a_cycle_of_nodes_is_kept_for_a_check_to_find() {
    let node = |input: &[u8], output: &[u8]| {
        field(1, &[field(1, input), field(2, output), field(4, b"Relu")].concat())
    };
    let graph = [node(b"b", b"a"), node(b"a", b"b"), field(12, &field(1, b"a"))].concat();
    let reader = open(model(&graph), "model.onnx", &Limits::default()).expect("a model");
    let graph = reader.graph().expect("a graph").expect("a graph");
    assert_eq!(graph.body.nodes.len(), 2);
    assert!(!apr_graph::check(&graph).list.is_empty());
}

#[test]
fn a_long_name_is_not_repeated_for_every_tensor_inside() {
    let inner: Vec<u8> =
        (0..2000).flat_map(|at| field(5, &tensor(&format!("t{at}"), &[0], &[]))).collect();
    let attribute = field(5, &[field(1, b"body"), field(6, &inner)].concat());
    let node = field(
        1,
        &[field(3, "n".repeat(1 << 20).as_bytes()), field(4, b"Loop"), attribute].concat(),
    );
    assert_eq!(refused(model(&node)).code(), Code::Memory);
}

#[test]
fn a_model_of_onnxruntime_is_known_by_name() {
    assert!(!(apr_onnx::FORMAT.recognises)(b"\x24\0\0\0ORTM\0\0\0\0"));
    // The first field of a Core ML model is a number, and the second a message.
    assert!(!(apr_onnx::FORMAT.recognises)(b"\x08\x04\x12\x2e\x0a\x0a"));
}

/// A tensor of elements of this type.
fn of_type(code: u64, dims: &[u64], more: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| number(1, *dim)).collect();
    [dims, number(2, code), field(8, b"w"), more.to_vec()].concat()
}

#[test]
fn typed_numbers_that_do_not_fit_their_type_or_their_count_are_corrupt() {
    let floats = |bytes: &[u8]| field(4, bytes);
    let int32 = |bytes: &[u8]| field(5, bytes);
    let unpacked = [varint(4 << 3 | 5), vec![0; 4]].concat();
    for (what, tensor) in [
        ("packed floats that end amid one", of_type(1, &[2], &floats(&[0; 6]))),
        ("too few floats", of_type(1, &[3], &unpacked.repeat(2))),
        ("too many floats", of_type(1, &[1], &unpacked.repeat(2))),
        ("too few integers", of_type(2, &[5], &int32(&[0; 4]))),
    ] {
        let error = refused(model(&field(5, &tensor)));
        assert_eq!((error.code(), error.tensor()), (Code::Corrupt, Some("w")), "{what}: {error}");
    }
    // How many there are, and which, is known when they are read.
    for (what, tensor) in [
        ("300 as u8", of_type(2, &[1], &int32(&varint(300)))),
        ("-200 as i8", of_type(3, &[1], &int32(&varint((-200_i64).cast_unsigned())))),
        ("three integers of four bytes in all", of_type(6, &[4], &int32(&[1, 2, 200, 1]))),
        ("a number that does not end", of_type(6, &[2], &int32(&[1, 200]))),
    ] {
        let reader =
            open(model(&field(5, &tensor)), "model.onnx", &Limits::default()).expect("it opens");
        // Small integers are a part of the graph.
        let read = read_everything(&reader).map(drop);
        let error = read.and_then(|()| reader.graph().map(drop)).expect_err(what);
        assert_eq!(error.code(), Code::Corrupt, "{what}: {error}");
    }
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let twice = field(5, &tensor("w", &[1], &field(9, &[0; 4]))).repeat(2);
    let error = refused(model(&twice));
    assert_eq!((error.code(), error.tensor()), (Code::Format, Some("w")), "{error}");
}

/// Tests indices that are longer than the buffer in which they are read.
#[test]
fn indices_of_three_thousand_dimensions_are_read() {
    let dims = vec![1; 3000];
    let values = of_type(1, &[1], &field(9, &1.5_f32.to_le_bytes()));
    let indices = of_type(7, &[1, 3000], &field(9, &vec![0; 8 * dims.len()]));
    let dims: Vec<u8> = dims.iter().flat_map(|dim| number(3, *dim)).collect();
    let file = model(&field(15, &[field(1, &values), field(2, &indices), dims].concat()));
    let reader = open(file, "", &Limits::default()).expect("a shape of one element");
    let mut element = [0; 4];
    reader.read_tensor(0, 0, &mut element).expect("it lies there");
    assert_eq!(f32::from_le_bytes(element), 1.5);
}

#[test]
fn inconsistent_sparse_tensors_are_rejected_and_string_tensors_omitted() {
    let sparse = |values: &[u8], indices: &[u8], dims: &[u64]| {
        let dims: Vec<u8> = dims.iter().flat_map(|dim| number(3, *dim)).collect();
        model(&field(15, &[field(1, values), field(2, indices), dims].concat()))
    };
    let places = |dims: &[u64], count: usize| of_type(7, dims, &field(9, &vec![0; 8 * count]));
    let floats = of_type(1, &[2], &field(9, &[0; 8]));
    assert!(open(sparse(&floats, &places(&[2], 2), &[4]), "", &Limits::default()).is_ok());
    for (what, file) in [
        ("indices of 32 bits", sparse(&floats, &of_type(6, &[2], &field(9, &[0; 8])), &[4])),
        ("three indices for two values", sparse(&floats, &places(&[3], 3), &[4])),
        ("indices of two dimensions for one", sparse(&floats, &places(&[2, 2], 4), &[4])),
        (
            "more elements than can be counted",
            sparse(&floats, &places(&[2], 2), &[1 << 40, 1 << 40]),
        ),
    ] {
        assert_eq!(refused(file).code(), Code::Format, "{what}");
    }
    let texts = of_type(8, &[2], &field(6, b"a").repeat(2));
    let halves = of_type(23, &[2], &field(9, &[0]));
    for (values, kind) in [(texts, "text"), (halves, "sparse 4-bit floats")] {
        let reader = open(sparse(&values, &places(&[2], 2), &[4]), "", &Limits::default())
            .expect("it opens");
        assert!(reader.tensors().is_empty());
        assert_eq!(
            reader.warnings(),
            [format!("1 tensor of {kind} is not read, the first is 'w'")]
        );
    }
}

#[test]
fn bytes_past_the_end_of_a_tensor_are_corrupt() {
    let file = model(&field(5, &tensor("w", &[2], &field(9, &[0; 8]))));
    let reader = open(file, "model.onnx", &Limits::default()).expect("a model");
    for (offset, len) in [(1, 8), (8, 1), (u64::MAX, 1)] {
        let error = reader.read_tensor(0, offset, &mut vec![0; len]).expect_err("there are eight");
        assert_eq!((error.code(), error.tensor()), (Code::Corrupt, Some("w")), "{error}");
        assert!(error.to_string().contains("model.onnx"), "{error}");
    }
    assert_eq!(reader.read_companion(1).expect_err("there is one").code(), Code::Format);
    assert_eq!(reader.container().header_fields()["nodes"], 0);
    assert!(format!("{reader:?}").contains("\"w\""));
}

#[test]
fn a_skeleton_over_the_limit_is_not_offered_and_gives_a_warning() {
    let mut limits = Limits::default();
    limits.max_companion = 10;
    let file = model(&field(5, &tensor("w", &[2], &field(9, &[0; 8]))));
    let reader = open(file, "model.onnx", &limits).expect("a model");
    assert!(reader.companions().is_empty());
    assert!(reader.warnings()[0].contains("the graph is not kept"), "{:?}", reader.warnings());
    assert_eq!(reader.read_companion(0).expect_err("there is none").code(), Code::Format);
}

#[test]
fn a_single_tensor_has_no_graph_and_a_short_prefix_is_not_a_model() {
    let file = tensor("", &[2], &field(9, &[0; 8]));
    let reader = open(file, "input_0.pb", &Limits::default()).expect("a tensor");
    assert_eq!(reader.tensors()[0].name, "tensor");
    assert_eq!(reader.graph().expect("readable"), None);
    assert!(reader.model().is_none());
    for head in [&b"\x08\x07"[..], b"\x08\x07\x12", b"\x08\x00\x12\x00a", b"\x08", b""] {
        assert!(!(apr_onnx::FORMAT.recognises)(head), "{head:?}");
    }
    // Beyond the version comes the graph.
    assert!((apr_onnx::FORMAT.recognises)(b"\x08\x07\x3a\x00"));
}
