//! Models of XGBoost and LightGBM, run and exported as ONNX.
//!
//! Expected values: both packages (`fixtures/trees/make.py`).

use apr_testkit::locate::fixture;
use serde_json::{Map, Value};

use crate::support::Sandbox;

fn models() -> (Sandbox, Map<String, Value>) {
    let sandbox = Sandbox::new();
    for entry in fixture("trees").read_dir().expect("the fixtures") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        sandbox.write(&name, std::fs::read(path).expect("a file"));
    }
    let expected = serde_json::from_slice(&sandbox.read("expected.json")).expect("JSON");
    (sandbox, expected)
}

fn rows(value: &Value) -> Vec<f64> {
    let rows = value.as_array().expect("rows").iter();
    rows.flat_map(|row| row.as_array().expect("a row"))
        .map(|one| one.as_f64().expect("a number"))
        .collect()
}

#[test]
fn trees_predict_what_their_own_programs_do() {
    let (sandbox, expected) = models();
    assert_eq!(expected.len(), 14);
    for (name, expected) in &expected {
        sandbox.apr(&format!("convert {name} -o m.onnx -f")).ok();
        sandbox.apr(&format!("import {name} -o m.apr -f")).ok();
        for model in [name.as_str(), "m.apr", "m.onnx"] {
            sandbox.apr(&format!("run {model} -i x.npy -o y.json -f")).ok();
            let found: Value = serde_json::from_slice(&sandbox.read("y.json")).expect("JSON");
            for output in ["margin", "prediction"] {
                let (found, wanted) = (rows(&found[output]), rows(&expected[output]));
                assert_eq!(found.len(), wanted.len(), "{name}: {output}");
                for (found, wanted) in found.iter().zip(&wanted) {
                    let tolerance = 1e-6 * wanted.abs().max(1.0);
                    let is_near = (found - wanted).abs() <= tolerance;
                    assert!(is_near, "{model} of {name}: {output}: {found} for {wanted}");
                }
            }
        }
    }
}

#[test]
fn lists_are_tensors_and_parameters_are_metadata() {
    let (sandbox, _) = models();
    sandbox.apr("tensors binary.ubj").ok().says(&["trees/split_conditions", "trees/groups"]);
    sandbox.apr("tensors light_binary.txt").ok().says(&["trees/threshold", "f64"]);
    let report = sandbox.apr("inspect regression.json --json").ok().json();
    assert_eq!(report["format"], "xgboost", "{report}");
    let learner = &report["metadata"]["xgboost"]["learner"];
    assert_eq!(learner["objective"]["name"], "reg:squarederror", "{learner}");
    let report = sandbox.apr("inspect light_binary.txt --json").ok().json();
    assert_eq!(report["metadata"]["lightgbm"]["objective"], "binary sigmoid:0.8", "{report}");
    for model in ["classes.json", "numbers.ubj", "light_classes.txt"] {
        sandbox.apr(&format!("validate {model}")).ok();
        sandbox.apr(&format!("convert {model} -o m.safetensors -f")).ok();
        sandbox.apr(&format!("diff {model} m.safetensors")).ok().says(&["SAME"]);
        sandbox.apr(&format!("graph {model}")).ok().says(&["TreeEnsembleRegressor"]);
        sandbox.apr(&format!("scan {model}")).ok();
    }
}

#[test]
fn models_that_onnx_has_no_operators_for_are_named() {
    let (sandbox, _) = models();
    for (model, program, missing) in [
        ("categories.json", "XGBoost", "splits by categories"),
        ("linear.json", "XGBoost", "booster gblinear"),
        ("several.json", "XGBoost", "several targets at a leaf"),
        ("light_categories.txt", "LightGBM", "splits by categories"),
        ("light_linear.txt", "LightGBM", "linear leaves"),
        ("light_zeros.txt", "LightGBM", "zeros that stand for missing values"),
    ] {
        let message = format!("{program} operators that apr does not translate to ONNX: {missing}");
        sandbox.apr(&format!("convert {model} -o m.onnx")).fails(4, &["E003", &message]);
        assert!(!sandbox.path("m.onnx").exists());
        sandbox.apr(&format!("run {model} -i x.npy")).fails(4, &["E003", &message]);
        sandbox.apr(&format!("validate {model}")).ok();
    }
}
