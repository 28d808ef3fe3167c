//! `apr run` with models of stages, patches of any size, and states. Expected values are those of
//! transformers (`fixtures/run/newer.py`).

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/picture");
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run");

fn expected() -> Value {
    let text = std::fs::read_to_string(locate::fixture("run/newer.json")).expect("the fixture");
    serde_json::from_str(&text).expect("JSON")
}

/// The processors cut out the middle of a larger picture, take it as a whole, or bring it to
/// another size than the positions are for.
#[test]
fn labels_of_images_match_transformers_for_every_kind_of_model() {
    let sandbox = Sandbox::new();
    let expected = expected();
    for kind in ["resnet", "convnext", "dinov2", "swin"] {
        let line = format!("run {RUN}/tiny-{kind} --input {PICTURES}/a.png --json");
        let report = sandbox.apr(&line).ok().json();
        let labels = report["results"][0]["labels"].as_array().expect("labels");
        assert_eq!(labels.len(), 4, "{kind}");
        for label in labels {
            let name = label["label"].as_str().expect("a name");
            let theirs = expected[kind][name].as_f64().expect("a score");
            let ours = label["score"].as_f64().expect("a score");
            assert!((ours - theirs).abs() < 1e-4, "{kind}: {report}");
        }
    }
}

#[test]
fn a_model_of_states_goes_on_as_in_transformers() {
    let sandbox = Sandbox::new();
    let expected = &expected()["mamba"];
    let given: Vec<String> =
        expected["given"].as_array().expect("tokens").iter().map(ToString::to_string).collect();
    let line = format!("--tokens {} --max-tokens 12 --json", given.join(","));
    let added =
        |model: &str| sandbox.apr(&format!("run {model} {line}")).ok().json()["added"].take();
    assert_eq!(added(&format!("{RUN}/tiny-mamba")), expected["tokens"]);

    sandbox.apr(&format!("convert {RUN}/tiny-mamba -o m.gguf")).ok();
    assert_eq!(added("m.gguf"), expected["tokens"], "GGUF");

    // The same from files: the states go in and out, or everything is computed anew.
    for (file, option) in [("states.onnx", "--with-past"), ("plain.onnx", "")] {
        sandbox.apr(&format!("export {RUN}/tiny-mamba -o {file} --format onnx {option}")).ok();
        assert_eq!(added(file), expected["tokens"], "{file}");
    }
    let report = sandbox.apr("graph states.onnx --json").ok().json();
    let inputs = report["parts"][0]["inputs"].as_array().expect("inputs").iter();
    let names: Vec<&str> = inputs.filter_map(|input| input["name"].as_str()).collect();
    let states = ["past_conv.0", "past_ssm.0", "past_conv.1", "past_ssm.1"];
    assert_eq!(names[2..], states);
}

#[test]
fn gguf_export_reports_why_it_does_not_support_a_family() {
    let sandbox = Sandbox::new();
    let run = sandbox.apr(&format!("convert {RUN}/tiny-resnet -o m.gguf"));
    run.fails(4, &["llama.cpp does not support the family ResNet"]);
}
