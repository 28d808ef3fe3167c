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
        "gemma4_small",
        "gemma4_experts",
        "llava_siglip",
        "llava_pixtral",
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
    let families = [
        "llava",
        "llava_next",
        "llava_siglip",
        "llava_pixtral",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "internvl",
        "mistral3",
    ];
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
    asked.ok().says(&["the prompt does not contain '<start_of_image>'", "put first"]);
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
        .fails(2, &["the model does not read images"]);
    run(&sandbox, &model, &["--prompt", "a", "--prompt", "b"], &["a.png"])
        .fails(2, &["--image needs a single prompt"]);
    run(&sandbox, &model, &[], &["a.png"]).fails(2, &["--image needs a prompt: pass --prompt"]);
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

/// Copies a model with the settings that files of its part for images do not state, as in the
/// released models; and with layers of one kind, as llama.cpp has so few.
fn as_released(sandbox: &Sandbox, family: &str) {
    for entry in fs::read_dir(format!("{RUN}/tiny-{family}")).expect("a folder") {
        let entry = entry.expect("an entry");
        let mut bytes = fs::read(entry.path()).expect("a file");
        let name = entry.file_name().into_string().expect("UTF-8");
        let change: &dyn Fn(&mut Value) = match (family, &*name) {
            ("gemma3", "config.json") => &|config| {
                config["text_config"]["layer_types"] =
                    json!(["sliding_attention", "sliding_attention"]);
            },
            ("qwen2_5_vl", "config.json") => &|config| {
                config["vision_config"]["window_size"] = json!(112);
            },
            ("qwen3_vl", "config.json") => &|config| {
                config["text_config"]["max_position_embeddings"] = json!(4096);
            },
            ("qwen2_vl" | "qwen2_5_vl", "preprocessor_config.json") => &|config| {
                config["min_pixels"] = json!(56 * 56);
                config["max_pixels"] = json!(28 * 28 * 16384);
            },
            ("qwen3_vl", "preprocessor_config.json") => &|config| {
                config["size"] = json!({ "shortest_edge": 256 * 256, "longest_edge": 4096 * 4096 });
            },
            ("internvl", "preprocessor_config.json") => &|config| config["max_patches"] = json!(12),
            _ => &|_| (),
        };
        if name.ends_with(".json") {
            let mut json: Value = serde_json::from_slice(&bytes).expect("JSON");
            change(&mut json);
            bytes = json.to_string().into_bytes();
        }
        sandbox.write(&format!("{family}/{name}"), bytes);
    }
}

#[test]
fn a_language_model_and_its_part_for_images_are_read_from_two_gguf_files() {
    for family in
        ["gemma3", "idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "mistral3"]
    {
        let sandbox = Sandbox::new();
        as_released(&sandbox, family);
        let text = sandbox.apr(&format!("convert {family} -o text.gguf")).ok().text();
        let part = sandbox.apr(&format!("convert {family} -o part.gguf --mmproj")).ok().text();
        assert!(!(text + &part).contains("results will differ"), "{family}");
        let prompt = ["--prompt", "What is this?"];
        let folder = run(&sandbox, family, &prompt, &["a.png"]).ok().json();
        let two = ["--prompt", "What is this?", "--mmproj", "part.gguf"];
        let files = run(&sandbox, "text.gguf", &two, &["a.png"]).ok().json();
        assert_eq!(files["mmproj"], "part.gguf");
        check(
            &json!({ "prompt": family, "given": folder["given"], "added": folder["added"],
            "logprobs": folder["logprobs"].as_array().expect("a list").iter()
                .map(|token| token["logprob"].clone()).collect::<Vec<_>>() }),
            &files,
        );
    }
}

#[test]
fn a_part_for_images_that_does_not_fit_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.run(&["convert", &format!("{RUN}/tiny-gemma3"), "-o", "part.gguf", "--mmproj"]).ok();
    sandbox.run(&["convert", LLAMA, "-o", "llama.gguf"]).ok();
    let image = format!("{PICTURES}/a.png");
    let ask = |model: &str, part: &str| {
        sandbox.run(&["run", model, "--mmproj", part, "--image", &image, "--prompt", "x"])
    };
    ask("llama.gguf", "part.gguf").fails(4, &["part.gguf", "vectors of 32 numbers", "takes 128"]);
    ask("llama.gguf", "llama.gguf").fails(4, &["llama.gguf", "not a known vision part"]);
    ask(LLAMA, "part.gguf").fails(4, &["only a language model of a GGUF file"]);
    sandbox.apr("run llama.gguf --mmproj part.gguf --prompt x").fails(2, &["--image"]);
    // An adapter under the names of frameworks gives the model these names.
    let lora = locate::fixture("lora/lora").display().to_string();
    let base = locate::fixture("lora/llama").display().to_string();
    sandbox.run(&["convert", &base, "-o", "base.gguf"]).ok();
    let two = ["run", "base.gguf", "--mmproj", "part.gguf", "--image", &image, "--prompt", "x"];
    sandbox
        .run(&[&two[..], &["--lora", &lora]].concat())
        .fails(2, &["--lora with --mmproj", "apr lora convert"]);
}

#[test]
fn infinite_limits_of_a_tower_are_valid() {
    let sandbox = Sandbox::new();
    let folder = format!("{RUN}/tiny-gemma4_small");
    let mut file = fs::read(format!("{folder}/model.safetensors")).expect("the fixture");
    let small = |number: u64| usize::try_from(number).expect("a small file");
    let length = small(u64::from_le_bytes(file[..8].try_into().expect("8 bytes")));
    let header: Value = serde_json::from_slice(&file[8..8 + length]).expect("JSON");
    let mut limits = 0;
    for (name, entry) in header.as_object().expect("an object") {
        let infinity: u16 = match name.rsplit('_').next() {
            Some("min") => 0xfc00,
            Some("max") => 0x7c00,
            _ => continue,
        };
        assert_eq!((&entry["dtype"], &entry["shape"]), (&json!("F16"), &json!([])), "{name}");
        let start = small(entry["data_offsets"][0].as_u64().expect("an offset")) + 8 + length;
        file[start..start + 2].copy_from_slice(&infinity.to_le_bytes());
        limits += 1;
    }
    assert_eq!(limits, 56);
    let config = fs::read(format!("{folder}/config.json")).expect("the fixture");
    sandbox.write("model/model.safetensors", &file);
    sandbox.write("model/config.json", config);
    sandbox.run(&["validate", "model"]).ok().says(&["infinity only in 56 constants", "VALID"]);
}
