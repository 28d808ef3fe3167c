//! Prints the throughput of every block type on one thread, in GB/s of `f32`: quantized, quantized
//! with importance, dequantized.
//!
//! `cargo run --release -p apr-tensor --features std --example block_speed [--json] [type]...`

use std::time::{Duration, Instant};

use apr_core::DType;
use apr_tensor::block::{can_dequantize, can_quantize, dequantize, needs_importance, quantize};
use apr_tensor::drift::Drift;
use serde_json::{Map, Value};

const COLUMNS: usize = 4096;
const ROWS: usize = 256;

/// Headings of the measurements for each type.
const HEADINGS: [&str; 3] = ["quantize", "importance", "dequantize"];

fn main() {
    let (options, chosen): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word == "--json");
    let values = bell_shaped(ROWS * COLUMNS);
    let mut report = HEADINGS.map(|heading| (heading.to_owned(), Value::Object(Map::new())));
    if options.is_empty() {
        println!("{:8} {:>9} {:>11} {:>11}", "GB/s", HEADINGS[0], HEADINGS[1], HEADINGS[2]);
    }
    for &dtype in DType::ALL.iter().filter(|&&dtype| can_dequantize(dtype)) {
        if !chosen.is_empty() && !chosen.iter().any(|name| name == dtype.name()) {
            continue;
        }
        let speeds = speeds(dtype, &values);
        for ((_, heading), speed) in report.iter_mut().zip(speeds) {
            heading[dtype.name()] = speed.into();
        }
        if options.is_empty() {
            let [plain, weighted, read] =
                speeds.map(|speed| speed.map_or_else(String::new, |speed| format!("{speed:.3}")));
            println!("{:8} {plain:>9} {weighted:>11} {read:>11}", dtype.name());
        }
    }
    if !options.is_empty() {
        println!("{}", Value::Object(report.into_iter().collect()));
        return;
    }
    let other: Vec<f32> = values.iter().map(|value| value * 1.01).collect();
    let compared = throughput(|| {
        std::hint::black_box(Drift::of(&values, &other));
    });
    println!("drift    {compared:9.2}");
}

/// Returns the speeds in the order of the headings; `None` for types that are only read.
fn speeds(dtype: DType, values: &[f32]) -> [Option<f64>; 3] {
    let importance: Vec<f32> = values[..COLUMNS].iter().map(|value| value * value + 0.1).collect();
    // Random blocks where none can be made: their scales may be NaN, which costs the same.
    let stored = values.len() / elements(dtype) * bytes(dtype)
        + if dtype == DType::I8_ROW { 4 * ROWS } else { 0 };
    let mut blocks: Vec<u8> = (0..stored).map(|i| (i * 2_654_435_761).to_le_bytes()[1]).collect();
    let mut written = [None; 2];
    if can_quantize(dtype) {
        written = [None, Some(&importance[..])].map(|importance| {
            (importance.is_some() || !needs_importance(dtype)).then(|| {
                // What is made once is not counted.
                quantize(dtype, &values[..COLUMNS], COLUMNS, importance, &mut blocks);
                throughput(|| {
                    blocks.clear();
                    quantize(dtype, values, COLUMNS, importance, &mut blocks);
                })
            })
        });
    }
    let mut back = Vec::new();
    let read = throughput(|| dequantize(dtype, &blocks, COLUMNS, &mut back));
    [written[0], written[1], Some(read)]
}

/// The best of several runs.
fn throughput(mut run: impl FnMut()) -> f64 {
    let (mut best, start) = (Duration::MAX, Instant::now());
    while start.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
    }
    (4 * ROWS * COLUMNS) as f64 / best.as_secs_f64() / 1e9
}

fn elements(dtype: DType) -> usize {
    usize::try_from(dtype.block_len()).unwrap_or(usize::MAX)
}

fn bytes(dtype: DType) -> usize {
    usize::try_from(dtype.block_bytes()).unwrap_or(usize::MAX)
}

/// Sums of uniform numbers, from a linear congruential generator.
fn bell_shaped(len: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| uniform() + uniform() + uniform()).collect()
}
