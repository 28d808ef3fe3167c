//! `apr run` with images beside a prompt. Expected values are those of transformers
//! (`fixtures/run/images.py`).

use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::{Run, Sandbox};

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run");
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/picture");
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// Largest difference of the logarithm of a probability.
const TOLERANCE: f64 = 1e-4;

fn cases(family: &str) -> Vec<Value> {
    let text = fs::read_to_string(locate::fixture("run/images.json")).expect("the fixture");
    let mut cases: Value = serde_json::from_str(&text).expect("JSON");
    serde_json::from_value(cases[family].take()).expect("cases")
}

fn texts(json: &Value) -> Vec<&str> {
    json.as_array().expect("a list").iter().filter_map(Value::as_str).collect()
}

fn run(sandbox: &Sandbox, model: &str, prompt: &[&str], images: &[&str]) -> Run {
    let paths: Vec<String> = images.iter().map(|name| format!("{PICTURES}/{name}")).collect();
    let mut line = vec!["run", model, "--max-tokens", "10", "--logprobs", "1", "--json", "--exact"];
    line.extend(prompt);
    line.extend(paths.iter().flat_map(|path| ["--image", path]));
    sandbox.run(&line)
}

fn check(case: &Value, report: &Value) {
    let prompt = &case["prompt"];
    assert_eq!(report["given"], case["given"], "{prompt}");
    assert_eq!(report["added"], case["added"], "{prompt}");
    let ours = report["logprobs"].as_array().expect("a list").iter();
    let theirs = case["logprobs"].as_array().expect("a list").iter();
    for (ours, theirs) in ours.zip(theirs) {
        let (ours, theirs) = (ours["logprob"].as_f64(), theirs.as_f64());
        let (ours, theirs) = (ours.expect("a number"), theirs.expect("a number"));
        assert!((ours - theirs).abs() < TOLERANCE, "{prompt}: {ours} and {theirs}");
    }
}

#[test]
fn tokens_behind_images_are_those_of_transformers() {
    let sandbox = Sandbox::new();
    let families = [
        "llava",
        "llava_next",
        "gemma3",
        "idefics3",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "internvl",
        "mistral3",
        "paligemma",
    ];
    for family in families {
        let model = format!("{RUN}/tiny-{family}");
        let cases = cases(family);
        assert!(cases.len() > 2, "{family}");
        for case in &cases {
            let prompt = case["prompt"].as_str().expect("a text");
            let images = texts(&case["images"]);
            check(case, &run(&sandbox, &model, &["--prompt", prompt], &images).ok().json());
        }
        assert_ne!(cases[0]["logprobs"], cases[1]["logprobs"], "{family}: other images");
    }
}

#[test]
fn a_chat_shows_images_in_every_way_to_ask() {
    let sandbox = Sandbox::new();
    let families =
        ["llava", "llava_next", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "mistral3"];
    for family in families {
        let model = format!("{RUN}/tiny-{family}");
        let cases = cases(family);
        let case = cases.last().expect("the chat");
        let question = case["prompt"].as_str().expect("a text");
        let asked = run(&sandbox, &model, &["--chat", "--prompt", question], &["a.png"]);
        check(case, &asked.ok().json());
        let messages = json!([{"role": "user", "content": [
            {"type": "image"}, {"type": "text", "text": question},
        ]}]);
        sandbox.write("chat.json", messages.to_string());
        check(case, &run(&sandbox, &model, &["--messages", "chat.json"], &["a.png"]).ok().json());
    }
}

#[test]
fn an_imported_model_reads_images_too() {
    let sandbox = Sandbox::new();
    for family in ["gemma3", "qwen2_5_vl"] {
        sandbox.apr(&format!("import {RUN}/tiny-{family} -o {family}.apr")).ok();
        let case = &cases(family)[0];
        let prompt = case["prompt"].as_str().expect("a text");
        let model = format!("{family}.apr");
        check(case, &run(&sandbox, &model, &["--prompt", prompt], &["a.png"]).ok().json());
    }
}

#[test]
fn a_model_without_a_template_gets_the_images_in_front() {
    let model = format!("{RUN}/tiny-gemma3");
    let asked = run(&Sandbox::new(), &model, &["--prompt", "What is this?"], &["a.png"]);
    asked.ok().says(&["the prompt has no '<start_of_image>'", "put in front"]);
}

#[test]
fn images_that_nothing_shows_are_refused() {
    let sandbox = Sandbox::new().with("text.png", "no picture");
    let model = format!("{RUN}/tiny-llava");
    run(&sandbox, &model, &["--prompt", "<image> and <image>?"], &["a.png"])
        .fails(2, &["the prompt has 2 of '<image>', and 1 image is given"]);
    run(&sandbox, &model, &["--prompt", "<image>?"], &["a.png", "grey.png"])
        .fails(2, &["the prompt has 1 of '<image>', and 2 images are given"]);
    run(&sandbox, LLAMA, &["--prompt", "1+2="], &["a.png"])
        .fails(2, &["the model takes no images beside texts"]);
    run(&sandbox, &model, &["--prompt", "a", "--prompt", "b"], &["a.png"])
        .fails(2, &["--image goes with one prompt"]);
    run(&sandbox, &model, &[], &["a.png"]).fails(2, &["--image needs a text: pass --prompt"]);
    run(&sandbox, &model, &["--prompt", "<image>?", "--beams", "2"], &["a.png"])
        .fails(2, &["--beams"]);
    sandbox.apr(&format!("run {model} --prompt <image>? --image text.png")).fails(4, &["text.png"]);
}

#[test]
fn a_text_alone_is_read_by_the_language_model() {
    let model = format!("{RUN}/tiny-llava");
    let report = run(&Sandbox::new(), &model, &["--prompt", "What is this?"], &[]).ok().json();
    assert_eq!(report["given"].as_array().map(Vec::len), Some(9));
}

#[test]
fn tensors_of_the_part_for_images_are_known() {
    let sandbox = Sandbox::new();
    let name = "multi_modal_projector.linear_1.weight";
    let explained = sandbox.apr(&format!("explain {RUN}/tiny-llava --tensor {name}"));
    explained.ok().says(&["from the vectors of image patches"]);
    sandbox.apr(&format!("validate {RUN}/tiny-llava")).ok();
}
