//! Gates: the output against its source, whatever happened in between, in one process and in parts.

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

fn with_model(fixture: &str, name: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(locate::fixture(fixture)).expect("a fixture") {
        let path = entry.expect("a file").path();
        let file = path.file_name().and_then(|file| file.to_str()).expect("a name");
        if path.is_file() && !file.ends_with(".py") {
            sandbox.write(&format!("{name}/{file}"), fs::read(&path).expect("a file"));
        }
    }
    sandbox
}

fn with_llama() -> Sandbox {
    let sandbox = with_model("tiny-llama", "llama");
    sandbox.apr("convert llama -o other --format safetensors --prune-threshold 0.02").ok();
    sandbox.apr("canary create llama --prompt 12+34= -o good.json").ok();
    let wrong = "canary create llama --prompt 12+34= --expect nothing -o wrong.json";
    sandbox.apr(wrong).ok();
    sandbox.write("empty.json", "{}");
    sandbox.write("data.jsonl", "{\"text\": \"1+1=2\"}\n{\"text\": \"2+3=5\"}\n");
    sandbox
}

/// Commands that change weights, each with whether it can also run in parts.
const CHANGES: [(&str, bool); 12] = [
    ("quantize llama --type q4_0", true),
    ("convert llama --quantize int4", true),
    ("import llama --quantize q8_0", true),
    ("convert llama --prune 0.9", true),
    ("convert llama --prune 0.9 --quantize q8_0", true),
    ("convert llama --prune-threshold 1 --quantize q8_0", true),
    ("convert llama --prune-nm 2:4 --dequantize f16", true),
    ("convert llama --prune-layers 1", true),
    ("convert llama --prune-heads 2 --quantize q8_0", true),
    ("convert llama --lowrank svd --rank 8 --quantize q8_0", true),
    ("distill llama --distill-layers 1 --data data.jsonl --steps 1", false),
    ("merge llama other --strategy average", true),
];

/// The exit code of a job in one process.
fn whole(sandbox: &Sandbox, job: &str, gate: &str) -> Option<i32> {
    let code = sandbox.apr(&format!("{job} {gate} -o whole.apr -f")).code;
    let there = sandbox.path("whole.apr");
    assert_eq!(there.exists(), code == Some(0), "{job} {gate}");
    let _ = fs::remove_file(there);
    code
}

/// The exit code of the first step of a job in parts that fails.
fn in_parts(sandbox: &Sandbox, job: &str, gate: &str, count: usize) -> Option<i32> {
    let _ = fs::remove_dir_all(sandbox.path("plan.parts"));
    let line = format!("plan --parts {count} -o plan.json -f {job} {gate} -o out.apr -f");
    let planned = sandbox.apr(&line).code;
    if planned != Some(0) {
        return planned;
    }
    let plan: Value = serde_json::from_slice(&sandbox.read("plan.json")).expect("a plan is JSON");
    for part in 0..plan["parts"].as_array().expect("a list").len() {
        let code = sandbox.apr(&format!("run-part plan.json {part}")).code;
        if code != Some(0) {
            return code;
        }
    }
    let code = sandbox.apr("finish plan.json").code;
    let there = sandbox.path("out.apr");
    assert_eq!(there.exists(), code == Some(0), "{job} {gate} in parts");
    let _ = fs::remove_file(there);
    code
}

#[test]
fn a_gate_sees_every_change() {
    let sandbox = with_llama();
    for (job, _) in CHANGES {
        for (gate, code) in [("--max-drift 100", 0), ("--max-drift 0.00001", 5)] {
            assert_eq!(whole(&sandbox, job, gate), Some(code), "{job} {gate}");
        }
    }
}

#[test]
fn gates_of_a_job_in_parts_give_the_same_result_as_in_one_process() {
    let sandbox = with_llama();
    for (job, is_cut) in CHANGES {
        if !is_cut {
            continue;
        }
        for (gate, code) in [("--max-drift 100", 0), ("--max-drift 0.00001", 5)] {
            assert_eq!(in_parts(&sandbox, job, gate, 2), Some(code), "{job} {gate}");
        }
    }

    let job = "quantize llama --type q8_0";
    for gate in [
        "--quality-check",
        "--max-drift 0.00001 --force",
        "--canary good.json",
        "--canary wrong.json",
        "--canary wrong.json --force",
        "--canary empty.json",
        "--canary missing.json",
        "--canary good.json --max-drift 0.00001",
    ] {
        let code = whole(&sandbox, job, gate);
        for parts in [1, 2] {
            assert_eq!(in_parts(&sandbox, job, gate, parts), code, "{gate} in {parts}");
        }
    }
    for (gate, code) in [("--canary good.json", 0), ("--canary wrong.json", 5)] {
        assert_eq!(whole(&sandbox, job, gate), Some(code), "{gate}");
    }
    assert_ne!(whole(&sandbox, job, "--canary empty.json"), Some(0));
}

#[test]
fn an_encrypted_output_in_parts_is_judged_with_its_key_or_not_finished() {
    let sandbox = with_llama();
    sandbox.write("password", "correct horse");
    let job = "quantize llama --type q8_0 --encrypt --max-drift 0.1 -o out.apr";
    let key = "--password-file password";
    sandbox.apr(&format!("plan --parts 2 -o plan.json {key} {job}")).ok();
    for part in 0..2 {
        sandbox.apr(&format!("run-part plan.json {part} {key}")).ok();
    }
    assert_ne!(sandbox.apr("finish plan.json").code, Some(0));
    assert!(!sandbox.path("out.apr").exists());
    let finished = sandbox.apr(&format!("finish plan.json {key} --json")).ok().json();
    let drift = finished["drift"]["relative_error"].as_f64().expect("a number");
    assert!(drift > 0.0 && drift < 0.1, "{drift}");
}

/// Codes are no values: the output is compared with the values that they represent.
#[test]
fn a_gate_compares_the_values_of_weights_in_codes() {
    let sandbox = with_llama();
    let mut sources = vec!["fp8".to_owned(), "mlx-8".to_owned(), "gptq-4".to_owned()];
    for name in &sources {
        sandbox.apr(&format!("quantize llama --type {name} -o {name}")).ok();
    }
    let others = ["ct-fp8-channel", "gptq4", "awq4", "bnb-nf4", "mlx-affine8", "fp8-block", "hqq4"];
    let others = others.iter().filter_map(|name| locate::shared_case(&format!("codes/{name}")));
    sources.extend(others.map(|path| path.to_str().expect("text").to_owned()));
    for source in &sources {
        for output in ["kept.apr", "kept"] {
            let line = format!("convert {source} --format {} -o {output} -f", format_of(output));
            let report = sandbox.apr(&format!("{line} --max-drift 0 --json")).ok().json();
            assert_eq!(report["drift"]["changed_count"], 0, "{source} {output}");
        }
        for job in [
            format!("convert {source} --quantize q8_0 -o out.apr"),
            format!("convert {source} --prune 0.001 -o out.apr"),
            format!("convert {source} --prune-threshold 0.0001 -o out --format safetensors"),
            format!("merge {source} {source} --strategy average -o out.apr"),
            format!("quantize {source} --type w4a16 --requantize -o out"),
        ] {
            let report = sandbox.apr(&format!("{job} -f --max-drift 0.3 --json")).ok().json();
            let drift = &report["drift"];
            assert_eq!(drift["removed"], serde_json::json!([]), "{job}");
            let error = drift["relative_error"].as_f64().expect("a number");
            assert!(error < 0.3, "{job}: {error}");
        }
        sandbox.apr(&format!("convert {source} --quantize q8_0 -o q8.apr -f")).ok();
        let diff = sandbox.apr(&format!("diff {source} q8.apr --json")).json();
        let changed = diff["tensors"].as_array().expect("a list");
        let changed = changed.iter().filter(|tensor| tensor["l2"].as_f64() > Some(0.0)).count();
        let line = format!("convert {source} --quantize q8_0 -o q8.apr -f --max-drift 1 --json");
        assert_eq!(sandbox.apr(&line).ok().json()["drift"]["changed_count"], changed, "{source}");
    }
    let job = "convert fp8 --quantize q8_0";
    for (gate, code) in [("--max-drift 0.1", 0), ("--max-drift 0.00001", 5)] {
        assert_eq!(in_parts(&sandbox, job, gate, 2), Some(code), "{gate}");
    }
}

fn format_of(output: &str) -> &'static str {
    if output.ends_with(".apr") { "apr" } else { "safetensors" }
}

/// Names and layouts differ between formats, which is not drift.
#[test]
fn a_conversion_that_changes_no_value_passes_the_strictest_gate() {
    for fixture in ["tiny-llama", "run/tiny-whisper", "run/tiny-bert", "run/tiny-clip"] {
        let sandbox = with_model(fixture, "model");
        for (format, output) in [
            ("apr", "m.apr"),
            ("safetensors", "m"),
            ("gguf", "m.gguf"),
            ("onnx", "m.onnx"),
            ("torchscript", "m.pt"),
        ] {
            let line = format!("convert model -o {output} --format {format} -f");
            if sandbox.apr(&line).code == Some(0) {
                let report = sandbox.apr(&format!("{line} --max-drift 0 --json")).ok().json();
                assert_eq!(report["drift"]["changed_count"], 0, "{fixture} {format}");
            }
        }
    }
}

#[test]
fn the_report_lists_changed_and_removed_tensors() {
    let sandbox = with_llama();
    let line = "convert llama -o m.apr --prune-layers 1 --quantize q8_0 --quality-check --json";
    let error = sandbox.apr(line).fails(5, &["which was removed"]).json()["error"].take();
    assert_eq!(error["message"], "quality gate failed");
    assert_eq!(error["drift"]["removed"].as_array().map(Vec::len), Some(9));
    assert!(error["layers"]["dropped"].is_array() && error["quantization"].is_object(), "{error}");
    let report = sandbox.apr(&format!("{line} --force")).ok().json();
    assert_eq!(report["drift"]["removed"], error["drift"]["removed"]);
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("L2 drift"), "{warnings}");
}

#[test]
fn gates_that_cannot_be_evaluated_are_rejected_before_work_is_done() {
    let sandbox = with_llama();
    for gate in ["--max-drift 0.1", "--quality-check", "--canary good.json"] {
        let option = gate.split(' ').next().expect("an option");
        let line = format!("quantize llama --type q8_0 --format apr -o - {gate}");
        sandbox.apr(&line).fails(2, &[option, "name a file or a folder"]);
    }
    // Nobody could open it.
    sandbox.apr("keygen --for encryption -o owner").ok();
    for gate in ["--max-drift 0.1", "--canary good.json"] {
        let line = format!("quantize llama --type q8_0 -o m.apr --recipient owner.pub {gate}");
        sandbox.apr(&line).fails(2, &["needs a key to read the encrypted output"]);
        sandbox.apr(&format!("{line} --key owner")).ok();
        fs::remove_file(sandbox.path("m.apr")).expect("it is there");
    }
}

#[test]
fn options_that_parts_do_not_have_are_refused_by_the_plan() {
    let sandbox = with_llama();
    sandbox.apr("convert llama -o m.apr").ok();
    for (job, option) in [
        ("validate m.apr --quality --min-score 99", "not supported in parts"),
        ("validate m.apr --quality --text data.jsonl", "not supported in parts"),
        ("validate m.apr llama --quality --max-drift 0.1", "--"),
        ("distill llama -o s.apr --distill-layers 1 --data data.jsonl", "can't be split"),
        ("convert llama -o s.apr --distill-layers 1 --data data.jsonl", "--"),
        ("quantize llama -o s.apr --type q8_0 --dry-run", "--dry-run"),
    ] {
        let run = sandbox.apr(&format!("plan --parts 2 -o plan.json {job}"));
        run.fails(2, &[option]);
        assert!(!sandbox.path("plan.json").exists(), "{job}");
    }
}

#[test]
fn a_gate_sees_tensors_that_are_left_out() {
    let sandbox = with_llama();
    for (job, failure) in [
        ("--drop model.layers.1.* --quantize q8_0 --quality-check", "which was removed"),
        ("--drop *up_proj* --quality-check --max-drift 0.0001", "which was removed"),
        ("--keep *norm* --max-drift 0.5", "L2 drift: 1.0000 (max: 0.5)"),
    ] {
        let job = format!("convert llama {job} --relaxed");
        let run = sandbox.apr(&format!("{job} -o dropped.apr")).fails(5, &[failure]);
        assert!(!sandbox.path("dropped.apr").exists(), "{run}");
        assert_eq!(in_parts(&sandbox, &job, "", 2), Some(5), "{job}");
    }
    // Another name is no change of the values.
    sandbox.apr("convert llama --rename lm_head.weight=h --relaxed -o r.apr --max-drift 0").ok();
}
