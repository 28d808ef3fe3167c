//! Weights of every dtype give what their decoded elements give.

use apr_core::{CheckpointReader, DType, Limits};
use apr_graph::{Dim, ElementType, GraphBuilder, Meaning, View};
use apr_infer::{Alone, Engine, RunLimits, Tensor, Unwatched, Value};
use apr_tensor::{block, cast, element};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

/// Rows and columns of the weight, as it is stored.
const ROWS: usize = 300;
const COLUMNS: usize = 512;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|n| ((n * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// The weight as stored bytes, and what they decode to.
fn stored(dtype: DType) -> (Vec<u8>, Vec<f32>) {
    let values = numbers(ROWS * COLUMNS, 1);
    let (mut bytes, mut back) = (Vec::new(), Vec::new());
    if block::can_quantize(dtype) {
        block::quantize(dtype, &values, COLUMNS, None, &mut bytes);
        block::dequantize(dtype, &bytes, COLUMNS, &mut back);
    } else {
        cast::cast_values(&values, dtype, &mut bytes);
        element::widen_f32(dtype, &bytes, &mut back);
    }
    (bytes, back)
}

fn open(dtype: DType, bytes: &[u8]) -> impl CheckpointReader {
    let entry = Apr2Entry::new("w", dtype, &[ROWS as u64, COLUMNS as u64], bytes);
    let file = Apr2Builder::new().metadata("{}").entry(entry).build();
    apr_format::apr2::open(file, "weights.apr", &Limits::default()).expect("a model")
}

/// Runs `x` times the weight, looked at through views.
fn product(reader: &dyn CheckpointReader, rows: usize, depth: usize, views: Vec<View>, shape: [u64; 2]) -> Vec<f32> {
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let x = body.input("x", ElementType::F32, [Dim::symbol("n"), Dim::fixed(depth as u64)], Meaning::Unknown);
    let w = body.viewed("w", views, ElementType::F32, shape);
    let y = body.op("MatMul", [x, w]).output("y");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let session = Engine::prepare(&graph, reader, RunLimits::default()).expect("a session");
    let x = Tensor::new(vec![rows, depth], numbers(rows * depth, 2)).expect("a tensor");
    let outcome = session.run(vec![("x".into(), Value::Tensor(x))], &["y"], &Alone, &mut Unwatched).expect("a run");
    outcome.outputs[0].tensor().and_then(Tensor::values::<f32>).expect("floats").to_vec()
}

/// The same in double precision, one multiplication after the other.
fn expected(rows: usize, depth: usize, width: usize, at: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let x = numbers(rows * depth, 2);
    let sum = |row: usize, column: usize| -> f64 {
        (0..depth).map(|k| f64::from(x[row * depth + k]) * f64::from(at(k, column))).sum()
    };
    (0..rows * width).map(|at| sum(at / width, at % width) as f32).collect()
}

fn assert_close(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (at, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!((a - b).abs() <= 1e-4 + 1e-4 * b.abs(), "{what}: element {at}: {a} and {b}");
    }
}

const DTYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F8_E4M3,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_K,
    DType::Q6_K,
    DType::I8_ROW,
];

#[test]
fn a_product_with_a_weight_is_the_product_with_what_it_decodes_to() {
    for dtype in DTYPES {
        let (bytes, values) = stored(dtype);
        let reader = open(dtype, &bytes);
        for rows in [1, 5] {
            let plain = product(&reader, rows, ROWS, Vec::new(), [ROWS as u64, COLUMNS as u64]);
            let theirs = expected(rows, ROWS, COLUMNS, |k, column| values[k * COLUMNS + column]);
            assert_close(&plain, &theirs, &format!("{dtype}, {rows} rows"));
            let turned = vec![View::Transposed(vec![1, 0])];
            let ours = product(&reader, rows, COLUMNS, turned, [COLUMNS as u64, ROWS as u64]);
            let theirs = expected(rows, COLUMNS, ROWS, |k, column| values[column * COLUMNS + k]);
            assert_close(&ours, &theirs, &format!("{dtype}, transposed, {rows} rows"));
        }
    }
}

#[test]
fn slices_and_joined_weights_are_decoded_by_rows_too() {
    for dtype in DTYPES {
        let (bytes, values) = stored(dtype);
        let reader = open(dtype, &bytes);
        // Columns 32 to 96, which no dtype but the small blocks can cut without decoding more.
        let slice = vec![View::Slice { axis: 1, start: 32, len: 64 }];
        let ours = product(&reader, 3, ROWS, slice, [ROWS as u64, 64]);
        let theirs = expected(3, ROWS, 64, |k, column| values[k * COLUMNS + 32 + column]);
        assert_close(&ours, &theirs, &format!("{dtype}, columns"));
        let twice = vec![
            View::Slice { axis: 0, start: 10, len: 100 },
            View::Joined { axis: 0, with: vec!["w".to_owned()] },
            View::Transposed(vec![1, 0]),
        ];
        let ours = product(&reader, 2, COLUMNS, twice, [COLUMNS as u64, 100 + ROWS as u64]);
        let row = |column: usize| if column < 100 { 10 + column } else { column - 100 };
        let theirs = expected(2, COLUMNS, 100 + ROWS, |k, column| values[row(column) * COLUMNS + k]);
        assert_close(&ours, &theirs, &format!("{dtype}, joined"));
    }
}

#[test]
fn a_weight_is_never_in_memory_as_a_whole() {
    let (bytes, _) = stored(DType::F32);
    let reader = open(DType::F32, &bytes);
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let x = body.input("x", ElementType::F32, [Dim::fixed(1), Dim::fixed(ROWS as u64)], Meaning::Unknown);
    let w = body.weight("w", ElementType::F32, [ROWS as u64, COLUMNS as u64]);
    let y = body.op("MatMul", [x, w]).output("y");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let session = Engine::prepare(&graph, &reader, RunLimits::default()).expect("a session");
    let x = Tensor::new(vec![1, ROWS], vec![0.5_f32; ROWS]).expect("a tensor");
    let outcome = session.run(vec![("x".into(), x.into())], &["y"], &Alone, &mut Unwatched).expect("a run");
    assert_eq!(outcome.peak_bytes, 4 * COLUMNS as u64, "the output, which is larger than the input");
}
