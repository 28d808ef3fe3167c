//! Weights of every dtype give what their decoded elements give.

use apr_core::{CheckpointReader, DType, Limits};
use apr_graph::{Dim, ElementType, GraphBuilder, Meaning, View};
use apr_infer::{Alone, Engine, RunLimits, Tensor, Unwatched, Value};
use apr_tensor::{block, cast, element};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

/// Number of rows of the stored weight. `COLUMNS` is the number of its columns.
const ROWS: usize = 300;
const COLUMNS: usize = 512;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|n| ((n * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// Returns the weight as stored bytes, and its decoded values.
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
fn product(
    reader: &dyn CheckpointReader,
    rows: usize,
    depth: usize,
    views: Vec<View>,
    shape: [u64; 2],
) -> Vec<f32> {
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let x = body.input(
        "x",
        ElementType::F32,
        [Dim::symbol("n"), Dim::fixed(depth as u64)],
        Meaning::Unknown,
    );
    let w = body.viewed("w", views, ElementType::F32, shape);
    let y = body.op("MatMul", [x, w]).output("y");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let session = Engine::prepare(&graph, reader, RunLimits::default()).expect("a session");
    let x = Tensor::new(vec![rows, depth], numbers(rows * depth, 2)).expect("a tensor");
    let outcome = session
        .run(vec![("x".into(), Value::Tensor(x))], &["y"], &Alone, &mut Unwatched)
        .expect("a run");
    outcome.outputs[0].tensor().and_then(Tensor::values::<f32>).expect("floats").to_vec()
}

/// Returns the expected product in double precision, summed in order.
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
fn a_product_with_a_weight_equals_the_product_with_its_decoded_values() {
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
        let theirs =
            expected(2, COLUMNS, 100 + ROWS, |k, column| values[row(column) * COLUMNS + k]);
        assert_close(&ours, &theirs, &format!("{dtype}, joined"));
    }
}

#[test]
fn a_weight_is_never_in_memory_as_a_whole() {
    let (bytes, _) = stored(DType::F32);
    let reader = open(DType::F32, &bytes);
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let x = body.input(
        "x",
        ElementType::F32,
        [Dim::fixed(1), Dim::fixed(ROWS as u64)],
        Meaning::Unknown,
    );
    let w = body.weight("w", ElementType::F32, [ROWS as u64, COLUMNS as u64]);
    let y = body.op("MatMul", [x, w]).output("y");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let session = Engine::prepare(&graph, &reader, RunLimits::default()).expect("a session");
    let x = Tensor::new(vec![1, ROWS], vec![0.5_f32; ROWS]).expect("a tensor");
    let outcome =
        session.run(vec![("x".into(), x.into())], &["y"], &Alone, &mut Unwatched).expect("a run");
    assert_eq!(
        outcome.peak_bytes,
        4 * COLUMNS as u64,
        "the output, which is larger than the input"
    );
}

/// Returns the output of `Identity` for a weight that is read through views, without a product that
/// decodes rows.
fn looked_at(
    reader: &dyn CheckpointReader,
    views: Vec<View>,
    element: ElementType,
    shape: &[u64],
) -> Tensor {
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let w = body.viewed("w", views, element, shape.iter().copied());
    let y = body.op("Identity", [w]).output("y");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let session = Engine::prepare(&graph, reader, RunLimits::default()).expect("a session");
    let outcome = session.run(Vec::new(), &["y"], &Alone, &mut Unwatched).expect("a run");
    outcome.outputs[0].tensor().expect("a tensor").clone()
}

#[test]
fn weights_that_are_decoded_as_a_whole_are_seen_through_every_view() {
    let values: Vec<f32> = (0..12).map(|n| n as f32).collect();
    let bytes = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    let more: Vec<f32> = (20..32).map(|n| n as f32).collect();
    let file = Apr2Builder::new()
        .metadata("{}")
        .entry(Apr2Entry::new("v", DType::F32, &[3, 4], &bytes(&more)))
        .entry(Apr2Entry::new("w", DType::F32, &[3, 4], &bytes(&values)))
        .build();
    let reader = apr_format::apr2::open(file, "weights.apr", &Limits::default()).expect("a model");
    let rows = |found: Tensor, shape: &[usize]| {
        assert_eq!(found.shape(), shape);
        found.values::<f32>().expect("floats").to_vec()
    };
    let same = looked_at(&reader, vec![View::Transposed(vec![0, 1])], ElementType::F32, &[3, 4]);
    assert_eq!(rows(same, &[3, 4]), values);
    let turned = looked_at(&reader, vec![View::Transposed(vec![1, 0])], ElementType::F32, &[4, 3]);
    assert_eq!(rows(turned, &[4, 3])[..4], [0.0, 4.0, 8.0, 1.0]);
    let slice = vec![View::Slice { axis: 1, start: 1, len: 2 }];
    assert_eq!(
        rows(looked_at(&reader, slice, ElementType::F32, &[3, 2]), &[3, 2]),
        [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]
    );
    for (axis, shape) in [(0, [6, 4]), (1, [3, 8])] {
        let joined = vec![View::Joined { axis, with: vec!["v".to_owned()] }];
        let found = rows(
            looked_at(&reader, joined, ElementType::F32, &shape.map(|size| size as u64)),
            &shape,
        );
        let begin = if axis == 0 { [4.0, 5.0, 6.0, 7.0] } else { [20.0, 21.0, 22.0, 23.0] };
        assert_eq!(found[4..8], begin);
    }
    let stacked = vec![View::Stacked(vec!["v".to_owned()])];
    let found = rows(looked_at(&reader, stacked, ElementType::F32, &[2, 3, 4]), &[2, 3, 4]);
    assert_eq!(found, [values.clone(), more].concat());
    let plus = looked_at(&reader, vec![View::Plus(-1)], ElementType::F32, &[3, 4]);
    assert_eq!(rows(plus, &[3, 4])[..3], [-1.0, 0.0, 1.0]);
    let cut = vec![View::Reshaped(vec![2, 6]), View::Slice { axis: 0, start: 1, len: 1 }];
    assert_eq!(rows(looked_at(&reader, cut, ElementType::F32, &[1, 6]), &[1, 6])[0], 6.0);
}

#[test]
fn small_integers_stored_in_a_byte_each_keep_the_type_of_the_graph() {
    let file = Apr2Builder::new()
        .metadata("{}")
        .entry(Apr2Entry::new("w", DType::I8, &[3], &[7, 0xf8, 0]))
        .build();
    let reader = apr_format::apr2::open(file, "weights.apr", &Limits::default()).expect("a model");
    let found = looked_at(&reader, Vec::new(), ElementType::I4, &[3]);
    assert_eq!(
        (found.element(), found.values::<i8>().expect("a byte each")),
        (ElementType::I4, &[7, -8, 0][..])
    );
    let file = Apr2Builder::new()
        .metadata("{}")
        .entry(Apr2Entry::new("w", DType::U8, &[3], &[15, 1, 0]))
        .build();
    let reader = apr_format::apr2::open(file, "weights.apr", &Limits::default()).expect("a model");
    let found = looked_at(&reader, Vec::new(), ElementType::U4, &[3]);
    assert_eq!(
        (found.element(), found.values::<u8>().expect("a byte each")),
        (ElementType::U4, &[15, 1, 0][..])
    );
}
