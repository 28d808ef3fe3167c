//! `apr run` with models that keep states, some of them beside keys and values. Expected values are
//! those of transformers (`fixtures/run/hybrids.py`).

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run");

/// Models, and blocks that a trace of them has.
const MODELS: [(&str, &str); 5] = [
    ("qwen3-next", "layers.0/delta_net"),
    ("falcon-h1", "layers.1/mixer"),
    ("nemotron-h", "layers.1/experts"),
    ("jamba", "layers.0/mixer"),
    ("mamba2", "layers.0/mixer"),
];

fn expected() -> Value {
    let text = std::fs::read_to_string(locate::fixture("run/hybrids.json")).expect("the fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn numbers(value: &Value) -> String {
    let numbers: Vec<String> =
        value.as_array().expect("tokens").iter().map(ToString::to_string).collect();
    numbers.join(",")
}

#[test]
fn models_with_states_go_on_as_in_transformers() {
    let sandbox = Sandbox::new();
    let expected = expected();
    for (name, _) in MODELS {
        let texts = expected[name].as_array().expect("texts");
        let model = format!("{RUN}/tiny-{name}");
        for (file, option) in [("states.onnx", "--with-past"), ("plain.onnx", "")] {
            sandbox.apr(&format!("export {model} -o {file} -f --format onnx {option}")).ok();
        }
        for text in texts {
            let line =
                format!("--tokens {} --max-tokens 12 --ignore-eos --json", numbers(&text["given"]));
            for model in [model.as_str(), "states.onnx", "plain.onnx"] {
                let report = sandbox.apr(&format!("run {model} {line}")).ok().json();
                assert_eq!(report["added"], text["tokens"], "{name}: {model}");
            }
        }
    }
}

/// A text that is read as a whole goes on as one that was read token after token.
#[test]
fn a_prompt_leaves_the_states_that_its_tokens_leave_one_by_one() {
    let sandbox = Sandbox::new();
    let expected = expected();
    for (name, _) in MODELS {
        for text in expected[name].as_array().expect("texts") {
            let all = format!("{},{}", numbers(&text["given"]), numbers(&text["tokens"]));
            let all: Vec<&str> = all.split(',').collect();
            let (read, rest) = all.split_at(all.len() - 5);
            let line =
                format!("run {RUN}/tiny-{name} --tokens {} --ignore-eos --json", read.join(","));
            let report = sandbox.apr(&format!("{line} --max-tokens 5")).ok().json();
            assert_eq!(numbers(&report["added"]), rest.join(","), "{name}");
        }
    }
}

#[test]
fn models_with_states_are_traced_and_measured() {
    let sandbox = Sandbox::new();
    for (name, block) in MODELS {
        let model = format!("{RUN}/tiny-{name}");
        let trace = sandbox.apr(&format!("trace {model} --tokens 5,17,33 --trace-payload"));
        trace.ok().says(&["Payload Trace: ", block]);
        let of = |context: u32| {
            let line = format!("inspect {model} --memory --json --context {context}");
            sandbox.apr(&line).ok().json()["memory"]["cache_bytes"].as_u64().expect("a number")
        };
        // States are as large for any text; keys and values are not.
        let grows = of(64) > of(8);
        assert_eq!(grows, name != "mamba2", "{name}");
        assert!(of(8) > 0, "{name}");
    }
}

/// Runs the GGUF file of each model, and the folder that it leads back to.
#[test]
fn gguf_files_of_models_with_states_go_on_as_in_transformers() {
    let sandbox = Sandbox::new();
    let expected = expected();
    for (name, _) in MODELS {
        let (file, folder) = (format!("{name}.gguf"), format!("{name}-again"));
        sandbox.apr(&format!("convert {RUN}/tiny-{name} -o {file}")).ok();
        sandbox.apr(&format!("export {file} -o {folder}")).ok();
        for text in expected[name].as_array().expect("texts") {
            let line =
                format!("--tokens {} --max-tokens 12 --ignore-eos --json", numbers(&text["given"]));
            for model in [&file, &folder] {
                let report = sandbox.apr(&format!("run {model} {line}")).ok().json();
                assert_eq!(report["added"], text["tokens"], "{model}");
            }
        }
    }
}
