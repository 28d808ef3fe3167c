//! Constructs of ONNX models that ask for work where they are run: they take no inputs, and what
//! they compute grows faster than the file.
#![expect(clippy::cast_possible_wrap, reason = "sizes are small")]

use super::Construct;
use super::onnx::{attribute, body, integer, integers, node, tensor, typed};
use super::protobuf::{each, field, number};

const fn run(name: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file: "model.onnx", make }
}

/// All constructs of this module.
pub(super) const ALL: &[Construct] = &[
    run("run: an average over all", |n| of_one(n, "GlobalAveragePool", image(n, FLOAT), &[])),
    run("run: an average of bytes", |n| of_one(n, "GlobalAveragePool", image(n, BYTE), &[])),
    run("run: a maximum over windows", |n| of_one(n, "MaxPool", image(n, FLOAT), &window(n))),
    run("run: a maximum of bytes", |n| of_one(n, "MaxPool", image(n, BYTE), &window(n))),
    run("run: an average over windows", |n| of_one(n, "AveragePool", image(n, FLOAT), &window(n))),
    run("run: a norm over windows", |n| of_one(n, "LpPool", image(n, FLOAT), &window(n))),
    run("run: a norm over channels", |n| {
        of_one(n, "LRN", filled("a", &[1, n, 16, 16], FLOAT), &integer("size", n as u64))
    }),
    run("run: a convolution", |n| {
        of_two(n, "Conv", image(n, FLOAT), filled("b", &[1, 1, half(n), half(n)], FLOAT))
    }),
    run("run: a transposed convolution", |n| {
        let filters = filled("b", &[1, 1, half(n), half(n)], FLOAT);
        of_two(n, "ConvTranspose", image(n, FLOAT), filters)
    }),
    run("run: a larger image", |n| resized(n, "linear", n as i64, 0)),
    run("run: a larger image by cubes", |n| resized(n, "cubic", n as i64, 0)),
    run("run: a smaller image without aliases", |n| resized(n, "linear", 64, 1)),
    run("run: regions", regions),
    run("run: a transform of a prime length", |n| {
        of_one(n, "DFT", filled("a", &[1, prime(n), 1], FLOAT), &[])
    }),
    run("run: boxes", |n| {
        let boxes = filled("a", &[1, n, 4], FLOAT);
        of_two(n, "NonMaxSuppression", boxes, filled("b", &[1, n, n.min(64)], FLOAT))
    }),
    run("run: a product of matrices", |n| {
        of_two(n, "MatMul", filled("a", &[n, n], FLOAT), filled("b", &[n, n], FLOAT))
    }),
    run("run: a product of integers", |n| {
        of_two(n, "MatMulInteger", filled("a", &[n, n], BYTE), filled("b", &[n, n], BYTE))
    }),
    run("run: a determinant", |n| of_one(n, "Det", filled("a", &[n, n], FLOAT), &[])),
    run("run: outer sums", |n| {
        of_two(n, "Add", filled("a", &[n, 1], FLOAT), filled("b", &[1, n], FLOAT))
    }),
    run("run: a contraction", |n| {
        let matrices = [filled("a", &[n, n], FLOAT), filled("b", &[n, n], FLOAT)].concat();
        let equation = attribute("equation", 3, &field(4, "ij,jk,lk->il"));
        runs(n, &[matrices, node("", "Einsum", &["a", "b", "a"], &["y"], &equation)].concat())
    }),
    run("run: the largest numbers", |n| {
        of_two(n, "TopK", filled("a", &[n * 64], FLOAT), constant("b", &[n as i64]))
    }),
    run("run: numbers that differ", |n| of_one(n, "Unique", filled("a", &[n, n], FLOAT), &[])),
    run("run: sums of those before", |n| {
        of_two(n, "CumSum", filled("a", &[n, n], FLOAT), constant("b", &[1]))
    }),
    run("run: one hot", |n| {
        let parts = [filled("a", &[n], LONG), constant("b", &[n as i64]), constant("c", &[0, 1])];
        runs(n, &[parts.concat(), node("", "OneHot", &["a", "b", "c"], &["y"], &[])].concat())
    }),
    run("run: tiles", |n| of_two(n, "Tile", filled("a", &[n], FLOAT), constant("b", &[n as i64]))),
    run("run: an expansion", |n| {
        of_two(n, "Expand", filled("a", &[1], FLOAT), constant("b", &[n as i64, n as i64]))
    }),
    run("run: a tensor that is doubled", |n| {
        chained(n, filled("x0", &[1], FLOAT), "Concat", &integer("axis", 0))
    }),
    run("run: a text that is doubled", |n| chained(n, text("x0", "a"), "StringConcat", &[])),
    run("run: a text that is split", |n| of_one(n, "StringSplit", text("a", &"b ".repeat(n)), &[])),
    run("run: a pattern", |n| {
        let pattern = attribute("pattern", 3, &field(4, "(a*)*b".repeat(n.min(1000))));
        of_one(n, "RegexFullMatch", text("a", &"a".repeat(n)), &pattern)
    }),
    run("run: sequences of sequences before", sequences),
    run("run: a loop without an end", |n| repeated(n, i64::MAX, false)),
    run("run: a loop that collects", |n| repeated(n, n as i64 * 64, true)),
    run("run: a tensor of many dimensions", |n| {
        let axes: Vec<i64> = (0..n as i64).collect();
        of_two(n, "Unsqueeze", filled("a", &[1], FLOAT), constant("b", &axes))
    }),
    run("run: sums of tensors of many dimensions", |n| {
        let dims = vec![1; n.min(40_000)];
        of_two(n, "Add", filled("a", &dims, FLOAT), filled("b", &dims, FLOAT))
    }),
    run("run: a recurrent network", |n| {
        let sequence = filled("a", &[n, 1, 64], FLOAT);
        let weights = [filled("b", &[1, 256, 64], FLOAT), filled("c", &[1, 256, 64], FLOAT)];
        let hidden = integer("hidden_size", 64);
        let run = node("", "LSTM", &["a", "b", "c"], &["y"], &hidden);
        runs(n, &[sequence, weights.concat(), run].concat())
    }),
    run("run: random numbers", |n| {
        let shape = integers("shape", [n as u64, n as u64].into_iter());
        runs(n, &node("", "RandomNormal", &[], &["y"], &shape))
    }),
    run("run: a grid", |n| {
        of_two(n, "GridSample", image(256, FLOAT), filled("b", &[1, n, n, 2], FLOAT))
    }),
    run("run: a spectrogram", |n| {
        let parts = [filled("a", &[1, n, 1], FLOAT), constant("b", &[1])].concat();
        let run = node("", "STFT", &["a", "b", "", "c"], &["y"], &[]);
        runs(n, &[parts, constant("c", &[half(n) as i64]), run].concat())
    }),
    run("run: filters of a spectrogram", |n| {
        let number = |name: &str, value: i64| scalar(name, LONG, &value.to_le_bytes());
        let real = |name: &str, value: f32| scalar(name, FLOAT, &value.to_le_bytes());
        let parts = [
            number("a", n as i64),
            number("b", n as i64),
            number("c", 16_000),
            real("d", 0.0),
            real("e", 8000.0),
        ];
        let run = node("", "MelWeightMatrix", &["a", "b", "c", "d", "e"], &["y"], &[]);
        runs(n, &[parts.concat(), run].concat())
    }),
];

const FLOAT: u64 = 1;
const BYTE: u64 = 2;
const LONG: u64 = 7;
const TEXT: u64 = 8;

/// A model without inputs, whose output is `y`; a comment makes it grow with `count`.
fn runs(count: usize, parts: &[u8]) -> Vec<u8> {
    let graph = [parts, &field(12, typed("y", FLOAT, &[]))].concat();
    let padding = field(6, "x".repeat(count));
    [&number(1, 8)[..], &field(8, number(2, 20)), &field(7, graph), &padding].concat()
}

fn of_one(count: usize, op: &str, input: Vec<u8>, more: &[u8]) -> Vec<u8> {
    runs(count, &[input, node("", op, &["a"], &["y"], more)].concat())
}

fn of_two(count: usize, op: &str, first: Vec<u8>, second: Vec<u8>) -> Vec<u8> {
    runs(count, &[first, second, node("", op, &["a", "b"], &["y"], &[])].concat())
}

fn constant(name: &str, values: &[i64]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    field(5, tensor(name, &[values.len() as u64], LONG, &data))
}

fn scalar(name: &str, element: u64, data: &[u8]) -> Vec<u8> {
    field(5, tensor(name, &[], element, data))
}

fn text(name: &str, value: &str) -> Vec<u8> {
    field(5, [number(1, 1), number(2, TEXT), field(8, name), field(6, value)].concat())
}

/// Writes a tensor of zeros that needs no space in the file.
fn filled(name: &str, dims: &[usize], element: u64) -> Vec<u8> {
    let shape: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
    let zero = tensor("", &[1], element, if element == LONG { &[0; 8] } else { &[0; 4] });
    let zero = if element == BYTE { tensor("", &[1], element, &[0]) } else { zero };
    let from = format!("{name}.shape");
    let fill = attribute("value", 4, &field(5, zero));
    [constant(&from, &shape), node("", "ConstantOfShape", &[&from], &[name], &fill)].concat()
}

fn half(count: usize) -> usize {
    count.div_ceil(2)
}

/// The least prime from here on.
fn prime(count: usize) -> usize {
    (count.max(2)..).find(|n| (2..).take_while(|d| d * d <= *n).all(|d| n % d != 0)).unwrap_or(2)
}

fn image(side: usize, element: u64) -> Vec<u8> {
    filled("a", &[1, 1, side, side], element)
}

/// Windows of half an image's side.
fn window(side: usize) -> Vec<u8> {
    integers("kernel_shape", [half(side) as u64; 2].into_iter())
}

fn resized(count: usize, mode: &str, side: i64, antialias: u64) -> Vec<u8> {
    let from = if antialias == 0 { 64 } else { count };
    let more = [attribute("mode", 3, &field(4, mode)), integer("antialias", antialias)].concat();
    let parts = [image(from, FLOAT), constant("b", &[1, 1, side, side])].concat();
    runs(count, &[parts, node("", "Resize", &["a", "", "", "b"], &["y"], &more)].concat())
}

fn regions(count: usize) -> Vec<u8> {
    let parts = [image(64, FLOAT), filled("b", &[count, 4], FLOAT), filled("c", &[count], LONG)];
    let more = ["output_height", "output_width", "sampling_ratio"].map(|name| integer(name, 64));
    let run = node("", "RoiAlign", &["a", "b", "c"], &["y"], &more.concat());
    runs(count, &[parts.concat(), run].concat())
}

/// Writes a chain of nodes, each of which uses the previous output twice.
fn chained(count: usize, first: Vec<u8>, op: &str, more: &[u8]) -> Vec<u8> {
    let steps = count.min(4000);
    let nodes = each(steps, |at| {
        let from = format!("x{at}");
        let last = if at + 1 == steps { "y".to_owned() } else { format!("x{}", at + 1) };
        node("", op, &[&from, &from], &[&last], more)
    });
    runs(count, &[first, nodes].concat())
}

/// A sequence that has the parts of the one before it two times, by a loop over a cut tensor.
fn sequences(count: usize) -> Vec<u8> {
    let steps = count.min(4000);
    let first = node("", "SequenceConstruct", &["a"], &["s0"], &[]);
    let nodes = each(steps, |at| {
        let (from, joined) = (format!("s{at}"), format!("t{at}"));
        let to = if at + 1 == steps { "y".to_owned() } else { format!("s{}", at + 1) };
        let join = node("", "ConcatFromSequence", &[&from], &[&joined], &integer("axis", 0));
        let twice = format!("u{at}");
        let double = node("", "Concat", &[&joined, &joined], &[&twice], &integer("axis", 0));
        [join, double, node("", "SplitToSequence", &[&twice], &[&to], &integer("axis", 0))].concat()
    });
    runs(count, &[filled("a", &[1], FLOAT), first, nodes].concat())
}

/// Writes a loop of `rounds` rounds.
fn repeated(count: usize, rounds: i64, collects: bool) -> Vec<u8> {
    let inner = [
        node("", "Identity", &["go"], &["on"], &[]),
        node("", "Add", &["x", "x"], &["z"], &[]),
        field(11, typed("i", LONG, &[])),
        field(11, typed("go", 9, &[])),
        field(11, typed("x", FLOAT, &[])),
        field(12, typed("on", 9, &[])),
        field(12, typed("z", FLOAT, &[])),
        if collects { field(12, typed("z", FLOAT, &[])) } else { Vec::new() },
    ];
    let outputs: &[&str] = if collects { &["last", "y"] } else { &["y"] };
    let parts = [scalar("n", LONG, &rounds.to_le_bytes()), filled("a", &[256], FLOAT)].concat();
    let run = node("", "Loop", &["n", "", "a"], outputs, &body("body", &inner.concat()));
    runs(count, &[parts, run].concat())
}
