//! Products of ONNX graphs in 8-bit integers, beside what onnxruntime's quantizers make of the same
//! net (`fixtures/products/products.py`).

use apr_testkit::locate;
use apr_testkit::peers::agreed;
use serde_json::Value;

use crate::support::{Run, Sandbox, judge};

fn fixture(name: &str) -> String {
    locate::fixture("products").join(name).display().to_string()
}

/// Quantizes the net, with more arguments.
#[track_caller]
fn quantize(sandbox: &Sandbox, arguments: &str) -> Run {
    sandbox.apr(&format!("quantize {} {arguments}", fixture("net.onnx")))
}

fn expected(kind: &str) -> Value {
    let text = std::fs::read_to_string(fixture("products.json")).expect("a fixture");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all[kind].clone()
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("a list");
    list.iter().map(|number| number.as_f64().expect("a number")).collect()
}

#[track_caller]
fn values(sandbox: &Sandbox, model: &str, tensor: &str) -> Vec<f64> {
    let report = sandbox.run(&["tensors", model, "--values", tensor, "--json"]).ok().json();
    numbers(&report["values"])
}

#[track_caller]
fn run(sandbox: &Sandbox, model: &str) -> Vec<f64> {
    let input = fixture("input.npy");
    sandbox.apr(&format!("run {model} -i x={input} -o y.json -f")).ok();
    let report: Value = serde_json::from_slice(&sandbox.read("y.json")).expect("JSON");
    numbers(&flat(&report["y"]))
}

/// The elements of nested lists.
fn flat(value: &Value) -> Value {
    let Value::Array(rows) = value else { return Value::Array(vec![value.clone()]) };
    rows.iter().flat_map(|row| flat(row).as_array().cloned().unwrap_or_default()).collect()
}

fn largest_difference(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}

#[test]
fn dynamic_products_are_those_of_onnxruntime() {
    let sandbox = Sandbox::new();
    let report = quantize(&sandbox, "-t w8a8 -o d.onnx --json").ok().json();
    let products = &report["products"];
    assert_eq!(products["activations"], "dynamic");
    assert_eq!((&products["products"], &products["quantized"]), (&4.into(), &2.into()));
    let unchanged = products["unchanged"].as_array().expect("a list");
    assert!(unchanged.iter().all(|product| product["op"] == "Conv"), "{unchanged:?}");

    let expected = expected("dynamic");
    let constants = &expected["constants"];
    let theirs = numbers(&constants["head.weight_quantized"]["values"]);
    assert_eq!(values(&sandbox, "d.onnx", "head.weight_quantized"), theirs);
    // onnxruntime transposes the weight of a Gemm when it quantizes.
    let theirs = numbers(&constants["hidden.weight_Transposed_quantized"]["values"]);
    let ours = values(&sandbox, "d.onnx", "hidden.weight_quantized");
    let transposed: Vec<f64> = (0..24).map(|at| ours[at % 6 * 4 + at / 6]).collect();
    assert_eq!(transposed, theirs);
    let difference = largest_difference(&run(&sandbox, "d.onnx"), &numbers(&expected["outputs"]));
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn static_products_have_the_integers_and_ranges_of_onnxruntime() {
    let sandbox = Sandbox::new();
    let data = fixture("calibration.npz");
    let arguments = format!("-t int8 --calibration {data} -o s.onnx --json");
    let report = quantize(&sandbox, &arguments).ok().json();
    let products = &report["products"];
    assert_eq!(products["activations"], "static");
    assert_eq!((&products["products"], &products["quantized"]), (&4.into(), &4.into()));

    let theirs = expected("static");
    let constants = theirs["constants"].as_object().expect("an object");
    let listed = sandbox.apr("tensors s.onnx --json").ok().json();
    let rows = listed["tensors"].as_array().expect("a list");
    let mut compared = 0;
    for row in rows {
        let name = row["name"].as_str().expect("text");
        let Some(constant) = constants.get(name) else { continue };
        let (ours, theirs) = (values(&sandbox, "s.onnx", name), numbers(&constant["values"]));
        // The command shows the first rows of tensors of many dimensions.
        assert_eq!(ours, theirs[..ours.len()], "{name}");
        compared += 1;
    }
    assert!(compared >= 13, "{compared} of {} constants", constants.len());
    let floats = numbers(&expected("floats"));
    let ours = largest_difference(&run(&sandbox, "s.onnx"), &floats);
    let theirs = largest_difference(&numbers(&theirs["outputs"]), &floats);
    assert!(ours <= 1.5 * theirs, "{ours} beside {theirs}");
}

#[test]
fn calibration_methods_choose_the_ranges_of_onnxruntimes_calibrators() {
    let sandbox = Sandbox::new();
    let ranges = expected("ranges");
    for kind in ["entropy", "percentile"] {
        let data = fixture("calibration.npz");
        let line = format!("-t w8a8 --calibration {data} --calibration-method {kind}");
        let report = quantize(&sandbox, &format!("{line} -o c.onnx -f --json")).ok().json();
        let calibration = report["products"]["calibration"].as_str().expect("a method");
        assert!(calibration.starts_with(kind), "{calibration}");
        let mut compared = 0;
        let listed = sandbox.apr("tensors c.onnx --json").ok().json();
        let rows = listed["tensors"].as_array().expect("a list");
        for (name, range) in ranges[kind].as_object().expect("an object") {
            let zero_point = format!("{name}_zero_point");
            if !rows.iter().any(|row| row["name"] == *zero_point) {
                continue;
            }
            let (min, max) = (numbers(range)[0].min(0.0), numbers(range)[1].max(0.0));
            let theirs = (-128.0 - min / ((max - min) / 255.0)).round_ties_even();
            assert_eq!(values(&sandbox, "c.onnx", &zero_point), [theirs], "{kind} of {name}");
            compared += 1;
        }
        assert_eq!(compared, 5, "zero points of activations");
    }
    let line = "-t w8a8 --calibration-method entropy -o x.onnx";
    quantize(&sandbox, line).fails(2, &["--calibration <FILE>"]);
    let data = fixture("calibration.npz");
    let line = format!("-t q8_0 --calibration {data} --calibration-method entropy -o x.onnx");
    quantize(&sandbox, &line).fails(2, &["--calibration-method applies to --quantize w8a8"]);
}

#[test]
fn calibration_data_serve_pruning_and_quantization_of_one_job() {
    let sandbox = Sandbox::new();
    let (net, data) = (fixture("net.onnx"), fixture("calibration.npz"));
    let line = format!("convert {net} --quantize w8a8 --calibration {data} -o plain.onnx --json");
    let report = sandbox.apr(&line).ok().json();
    assert_eq!(report["products"]["activations"], "static");
    sandbox.apr(&format!("convert {net} -o part.onnx --to hidden_relu")).ok();
    let both = format!("convert part.onnx --prune 0.5 --calibration {data}");
    let report = sandbox.apr(&format!("{both} --quantize w8a8 -o once.onnx --json")).ok().json();
    assert_eq!(report["products"]["activations"], "static");
    assert_eq!(report["pruning"]["method"], "wanda");

    // The same as in two jobs: the ranges are those of the pruned net.
    sandbox.apr(&format!("{both} -o pruned.onnx")).ok();
    sandbox.apr(&format!("quantize pruned.onnx -t w8a8 --calibration {data} -o twice.onnx")).ok();
    assert_eq!(sandbox.read("once.onnx"), sandbox.read("twice.onnx"));
}

#[test]
fn excluded_nodes_multiply_floats() {
    let sandbox = Sandbox::new();
    let data = fixture("calibration.npz");
    let line = format!("-t w8a8 --calibration {data} --exclude-node [fs]* -o e.onnx --json");
    let report = quantize(&sandbox, &line).ok().json();
    assert_eq!(report["products"]["quantized"], 2);
    let unchanged = report["products"]["unchanged"].as_array().expect("a list");
    let why = "`exclude_node` keeps it, or another reader of its weight";
    assert!(unchanged.iter().all(|product| product["op"] == "Conv" && product["why"] == why));
    quantize(&sandbox, "-t w8a8 --exclude-node nothere -o x.onnx")
        .fails(2, &["--exclude-node nothere matches no node"]);
}

#[test]
fn weights_that_stay_in_floats_are_named() {
    let sandbox = Sandbox::new();
    let arguments = "-t w8a8 --tensor-type head.weight=f32 -o d.onnx --json";
    let report = quantize(&sandbox, arguments).ok().json();
    let unchanged = report["products"]["unchanged"].as_array().expect("a list").clone();
    let head = unchanged.iter().find(|product| product["node"] == "head").expect("the head");
    assert_eq!(head["why"], "the rules for types keep its weight in floats");
    for (arguments, why) in [
        ("--tensor-type *=f32", "w8a8 would quantize nothing"),
        ("--tensor-type head.weight=q8_0", "pass f32 as its type"),
        ("--tensor-type nothere=f32", "nothere matches no tensor"),
        ("--pure", "do not apply to w8a8 in a graph"),
        ("--max-drift 0.1", "compare the outputs of both models"),
    ] {
        quantize(&sandbox, &format!("-t w8a8 {arguments} -o e.onnx")).fails(2, &[why]);
    }
    assert!(!sandbox.files().contains(&"e.onnx".to_owned()));
}

#[test]
fn a_folder_of_inputs_calibrates_as_all_of_them() {
    let sandbox = Sandbox::new();
    let input = fixture("input.npy");
    sandbox.write("inputs/one.npy", std::fs::read(&input).expect("a fixture"));
    for (data, output) in [("inputs", "s.onnx"), (&input, "t.onnx")] {
        quantize(&sandbox, &format!("-t w8a8 --calibration {data} -o {output}")).ok();
    }
    assert!(sandbox.read("s.onnx") == sandbox.read("t.onnx"));
}

/// onnxruntime computes nearly the same with the integers as with the floats.
#[test]
fn onnxruntime_runs_products_of_integers() {
    let sandbox = Sandbox::new();
    let data = fixture("calibration.npz");
    let calibration = format!("--calibration {data}");
    let written: Vec<_> = [("", "dynamic.onnx"), (&*calibration, "static.onnx")]
        .map(|(arguments, to)| {
            quantize(&sandbox, &format!("-t w8a8 {arguments} -o {to}")).ok();
            (to.to_owned(), sandbox.read(to))
        })
        .into();
    agreed("onnx/products", &written, || {
        for (kind, tolerance) in [("dynamic", "0.01"), ("static", "0.05")] {
            let file = format!("{kind}.onnx");
            let arguments = ["outputs", &fixture("net.onnx"), &file, tolerance];
            judge("onnx_rewritten.py", &arguments, &sandbox.path(""));
            let arguments = ["constants", &fixture("products.json"), kind, &file];
            judge("onnx_rewritten.py", &arguments, &sandbox.path(""));
        }
    });
}
