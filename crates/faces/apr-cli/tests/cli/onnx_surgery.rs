//! Parts of ONNX graphs, and graphs that compute in halves, beside what onnx and onnxruntime make
//! of the same net (`fixtures/products/products.py`).

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::Sandbox;

fn fixture(name: &str) -> String {
    locate::fixture("products").join(name).display().to_string()
}

fn expected(kind: &str) -> Value {
    let text = std::fs::read_to_string(fixture("products.json")).expect("a fixture");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all[kind].clone()
}

/// The elements of nested lists.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(rows) => rows.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().expect("a number")],
    }
}

/// A net with a copy of its input.
fn net() -> Sandbox {
    let read = |name: &str| std::fs::read(fixture(name)).expect("a fixture");
    Sandbox::new().with("net.onnx", read("net.onnx")).with("x.npy", read("input.npy"))
}

/// Runs a model on an array and returns an output.
#[track_caller]
fn run(sandbox: &Sandbox, model: &str, input: &str, output: &str) -> Vec<f64> {
    sandbox.apr(&format!("run {model} -i {input} -o out.json -f")).ok();
    let report: Value = serde_json::from_slice(&sandbox.read("out.json")).expect("JSON");
    numbers(&report[output])
}

/// Norm of the difference over the norm of the expected numbers.
fn difference(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let apart = norm(&mut ours.iter().zip(theirs).map(|(one, other)| one - other));
    apart / norm(&mut theirs.iter().copied())
}

#[test]
fn a_part_is_the_part_that_onnx_extracts() {
    let sandbox = net();
    let theirs = expected("part");
    let line = "convert net.onnx -o part.onnx --from flat --to hidden_relu --json";
    let report = sandbox.apr(line).ok().json();
    assert_eq!(report["part"]["node_count"], 2);
    assert_eq!(report["part"]["nodes_before"], 10);
    assert_eq!(report["part"]["inputs"], json!(["flat"]));
    assert_eq!(report["part"]["dropped_outputs"], json!(["y"]));
    assert_eq!(report["losses"], json!([]));
    let listed = sandbox.apr("tensors part.onnx --json").ok().json();
    let names = listed["tensors"].as_array().expect("a list").iter().map(|row| &row["name"]);
    let mut names: Vec<&str> = names.filter_map(Value::as_str).collect();
    names.sort_unstable();
    assert_eq!(json!(names), theirs["tensors"]);

    let flat: Vec<Vec<f64>> = numbers(&theirs["flat"]).chunks(4).map(<[f64]>::to_vec).collect();
    sandbox.write("flat.json", json!(flat).to_string());
    let ours = run(&sandbox, "part.onnx", "flat=flat.json", "hidden_relu");
    assert!(difference(&ours, &numbers(&theirs["hidden_relu"])) < 1e-6);
    sandbox.apr("convert net.onnx -o body.onnx --to flat").ok();
    let ours = run(&sandbox, "body.onnx", "x=x.npy", "flat");
    assert!(difference(&ours, &numbers(&theirs["flat"])) < 1e-6);
}

#[test]
fn names_that_a_graph_lacks_or_does_not_connect_list_the_nearest() {
    let sandbox = net();
    for (arguments, expected) in [
        ("--from flatt", "--from: no value or node 'flatt'; nearest names: 'flat'"),
        ("--to hiden", "--to: no value or node 'hiden'; nearest names: 'hidden'"),
        (
            "--from head --to hidden",
            "--from: no output depends on 'head'; outputs depend on 'x', 'first'",
        ),
        ("--from hidden.bias", "--from: 'hidden.bias' is a tensor of the file"),
        ("--to x", "--to: no node of the part computes 'x'"),
    ] {
        sandbox.apr(&format!("convert net.onnx -o p.onnx {arguments}")).fails(2, &[expected]);
    }
    sandbox
        .apr("convert net.onnx -o p.safetensors --from flat")
        .fails(2, &["--from applies to ONNX and TorchScript output only"]);
    assert!(!sandbox.path("p.onnx").exists());
    // The residual needs both values.
    let kept = sandbox.apr("convert net.onnx -o p.onnx --from second --to sum");
    kept.ok().says(&["inputs of the model kept in addition to --from", "'x'"]);
}

#[test]
fn inputs_outputs_and_weights_are_renamed() {
    let sandbox = net();
    let line = "convert net.onnx -o r.onnx --rename x=image --rename y=scores --json \
                --rename ^hidden\\.(.*)=layer.\\1";
    let report = sandbox.apr(line).ok().json();
    assert_eq!(
        report["renamed_values"],
        json!({
            "x": "image",
            "y": "scores",
            "hidden.bias": "layer.bias",
            "hidden.weight": "layer.weight",
        })
    );
    let ours = run(&sandbox, "r.onnx", "image=x.npy", "scores");
    assert!(difference(&ours, &numbers(&expected("floats"))) < 1e-6);
    sandbox.apr("tensors r.onnx").ok().says(&["layer.weight", "layer.bias", "head.weight"]);
    sandbox
        .apr("convert net.onnx -o p.onnx --rename x=y")
        .fails(4, &["E001", "two values would be named 'y'"]);
    sandbox.apr("convert net.onnx -o p.onnx --rename nothere=z").fails(4, &["E001", "nothere"]);
    sandbox.apr("convert net.onnx -o p.onnx --drop head*").fails(2, &["--from and --to extract"]);
}

#[test]
fn a_file_computes_in_halves_like_onnxruntimes_converter() {
    let sandbox = net();
    let report = sandbox.apr("convert net.onnx -o h.onnx --precision fp16 --json").ok().json();
    let halves = &report["halves"];
    assert_eq!((&halves["node_count"], &halves["halves"]), (&10.into(), &10.into()));
    assert_eq!((&halves["casts"], &halves["io_kept"]), (&0.into(), &false.into()));
    sandbox.apr("graph h.onnx").ok().says(&["x  f16[batch, 3, 6, 6]", "y  f16[batch, 5]"]);
    let tensors = sandbox.apr("inspect h.onnx --json").ok().json();
    assert!(!tensors["dtypes"].to_string().contains("\"f32\""), "{}", tensors["dtypes"]);

    let line = "convert net.onnx -o k.onnx --precision fp16 --keep-io --json";
    let report = sandbox.apr(line).ok().json();
    assert_eq!(report["halves"]["casts"], 2);
    sandbox.apr("graph k.onnx").ok().says(&["x  f32[batch, 3, 6, 6]", "y  f32[batch, 5]"]);
    let (floats, theirs) = (numbers(&expected("floats")), numbers(&expected("halves")));
    let allowed = 3.0 * difference(&theirs, &floats);
    for model in ["h.onnx", "k.onnx"] {
        let apart = difference(&run(&sandbox, model, "x=x.npy", "y"), &floats);
        assert!(apart < allowed, "{model}: {apart}, and onnxruntime's {allowed}");
    }
}

#[test]
fn excluded_nodes_keep_their_types_and_weights() {
    let sandbox = net();
    let line =
        "convert net.onnx -o e.onnx --precision fp16 --exclude-node hidden* --exclude-op Conv";
    let report = sandbox.apr(&format!("{line} --json")).ok().json();
    assert_eq!(
        report["halves"]["unchanged"],
        json!({"excluded": {"Conv": 2, "Gemm": 1, "Relu": 1}})
    );
    let listed = sandbox.apr("tensors e.onnx --json").ok().json();
    for row in listed["tensors"].as_array().expect("a list") {
        let name = row["name"].as_str().expect("text");
        let is_half = name.starts_with("head");
        assert_eq!(row["dtype"] == "f16", is_half, "{name}: {}", row["dtype"]);
    }
    run(&sandbox, "e.onnx", "x=x.npy", "y");
    for (arguments, expected) in [
        ("--precision fp16 --exclude-node nothere", "--exclude-node nothere matches no node"),
        ("--precision fp16 --exclude-op Gelu", "unknown operator Gelu; the graph has Add, Conv"),
        ("--precision bf16 --keep-io", "--keep-io applies to --precision fp16 of a file"),
        ("--exclude-node hidden", "--exclude-node applies to --precision fp16 of a file"),
    ] {
        sandbox.apr(&format!("convert net.onnx -o p.onnx {arguments}")).fails(2, &[expected]);
    }
    sandbox
        .apr("convert net.onnx -o p.safetensors --precision fp16 --keep-io")
        .fails(2, &["--keep-io applies to ONNX"]);
}
