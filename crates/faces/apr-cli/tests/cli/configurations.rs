//! What configurations say, leave out, or say wrongly.

use std::fs;
use std::path::Path;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::Sandbox;

/// tiny-llama, with another configuration.
fn llama(change: impl Fn(&mut serde_json::Map<String, Value>)) -> Sandbox {
    let sandbox = Sandbox::new();
    let folder = locate::fixture("tiny-llama");
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        sandbox.write(&format!("m/{name}"), fs::read(folder.join(name)).expect("the fixture"));
    }
    let text = fs::read(folder.join("config.json")).expect("the fixture");
    let mut config: serde_json::Map<String, Value> = serde_json::from_slice(&text).expect("JSON");
    change(&mut config);
    sandbox.write("m/config.json", serde_json::to_vec(&config).expect("JSON"));
    sandbox
}

const RUN: &str = "run m --tokens 256,84,104,101 --max-tokens 6 --json";

#[test]
fn a_head_that_differs_from_its_table_is_not_tied_to_it() {
    let expected = llama(|_| {}).apr(RUN).ok().json();
    let sandbox =
        llama(|config| drop(config.insert("tie_word_embeddings".to_owned(), true.into())));
    let found = sandbox.apr(RUN);
    assert!(found.stderr.contains("kept apart, as in transformers"), "{}", found.stderr);
    assert_eq!(found.ok().json()["added"], expected["added"]);

    let says = ["warn  Names and shapes", "kept apart, as in transformers", "VALID"];
    sandbox.apr("validate m").ok().says(&says);
    sandbox.apr("validate m --strict").fails(5, &says[1..2]);
    sandbox.apr("plan --parts 2 -o p.json validate m").ok();
    sandbox.apr("run-part p.json 0").ok();
    sandbox.apr("run-part p.json 1").ok();
    sandbox.apr("finish p.json").ok().says(&says);

    // The graph that is written has the head, and the report says why.
    let report = sandbox.apr("export m -o m.onnx --json").ok().json();
    assert!(report["warnings"].to_string().contains("kept apart"), "{report}");
    let names = sandbox.apr("tensors m.onnx").ok().text();
    assert!(names.contains("lm_head"), "{names}");
}

#[test]
fn a_configuration_without_a_key_is_the_one_with_the_default() {
    let omitted = ["head_dim", "rope_theta", "hidden_act", "attention_bias", "tie_word_embeddings"];
    let sandbox = llama(|config| config.retain(|key, _| !omitted.contains(&key.as_str())));
    let expected = llama(|_| {}).apr(RUN).ok().json();
    assert_eq!(sandbox.apr(RUN).ok().json()["added"], expected["added"]);

    // What is null is none, and survives an import.
    let sandbox = llama(|config| {
        config.insert("model_type".to_owned(), "mistral".into());
        config.insert("architectures".to_owned(), json!(["MistralForCausalLM"]));
        config.insert("sliding_window".to_owned(), Value::Null);
    });
    sandbox.apr("import m -o m.apr").ok();
    let metadata = sandbox.apr("inspect m.apr --json").ok().json();
    assert!(metadata.to_string().contains("\"sliding_window\":null"), "{metadata}");
}

#[test]
fn an_unknown_family_is_reported_with_the_nearest_and_how_to_define_it() {
    let sandbox = llama(|config| {
        config.insert("model_type".to_owned(), "exotic".into());
    });
    let said = ["E003", "'exotic'", "tensor names match LLaMA", "--arch-file", "docs/families.md"];
    for line in [RUN, "graph m", "export m -o m.onnx"] {
        let failed = sandbox.apr(line).fails(4, &said);
        // A model of another type may compute something else.
        assert!(!failed.text().contains("--arch NAME"), "{}", failed.text());
    }
    assert!(sandbox.apr("explain E003").ok().text().contains("--arch-file"));
}

/// Optimum writes Gemma's norms as `1 + weight` (`fixtures/optimum/gemma.py`).
#[test]
fn norms_that_an_exporter_added_one_to_are_refused() {
    let sandbox = Sandbox::new();
    let folder = locate::fixture("optimum/gemma");
    copy(&folder, &sandbox);
    let said = ["3 norms", "1 + weight"];
    sandbox.apr("import g -o g.apr").fails(5, &said);
    sandbox.apr("export g -o h --format safetensors").fails(4, &said);
    // The file itself computes with what it has.
    sandbox.apr("run g --tokens 5,6,7 --max-tokens 2").ok();
}

fn copy(folder: &Path, sandbox: &Sandbox) {
    for name in ["config.json", "model.onnx"] {
        sandbox.write(&format!("g/{name}"), fs::read(folder.join(name)).expect("the fixture"));
    }
}

#[test]
fn a_configuration_is_read_as_python_reads_it() {
    let sandbox = llama(|_| {});
    let expected = sandbox.apr(RUN).ok().json();
    let text = String::from_utf8(sandbox.read("m/config.json")).expect("UTF-8");
    // As the configurations of Mamba 2 and Nemotron-H have it.
    let text = text.replacen('{', r#"{"time_step_limit": [0.0, Infinity], "#, 1);
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for written in [
        text.clone().into_bytes(),
        [b"\xef\xbb\xbf", text.as_bytes()].concat(),
        [&b"\xff\xfe"[..], &utf16].concat(),
    ] {
        sandbox.write("m/config.json", &written);
        let run = sandbox.apr(RUN).ok();
        assert!(!run.stderr.contains("config.json"), "{run}");
        assert_eq!(run.json()["added"], expected["added"]);
        sandbox.apr("import m -o m.apr -f").ok();
        sandbox.apr("export m.apr -o back -f").ok();
        assert_eq!(sandbox.read("back/config.json"), written);
    }

    // A configuration that a command rewrites keeps the number.
    sandbox.write("m/config.json", &text);
    let average = "models: [{model: m}, {model: m}]\nmerge_method: linear\n\
                   parameters: {weight: 0.5}\ndtype: bfloat16\n";
    sandbox.write("average.yaml", average);
    for (command, changed) in [
        ("export m --precision fp16 -o out -f", "float16"),
        ("prune m --prune-layers 1 --format safetensors -o out -f", "\"num_hidden_layers\": 1"),
        ("quantize m --type w4a16 --format safetensors -o out -f", "pack-quantized"),
        ("merge --config average.yaml -o out -f", "bfloat16"),
    ] {
        sandbox.apr(command).ok();
        let config = String::from_utf8(sandbox.read("out/config.json")).expect("UTF-8");
        assert!(config.contains("Infinity") && config.contains(changed), "{command}: {config}");
    }
}

#[test]
fn a_configuration_that_was_cut_is_not_valid_and_a_run_warns_of_it() {
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let sandbox = llama(|_| {});
        let whole = sandbox.read(&format!("m/{name}"));
        sandbox.write(&format!("m/{name}"), &whole[..whole.len() / 2]);
        let error = format!("E001: {name}: not valid JSON: ");
        sandbox.apr("validate m").fails(5, &[&error, "FAIL  Structure", "INVALID"]);
        sandbox.apr("plan --parts 2 -o p.json validate m").ok();
        sandbox.apr("run-part p.json 0").ok();
        sandbox.apr("run-part p.json 1").ok();
        sandbox.apr("finish p.json").fails(5, &[&error]);
    }
    // Python's JSON has NaN, and a file may begin with a byte order mark.
    let sandbox = llama(|_| {});
    sandbox.write("m/generation_config.json", b"\xef\xbb\xbf{\"temperature\": NaN}");
    sandbox.apr("validate m").ok();

    sandbox.write("m/tokenizer_config.json", "{\"chat_template\": ");
    let warning = "tokenizer_config.json: not valid JSON: ";
    let run = sandbox.apr("run m --prompt 1+2= --max-tokens 2 --json").ok();
    assert_eq!(run.stderr.matches(warning).count(), 1, "{}", run.stderr);
    assert!(run.json()["warnings"].to_string().contains(warning));
    let chat = sandbox.apr("run m --chat --prompt hello");
    chat.fails(4, &["E003: missing chat template"]);
}
