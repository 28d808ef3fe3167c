//! Every deterministic method equals mergekit 0.1.5 (`fixtures/merge/make.py`).

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Limits};
use apr_merge::{MergeOptions, Merged, Model, parse};
use apr_testkit::locate;
use apr_view::values;

/// Methods whose scalars follow from sums over a whole tensor, which PyTorch's vectors add up in an
/// order of their own: in `f32` their last bits differ, and so do those of the two coefficients
/// that follow. What is compared there is in units of the largest term, one for each of the two,
/// since terms may cancel.
const SUMMED: [&str; 13] = [
    "slerp",
    "nuslerp",
    "nuslerp_base",
    "nuslerp_rows",
    "nuslerp_columns",
    "multislerp",
    "multislerp_base",
    "karcher",
    "model_stock",
    "model_stock_rows",
    "ties_rescaled",
    "sce",
    "sce_selected",
];

fn open(path: &str) -> Arc<dyn CheckpointReader> {
    let path = locate::fixture("merge").join(path);
    let bytes = fs::read(&path).expect("the fixture is there");
    Arc::from(apr_registry::open(bytes, "model.safetensors", &Limits::default()).expect("a model"))
}

fn elements(reader: &dyn CheckpointReader, name: &str) -> (DType, Vec<f64>) {
    let position = reader.tensors().iter().position(|info| info.name == name);
    let position = position.unwrap_or_else(|| panic!("no tensor {name}"));
    let info = &reader.tensors()[position];
    let count = info.shape.elements().expect("few");
    (info.dtype, values::read(reader, position, 0..count).expect("readable"))
}

/// The distance of neighbouring numbers of a dtype near a value.
fn unit(dtype: DType, value: f64) -> f64 {
    let bits = match dtype {
        DType::F32 => 23,
        DType::F16 => 10,
        DType::BF16 => 7,
        other => panic!("no golden has {other}"),
    };
    let exponent = value.abs().max(1e-30).log2().floor();
    (exponent - f64::from(bits)).exp2()
}

#[test]
fn every_method_equals_mergekit() {
    let text = fs::read(locate::fixture("merge").join("configurations.json")).expect("there");
    let configurations: BTreeMap<String, String> =
        serde_json::from_slice(&text).expect("a table of texts");
    let goldens = open("goldens.safetensors");
    let mut failures = Vec::new();
    for (name, configuration) in &configurations {
        let recipes = parse(configuration).unwrap_or_else(|error| panic!("{name}: {error}"));
        let recipe = &recipes[0];
        let models: Vec<Model<'_>> = recipe
            .models()
            .into_iter()
            .map(|model| Model {
                name: model.to_owned(),
                reader: open(&format!("{model}/model.safetensors")),
            })
            .collect();
        let merged = Merged::plan(recipe, &models, &MergeOptions::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let prefix = format!("{name}/");
        let mut compared = 0;
        for golden in goldens.tensors().iter().filter(|info| info.name.starts_with(&prefix)) {
            let tensor = &golden.name[prefix.len()..];
            let (dtype, found) = elements(&merged, tensor);
            let (_, expected) = elements(&*goldens, &golden.name);
            compared += 1;
            let inputs = models.iter().filter_map(|model| largest(&*model.reader, tensor));
            let term = inputs.fold(0.0, f64::max);
            let (worst, equal) = compare(name, dtype, (&found, &expected), term);
            println!("{name} {tensor}: {worst:.2} units, {equal} of {} equal", found.len());
            let method = name.split('/').next().unwrap_or_default();
            let is_summed = dtype == DType::F32 && SUMMED.contains(&method);
            if worst > if is_summed { 2.0 } else { 1.0 } {
                failures.push(format!("{name} {tensor}: {worst} units"));
            }
        }
        assert!(compared > 1, "{name}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The largest element of a tensor of a model.
fn largest(reader: &dyn CheckpointReader, name: &str) -> Option<f64> {
    let has = reader.tensors().iter().any(|info| info.name == name);
    let magnitudes = |values: Vec<f64>| values.into_iter().map(f64::abs).fold(0.0, f64::max);
    has.then(|| magnitudes(elements(reader, name).1))
}

/// Returns the largest difference in units of the last place, and the number of equal elements.
fn compare(
    name: &str,
    dtype: DType,
    (found, expected): (&[f64], &[f64]),
    term: f64,
) -> (f64, usize) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let method = name.split('/').next().unwrap_or_default();
    let is_summed = dtype == DType::F32 && SUMMED.contains(&method);
    let mut worst = 0.0_f64;
    let mut equal = 0;
    for (&found, &expected) in found.iter().zip(expected) {
        let scale = if is_summed { term } else { expected };
        let apart = (found - expected).abs() / unit(dtype, scale);
        worst = worst.max(apart);
        equal += usize::from(found == expected);
    }
    (worst, equal)
}
