//! ONNX models that are written anew keep every tensor, wherever it lay. onnx and onnxruntime judge
//! the files in `cargo xtask interop`; those that they agreed with are the ones that are written
//! here.

use apr_testkit::locate;
use apr_testkit::peers::agreed;
use serde_json::Value;

use crate::support::{Sandbox, judge};

/// Writes the files of a model with all tensors in another file into a folder `outside`.
fn outside(sandbox: &Sandbox) -> [&'static str; 2] {
    let files = ["model.onnx", "all.bin"];
    for file in files {
        let bytes = std::fs::read(locate::fixture("onnx/outside").join(file)).expect("a fixture");
        sandbox.write(&format!("outside/{file}"), bytes);
    }
    files
}

#[test]
fn external_tensors_are_restored_byte_for_byte() {
    let sandbox = Sandbox::new();
    let files = outside(&sandbox);
    sandbox.apr("convert outside/model.onnx -o model.apr --relaxed").ok();
    sandbox.apr("convert outside/model.onnx -o folder --format safetensors --relaxed").ok();
    for (from, to) in [("model.apr", "from_apr"), ("folder", "from_folder")] {
        sandbox.apr(&format!("convert {from} -o {to} --format onnx --relaxed")).ok();
        for file in files {
            let (before, after) = (format!("outside/{file}"), format!("{to}/{file}"));
            assert!(sandbox.read(&before) == sandbox.read(&after), "{after}");
        }
    }
}

#[test]
fn every_type_of_tensor_is_kept_when_the_graph_is_written_anew() {
    let sandbox = Sandbox::new();
    outside(&sandbox);
    sandbox.apr("convert outside/model.onnx -o model.apr --relaxed").ok();
    sandbox.apr("convert outside/model.onnx -o folder --format safetensors --relaxed").ok();
    let written = [("outside/model.onnx", "file"), ("model.apr", "apr"), ("folder", "folder")];
    let files: Vec<_> = written
        .map(|(from, to)| {
            let path = format!("{to}.onnx");
            sandbox.apr(&format!("convert {from} -o {path} --opset 26 --relaxed")).ok();
            let bytes = sandbox.read(&path);
            (path, bytes)
        })
        .into();
    agreed("onnx/outside", &files, || {
        let paths = files.iter().map(|(path, _)| path.as_str());
        let arguments: Vec<&str> =
            ["tensors", "outside/model.onnx"].into_iter().chain(paths).collect();
        judge("onnx_rewritten.py", &arguments, &sandbox.path(""));
    });
}

/// `fixtures/onnx/scarce.json` is what onnxruntime computes.
#[test]
fn sparse_constants_are_computed_and_become_dense_in_a_rewritten_graph() {
    let sandbox = Sandbox::new();
    for file in ["scarce.onnx", "scarce.json"] {
        let bytes = std::fs::read(locate::fixture("onnx").join(file)).expect("a fixture");
        sandbox.write(file, bytes);
    }
    let expected: Value = serde_json::from_slice(&sandbox.read("scarce.json")).expect("JSON");
    sandbox.write("x.json", expected["x"].to_string());
    sandbox.apr("convert scarce.onnx -o same.apr --relaxed").ok();
    sandbox.apr("convert same.apr -o same.onnx --relaxed").ok();
    assert!(sandbox.read("same.onnx") == sandbox.read("scarce.onnx"));
    let written: Vec<_> = [("scarce.onnx", "file.onnx"), ("same.apr", "apr.onnx")]
        .map(|(from, to)| {
            sandbox.apr(&format!("convert {from} -o {to} --opset 21 --relaxed")).ok();
            (to.to_owned(), sandbox.read(to))
        })
        .into();

    let numbers = |json: &Value| -> Vec<f64> {
        let rows = json.as_array().expect("rows").iter().flat_map(|row| row.as_array());
        rows.flatten().map(|number| number.as_f64().expect("a number")).collect()
    };
    for truth in ["true", "false"] {
        sandbox.write("truth.json", truth);
        let wanted = numbers(&expected["y"][truth]);
        for file in ["scarce.onnx", "same.apr", "file.onnx", "apr.onnx"] {
            let line = format!("run {file} -i x=x.json -i truth=truth.json --json");
            let report = sandbox.apr(&line).ok().json();
            let values = report["outputs"][0]["values"].as_array().expect("values");
            let found: Vec<_> = values.iter().filter_map(Value::as_f64).collect();
            assert_eq!(found, wanted, "{file} {truth}");
        }
    }
    agreed("onnx/sparse", &written, || {
        judge("onnx_rewritten.py", &["tensors", "scarce.onnx", "file.onnx"], &sandbox.path(""));
        judge("onnx_models.py", &["check", "file.onnx", "apr.onnx"], &sandbox.path(""));
    });
}

#[test]
fn unlisted_tensors_are_reported_and_lost_in_weights_files() {
    let sandbox = Sandbox::new();
    outside(&sandbox);
    let not_listed = [
        "not listed: tensors of complex numbers of 128 bits (3)",
        "not listed: integer or boolean tensors of at most 1 KiB, which can determine shapes (7)",
        "not listed: tensors of text (1)",
    ];
    sandbox.apr("tensors outside/model.onnx").ok().says(&not_listed);
    sandbox.apr("convert outside/model.onnx -o model.apr --relaxed").ok().says(&["68 tensors"]);
    sandbox.apr("tensors model.apr").ok().says(&not_listed);
    let report = sandbox.apr("tensors model.apr --json").ok().json();
    let unlisted = report["unlisted"].as_array().expect("a list");
    let of_text = unlisted.iter().find(|row| row["what"] == "tensors of text").expect("a row");
    assert_eq!((&of_text["count"], &of_text["names"][0]), (&1.into(), &"texts".into()));
    sandbox
        .apr("convert outside/model.onnx -o alone.safetensors --relaxed")
        .ok()
        .says(&["model.onnx.graph (companion file)", "texts (1 of the graph: tensors of text)"]);
}

#[test]
fn weights_that_are_inputs_get_another_precision_in_a_valid_file() {
    let sandbox = Sandbox::new();
    let original = locate::fixture("onnx/old.onnx").display().to_string();
    let mut files = Vec::new();
    for (precision, opset, tolerance) in
        [("fp16 --keep-io", 7, "1e-3"), ("bf16", 13, "1e-2"), ("f8_e4m3", 19, "0.1")]
    {
        let path = format!("{}.onnx", precision.split(' ').next().unwrap_or_default());
        let line = format!("convert {original} -o {path} --precision {precision} --relaxed");
        let run = sandbox.apr(&line).ok();
        let raised = format!("opset {opset} instead of 7");
        assert_eq!(run.to_string().contains(&raised), opset > 7, "{run}");
        let report = sandbox.apr(&format!("graph {path} --json")).ok().json();
        let inputs = report["parts"][0]["inputs"].as_array().expect("a list");
        assert_eq!(inputs.len(), 1, "weights are no inputs any more");
        files.push((path, tolerance));
    }
    sandbox
        .apr(&format!("convert {original} -o no.onnx --precision bf16 --opset 12 --relaxed"))
        .fails(4, &["E003", "weights of bf16 need --opset 13 or later"]);

    let written: Vec<_> =
        files.iter().map(|(path, _)| (path.clone(), sandbox.read(path))).collect();
    agreed("onnx/inputs", &written, || {
        for (path, tolerance) in &files {
            judge("onnx_rewritten.py", &["outputs", &original, path, tolerance], &sandbox.path(""));
        }
    });
}
