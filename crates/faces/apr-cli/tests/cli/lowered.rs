//! Models of Keras, TensorFlow, Core ML and OpenVINO, run and exported as ONNX.
//!
//! Expected values: Keras, TensorFlow and OpenVINO (`fixtures/keras/lowered.py`,
//! `fixtures/tensorflow/lowered.py`, `fixtures/openvino/make.py`); PyTorch and NumPy for Core ML,
//! which runs on Apple's systems alone (`fixtures/coreml/lowered.py`).

use std::fs;
use std::path::{Path, PathBuf};

use apr_testkit::locate::{fixture, shared_data};
use serde_json::{Map, Value, json};

use crate::support::Sandbox;

fn expected(path: &str) -> Map<String, Value> {
    let (folder, file) = path.split_once('/').expect("a folder");
    let text = fs::read(fixture(folder).join(file)).expect("the fixture");
    serde_json::from_slice(&text).expect("JSON")
}

/// Copies a file, or a folder with its files.
fn copy(sandbox: &Sandbox, from: &Path, to: &str) {
    if !from.is_dir() {
        sandbox.write(to, fs::read(from).expect("a file"));
        return;
    }
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        copy(sandbox, &path, &format!("{to}/{name}"));
    }
}

/// Returns the input that the scripts pass to a model: sin(0.7 i) rounded to 1/64, or i modulo 7.
fn input(expected: &Value) -> Value {
    let shape: Vec<usize> = serde_json::from_value(expected["shape"].clone()).expect("sizes");
    let is_integer = expected["dtype"].as_str().is_some_and(|dtype| dtype.starts_with("int"));
    let mut values: Vec<Value> = (0..shape.iter().product::<usize>())
        .map(|at| match is_integer {
            true => json!(at % 7),
            false => json!(((at as f64 * 0.7).sin() * 64.0).round_ties_even() / 64.0),
        })
        .collect();
    for size in shape.iter().skip(1).rev() {
        values = values.chunks(*size).map(|row| json!(row)).collect();
    }
    json!(values)
}

/// Graphs that do not declare the ranks of their inputs, which ONNX files require.
const WITHOUT_RANK: [&str; 2] = ["sonos_tract__hey_snips_3.pb", "sonos_tract__plus3.pb"];

/// Runs a model and its export, and compares all outputs.
fn compute(sandbox: &Sandbox, model: &str, expected: &Value) {
    sandbox.write("x.json", input(expected).to_string());
    let mut models = vec![model];
    let export = sandbox.apr(&format!("convert {model} -o m.onnx -f"));
    if WITHOUT_RANK.contains(&model) {
        export.fails(4, &["E003", "does not state the number of dimensions of its input"]);
    } else {
        export.ok();
        models.push("m.onnx");
    }
    for model in models {
        sandbox.apr(&format!("run {model} -i x.json -o y.json -f")).ok();
        let found: Value = serde_json::from_slice(&sandbox.read("y.json")).expect("JSON");
        let wanted = expected["outputs"].as_object().expect("outputs");
        for (name, wanted) in wanted {
            // One output alone has no name there.
            let found =
                if wanted_alone(expected) && !found.is_object() { &found } else { &found[name] };
            let (found, wanted) = (flat(found), flat(wanted));
            assert_eq!(found.len(), wanted.len(), "{model}: {name}");
            for (at, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let tolerance = match &expected["tolerance"] {
                    Value::Null => 1e-5 + 1e-4 * wanted.abs(),
                    // Halves, which the program rounds after each layer.
                    own => own.as_f64().expect("a number") * wanted.abs().max(1.0),
                };
                assert!(
                    (found - wanted).abs() <= tolerance,
                    "{model}: {name}[{at}]: {found} for {wanted}"
                );
            }
        }
    }
}

fn wanted_alone(expected: &Value) -> bool {
    expected["outputs"].as_object().is_some_and(|outputs| outputs.len() == 1)
}

/// All numbers in nested lists and objects; a truth is 1 or 0.
fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        Value::Object(entries) => entries.values().flat_map(flat).collect(),
        Value::Bool(truth) => vec![f64::from(u8::from(*truth))],
        value => value.as_f64().into_iter().collect(),
    }
}

/// Runs all models of a list.
fn compute_all(list: &str, folder: &Path) {
    let sandbox = Sandbox::new();
    for (name, expected) in expected(list) {
        copy(&sandbox, &folder.join(&name), &name);
        compute(&sandbox, &name, &expected);
    }
}

#[test]
fn layers_compute_what_keras_does() {
    compute_all("keras/lowered.json", &fixture("keras"));
}

#[test]
fn masks_attention_and_halves_compute_what_keras_does() {
    compute_all("keras/masked.json", &fixture("keras"));
}

#[test]
fn nodes_compute_what_tensorflow_does() {
    compute_all("tensorflow/lowered.json", &fixture("tensorflow").join("lowered"));
}

#[test]
fn loops_branches_and_volumes_compute_what_tensorflow_does() {
    compute_all("tensorflow/loops.json", &fixture("tensorflow").join("lowered"));
}

#[test]
fn layers_and_operations_compute_what_core_ml_defines() {
    compute_all("coreml/lowered.json", &fixture("coreml").join("lowered"));
}

#[test]
fn layers_compute_what_openvino_does() {
    compute_all("openvino/lowered.json", &fixture("openvino").join("lowered"));
}

#[test]
fn recurrent_operations_and_scores_are_what_core_ml_defines() {
    compute_all("coreml/recurrent.json", &fixture("coreml").join("recurrent"));
    let sandbox = Sandbox::new();
    for (model, label) in [("classes.mlmodel", "animal"), ("classes.mlpackage", "classLabel")] {
        copy(&sandbox, &fixture("coreml").join("recurrent").join(model), model);
        let said = format!("the graph returns scores: the class label '{label}' is left out");
        sandbox.apr(&format!("convert {model} -o m.onnx -f")).ok().says(&[&said]);
    }
}

#[test]
fn half_precision_layers_that_become_single_precision_are_reported() {
    let zeros = vec![vec![vec![vec![0.0; 4]; 4]; 2]; 1];
    let sandbox = Sandbox::new().with("x.json", serde_json::json!(zeros).to_string());
    let program = fixture("coreml").join("lowered/halves.mlpackage");
    let program = program.to_str().expect("UTF-8");
    for line in [&["convert", program, "-o", "m.onnx"][..], &["run", program, "-i", "x.json"]] {
        sandbox.run(line).ok().says(&["in half precision is computed in single precision"]);
    }
    let keras = fixture("keras").join("mixed.keras");
    let line = ["convert", keras.to_str().expect("UTF-8"), "-o", "k.onnx", "-f"];
    sandbox.run(&line).ok().says(&["what Keras computes in half precision is computed in single"]);
    let program = fixture("coreml").join("lowered/kinds.mlpackage");
    let line = ["convert", program.to_str().expect("UTF-8"), "-o", "k.onnx", "-f"];
    let made = sandbox.run(&line).ok();
    assert!(!made.stderr.contains("half precision"), "{}", made.stderr);
}

#[test]
fn models_of_others_compute_what_their_programs_do() {
    let folder = |name: &str| -> Option<PathBuf> { shared_data(name) };
    if let Some(keras) = folder("keras") {
        compute_all("keras/outputs.json", &keras);
    }
    if let Some(tensorflow) = folder("tensorflow") {
        compute_all("tensorflow/outputs.json", &tensorflow);
    }
}

#[test]
fn operators_that_are_not_translated_are_listed_and_nothing_is_written() {
    const KERAS: &str = "Dropout (called in training), LSTM (keeps its state from call to call), \
                         Lambda (Python code), MultiHeadAttention (a mask that depends on the \
                         order of layers)";

    let sandbox = Sandbox::new();
    let refused = [
        (fixture("keras").join("refused.keras"), "Keras", KERAS),
        (fixture("tensorflow").join("refused.pb"), "TensorFlow", "MatrixInverse"),
        (fixture("coreml").join("network.mlmodel"), "Core ML", "a graph without outputs"),
    ];
    for (file, program, names) in refused {
        copy(&sandbox, &file, "m");
        let message = format!("{program} operators that apr does not translate to ONNX: {names}");
        sandbox.apr("convert m -o m.onnx").fails(4, &["E003", &message]);
        assert!(!sandbox.path("m.onnx").exists());
        sandbox.write("x.json", "[[1]]");
        sandbox.apr("run m -i x.json").fails(4, &["E003", &message]);
    }
}

#[test]
fn a_signature_names_inputs_and_outputs() {
    let sandbox = Sandbox::new();
    copy(&sandbox, &fixture("tensorflow").join("lowered"), "tf");
    let left = ["other signatures are left out: serve"];
    sandbox.apr("convert tf/exported -o exported.onnx").ok().says(&left);
    sandbox.apr("import tf/exported -o exported.apr").ok();
    for model in ["tf/exported", "exported.apr"] {
        sandbox.apr(&format!("graph {model} --opset 18")).ok().says(&["image", "output_0", "Conv"]);
    }
}
