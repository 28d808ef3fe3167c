//! Models that were exported to ONNX.

use std::collections::BTreeMap;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::{Sandbox, tensors};

/// `fixtures/onnx/make_exports.py` exported them, and saved the weights that the model had.
const EXPORTS: [&str; 2] = ["script", "dynamo"];

fn exports() -> String {
    locate::fixture("onnx/exports").display().to_string()
}

#[test]
fn an_exported_model_imports_as_its_weights_do() {
    let sandbox = Sandbox::new();
    let folder = exports();
    for export in EXPORTS {
        std::fs::create_dir_all(sandbox.path(export)).expect("a folder");
        for (from, to) in [
            (format!("{folder}/{export}.onnx"), "model.onnx"),
            (format!("{folder}/hf/config.json"), "config.json"),
        ] {
            std::fs::copy(from, sandbox.path(&format!("{export}/{to}"))).expect("a file");
        }
        sandbox
            .apr(&format!("import {export} -o {export}.apr --relaxed --json"))
            .ok()
            .says(&["llama"]);
        sandbox
            .apr(&format!("diff {folder}/hf {export}.apr"))
            .ok()
            .says(&["SAME: 21 of 21 tensors match"]);
    }
}

#[test]
fn config_applies_to_a_model_without_a_configuration() {
    let sandbox = Sandbox::new();
    let (model, config) =
        (format!("{}/script.onnx", exports()), format!("{}/hf/config.json", exports()));
    let lacks = [
        "missing configuration, which llama.cpp needs (heads, epsilon, rotary base): \
                  pass the config.json of this",
        "--config FILE",
    ];
    sandbox.apr(&format!("convert {model} -o model.gguf")).fails(4, &lacks);

    // torch's exporter sums truth values, which neither ONNX nor onnxruntime has.
    let refused = ["CumSum: input 'x' is bool[batch, sequence]", "--relaxed"];
    sandbox.apr(&format!("import {model} -o bare.apr")).fails(5, &refused);
    let lacks = ["no config.json", "--config FILE"];
    let bare = format!("convert {model} --format safetensors -o bare --relaxed");
    sandbox.apr(&bare).ok().says(&lacks);

    sandbox.apr(&format!("import {model} -o bare.apr --relaxed")).ok();
    for source in [model.as_str(), "bare.apr"] {
        let convert = format!("convert {source} --config {config} -o model.gguf -f --relaxed");
        sandbox.apr(&convert).ok();
        sandbox
            .apr(&format!("diff {}/hf model.gguf --exit-code", exports()))
            .ok()
            .says(&["SAME: 21 of 21 tensors match"]);
    }

    let whole = format!("convert {model} --config {config} --format safetensors -o whole");
    sandbox.apr(&format!("{whole} --relaxed")).ok();
    let given = std::fs::read(&config).expect("a fixture");
    assert!(sandbox.read("whole/config.json") == given, "the file that was given");
    sandbox.write("none.json", "[]");
    let odd = format!("import {model} --config none.json -o odd.apr");
    sandbox.apr(&odd).fails(4, &["none.json"]);
    let own = format!("inspect {}/hf --config none.json", exports());
    sandbox.apr(&own).ok().says(&["--config has no effect: the model has its own config.json"]);
}

#[test]
fn names_and_transpositions_found_through_the_graph_are_reported() {
    let sandbox = Sandbox::new();
    let expected =
        "15 tensors renamed by the graph, of which 15 are transposed to the layout of the modules";
    let shown = ["model.layers.1.self_attn.q_proj.weight", expected];
    sandbox.apr(&format!("tensors {}/script.onnx", exports())).ok().says(&shown);
    sandbox.apr(&format!("diff {0}/hf {0}/script.onnx", exports())).ok().says(&["SAME: 21 of 21"]);
}

#[test]
fn qa_79_an_onnx_file_comes_back_from_apr_byte_for_byte() {
    let sandbox = Sandbox::new();
    for export in EXPORTS {
        let original = format!("{}/{export}.onnx", exports());
        sandbox.apr(&format!("import {original} -o model.apr -f --relaxed")).ok();
        sandbox.apr("export model.apr --format onnx -o back.onnx -f").ok();
        assert!(
            sandbox.read("back.onnx") == std::fs::read(&original).expect("a fixture"),
            "{export}"
        );
        sandbox.apr(&format!("convert {original} -o copy.onnx -f --relaxed")).ok();
        assert!(sandbox.read("copy.onnx") == sandbox.read("back.onnx"), "{export}");
    }
}

#[test]
fn weights_of_another_precision_become_what_the_graph_computes_with() {
    let sandbox = Sandbox::new();
    let original = format!("{}/script.onnx", exports());
    sandbox.apr(&format!("import {original} -o half.apr --precision bf16 --relaxed")).ok();
    sandbox.apr("export half.apr --format onnx -o back.onnx").ok();
    let tensors = sandbox.apr("tensors back.onnx").ok().text();
    assert!(tensors.contains("f32") && !tensors.contains("bf16"), "{tensors}");
    sandbox.apr("diff half.apr back.onnx --tolerance 0.01").ok();
}

#[test]
fn files_beside_the_model_come_back_too() {
    let sandbox = Sandbox::new();
    let folder = locate::fixture("onnx/external");
    sandbox.apr(&format!("convert {}/model.onnx -o model.apr --relaxed", folder.display())).ok();
    sandbox.apr("export model.apr --format onnx -o back --relaxed").ok();
    for file in ["model.onnx", "weights.bin", "whole.bin"] {
        let original = std::fs::read(folder.join(file)).expect("a fixture");
        assert!(sandbox.read(&format!("back/{file}")) == original, "{file}");
    }
}

#[test]
fn a_graph_is_shown_as_the_file_has_it_through_apr_too() {
    let sandbox = Sandbox::new();
    let original = format!("{}/dynamo.onnx", exports());
    sandbox.apr(&format!("import {original} -o model.apr --relaxed")).ok();
    for model in [original.as_str(), "model.apr"] {
        sandbox.apr(&format!("graph {model}")).ok().says(&["from its file"]);
    }
}

#[test]
fn scan_flags_data_outside_the_folder_and_names_unknown_domains() {
    let sandbox = Sandbox::new();
    let unknown = locate::fixture("onnx/storages.onnx").display().to_string();
    let says = ["not examined", "domains that apr does not know: com.example"];
    sandbox.apr(&format!("scan {unknown}")).fails(5, &says);
    sandbox.apr(&format!("scan {unknown} --allow-unexamined")).ok();
    let file = std::fs::read(locate::fixture("onnx/external/model.onnx")).expect("a fixture");
    let text = b"weights.bin";
    let at = file.windows(text.len()).position(|window| window == text).expect("it is there");
    let mut evil = file;
    evil[at..at + text.len()].copy_from_slice(b"../../x.bin");
    sandbox.write("evil.onnx", evil);
    sandbox.apr("scan evil.onnx").says(&["dangerous", "'a' in '../../x.bin'"]);
    sandbox.apr("inspect evil.onnx").fails(4, &["E001", "not a path inside the model's folder"]);
}

#[test]
fn a_model_prepared_for_onnxruntime_is_read_by_its_initializers() {
    let sandbox = Sandbox::new();
    sandbox.write("broken.ort", b"\x24\0\0\0ORTM\0\0\0\0\0\0\0\0");
    sandbox.apr("inspect broken.ort").fails(4, &["E002"]);
    let model = std::fs::read(locate::fixture("ort").join("model.ort")).expect("the fixture");
    sandbox.write("model.ort", model);
    sandbox.apr("inspect model.ort").ok().says(&["onnxruntime's own format (.ort)"]);
    sandbox.apr("tensors model.ort").ok().says(&["choice/then_branch/inner", "weight"]);
    sandbox.apr("validate model.ort").ok();
    sandbox
        .apr("convert model.ort -o ort.safetensors")
        .ok()
        .says(&["model.graph (companion file)"]);
    sandbox.apr("graph model.ort").ok().says(&["Gemm", "f32[batch, 3]"]);
    // Its operators are those of ONNX.
    sandbox.apr("convert model.ort -o ort.onnx").ok();
    sandbox.apr("graph ort.onnx --node dense").ok().says(&["Gemm", "tensor weight"]);
    sandbox.apr("diff model.ort ort.safetensors").ok().says(&["SAME"]);
}

/// `fixtures/onnx/quantized.py` has the weights as onnxruntime dequantizes them.
#[test]
fn codes_of_onnxruntime_are_weights_in_a_file_without_a_graph() {
    let sandbox = Sandbox::new();
    let expected = std::fs::read(locate::fixture("onnx/quantized.json")).expect("a fixture");
    let expected: BTreeMap<String, BTreeMap<String, Value>> =
        serde_json::from_slice(&expected).expect("what onnxruntime computes");
    for (model, weights) in expected {
        let source = locate::fixture(&format!("onnx/{model}.onnx")).display().to_string();
        for output in ["codes.safetensors", "codes.pt", "codes.apr"] {
            sandbox.apr(&format!("convert {source} -o {output} -f")).ok();
            let validated = sandbox.apr(&format!("validate {output}")).ok();
            validated.says(&["VALID"]);
        }
        for codes in ["codes.safetensors", "codes.pt"] {
            sandbox.apr(&format!("tensors {codes}")).ok().says(&["onnx-int8"]);
            let out = format!("convert {codes} --dequantize f32 -o values.safetensors -f");
            sandbox.apr(&out).ok();
            let file = std::fs::read(sandbox.path("values.safetensors")).expect("an output");
            let found = tensors(&file);
            for (name, weight) in &weights {
                let bits = weight["bits"].as_array().expect("bits").iter();
                let bits = bits.map(|bits| bits.as_u64().expect("bits"));
                let bytes: Vec<u8> =
                    bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(4)).collect();
                assert_eq!(found[name], (json!("F32"), weight["shape"].clone(), bytes), "{name}");
                assert!(!found.contains_key(&format!("{name}_quantized")));
            }
        }
    }
}
