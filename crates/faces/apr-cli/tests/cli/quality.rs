//! `apr validate --quality`. Expected figures are NumPy's (`fixtures/quality/predictions.py`).

use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use apr_testkit::{excessive, locate};
use serde_json::Value;

use crate::support::Sandbox;

/// Sign, exponent and two bits of the mantissa of a bfloat16, as `predictions.py` has them.
const KEPT: u8 = 0xE0;

/// tiny-llama, a coarser copy of it, and a text of sums.
fn models() -> Sandbox {
    let sandbox = Sandbox::new();
    let read = |name: &str| fs::read(locate::fixture(name)).expect("the fixture");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let bytes = read(&format!("tiny-llama/{name}"));
        sandbox.write(&format!("llama/{name}"), &bytes);
        sandbox.write(&format!("coarse/{name}"), coarse(name, bytes));
    }
    sandbox.with("sums.txt", read("quality/sums.txt"))
}

fn coarse(name: &str, mut bytes: Vec<u8>) -> Vec<u8> {
    if name == "model.safetensors" {
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let start = 8 + usize::try_from(header).expect("a small file");
        bytes[start..].iter_mut().step_by(2).for_each(|low| *low &= KEPT);
    }
    bytes
}

/// Compares numbers of two JSON values, wherever the second has some.
fn agree(found: &Value, expected: &Value, path: &str) {
    match expected {
        Value::Object(fields) => {
            for (name, expected) in fields {
                agree(&found[name], expected, &format!("{path}/{name}"));
            }
        }
        Value::Array(items) => {
            for (at, expected) in items.iter().enumerate() {
                agree(&found[at]["value"], expected, &format!("{path}/{at}"));
            }
        }
        expected => {
            let [left, right] =
                [found, expected].map(|value| value.as_f64().unwrap_or_else(|| panic!("{path}")));
            let tolerance = 1e-4 * right.abs() + 2e-6;
            assert!((left - right).abs() <= tolerance, "{path}: {left} and {right}");
        }
    }
}

#[test]
fn predictions_are_compared_as_numpy_computes() {
    let sandbox = models();
    let text = fs::read_to_string(locate::fixture("quality/predictions.json")).expect("JSON");
    let mut expected: Value = serde_json::from_str(&text).expect("JSON");
    let line = ["validate", "llama", "coarse", "--quality", "--text", "sums.txt", "--context", "9"];
    let report = sandbox.run(&[&line[..], &["--json"]].concat()).ok().json();
    let [base, other] = ["base", "other"].map(|key| expected[key].take());
    agree(&report["base"]["perplexity"], &base, "base");
    agree(&report["other"]["perplexity"], &other, "other");
    assert_eq!(report["base"]["scored"], expected["scored"].take());
    agree(&report["same_top"]["value"], &expected["same_top"].take(), "same_top");
    let rest = expected.as_object_mut().expect("an object");
    rest.retain(|_, value| !value.is_null());
    agree(&report, &expected, "");
}

#[test]
fn the_perplexity_of_one_model_equals_that_in_a_comparison() {
    let sandbox = models();
    let text = ["--quality", "--text", "sums.txt", "--context", "9"];
    let one = sandbox.run(&[&["validate", "llama"][..], &text, &["--json"]].concat()).ok().json();
    let line = [&["validate", "llama", "llama"][..], &text, &["--json"]].concat();
    let both = sandbox.run(&line).ok().json();
    assert_eq!(one["perplexity"], both["base"]["perplexity"]);
    assert_eq!(both["base"], both["other"]);
    let divergence = &both["kl_divergence"];
    assert_eq!((&divergence["max"], &divergence["min"]), (&0.0.into(), &0.0.into()));
    assert_eq!(both["same_top"]["value"], 1.0);
}

#[test]
fn outputs_of_a_coarser_model_are_near_and_of_a_damaged_one_are_not() {
    let sandbox = models();
    let compare = |other: &str, more: &[&str]| {
        sandbox.run(&[&["validate", "llama", other, "--quality"][..], more].concat())
    };
    let same = compare("llama", &["--json"]).ok().json();
    assert_eq!((&same["max_l2"], &same["cosine"]), (&0.0.into(), &1.0.into()));
    assert_eq!((&same["expected_rank"], &same["centred_cosine"]), (&1.0.into(), &Value::Null));
    assert_eq!(same["layers"][0]["centred_cosine"], 1.0);

    sandbox.run(&["quantize", "llama", "--type", "q8_0", "-o", "q8.gguf"]).ok();
    let parts = ["Original", "Optimized", "Output Comparison (10 test inputs)", "VERDICT: ✓ PASS"];
    let text = compare("q8.gguf", &[]).ok().says(&parts).to_string();
    assert_eq!(text.matches("top prediction").count(), 1, "{text}");
    compare("q8.gguf", &["--max-drift", "0.000001"]).fails(5, &["VERDICT: ✗ FAIL"]);

    let mut bytes = sandbox.read("llama/model.safetensors");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 20_000].iter_mut().skip(1).step_by(2).for_each(|high| *high ^= 0x80);
    sandbox.write("coarse/model.safetensors", bytes);
    compare("coarse", &[]).fails(5, &["VERDICT: ✗ FAIL"]);
}

#[test]
fn models_that_cannot_be_compared_are_rejected() {
    let sandbox = models();
    let text = |context: &str| {
        let line = ["validate", "llama", "--quality", "--text", "sums.txt", "--context", context];
        sandbox.run(&line)
    };
    let most = usize::MAX.to_string();
    for (context, says) in [
        ("3", "--context"),
        ("0", "--context"),
        (&*most, "--context"),
        ("4294967295", "context of"),
        ("1000", "context of"),
    ] {
        text(context).fails(2, &[says]);
    }
    let line = ["validate", "llama", "--quality", "--text", "sums.txt", "--chunks", "0"];
    sandbox.run(&line).fails(2, &["--chunks"]);
    for most in ["nan", "-1", "x"] {
        let most = format!("--max-drift={most}");
        let line = ["validate", "llama", "coarse", "--quality", &most];
        sandbox.run(&line).fails(2, &["--max-drift"]);
    }
    sandbox.write("short.txt", "1+1=2");
    let line = ["validate", "llama", "--quality", "--text", "short.txt"];
    sandbox.run(&line).fails(2, &["use a longer text"]);
    sandbox.write("empty.txt", "");
    let line = ["validate", "llama", "--quality", "--text", "empty.txt"];
    sandbox.run(&line).fails(2, &["the text has 1 token, fewer than two windows"]);
    let sound = locate::fixture("sound/a.wav").display().to_string();
    let line = ["validate", "llama", "coarse", "--quality", "--input", &sound];
    sandbox
        .run(&line)
        .fails(2, &["the model requires text, but the input ", "a.wav does not contain text"]);
    let vit = locate::fixture("run/tiny-vit").display().to_string();
    let different = "the models take different inputs: A has text input, and B image input";
    sandbox.run(&["validate", "llama", &vit, "--quality"]).fails(2, &[different]);
    let line = ["trace", "llama", &vit, "--diff", "--prompt", "1+1="];
    sandbox.run(&line).fails(2, &["the second model has no text input"]);

    for line in [
        &["validate", "llama", "coarse"][..],
        &["validate", "llama", "--text", "sums.txt"],
        &["validate", "llama", "coarse", "--quality", "--checksum"],
    ] {
        sandbox.run(line).fails(2, &[]);
    }
}

/// The model with a norm of NaN.
fn with_nan(sandbox: &Sandbox) {
    let mut bytes = sandbox.read("llama/model.safetensors");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let start = 8 + usize::try_from(header).expect("a small file");
    let json: Value = serde_json::from_slice(&bytes[8..start]).expect("a header");
    let place = &json["model.norm.weight"]["data_offsets"][0];
    let place = start + usize::try_from(place.as_u64().expect("an offset")).expect("small");
    bytes[place..place + 2].copy_from_slice(&[0xC0, 0x7F]);
    sandbox.write("nan/model.safetensors", bytes);
    for name in ["config.json", "tokenizer.json"] {
        sandbox.write(&format!("nan/{name}"), sandbox.read(&format!("llama/{name}")));
    }
}

#[test]
fn a_model_that_computes_nan_is_rejected_as_the_reference() {
    let sandbox = models();
    with_nan(&sandbox);
    let text = ["--quality", "--text", "sums.txt", "--context", "9"];
    let run =
        |models: &[&str], more: &[&str]| sandbox.run(&[&["validate"][..], models, more].concat());
    run(&["nan", "llama"], &["--quality"]).fails(4, &["E001", "of A is NaN or infinite"]);
    run(&["nan"], &text).fails(4, &["E001", "are NaN or infinite"]);
    run(&["nan", "llama"], &text).fails(4, &["E001", "the logits of A in window 1 are NaN"]);
    run(&["llama", "nan"], &text).fails(4, &["E001", "the logits of B in window 1 are NaN"]);

    // The damage is in B: it fails, and is compared.
    run(&["llama", "nan"], &["--quality"]).fails(5, &["VERDICT: ✗ FAIL"]);

    let create = ["canary", "create", "nan", "--prompt", "1+1=", "-o", "canary.json"];
    sandbox.run(&create).fails(4, &["E001"]);
    assert!(!sandbox.path("canary.json").exists());
}

#[test]
fn vocabularies_that_differ_are_refused() {
    let sandbox = models();
    let tokenizer = String::from_utf8(sandbox.read("llama/tokenizer.json")).expect("JSON");
    let swapped = tokenizer.replace("\"1\": 49", "\"1\": 50").replace("\"2\": 50", "\"2\": 49");
    assert_ne!(tokenizer, swapped);
    sandbox.write("coarse/tokenizer.json", swapped);
    let text = ["--quality", "--text", "sums.txt", "--context", "9"];
    let line = [&["validate", "llama", "coarse"][..], &text].concat();
    sandbox.run(&line).fails(2, &["the vocabularies differ"]);

    let mamba = locate::fixture("run/tiny-mamba").display().to_string();
    let line = [&["validate", "llama", &mamba][..], &text].concat();
    sandbox.run(&line).fails(2, &["the vocabularies differ", "B has 61 tokens"]);
    let bert = locate::fixture("run/tiny-bert").display().to_string();
    let line = [&["validate", &bert][..], &text].concat();
    sandbox.run(&line).fails(4, &["E003", "a language model that returns logits"]);
    sandbox.run(&["validate", "llama", &bert, "--quality"]).fails(2, &["a common output"]);
    sandbox.run(&["validate", "llama", "coarse", "--quality"]).fails(2, &["the tokenizers differ"]);
}

#[test]
fn a_model_without_a_tokenizer_is_given_the_tokens_of_the_other() {
    let sandbox = models();
    let mut expected = None;
    for (a, b) in [(true, true), (true, false), (false, true), (false, false)] {
        for (model, has) in [("llama", a), ("coarse", b)] {
            let path = sandbox.path(&format!("{model}/tokenizer.json"));
            match has {
                true => {
                    fs::copy(locate::fixture("tiny-llama/tokenizer.json"), path).expect("ours");
                }
                false => fs::remove_file(path).unwrap_or_default(),
            }
        }
        let line = ["validate", "llama", "coarse", "--quality", "--json"];
        let found = sandbox.run(&[&line[..], &["--max-drift", "1"]].concat()).ok().json();
        let text = ["--text", "sums.txt", "--context", "9"];
        let of_text = sandbox.run(&[&line[..], &text].concat());
        if a || b {
            let found = [found["mean_l2"].clone(), of_text.ok().json()["kl_divergence"].clone()];
            assert_eq!(found, *expected.get_or_insert(found.clone()), "{a} {b}");
        } else {
            of_text.fails(4, &["E003", "missing tokenizer"]);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_text_is_read_once() {
    let sandbox = models();
    let sums = sandbox.read("sums.txt");
    let line = "validate llama coarse --quality --text /dev/stdin --context 9 --json";
    let piped = sandbox.piped(line, &sums).ok().json();
    assert_eq!(piped["base"]["scored"], 256);
}

#[test]
fn windows_are_not_longer_than_the_context_of_either_model() {
    let sandbox = models();
    let config = String::from_utf8(sandbox.read("coarse/config.json")).expect("JSON");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["max_position_embeddings"] = 16.into();
    sandbox.write("coarse/config.json", config.to_string());
    for (a, b) in [("llama", "coarse"), ("coarse", "llama")] {
        let line = ["validate", a, b, "--quality", "--text", "sums.txt"];
        let found = sandbox.run(&[&line[..], &["--json"]].concat()).ok().json();
        assert_eq!(found["base"]["context"], 16);
        let line = [&line[..], &["--context", "17"]].concat();
        sandbox.run(&line).fails(2, &["context of 16"]);
    }
}

#[test]
fn vocabularies_that_differ_behind_the_last_window_are_refused() {
    let sandbox = models();
    let tokenizer = String::from_utf8(sandbox.read("llama/tokenizer.json")).expect("JSON");
    let swapped = tokenizer.replace("\"x\": 120", "\"x\": 121").replace("\"y\": 121", "\"y\": 120");
    assert_ne!(tokenizer, swapped);
    sandbox.write("coarse/tokenizer.json", swapped);
    sandbox.write("x.txt", "1+2=3 1+2=3 1+2=3 1+2=3 x");
    let line = ["validate", "llama", "coarse", "--quality", "--text", "x.txt", "--context", "9"];
    sandbox.run(&line).fails(2, &["the vocabularies differ"]);
}

#[test]
fn models_of_every_kind_are_compared_on_inputs_that_fit() {
    let sandbox = Sandbox::new();
    for (name, says) in [
        ("tiny-bert", &["at 'embedding'", "layers.1:", "Both models have the same nearest "][..]),
        ("tiny-clip", &["Same top prediction: 100.0%", "same first choice in 100.0 % of the"]),
        ("tiny-convnext", &["Same top prediction: 100.0%"]),
        ("tiny-mamba", &["Same top prediction: "]),
        ("tiny-qa", &["VERDICT: ✓ PASS"]),
        ("tiny-vit", &["Same top prediction: 100.0%", "first choice: 1.0000\n"]),
        ("tiny-wav2vec2", &["Layer-by-layer drift:"]),
        ("tiny-whisper", &["encoder_model/layers.1: ", "decoder_model/layers.1: "]),
    ] {
        let model = locate::fixture(&format!("run/{name}")).display().to_string();
        let copy = format!("{name}.apr");
        sandbox.run(&["convert", &model, "--precision", "bf16", "-o", &copy]).ok();
        let line = ["validate", &model, &copy, "--quality"];
        sandbox.run(&line).ok().says(&["Output Comparison (10 test inputs)"]).says(says);
    }
}

#[test]
fn transcriptions_of_whisper_are_compared_word_by_word() {
    let sandbox = Sandbox::new();
    let model = locate::fixture("run/tiny-whisper").display().to_string();
    let sound = locate::fixture("run/../sound").display().to_string();
    let mut sounds = fs::read_dir(sound).expect("a folder").flatten().map(|entry| entry.path());
    let wav = sounds.find(|path| path.extension().is_some_and(|end| end == "wav"));
    let wav = wav.expect("a sound").display().to_string();
    sandbox.run(&["convert", &model, "--precision", "bf16", "-o", "w.apr"]).ok();
    let line = ["validate", &model, &model, "--quality", "--input", &wav, "--json"];
    let same = sandbox.run(&line).ok().json();
    assert_eq!(same["error_rates"], serde_json::json!({ "word": 0.0, "character": 0.0 }));
    let line = ["validate", &model, "w.apr", "--quality", "--input", &wav];
    sandbox.run(&line).ok().says(&["1 test input)", "Word error rate", "Character error rate"]);
}

#[test]
fn arrays_are_for_inputs_that_the_model_has() {
    let sandbox = models();
    let run = |file: &str, json: &str| {
        sandbox.write(file, json);
        sandbox.run(&["validate", "llama", "llama", "--quality", "--input", file])
    };
    run("good.json", r#"{"input_ids": [[1, 5, 20]]}"#).ok();
    for (json, says) in [
        (r#"{"input_ids": [[1, 5, 20]], "bogus": [[1]]}"#, "the array 'bogus' is for no input"),
        (r#"{"array": [[1]]}"#, "the array 'array' is for no input"),
        ("[[1, 5, 20]]", "the array without a name is for no input"),
    ] {
        run("bad.json", json).fails(2, &["bad.json", says, "the model has the inputs input_ids"]);
    }
}

#[test]
fn an_array_of_an_npy_file_is_for_the_only_input() {
    let sandbox = Sandbox::new();
    let mut header =
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 32, 32), }".to_vec();
    header.resize(117, b' ');
    header.push(b'\n');
    let pixels: Vec<u8> = (0..3 * 32 * 32_u16).flat_map(|at| f32::from(at).to_le_bytes()).collect();
    let file = [&b"\x93NUMPY\x01\x00\x76\x00"[..], &header, &pixels].concat();
    sandbox.write("pixels.npy", file);
    let resnet = locate::fixture("run/tiny-resnet").display().to_string();
    let line = ["validate", &resnet, &resnet, "--quality", "--input", "pixels.npy"];
    sandbox.run(&line).ok().says(&["1 test input)"]);
}

#[test]
fn layers_beyond_the_memory_limit_are_listed() {
    let sandbox = Sandbox::new();
    let ids: Vec<i64> = (0..5000).map(|at| at % 50).collect();
    sandbox.write("ids.json", serde_json::json!({ "input_ids": [ids] }).to_string());
    let mamba = locate::fixture("run/tiny-mamba").display().to_string();
    let line = ["validate", &mamba, &mamba, "--quality", "--input", "ids.json"];
    let all = sandbox.run(&[&line[..], &["--json"]].concat()).ok().json();
    assert_eq!(all["layers_left_out"], Value::Null);

    let line = [&line[..], &["--max-memory", "17000000"]].concat();
    let few = sandbox.run(&[&line[..], &["--json"]].concat()).ok().json();
    let count = |key: &str| few[key].as_array().map_or(0, Vec::len);
    assert!(count("layers_left_out") > 0, "{few}");
    let whole = all["layers"].as_array().expect("layers").len();
    assert_eq!(count("layers") + count("layers_left_out"), whole);
    sandbox.run(&line).ok().says(&["not compared for lack of memory: ", "--max-memory"]);
}

#[cfg(unix)]
#[test]
fn a_model_that_changes_while_it_is_read_is_noticed() {
    let sandbox = models();
    sandbox.shell("mkfifo pipe.txt").clean();
    let mut command = sandbox.command(&["validate", "llama", "coarse", "--quality"]);
    command.args(["--input", "pipe.txt"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the command starts");
    // It opens the pipe when both models are open.
    let mut pipe = File::options().write(true).open(sandbox.path("pipe.txt")).expect("ours");
    let model = File::options().write(true).open(sandbox.path("llama/model.safetensors"));
    let later = SystemTime::now() + Duration::from_secs(5);
    model.and_then(|model| model.set_modified(later)).expect("ours");
    pipe.write_all(b"1+1=").expect("it is read");
    drop(pipe);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("was changed by another program"), "{said}");
}

/// A call's long name precedes each operator of its function, and each call refers to all values of
/// the function.
#[test]
fn paths_and_calls_of_a_graph_are_bounded() {
    for name in [
        "onnx: a function with a long name of its call",
        "onnx: calls of a function with many values",
    ] {
        let construct = excessive::all().find(|construct| construct.name == name);
        let file = construct.expect("a construct").of_size(1_000_000);
        let sandbox =
            Sandbox::new().with("m.onnx", file).with("t.txt", "Once upon a time. ".repeat(20));
        sandbox.apr("validate m.onnx m.onnx --quality").says(&["E008"]);
        sandbox.apr("imatrix m.onnx --text t.txt -o m.gguf").says(&["E008"]);
    }
}
