//! Models exported to ONNX. What the files compute is judged by onnx, onnxruntime and transformers
//! in `cargo xtask interop`; the files that they agreed with are the ones that are written here.

use std::path::Path;
use std::process::Command;

use apr_testkit::locate;
use apr_testkit::peers::agreed;

use crate::support::{Sandbox, small_safetensors};

fn tiny_llama() -> String {
    locate::fixture("tiny-llama").to_str().expect("a plain name").to_owned()
}

/// Runs the script that checks ONNX files.
#[track_caller]
fn judge(arguments: &[&str], folder: &Path) {
    let python = std::env::var("APR_GRAPH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = locate::workspace().join("xtask/interop/onnx_models.py");
    let output = Command::new(python)
        .arg(script)
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("a Python");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Exports into folders, and returns the models in them.
fn exported(sandbox: &Sandbox, exports: &[(&str, &str, &str)]) -> Vec<(String, Vec<u8>)> {
    let files = exports.iter().map(|(folder, model, options)| {
        let mut line = vec!["export", model, "--format", "onnx", "-o", folder];
        line.extend(options.split_whitespace());
        sandbox.run(&line).ok();
        (format!("{folder}/model.onnx"), sandbox.read(&format!("{folder}/model.onnx")))
    });
    files.collect()
}

#[test]
fn qa_60_an_exported_model_computes_what_transformers_computes() {
    let sandbox = Sandbox::new();
    let source = tiny_llama();
    let exports = [
        ("plain", &*source, ""),
        ("past", &*source, "--with-past"),
        ("f32", &*source, "--precision fp32"),
    ];
    let files = exported(&sandbox, &exports);
    agreed("onnx/tiny-llama", &files, || {
        for (folder, ..) in exports {
            judge(&["check", &format!("{folder}/model.onnx")], &sandbox.path(""));
            judge(&["outputs", &source, folder], &sandbox.path(""));
        }
        judge(&["generate", &source, "past", "40"], &sandbox.path(""));
    });
}

#[test]
fn blocks_that_stay_quantized_have_ggmls_values_to_the_last_bit() {
    let sandbox = Sandbox::new();
    let (mut files, mut pairs) = (Vec::new(), Vec::new());
    for scheme in ["q8_0", "q4_0", "q4_1", "int8", "int4"] {
        let model = format!("{scheme}.apr");
        sandbox.run(&["quantize", &tiny_llama(), "--type", scheme, "-o", &model]).ok();
        let (floats, products) = (format!("{scheme}_floats"), format!("{scheme}_products"));
        let exports = [
            (scheme, &*model, ""),
            (&*floats, &*model, "--dequantize f32 --opset 21"),
            (&*products, &*model, "--matmul-nbits"),
        ];
        let exported = exported(&sandbox, &exports);
        assert!(exported[0].1.len() * 3 < exported[1].1.len() * 2, "{scheme}: blocks stay small");
        files.extend(exported);
        pairs.push([
            format!("{scheme}/model.onnx"),
            format!("{floats}/model.onnx"),
            format!("{products}/model.onnx"),
        ]);
    }
    agreed("onnx/blocks", &files, || {
        for [blocks, floats, products] in &pairs {
            judge(&["check", blocks, floats, products], &sandbox.path(""));
            judge(&["same", floats, blocks], &sandbox.path(""));
            judge(&["near", floats, products], &sandbox.path(""));
        }
    });
}

#[test]
fn a_gguf_file_generates_the_same_story_token_by_token() {
    let Some(folder) = locate::shared_data("derived") else { return };
    let sandbox = Sandbox::new();
    let mut files = Vec::new();
    for name in ["stories260K_F16", "stories260K_Q8_0"] {
        let model = folder.join(name).with_extension("gguf");
        let model = model.to_str().expect("a plain name");
        let source = format!("{name}_source");
        sandbox
            .run(&[
                "export",
                model,
                "--format",
                "safetensors",
                "--dequantize",
                "f32",
                "-o",
                &source,
            ])
            .ok();
        files.extend(exported(&sandbox, &[(name, model, "--with-past")]));
    }
    agreed("onnx/stories", &files, || {
        for name in ["stories260K_F16", "stories260K_Q8_0"] {
            judge(&["check", &format!("{name}/model.onnx")], &sandbox.path(""));
            judge(&["outputs", &format!("{name}_source"), name], &sandbox.path(""));
            judge(&["generate", &format!("{name}_source"), name, "60"], &sandbox.path(""));
        }
    });
}

#[test]
fn the_files_around_the_weights_come_along() {
    let sandbox = Sandbox::new();
    sandbox
        .run(&[
            "export",
            &tiny_llama(),
            "--format",
            "onnx",
            "-o",
            "out",
            "--external-data",
            "always",
        ])
        .ok();
    for name in ["config.json", "tokenizer.json", "generation_config.json"] {
        let original = std::fs::read(locate::fixture("tiny-llama").join(name)).expect("a fixture");
        assert_eq!(sandbox.read(&format!("out/{name}")), original, "{name}");
    }
    assert!(sandbox.read("out/model.onnx").len() < 100_000, "the weights lie beside the graph");
    assert!(sandbox.read("out/model.onnx_data").len() > 700_000);
    let run = sandbox.run(&["export", &tiny_llama(), "-o", "alone.onnx"]).ok();
    run.says(&["lost", "tokenizer.json"]);
    sandbox.run(&["export", &tiny_llama(), "-o", "alone.onnx"]).fails(1, &["E007", "exists"]);
}

#[test]
fn qa_79_a_model_from_onnx_becomes_the_same_file_again() {
    let sandbox = Sandbox::new();
    sandbox.run(&["export", &tiny_llama(), "-o", "m.onnx"]).ok();
    sandbox.apr("convert m.onnx -o m.apr").ok();
    sandbox.apr("export m.apr -o again.onnx").ok();
    assert!(sandbox.read("m.onnx") == sandbox.read("again.onnx"), "not a byte differs");
    sandbox.apr("convert m.onnx -o copy.onnx").ok();
    assert!(sandbox.read("m.onnx") == sandbox.read("copy.onnx"), "not a byte differs");
}

#[test]
fn a_model_from_onnx_gets_other_weights_and_keeps_its_graph() {
    let sandbox = Sandbox::new();
    sandbox.run(&["export", &tiny_llama(), "-o", "m.onnx", "--precision", "fp32"]).ok();
    sandbox.apr("convert m.onnx -o half.onnx --precision fp16").ok();
    assert!(sandbox.read("half.onnx").len() * 10 < sandbox.read("m.onnx").len() * 6);
    sandbox.apr("convert m.onnx -o beside.onnx --external-data always").ok();
    assert!(sandbox.path("beside.onnx_data").exists());
    sandbox.apr("diff m.onnx beside.onnx --exit-code").ok();
    let files = ["half.onnx", "beside.onnx", "beside.onnx_data"]
        .map(|name| (name.to_owned(), sandbox.read(name)));
    agreed("onnx/rewritten", &files, || {
        judge(&["check", "half.onnx", "beside.onnx"], &sandbox.path(""));
        judge(&["same", "m.onnx", "beside.onnx"], &sandbox.path(""));
        judge(&["near", "m.onnx", "half.onnx", "0.01"], &sandbox.path(""));
    });
    sandbox
        .apr("convert m.onnx -o other.onnx --with-past")
        .fails(2, &["the file has its own graph: --with-past applies to graphs"]);
}

#[test]
fn tensors_that_the_graph_does_not_use_are_reported_as_lost() {
    let sandbox = Sandbox::new();
    let report =
        sandbox.run(&["export", &tiny_llama(), "-o", "m.onnx", "--task", "", "--json"]).ok().json();
    let losses = report["losses"].as_array().expect("a list");
    let lost = losses.iter().find(|loss| loss["what"] == "tensor").expect("the head");
    assert_eq!(lost["name"], "lm_head.weight");
}

#[test]
fn a_model_whose_computation_nobody_knows_is_refused() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("export m.safetensors -o m.onnx").fails(4, &["E003", "--arch NAME"]);
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let sandbox = Sandbox::new();
    let source = tiny_llama();
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &["-o", "m.onnx", "--quantize", "q4_k_m"],
            2,
            "ONNX only supports q8_0, q4_0 and q4_1, without",
        ),
        (&["-o", "m.onnx", "--opset", "5"], 4, "opset"),
        (&["-o", "m.onnx", "--shard-size", "1MB"], 2, "--shard-size"),
        (&["-o", "m.safetensors", "--with-past"], 2, "--with-past"),
        (&["-o", "m.safetensors", "--external-data", "always"], 2, "--external-data"),
    ];
    for (options, code, expected) in cases {
        let line = [&["export", &source], options].concat();
        sandbox.run(&line).fails(code, &[expected]);
    }
    assert!(sandbox.files().is_empty());
}

#[test]
fn quantizing_on_the_way_writes_what_quantizing_before_writes() {
    let sandbox = Sandbox::new();
    let model = tiny_llama();
    sandbox.run(&["quantize", &model, "--type", "q8_0", "-o", "q8_0.apr"]).ok();
    sandbox.run(&["export", "q8_0.apr", "--format", "onnx", "-o", "two"]).ok();
    let line = ["export", &model, "--format", "onnx", "-o", "one", "--quantize", "q8_0"];
    sandbox.run(&line).ok().says(&["no quantization error is computed for this format: quantize \
                                    to an .apr or .gguf file for it"]);
    assert!(sandbox.read("one/model.onnx") == sandbox.read("two/model.onnx"));

    // A model of its own graph gets the operators that say blocks.
    sandbox.run(&["export", &model, "-o", "m.onnx", "--precision", "fp32"]).ok();
    sandbox.apr("convert m.onnx -o small.onnx --quantize q4_0 --relaxed").ok().says(&["opset 21"]);
    assert!(sandbox.read("small.onnx").len() * 3 < sandbox.read("m.onnx").len());
    sandbox.apr("graph small.onnx").ok().says(&["ai.onnx 21"]);
}

#[test]
fn an_export_reports_that_its_products_have_no_blocks() {
    let sandbox = Sandbox::new();
    let run = ["export", &*tiny_llama(), "--format", "onnx", "-o", "plain", "--matmul-nbits"];
    sandbox.run(&run).ok().says(&["--matmul-nbits has no effect"]);
}
