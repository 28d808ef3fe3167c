//! Quantization from outside: types and who gets which, what it costs, when it is refused. Points
//! 34, 62, 81, 82 and 83 of `docs/qa.md` for quantized models.

mod again;
mod cost;
mod importance;
mod layouts;
mod mixed;
mod search;
mod targets;
mod types;
mod values;

use serde_json::Value;

use crate::support::{Sandbox, f32s, safetensors, scrambled};

/// Values of a trained matrix, without a pattern that blocks could profit from.
fn weights(count: u64) -> Vec<f32> {
    (0..count).map(|at| (scrambled(at) >> 40) as f32 / (1 << 24) as f32 * 0.1 - 0.05).collect()
}

/// Rows that every block divides, that only blocks of 32 divide, that none does; and a vector.
fn four_tensors() -> Vec<u8> {
    safetensors(&[
        ("a.weight", "F32", &[4, 256], f32s(&weights(1024))),
        ("b.weight", "F32", &[4, 64], f32s(&weights(256))),
        ("c.weight", "F32", &[4, 7], f32s(&weights(28))),
        ("d.bias", "F32", &[8], f32s(&weights(8))),
    ])
}

fn sandbox() -> Sandbox {
    Sandbox::new().with("m.safetensors", four_tensors())
}

/// The dtypes of a model's tensors, in the order of their names.
#[track_caller]
fn dtypes(sandbox: &Sandbox, model: &str) -> Vec<String> {
    let report = sandbox.apr(&format!("tensors {model} --sort name --json")).ok().json();
    let rows = report["tensors"].as_array().expect("a list");
    rows.iter().map(|row| row["dtype"].as_str().expect("text").to_owned()).collect()
}

/// Type and reason of every tensor in the report of a conversion.
fn reasons(report: &Value) -> Vec<(&str, &str, Option<&str>)> {
    let rows = report["tensors"].as_array().expect("a list");
    rows.iter().map(|row| (text(&row["name"]), text(&row["to"]), row["why"].as_str())).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// An importance matrix in llama.cpp's older form, for one tensor.
fn legacy_imatrix(name: &str, values: &[f32]) -> Vec<u8> {
    let number = |value: usize| i32::try_from(value).expect("small").to_le_bytes();
    [
        &number(1)[..],
        &number(name.len()),
        name.as_bytes(),
        &number(1),
        &number(values.len()),
        &f32s(values),
    ]
    .concat()
}
