//! Weights that do not fit the memory are read in the order of use; integers stay integers until
//! they are multiplied.

use std::sync::Mutex;

use apr_core::{CheckpointReader, Code, DType, Limits, Result, pass_on};
use apr_graph::{Constant, ConstantData, Dim, ElementType, Graph, GraphBuilder, Meaning, ValueId};
use apr_infer::{Alone, Engine, Outcome, RunLimits, Tensor, Unwatched, Value};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

/// A checkpoint on a disk: it lends no memory, and notes what is read of which tensor.
struct Disk {
    base: Box<dyn CheckpointReader>,
    reads: Mutex<Vec<(usize, u64, usize)>>,
}

impl Disk {
    fn new(base: impl CheckpointReader + 'static) -> Self {
        Self { base: Box::new(base), reads: Mutex::default() }
    }

    /// Returns the tensor, offset and length of each read since the last call.
    fn reads(&self) -> Vec<(usize, u64, usize)> {
        std::mem::take(&mut *self.reads.lock().expect("no panic"))
    }
}

impl CheckpointReader for Disk {
    pass_on!(base: format, metadata, tensors, stored, container, files, companions,
        read_companion, left_out, warnings);

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reads.lock().expect("no panic").push((tensor, offset, buf.len()));
        self.base.read_tensor(tensor, offset, buf)
    }

    fn tensor_slice(&self, _: usize) -> Option<&[u8]> {
        None
    }
}

/// Rows and columns of each weight of the chain: a quarter of a mebibyte.
const SIZE: usize = 256;
const LAYERS: usize = 12;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|n| ((n * 7919 + seed * 104_729) % 2003) as f32 / 16_016.0 - 0.0625).collect()
}

/// A model of matrices, and the graph that multiplies with one after the other.
fn chain() -> (Disk, Graph) {
    let mut file = Apr2Builder::new().metadata("{}");
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let mut value = body.input(
        "x",
        ElementType::F32,
        [Dim::symbol("n"), Dim::fixed(SIZE as u64)],
        Meaning::Unknown,
    );
    for layer in 0..LAYERS {
        let bytes: Vec<u8> =
            numbers(SIZE * SIZE, layer).iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = format!("w{layer:02}");
        file = file.entry(Apr2Entry::new(&name, DType::F32, &[SIZE as u64; 2], &bytes));
        let weight = body.weight(&name, ElementType::F32, [SIZE as u64; 2]);
        value = body.op("MatMul", [value, weight]).output(&format!("y{layer}"));
    }
    body.output("y", value, Meaning::Unknown);
    let reader =
        apr_format::apr2::open(file.build(), "chain.apr", &Limits::default()).expect("a model");
    (Disk::new(reader), graph.finish())
}

fn limits(max_memory: u64) -> RunLimits {
    let mut limits = RunLimits::default();
    limits.max_memory = max_memory;
    limits
}

fn run(session: &apr_infer::Session<'_>, x: Tensor) -> Result<Outcome> {
    session.run(vec![("x".into(), x.into())], &["y"], &Alone, &mut Unwatched)
}

#[test]
fn large_weights_are_read_in_the_order_of_use_at_every_run() {
    let (disk, graph) = chain();
    for rows in [1, 7] {
        let x = Tensor::new(vec![rows, SIZE], numbers(rows * SIZE, 99)).unwrap();
        let plenty = Engine::prepare(&graph, &disk, RunLimits::default()).unwrap();
        let expected = run(&plenty, x.clone()).unwrap().outputs.remove(0);
        disk.reads();
        let expected_again = run(&plenty, x.clone()).unwrap().outputs.remove(0);
        assert_eq!(disk.reads(), [], "what is kept is not read again");
        assert_eq!(expected.tensor().unwrap(), expected_again.tensor().unwrap());

        // A sixth of the weights.
        let little = Engine::prepare(&graph, &disk, limits(1 << 19)).unwrap();
        let outcome = run(&little, x.clone()).unwrap();
        assert_eq!(outcome.outputs[0].tensor().unwrap(), expected.tensor().unwrap(), "{rows} rows");
        let reads = disk.reads();
        let total: usize = reads.iter().map(|(_, _, len)| len).sum();
        assert_eq!(total, LAYERS * SIZE * SIZE * 4, "each byte once");
        assert!(reads.is_sorted(), "front to back");
        assert!(outcome.peak_bytes <= 2 * (rows * SIZE * 4) as u64);
    }
}

#[test]
fn an_operator_rejects_a_whole_weight_that_does_not_fit_the_memory() {
    let (disk, _) = chain();
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let x = body.input(
        "x",
        ElementType::F32,
        [Dim::fixed(1), Dim::fixed(SIZE as u64)],
        Meaning::Unknown,
    );
    let weight = body.weight("w03", ElementType::F32, [SIZE as u64; 2]);
    let y = body.op("Add", [x, weight]).output("added");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let session = Engine::prepare(&graph, &disk, limits(1 << 17)).unwrap();
    let error = run(&session, Tensor::new(vec![1, SIZE], numbers(SIZE, 1)).unwrap()).unwrap_err();
    assert_eq!(error.code(), Code::Memory);
    assert!(
        error.message().contains("node 'added' (Add)") && error.tensor() == Some("w03"),
        "{error:?}"
    );
}

fn constant(values: &[f32], shape: &[u64]) -> Constant {
    Constant { shape: shape.to_vec(), ..Constant::floats(values) }
}

fn small(element: ElementType, values: &[i8]) -> Constant {
    Constant {
        name: String::new(),
        element,
        shape: vec![values.len() as u64],
        data: ConstantData::Bytes(values.iter().map(|value| value.cast_unsigned()).collect()),
    }
}

/// 300 x 400 integers.
const ROWS: usize = 300;
const COLUMNS: usize = 400;

fn integers() -> (Disk, Vec<i8>) {
    let values: Vec<i8> = (0..ROWS * COLUMNS).map(|n| (n * 7919 % 251) as u8 as i8).collect();
    let bytes: Vec<u8> = values.iter().map(|value| value.cast_unsigned()).collect();
    let plain = Apr2Entry::new("w", DType::I8, &[ROWS as u64, COLUMNS as u64], &bytes);
    let filters = Apr2Entry::new("f", DType::I8, &[100, 300, 2, 2], &bytes);
    let file = Apr2Builder::new().metadata("{}").entry(filters).entry(plain).build();
    (
        Disk::new(
            apr_format::apr2::open(file, "integers.apr", &Limits::default()).expect("a model"),
        ),
        values,
    )
}

/// Multiplies `x` with the floats that the integers represent, in half the memory that the floats
/// would take.
fn product(
    make: impl FnOnce(&mut apr_graph::BodyBuilder) -> ValueId,
    x: Tensor,
    operator: &str,
) -> (Vec<usize>, Vec<f32>) {
    let (disk, _) = integers();
    let mut graph = GraphBuilder::new(21);
    let body = graph.body();
    let dims: Vec<Dim> = x.shape().iter().map(|&size| Dim::fixed(size as u64)).collect();
    let given = body.input("x", ElementType::F32, dims, Meaning::Unknown);
    let weight = make(body);
    let y = body.op(operator, [given, weight]).output("product");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let session =
        Engine::prepare(&graph, &disk, limits((ROWS * COLUMNS * 2) as u64)).expect("a session");
    let outcome = run(&session, x).expect("a run");
    let tensor = outcome.outputs[0].tensor().expect("a tensor").clone();
    (tensor.shape().to_vec(), tensor.into_values().expect("floats"))
}

fn assert_close(ours: &[f32], expected: impl Iterator<Item = f64>, what: &str) {
    let expected: Vec<f64> = expected.collect();
    assert_eq!(ours.len(), expected.len(), "{what}");
    for (at, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        let difference = (f64::from(*ours) - expected).abs();
        assert!(
            difference <= 1e-3 + 1e-4 * expected.abs(),
            "{what}: element {at}: {ours} and {expected}"
        );
    }
}

#[test]
fn integers_behind_dequantize_linear_are_never_in_memory_as_floats() {
    let (_, codes) = integers();
    let scales =
        |count: usize| -> Vec<f32> { (0..count).map(|n| 0.01 + (n % 13) as f32 * 0.005).collect() };
    let zeros = |count: usize| -> Vec<i8> { (0..count).map(|n| (n % 7) as i8 - 3).collect() };
    // Name, number and shape of scales, axis, block, and the scale of an element.
    type Of = fn(usize, usize) -> usize;
    type Case = (&'static str, usize, Vec<u64>, i64, i64, Of);
    let cases: [Case; 5] = [
        ("one scale", 1, vec![], 1, 0, |_, _| 0),
        ("a scale for each row", ROWS, vec![ROWS as u64], 0, 0, |row, _| row),
        ("a scale for each column", COLUMNS, vec![COLUMNS as u64], -1, 0, |_, column| column),
        ("blocks of rows", 3 * COLUMNS, vec![3, COLUMNS as u64], 0, 100, |row, column| {
            row / 100 * COLUMNS + column
        }),
        ("blocks of columns", ROWS * 8, vec![ROWS as u64, 8], 1, 50, |row, column| {
            row * 8 + column / 50
        }),
    ];
    for (what, count, shape, axis, block, of) in cases {
        for (rows, turned) in [(1, false), (4, false), (1, true), (4, true)] {
            let (scale, zero) = (scales(count), zeros(count));
            let (depth, width) = if turned { (COLUMNS, ROWS) } else { (ROWS, COLUMNS) };
            let make = |body: &mut apr_graph::BodyBuilder| {
                let weight = body.weight("w", ElementType::I8, [ROWS as u64, COLUMNS as u64]);
                let scale = body.constant(constant(&scale, &shape));
                let zero = body
                    .constant(Constant { shape: shape.clone(), ..small(ElementType::I8, &zero) });
                let node = body.op("DequantizeLinear", [weight, scale, zero]);
                let floats =
                    node.attribute("axis", axis).attribute("block_size", block).output("floats");
                if turned {
                    body.op("Transpose", [floats]).attribute("perm", [1, 0]).output("turned")
                } else {
                    floats
                }
            };
            let x = numbers(rows * depth, 5);
            let (_, ours) =
                product(make, Tensor::new(vec![rows, depth], x.clone()).unwrap(), "MatMul");
            let element = |k: usize, column: usize| {
                let (row, column) = if turned { (column, k) } else { (k, column) };
                let at = of(row, column);
                (f64::from(codes[row * COLUMNS + column]) - f64::from(zero[at]))
                    * f64::from(scale[at])
            };
            let expected = (0..rows * width).map(|at| {
                (0..depth)
                    .map(|k| f64::from(x[at / width * depth + k]) * element(k, at % width))
                    .sum::<f64>()
            });
            assert_close(&ours, expected, &format!("{what}, {rows} rows, turned: {turned}"));
        }
    }
}

#[test]
fn integer_filters_are_decoded_a_few_at_a_time() {
    let (_, codes) = integers();
    let scale: Vec<f32> = (0..100).map(|n| 0.01 + n as f32 * 0.001).collect();
    let make = |body: &mut apr_graph::BodyBuilder| {
        let weight = body.weight("f", ElementType::I8, [100, 300, 2, 2]);
        let scale = body.constant(constant(&scale, &[100]));
        body.op("DequantizeLinear", [weight, scale]).attribute("axis", 0).output("floats")
    };
    let x = numbers(300 * 3 * 3, 8);
    let (shape, ours) = product(make, Tensor::new(vec![1, 300, 3, 3], x.clone()).unwrap(), "Conv");
    assert_eq!(shape, [1, 100, 2, 2]);
    let expected = (0..100 * 4).map(|at| {
        let (filter, row, column) = (at / 4, at / 2 % 2, at % 2);
        let of = |k: usize| {
            let (channel, down, across) = (k / 4, k / 2 % 2, k % 2);
            f64::from(x[channel * 9 + (row + down) * 3 + column + across])
                * f64::from(codes[filter * 1200 + k])
        };
        (0..1200).map(of).sum::<f64>() * f64::from(scale[filter])
    });
    assert_close(&ours, expected, "filters");
}

#[test]
fn an_integer_weight_that_is_added_is_decoded_as_a_whole_where_it_fits() {
    let (disk, codes) = integers();
    let mut graph = GraphBuilder::new(21);
    let body = graph.body();
    let x = body.input("x", ElementType::F32, [Dim::fixed(1)], Meaning::Unknown);
    let weight = body.weight("w", ElementType::I8, [ROWS as u64, COLUMNS as u64]);
    let scale = body.float(0.5);
    let floats = body.op("DequantizeLinear", [weight, scale]).output("floats");
    let turned = body.op("Transpose", [floats]).output("turned");
    let y = body.op("Add", [x, turned]).output("sum");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let session = Engine::prepare(&graph, &disk, RunLimits::default()).unwrap();
    let outputs = run(&session, Tensor::row(vec![1.0_f32])).unwrap().outputs;
    let Value::Tensor(tensor) = &outputs[0] else { panic!("a tensor is expected") };
    assert_eq!(tensor.shape(), [COLUMNS, ROWS]);
    assert_eq!(
        tensor.values::<f32>().unwrap()[ROWS + 2],
        f32::from(codes[2 * COLUMNS + 1]) * 0.5 + 1.0
    );
}
