//! Tests of `convert --simplify` and `--shape`. `xtask/interop/onnx_simplified.py` compares the
//! files with other programs.

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

/// Returns the number of nodes in a report.
fn nodes(report: &Value, when: &str) -> u64 {
    let counts = report["simplified"][0][when].as_object().expect("counts");
    counts.values().filter_map(Value::as_u64).sum()
}

#[test]
fn exports_of_torch_have_fewer_nodes_and_the_same_outputs() {
    let sandbox = Sandbox::new();
    // onnxruntime rejects the one that torch scripted, and apr does not run it.
    let exports = [
        ("script", "onnx/exports/script.onnx", 400, "--relaxed"),
        ("dynamo", "onnx/exports/dynamo.onnx", 190, ""),
        ("gemma", "optimum/gemma/model.onnx", 200, ""),
    ];
    for (name, fixture, most, relaxed) in exports {
        let fixture = locate::fixture(fixture);
        sandbox.write(&format!("{name}.onnx"), std::fs::read(fixture).expect("a fixture"));
        let simple = format!("{name}_simple.onnx");
        let options = format!("--simplify --json {relaxed}");
        let report = sandbox.apr(&format!("convert {name}.onnx -o {simple} {options}")).ok().json();
        assert!(nodes(&report, "after") < most, "{name}: {}", nodes(&report, "after"));
        assert!(nodes(&report, "before") >= most, "{name}: {}", nodes(&report, "before"));
        if relaxed.is_empty() {
            assert_eq!(report["simplified"][0]["compared"]["identical"], true);
        }

        // The simplified model has nothing to simplify.
        let line = format!("convert {simple} -o again.onnx {options} --overwrite");
        let report = sandbox.apr(&line).ok().json();
        assert_eq!(nodes(&report, "before"), nodes(&report, "after"));
        assert_eq!(report["simplified"][0]["changed"], false);
    }
}

#[test]
fn shapes_of_inputs_are_fixed_and_named_again() {
    let sandbox = Sandbox::new();
    let export = locate::fixture("optimum/gemma/model.onnx");
    sandbox.write("m.onnx", std::fs::read(export).expect("a fixture"));
    sandbox.apr("convert m.onnx -o fixed.onnx --shape input_ids=1,5 --simplify").ok();
    sandbox
        .apr("graph fixed.onnx")
        .ok()
        .says(&["input_ids  i64[1, 5]", "attention_mask  i64[1, 5]"]);
    sandbox.apr("convert m.onnx -o open.onnx --shape input_ids=texts,tokens").ok();
    sandbox.apr("graph open.onnx").ok().says(&["i64[texts, tokens]"]);
    sandbox
        .apr("convert m.onnx -o x.onnx --shape input_ids=1")
        .fails(2, &["the input 'input_ids' has 2 dimensions, not 1"]);
    sandbox
        .apr("convert m.onnx -o x.onnx --shape ids=1,5")
        .fails(2, &["--shape: unknown input 'ids'", "'attention_mask', 'input_ids'"]);
    sandbox.apr("convert m.onnx -o x.onnx --shape input_ids").fails(2, &["expected NAME=1,3"]);
    for output in ["x.safetensors", "x.pt --format torchscript"] {
        sandbox
            .apr(&format!("convert m.onnx -o {output} --simplify"))
            .fails(2, &["--simplify applies to ONNX"]);
    }
    sandbox
        .apr("convert m.onnx -o x.onnx --simplify --quantize q8_0")
        .fails(2, &["--simplify does not combine with --quantize"]);
    assert!(!sandbox.path("x.onnx").exists());
}

#[test]
fn a_model_that_does_not_run_is_written_only_with_relaxed() {
    let sandbox = Sandbox::new();
    let fixture = locate::fixture("onnx/storages.onnx");
    sandbox.write("m.onnx", std::fs::read(fixture).expect("a fixture"));
    sandbox
        .apr("convert m.onnx -o x.onnx --simplify")
        .fails(4, &["E003", "can't be compared", "--relaxed writes it without the comparison"]);
    assert!(!sandbox.path("x.onnx").exists());
    sandbox
        .apr("convert m.onnx -o x.onnx --simplify --relaxed")
        .ok()
        .says(&["the outputs of the simplified graph were not compared"]);
}

#[test]
fn models_of_other_formats_are_simplified() {
    let sandbox = Sandbox::new();
    for model in ["tflite/lowered.tflite", "keras/images.keras", "coreml/program16.mlpackage"] {
        let path = locate::fixture(model);
        let path = path.to_str().expect("a plain name");
        let line = ["convert", path, "-o", "m.onnx", "--simplify", "--overwrite"];
        sandbox.run(&line).ok().says(&["nodes", "bit-identical"]);
    }
}

#[test]
fn the_report_counts_nodes_by_rule() {
    let sandbox = Sandbox::new();
    let fixture = locate::fixture("optimum/gemma/model.onnx");
    sandbox.write("m.onnx", std::fs::read(fixture).expect("a fixture"));
    let convert = "convert m.onnx -o x.onnx --simplify --overwrite";
    sandbox.apr(convert).ok().says(&[
        "381 -> 139 nodes",
        "fold_constants: -185 nodes",
        "bit-identical",
    ]);
    let report = sandbox.apr(&format!("{convert} --json")).ok().json();
    let of = &report["simplified"][0];
    let passes = of["passes"].as_array().expect("passes");
    let removed: i64 = passes.iter().filter_map(|pass| pass["node_change"].as_i64()).sum();
    let difference = nodes(&report, "after").cast_signed() - nodes(&report, "before").cast_signed();
    assert_eq!((removed, &of["changed"]), (difference, &Value::Bool(true)));
    sandbox.apr("convert x.onnx -o y.onnx --simplify").ok().says(&["nothing to simplify in"]);
}

#[test]
fn a_source_without_a_graph_is_rejected() {
    let sandbox = Sandbox::new();
    let tensor = locate::fixture("numpy/f4_C.npy");
    let path = tensor.to_str().expect("a plain name");
    let convert = |output| sandbox.run(&["convert", path, "-o", output, "--simplify"]);
    convert("m.safetensors").fails(2, &["--simplify applies to ONNX"]);
    convert("m.onnx").fails(4, &["E003", "the file has no graph of its own"]);
    assert!(!sandbox.path("m.onnx").exists());
}

#[test]
fn metadata_and_quantized_weights_stay() {
    let sandbox = Sandbox::new();
    let fixture = locate::fixture("onnx/quantized.onnx");
    sandbox.write("m.onnx", std::fs::read(fixture).expect("a fixture"));
    sandbox.apr("edit m.onnx --set author=anna").ok();
    sandbox.apr("convert m.onnx -o x.onnx --simplify").ok();
    sandbox.apr("inspect x.onnx").ok().says(&["anna"]);
    let tensors = |file: &str| sandbox.apr(&format!("tensors {file} --digest")).ok().text();
    let (before, after) = (tensors("m.onnx"), tensors("x.onnx"));
    let quantized: Vec<&str> = before.lines().filter(|line| line.contains("_quantized")).collect();
    assert_eq!(quantized.len(), 3, "{before}");
    assert!(quantized.iter().all(|line| after.contains(line)), "{before}\n{after}");
}

#[test]
fn parts_do_not_simplify() {
    let sandbox = Sandbox::new();
    let fixture = locate::fixture("optimum/gemma/model.onnx");
    sandbox.write("m.onnx", std::fs::read(fixture).expect("a fixture"));
    sandbox
        .apr("plan --parts 2 -o p.plan convert m.onnx -o x.onnx --simplify")
        .fails(2, &["run `apr convert --simplify` on the output"]);
}
