//! `apr trace`: what every step makes, beside what transformers and NumPy say of it.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::support::{Sandbox, damaged};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures");

/// Returns the values that transformers computes, from `fixtures/golden_traces/make.py`.
fn golden(name: &str) -> Value {
    let path = format!("{FIXTURES}/golden_traces/{name}.json");
    serde_json::from_str(&fs::read_to_string(path).expect("the fixture")).expect("JSON")
}

fn ids(golden: &Value) -> String {
    let ids: Vec<String> =
        golden["ids"].as_array().expect("ids").iter().map(Value::to_string).collect();
    ids.join(",")
}

/// The steps of a trace by their paths.
fn steps(trace: &Value) -> BTreeMap<String, Value> {
    let steps = trace["passes"].as_array().expect("passes").iter();
    let steps = steps.flat_map(|pass| pass["steps"].as_array().expect("steps"));
    steps.map(|step| (step["path"].as_str().expect("a path").to_owned(), step.clone())).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Asserts that statistics match the reference, which was computed in a different order.
fn assert_close(path: &str, ours: &Value, theirs: &Value) {
    assert_eq!(ours["shape"], theirs["shape"], "{path}");
    let ours = &ours["statistics"];
    assert_eq!(ours["count"], theirs["count"], "{path}");
    let scale = number(&theirs["max"]).abs().max(number(&theirs["min"]).abs());
    for name in ["min", "max", "mean", "std", "l2"] {
        let (ours, theirs) = (number(&ours[name]), number(&theirs[name]));
        let far = (ours - theirs).abs();
        assert!(far <= 1e-5 * theirs.abs().max(scale), "{path}: {name} {ours}, not {theirs}");
    }

    assert_eq!(ours["largest_at"], theirs["largest_at"], "{path}");

    // A value at the edge of a column may fall into the next one.
    let counts = |of: &Value| -> Vec<f64> {
        of["distribution"].as_array().expect("columns").iter().map(number).collect()
    };
    let moved: f64 =
        counts(ours).iter().zip(counts(theirs)).map(|(ours, theirs)| (ours - theirs).abs()).sum();
    assert!(moved <= 2.0 + 0.01 * number(&theirs["count"]), "{path}: {moved} moved");
}

#[test]
fn qa_100_a_canonical_trace_is_that_of_transformers() {
    let sandbox = Sandbox::new();
    for (name, folder) in [("tiny-llama", "tiny-llama"), ("tiny-bert", "run/tiny-bert")] {
        let golden = golden(name);
        let line = format!(
            "trace {FIXTURES}/{folder} --tokens {} --level op --trace-payload --json",
            ids(&golden)
        );
        let trace = sandbox.apr(&line).ok().json();
        let steps = steps(&trace);
        let values = golden["values"].as_object().expect("values");
        assert!(values.len() >= 5);
        for (path, theirs) in values {
            let ours = steps.get(path).unwrap_or_else(|| panic!("{name} has no step {path}"));
            assert_close(path, ours, theirs);
        }

        for layer in golden["attention"].as_array().expect("layers") {
            let at = format!("layers.{}/attention", layer["layer"]);
            let found = steps
                .iter()
                .find(|(path, step)| path.starts_with(&at) && step["attention"].is_object());
            let (_, step) = found.expect("a softmax");
            let theirs = layer["peak"].as_array().expect("heads").iter().map(number);
            let ours = step["attention"]["peaks"].as_array().expect("heads").iter().map(number);
            for (ours, theirs) in ours.zip(theirs) {
                assert!((ours - theirs).abs() < 1e-5, "{at}: {ours}, not {theirs}");
            }
            assert_eq!(step["attention"]["sums_to_one"], true);
        }

        let predictions = golden["predictions"].as_array().cloned().unwrap_or_default();
        for (at, theirs) in predictions.iter().enumerate() {
            let ours = &trace["predictions"][0]["top"][at];
            assert_eq!(ours["id"], theirs["id"], "{name}");
            let far = number(&ours["probability"]) - number(&theirs["probability"]);
            assert!(far.abs() < 1e-5, "{name}: {ours}, not {theirs}");
        }
    }
}

#[test]
fn a_table_has_a_row_for_each_block_and_the_total() {
    let sandbox = Sandbox::new();
    let trace = |rest: &str| {
        sandbox.apr(&format!("trace {FIXTURES}/tiny-llama --prompt 12+34= {rest}")).ok()
    };
    let table = trace("");
    table.says(&["Layer", "Time (ms)", "Memory (MB)", "layers.1/attention ", "TOTAL"]);
    trace("--level layer").says(&["layers.0 ", "layers.1 ", "TOTAL"]);
    trace("--level op").says(&["layers.0/attention/query ", "head/logits "]);

    // The times of all steps are the total, at every level.
    for level in ["op", "block", "layer"] {
        let report = trace(&format!("--level {level} --json")).json();
        let times: f64 = steps(&report).values().map(|step| number(&step["seconds"])).sum();
        let total = number(&report["seconds"]);
        assert!((times - total).abs() <= 1e-6 * total, "{level}: {times} of {total}");
        let operators: u64 =
            steps(&report).values().filter_map(|s| s["operator_count"].as_u64()).sum();
        assert_eq!(
            Some(operators),
            report["passes"][0]["operators"].as_array().map(|list| list.len() as u64)
        );
    }
}

#[test]
fn qa_64_a_trace_is_json_on_standard_output_and_in_a_file() {
    let sandbox = Sandbox::new();
    let line = format!("trace {FIXTURES}/tiny-llama --prompt 12+34= --trace-payload");
    sandbox.apr(&format!("{line} --export t.json --export-unknown")).fails(2, &["--export"]);
    sandbox.apr(&format!("{line} --export t.json")).ok();
    let file: Value = serde_json::from_slice(&sandbox.read("t.json")).expect("JSON");
    assert_eq!(file["schema"], "apr.trace/1");
    assert_eq!(file["input"], "\"12+34=\"");
    sandbox.apr(&format!("{line} --export t.json")).fails(1, &["t.json", "--overwrite"]);
    sandbox.apr(&format!("{line} --export t.json -f")).ok();
    sandbox.apr(&format!("{line} --export t.txt")).fails(2, &[".json or .perfetto"]);

    // A damaged sound is an error, and nothing is written.
    let sandbox = sandbox.with("broken.wav", b"RIFF\x24\0\0\0WAVEfmt ");
    let line = format!("trace {FIXTURES}/run/tiny-whisper -i broken.wav --export broken.json");
    sandbox.apr(&line).fails(4, &["broken.wav"]);
    assert!(!sandbox.files().iter().any(|name| name.contains("broken.json")));
}

#[test]
fn activations_are_what_run_returns_under_their_paths() {
    let sandbox = Sandbox::new();
    let model = format!("{FIXTURES}/tiny-llama");
    sandbox.apr(&format!("trace {model} --tokens 1,5,20,7 --dump-activations act")).ok();
    for path in ["layers.1/attention/query", "layers.0/mlp_sum", "embeddings/tokens"] {
        sandbox.apr(&format!("run {model} --tokens 1,5,20,7 --want {path} -o want.npy -f")).ok();
        assert_eq!(sandbox.read(&format!("act/model/{path}.npy")), sandbox.read("want.npy"));
    }
    sandbox
        .apr(&format!("trace {model} --tokens 1,5 --dump-activations act"))
        .fails(1, &["act", "--overwrite"]);
    assert!(!sandbox.files().iter().any(|name| name.contains(".activations-")));
}

#[test]
fn missing_folders_of_a_dump_are_made_and_a_file_in_their_place_is_named() {
    let sandbox = Sandbox::new().with("file", "mine");
    let line = format!("trace {FIXTURES}/tiny-llama --tokens 1,5");
    let run = sandbox.apr(&format!("{line} --dump-activations new/er/d --json")).ok();
    assert!(run.stderr.contains("made the folder new/er\n"), "{run}");
    let report = run.json();
    assert_eq!(report["made_folders"], serde_json::json!(["new", "new/er"]));
    assert_eq!(report["output"], "new/er/d");
    assert!(sandbox.path("new/er/d/model/layers.0/mlp_sum.npy").exists());
    let run = sandbox.apr(&format!("{line} --dump-activations file/d"));
    let run = run.fails(1, &["E007: file: this is a file, not a folder"]);
    assert!(!run.stderr.contains("hf://"), "{run}");
    // Nothing stays of a run that failed.
    let line = format!("trace {FIXTURES}/tiny-llama --tokens 999999 --dump-activations more/d");
    assert_ne!(sandbox.apr(&line).code, Some(0));
    assert!(!sandbox.path("more").exists());
}

#[test]
fn every_kind_of_model_and_input_is_traced() {
    let sandbox = Sandbox::new();
    let sound = format!("{FIXTURES}/sound/kinds");
    let sound = first_with(&sound, "wav");
    let picture = first_with(&format!("{FIXTURES}/picture/kinds"), "png");
    for (model, input, wanted) in [
        ("run/tiny-bert", "--prompt hello".to_owned(), "layers.1/mlp_norm"),
        ("run/tiny-qa", "--tokens 2,5,9,3,7".to_owned(), "head"),
        ("run/tiny-mamba", "--tokens 2,5,9,3,7".to_owned(), "layers.0/mixer"),
        ("run/tiny-t5", "--prompt hello".to_owned(), "decoder_model"),
        ("run/tiny-vit", format!("--input {picture}"), "pixel_values"),
        ("run/tiny-clip", format!("--input {picture} --prompt cat"), "vision/layers.0/attention"),
        ("run/tiny-resnet", format!("--input {picture}"), "stem"),
        ("run/tiny-swin", format!("--input {picture}"), "stages.0.layers.1"),
        ("run/tiny-convnext", format!("--input {picture}"), "stem"),
        ("run/tiny-dinov2", format!("--input {picture}"), "embeddings"),
        ("run/tiny-whisper", format!("--input {sound}"), "audio_input"),
        ("run/tiny-wav2vec2", format!("--input {sound}"), "audio_input"),
    ] {
        let run = sandbox.apr(&format!("trace {FIXTURES}/{model} {input} --trace-payload"));
        run.ok().says(&["Payload Trace: ", "Step 1: ", wanted]);
    }
}

/// A file of a folder, the first by its name.
fn first_with(folder: &str, extension: &str) -> String {
    let files = fs::read_dir(folder).expect("the fixtures");
    let mut names: Vec<String> = files
        .map(|file| file.expect("a file").path().display().to_string())
        .filter(|name| name.ends_with(extension))
        .collect();
    names.sort();
    names.first().expect("a fixture").clone()
}

#[test]
fn a_trace_without_or_with_too_many_inputs_is_rejected() {
    let sandbox = Sandbox::new();
    let trace = |rest: &str| sandbox.apr(&format!("trace {FIXTURES}/tiny-llama {rest}"));
    trace("").fails(2, &["--prompt TEXT"]);
    trace("--tokens 9999").fails(2, &["not in the model's vocabulary"]);
    trace("-i a.wav").fails(3, &["a.wav"]);
    trace(&format!("--prompt {}", "1+1=".repeat(200))).fails(2, &["--truncate"]);
    let picture = first_with(&format!("{FIXTURES}/picture/kinds"), "png");
    trace(&format!("-i {picture}")).fails(2, &["no image input"]);
    sandbox
        .apr(&format!("trace {FIXTURES}/run/tiny-bert --prompt hello --chat"))
        .fails(2, &["--chat"]);
}

/// The floats of a `.npy` file of version 1.
fn floats_of_npy(bytes: &[u8]) -> Vec<f32> {
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let (values, _) = bytes[10 + header..].as_chunks::<4>();
    values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn a_step_lists_its_inputs_and_its_weights_match_the_file() {
    let sandbox = Sandbox::new();
    let model = format!("{FIXTURES}/tiny-llama");
    let line = format!("trace {model} --tokens 1,5,20 --trace-payload");
    sandbox.apr(&format!("{line} --weights")).ok().says(&["Weights: mean=", "parameters)"]);
    let trace = sandbox.apr(&format!("{line} --weights --json --dump-activations act")).ok().json();
    let steps = steps(&trace);
    let tensors = sandbox.apr(&format!("tensors {model} --stats --json")).ok().json();
    let tensors: BTreeMap<&str, &Value> = tensors["tensors"]
        .as_array()
        .expect("tensors")
        .iter()
        .map(|row| (row["name"].as_str().expect("a name"), row))
        .collect();

    let mut read = BTreeMap::new();
    for (path, step) in &steps {
        let weights = step["weights"].as_array().expect("weights");
        let mut parameters = 0;
        for weight in weights {
            let name = weight["tensor"].as_str().expect("a name");
            let row = tensors.get(name).unwrap_or_else(|| panic!("{path}: no tensor {name}"));
            assert_eq!((&weight["dtype"], &weight["shape"]), (&row["dtype"], &row["shape"]));
            for field in ["count", "zeros", "min", "max"] {
                assert_eq!(weight["statistics"][field], row["stats"][field], "{name}: {field}");
            }
            for field in ["mean", "std", "l2"] {
                let both = [&weight["statistics"], &row["stats"]].map(|it| number(&it[field]));
                assert!((both[0] - both[1]).abs() <= 1e-12 * both[1].abs(), "{name}: {both:?}");
            }
            parameters += row["elements"].as_u64().expect("a number");
            read.insert(name, path.as_str());
        }
        assert_eq!(step["parameters"].as_u64(), Some(parameters), "{path}");
        let counted = step["weight_statistics"]["count"].as_u64();
        assert_eq!(counted, (parameters > 0).then_some(parameters), "{path}");

        // The first elements are those of the activation, which is a file.
        let result = step["result"].as_str().expect("a path");
        let values = floats_of_npy(&sandbox.read(&format!("act/model/{result}.npy")));
        if step["statistics"].is_object() {
            let first: Vec<f64> = values.iter().take(16).map(|value| f64::from(*value)).collect();
            let ours = step["first"].as_array().expect("numbers").iter().map(number);
            assert_eq!(ours.collect::<Vec<_>>(), first, "{path}");
        }
    }
    assert_eq!(read.keys().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>());
    assert_eq!(read["model.layers.1.mlp.up_proj.weight"], "layers.1/mlp");

    // What a step reads is what others made, and what the model was given.
    let inputs = |path: &str| -> Vec<(String, Value)> {
        let inputs = steps[path]["inputs"].as_array().expect("inputs").iter();
        inputs
            .map(|it| (it["path"].as_str().expect("a path").to_owned(), it["shape"].clone()))
            .collect()
    };
    let shape = |sizes: &[usize]| serde_json::json!(sizes);
    assert_eq!(inputs("embeddings"), [("input_ids".to_owned(), shape(&[1, 3]))]);
    assert_eq!(
        inputs("layers.0/attention_sum"),
        [
            ("embeddings/tokens".to_owned(), shape(&[1, 3, 128])),
            ("layers.0/attention/output".to_owned(), shape(&[1, 3, 128]))
        ]
    );
    // Without payload nothing of it is there, and without --weights no statistics.
    let plain = sandbox.apr(&format!("trace {model} --tokens 1,5,20 --json")).ok().json();
    assert_eq!(plain["passes"][0]["steps"][0]["weights"], Value::Null);
    let payload = sandbox.apr(&format!("{line} --json")).ok().json();
    let step = &payload["passes"][0]["steps"][0];
    assert!(step["weights"][0]["statistics"].is_null() && step["weight_statistics"].is_null());
}

#[test]
fn nan_in_a_model_of_two_parts_is_reported_and_no_error() {
    let sandbox = Sandbox::new();
    let folder = format!("{FIXTURES}/run/tiny-whisper");
    damaged(&sandbox, &folder, "model.encoder.layers.0.fc1.weight", |bytes| {
        bytes[..2].copy_from_slice(&0x7e00_u16.to_le_bytes());
    });
    let sound = first_with(&format!("{FIXTURES}/sound/kinds"), "wav");
    let line = format!("trace broken --input {sound}");
    sandbox
        .apr(&format!("{line} --detect-anomalies"))
        .fails(5, &["ANOMALY at layers.0/mlp", "NaN or infinity", "no text is generated"]);
    let report = sandbox.apr(&format!("{line} --json")).ok().json();
    let parts = report["passes"].as_array().expect("a list").len();
    assert_eq!(parts, 2, "encoder and decoder");
}
