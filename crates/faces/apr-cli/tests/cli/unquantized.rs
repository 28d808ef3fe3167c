//! What a quantization leaves as it is, which options changed nothing, and what the file says of it
//! (`docs/format/apr2.md`, "Metadata").

use apr_registry::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::locate;
use serde_json::{Value, json};

use crate::families::TinyModel;
use crate::support::{Sandbox, f32s, safetensors, scrambled};

fn weights(count: u64) -> Vec<u8> {
    f32s(
        &(0..count)
            .map(|at| (scrambled(at) >> 40) as f32 / (1 << 24) as f32 * 0.1 - 0.05)
            .collect::<Vec<_>>(),
    )
}

/// Dtype and reason of a tensor in the report of a conversion.
#[track_caller]
fn told(report: &Value, name: &str) -> (String, Option<String>) {
    let rows = report["tensors"].as_array().expect("a list");
    let row = rows
        .iter()
        .find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {report}"));
    (row["to"].as_str().expect("text").to_owned(), row["why"].as_str().map(str::to_owned))
}

fn kept(why: &str) -> (String, Option<String>) {
    ("f32".to_owned(), Some(format!("not quantized ({why})")))
}

#[test]
fn the_family_identifies_an_embedding_whatever_its_name() {
    let sandbox = TinyModel::new("whisper").sandbox();
    let types = |options: &str| {
        sandbox.apr(&format!("quantize m {options} -o w.apr -f --json")).ok().json()
    };
    let report = types("--type int8");
    assert_eq!(told(&report, "decoder.token_embedding"), ("i8_row".to_owned(), None));
    assert_eq!(
        told(&report, "decoder.positional_embedding"),
        kept("embedding of positions or token types")
    );
    assert_eq!(told(&report, "decoder.layer_norm.weight"), kept("1-D tensor"));
    // It is the output matrix too, which a mix gives more bits.
    assert_eq!(told(&types("--type q4_0"), "decoder.token_embedding").0, "q8_0");
    assert_eq!(told(&types("--type q4_0 --pure"), "decoder.token_embedding").0, "q4_0");
    assert_eq!(
        told(&types("--type q4_0 --embedding-type q5_1"), "decoder.token_embedding").0,
        "q5_1"
    );
    let names = sandbox.apr("quantize m --type int8 -o w.apr -f -v").ok();
    names.says(&[
        "not quantized (embedding of positions or token types): ",
        "not quantized (1-D tensor): ",
    ]);
}

#[test]
fn a_matrix_of_an_unknown_family_is_one_by_its_shape() {
    let source = safetensors(&[
        ("net.0.w", "F32", &[64, 64], weights(4096)),
        ("net.0.b", "F32", &[64], weights(64)),
        ("net.bias", "F32", &[2, 64], weights(128)),
    ]);
    let sandbox = Sandbox::new().with("net.safetensors", source);
    for scheme in ["int8", "q4_0"] {
        let report = sandbox
            .apr(&format!("quantize net.safetensors --type {scheme} -o n.apr -f --json"))
            .ok()
            .json();
        assert_ne!(told(&report, "net.0.w").0, "f32");
        assert_eq!(told(&report, "net.0.b"), kept("1-D tensor"));
        assert_eq!(told(&report, "net.bias"), kept("a bias"));
    }
}

#[test]
fn a_quantization_that_changes_no_tensor_is_an_error() {
    let vectors =
        safetensors(&[("a", "F32", &[64], weights(64)), ("b", "F32", &[32], weights(32))]);
    let sandbox = Sandbox::new().with("v.safetensors", vectors);
    let why = "quantization to q8_0 changes no tensor (2 of them: 1-D tensor)";
    for line in ["quantize v.safetensors --type q8_0", "convert v.safetensors --quantize q8_0"] {
        sandbox.apr(&format!("{line} -o v.apr")).fails(4, &["E001", why]);
    }
    sandbox.apr("quantize v.safetensors --type q8_0 -o v.apr --dry-run").fails(4, &[why]);
    assert_eq!(sandbox.files(), ["v.safetensors"]);
    sandbox.write("m.safetensors", safetensors(&[("a", "F32", &[2, 64], weights(128))]));
    sandbox.apr("quantize m.safetensors --type q8_0 -o m.apr").ok();
    sandbox
        .apr("quantize m.apr --type q8_0 -o n.apr")
        .fails(4, &["changes no tensor (1 of them: q8_0 already)"]);
    // ONNX has no other types for rows that blocks do not fit, so nothing is quantized.
    let narrow = locate::fixture("onnx/old.onnx");
    let narrow = narrow.display().to_string();
    sandbox
        .run(&["quantize", &narrow, "--type", "q8_0", "-o", "n.onnx"])
        .fails(4, &["quantization to q8_0 changes no tensor", "is not a multiple of 32"]);
    // Casts say what a file is to hold, whatever it held before.
    sandbox.apr("quantize m.safetensors --type fp32 -o f.apr").ok();
}

#[test]
fn options_without_effect_are_reported() {
    let sandbox = TinyModel::new("llama").sandbox();
    sandbox.write("net.safetensors", safetensors(&[("net.0.w", "F32", &[64, 64], weights(4096))]));
    let cases = [
        (
            "m --type q8_0 --embedding-type q8_0",
            "--embedding-type q8_0 has no effect on the token embeddings: they have",
        ),
        ("net.safetensors --type q4_0 --embedding-type q8_0", "no tensor is recognized as such"),
        ("net.safetensors --type q4_0 --output-type q8_0", "--output-type q8_0 has no effect"),
        ("m --type int8 --pure", "--pure has no effect: there is no mix with int8"),
        (
            "m --type q8_0 --pure",
            "--pure has no effect: the mix has the same type for every tensor with q8_0",
        ),
        (
            "m --type q4_0 --tensor-type blk.0.attn_q.*=q4_0",
            "--tensor-type blk.0.attn_q.*=q4_0 has no effect",
        ),
        ("m --type q4_0 --tensor-type nowhere=q8_0", "no tensor's name matches nowhere"),
        ("m --type q4_0 --requantize", "--requantize has no effect"),
        ("m --type fp16 --imatrix none.dat", "--imatrix has no effect: fp16 has no blocks"),
        ("m --type bf16 --calibration none.csv", "--calibration has no effect"),
    ];
    for (line, note) in cases {
        sandbox.apr(&format!("quantize {line} -o q.apr -f")).ok().says(&[note]);
        for form in ["--json", "--json --dry-run"] {
            let report = sandbox.apr(&format!("quantize {line} -o q.apr -f {form}")).ok().json();
            let warnings: Vec<&str> = report["warnings"]
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(Value::as_str)
                .collect();
            assert!(warnings.iter().any(|warning| warning.contains(note)), "{line}: {warnings:?}");
        }
    }
    // The last one keeps the graph of its file.
    for (model, output) in [("m", "d.apr"), ("m", "d.onnx"), ("d.onnx", "e.onnx")] {
        let line = format!("export {model} --dequantize f16 -o {output}");
        sandbox.apr(&line).ok().says(&["--dequantize f16 has no effect: no tensor is quantized"]);
    }
    let run = sandbox.apr("quantize m --type q4_k_m --pure --embedding-type q8_0 -o q.apr -f").ok();
    assert!(!run.stderr.contains("has no effect"), "{run}");
}

#[test]
fn the_file_records_the_method_the_bits_and_the_error() {
    let sandbox = Sandbox::new()
        .with("m.safetensors", safetensors(&[("w", "F32", &[8, 256], weights(2048))]));
    let entry = |model: &str| {
        sandbox.apr(&format!("inspect {model} --json")).ok().json()["metadata"]["quantization"]
            .take()
    };
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.apr").clean();
    let written = entry("q.apr");
    assert_eq!((&written["method"], &written["bits_per_weight"]), (&json!("Q8_0"), &json!(8.5)));
    assert_eq!((&written["type"], &written["degradation"]), (&json!("q8_0"), &Value::Null));

    let run = sandbox.apr("quantize m.safetensors --type q2_k --pure -o bad.apr").ok();
    run.says(&["degradation: relative quantization error", "%, above 5 % in 1 of 1"]);
    let report =
        sandbox.apr("quantize m.safetensors --type q2_k --pure -o bad.apr -f --json").ok().json();
    let told = &report["quantization"]["degradation"];
    assert_eq!(
        (&told["tensor_count"], &told["of"], &told["limit"]),
        (&json!(1), &json!(1), &json!(0.05))
    );
    assert_eq!(told["relative_error"], report["quantization"]["total"]["relative_error"]);
    assert_eq!(&entry("bad.apr")["degradation"], told);
    sandbox.apr("validate bad.apr").ok();
    sandbox.apr("inspect bad.apr --quantization").ok().says(&["Degradation: relative error "]);
    // It stays with the file, also in parts.
    sandbox.apr("shard bad.apr --size 1KB -o parts.apr").ok();
    assert_eq!(&entry("parts.apr")["degradation"], told);
}

#[test]
fn the_specification_s_own_keys_are_read() {
    let metadata = json!({
        "model_type": "llama", "architecture": {},
        "quantization": {"method": "Q8_0", "bits_per_weight": 8.5},
    });
    let block = [vec![0x00, 0x3c], vec![1; 32]].concat();
    let file = Apr2Builder::new()
        .metadata(metadata.to_string())
        .entry(Apr2Entry::new("w", DType::Q8_0, &[1, 32], &block))
        .build();
    let sandbox = Sandbox::new().with("m.apr", file);
    let report = sandbox.apr("inspect m.apr --quantization --json").ok().json();
    assert_eq!(report["quantization"]["scheme"], "q8_0");
    assert_eq!(report["quantization"]["bits_per_weight"], 8.5);
}

#[test]
fn quantizing_gguf_drops_outer_dimensions_of_one_and_copying_keeps_them() {
    let (row, matrix) = (weights(64), weights(4096));
    let file = GgufBuilder::new()
        .text("general.architecture", "qwen2moe")
        .entry(GgufEntry::new("blk.0.ffn_gate_inp_shexp.weight", 0, &[64, 1], &row))
        .entry(GgufEntry::new("blk.0.attn_q.weight", 0, &[64, 64, 1], &matrix))
        .build();
    let sandbox = Sandbox::new().with("m.gguf", file);
    let shapes = |model: &str| {
        let report = sandbox.apr(&format!("tensors {model} --sort name --json")).ok().json();
        let rows = report["tensors"].as_array().expect("a list").clone();
        rows.into_iter().map(|mut row| row["shape"].take()).collect::<Vec<_>>()
    };
    sandbox.apr("quantize m.gguf --type q4_0 -o q.gguf --relaxed").ok();
    assert_eq!(shapes("q.gguf"), [json!([64, 64]), json!([64])]);
    sandbox.apr("convert m.gguf -o c.gguf --relaxed").ok();
    assert_eq!(sandbox.read("c.gguf"), sandbox.read("m.gguf"));
}

#[test]
fn options_without_effect_are_refused() {
    let sandbox = Sandbox::new();
    let llama = locate::fixture("tiny-llama");
    let llama = llama.display();
    for (line, said) in [
        (
            format!("convert {llama} -o t.pt --format torchscript --opset 17"),
            "--opset applies to ONNX only",
        ),
        (
            format!("convert {llama} -o t.pt --format torchscript --matmul-nbits"),
            "--matmul-nbits applies to ONNX only",
        ),
        (format!("convert {llama} -o t.apr --analyze-source"), "leave out -o"),
        (
            format!("trace {llama} {llama} --diff --prompt 1 --max-tokens 0"),
            "--diff compares at least 1 generated token",
        ),
        (format!("canary create {llama} --prompt x --embed -o c.json"), "--input"),
    ] {
        sandbox.apr(&line).fails(2, &[said]);
    }
    let idle = "warning: --exact has no effect: no weight is quantized";
    let run = format!("run {llama} --prompt 1 --max-tokens 1 --exact");
    sandbox.apr(&run).ok().says(&[idle]);
    sandbox.apr(&format!("quantize {llama} -t q8_0 -o q8.gguf")).ok();
    let run = sandbox.apr("run q8.gguf --prompt 1 --max-tokens 1 --exact").ok();
    assert!(!run.to_string().contains("no effect"), "{run}");
    let gate = format!("convert {llama} -o gated.apr --max-drift 0.1");
    sandbox.apr(&gate).ok().says(&["drift: none of 21 tensors changed"]);
}

#[test]
fn names_of_a_graph_are_not_changed_by_a_conversion() {
    let sandbox = Sandbox::new();
    let model = locate::fixture("onnx/exports/dynamo.onnx");
    let model = model.display();
    for change in ["--drop lm_head.weight", "--keep lm_head.weight"] {
        sandbox
            .apr(&format!("convert {model} {change} -o r.onnx"))
            .fails(2, &["would break the graph of an ONNX file"]);
        sandbox.apr(&format!("convert {model} {change} -o r.safetensors -f")).ok();
    }
}

#[test]
fn a_tokenizer_that_leaves_rows_unused_is_reported_by_all() {
    let sandbox = Sandbox::new();
    for entry in std::fs::read_dir(locate::fixture("tiny-llama")).expect("a fixture").flatten() {
        let file = entry.file_name().into_string().expect("a name");
        let mut bytes = std::fs::read(entry.path()).expect("a file");
        if file == "tokenizer.json" {
            let mut json: Value = serde_json::from_slice(&bytes).expect("JSON");
            let vocabulary = json["model"]["vocab"].as_object_mut().expect("tokens");
            vocabulary.retain(|_, id| id.as_u64().is_some_and(|id| id < 128));
            bytes = json.to_string().into_bytes();
        }
        sandbox.write(&format!("short/{file}"), bytes);
    }
    let said = "the tokenizer has 131 tokens, the embedding 259 rows: is it complete?";
    for command in ["validate", "inspect", "lint"] {
        sandbox.apr(&format!("{command} short")).ok().says(&[said]);
    }
}

#[test]
fn a_type_that_changes_nothing_fails_if_nothing_else_is_asked_for() {
    let sandbox = Sandbox::new();
    let llama = locate::fixture("tiny-llama");
    let weights = llama.join("model.safetensors");
    let (llama, weights) = (llama.display(), weights.display());
    sandbox.apr(&format!("import {llama} -o a.apr")).ok();
    for (line, said) in [
        ("convert a.apr --precision bf16 -o b.apr".to_owned(), "--precision bf16 has no effect"),
        (format!("convert {weights} --precision bf16 -o b.safetensors"), "has no effect"),
        ("convert a.apr --dequantize f32 -o b.apr".to_owned(), "--dequantize f32 has no effect"),
        ("convert a.apr --quantize bf16 -o b.apr".to_owned(), "bf16 has no effect"),
        ("quantize a.apr -t bf16 -o b.apr".to_owned(), "bf16 has no effect"),
    ] {
        sandbox.apr(&line).fails(2, &[said]);
    }
    assert!(!sandbox.files().iter().any(|name| name.starts_with("b.")), "{:?}", sandbox.files());
    for line in [
        "convert a.apr --precision bf16 -o c.safetensors",
        "convert a.apr --precision bf16 --compress -o c.apr",
        "quantize a.apr -t bf16 --shard-size 200KB -o d.apr",
    ] {
        sandbox.apr(line).ok().says(&["has no effect"]);
    }
}
