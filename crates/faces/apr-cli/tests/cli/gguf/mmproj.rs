//! Parts for images of vision-language models, as files that llama.cpp takes as `--mmproj`.

use std::fs;

use apr_testkit::hub::sha256;
use apr_testkit::locate;
use serde_json::Value;

use super::parsed::Parsed;
use crate::support::Sandbox;

/// What llama.cpp's converter makes of each model.
fn converted() -> Vec<(String, Value)> {
    let text = fs::read(locate::fixture("mmproj/expected.json")).expect("the fixture is there");
    let all: Value = serde_json::from_slice(&text).expect("JSON");
    all.as_object().expect("cases").clone().into_iter().collect()
}

/// The bytes of a value, as [`Parsed`] has them.
fn bytes_of(kind: &str, value: &Value) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "the file has single precision")]
    let single = || (value.as_f64().expect("a number") as f32).to_le_bytes().to_vec();
    match kind {
        "string" => value.as_str().expect("a text").as_bytes().to_vec(),
        "bool" => vec![u8::from(value == true)],
        "float32" => single(),
        "uint32" => u32::try_from(value.as_u64().expect("a number"))
            .expect("it fits")
            .to_le_bytes()
            .to_vec(),
        array => {
            let kind = array.strip_prefix("array/").expect("no other types");
            let items = value.as_array().expect("a list").iter();
            items.flat_map(|item| [bytes_of(kind, item), b"\n".to_vec()].concat()).collect()
        }
    }
}

#[test]
fn parts_for_images_are_the_converters_bit_for_bit() {
    for (name, made) in converted() {
        let sandbox = Sandbox::new();
        let model = locate::fixture(&format!("run/tiny-{name}")).display().to_string();
        sandbox.run(&["convert", &model, "--mmproj", "-o", "mmproj.gguf"]).ok();
        let parsed = Parsed::new(&sandbox.read("mmproj.gguf"), 32);
        for entry in made["keys"].as_array().expect("keys") {
            let (key, kind) = (entry[0].as_str().expect("a key"), entry[1].as_str());
            // Names come from the folder in ways of their own.
            if key == "general.name" {
                continue;
            }
            let expected = bytes_of(kind.expect("a type"), &entry[2]);
            assert_eq!(parsed.value(key), Some(&expected[..]), "{name}: {key}");
        }
        assert_eq!(parsed.value("tokenizer.ggml.tokens"), None, "{name}");
        let mut written = made["written"].as_object().expect("tensors").clone();
        for (tensor, (dims, kind, _)) in &parsed.tensors {
            let golden = match (name.as_str(), tensor.as_str(), written.remove(tensor)) {
                (_, _, Some(golden)) => golden,
                // The converter leaves it out, and llama.cpp refuses to read the file without it.
                ("mistral3", "v.token_embd.img_break", None) => continue,
                _ => panic!("{name}: {tensor} is one too many"),
            };
            let shape: Vec<u64> = dims.iter().rev().copied().collect();
            assert_eq!(golden[1], serde_json::json!(shape), "{name}: {tensor}");
            let size = match kind {
                0 => 4,
                1 => 2,
                other => panic!("{name}: {tensor} has type {other}"),
            };
            assert_eq!(golden[0], if size == 4 { "f32" } else { "f16" }, "{name}: {tensor}");
            let len = usize::try_from(shape.iter().product::<u64>()).expect("small") * size;
            // torch adds one in half precision, and `apr` in single.
            if (name.as_str(), tensor.as_str()) != ("gemma3", "mm.soft_emb_norm.weight") {
                assert_eq!(golden[2], sha256(parsed.bytes(tensor, len)), "{name}: {tensor}");
            }
        }
        assert!(written.is_empty(), "{name}: {:?} are missing", written.keys());
    }
}

/// `run_images` compares the same graph, before a language model, with transformers.
#[test]
fn a_part_for_images_is_a_model_by_itself() {
    for (name, _) in converted() {
        let sandbox = Sandbox::new();
        let model = locate::fixture(&format!("run/tiny-{name}")).display().to_string();
        let image = locate::fixture("picture/a.png").display().to_string();
        sandbox.run(&["convert", &model, "--mmproj", "-o", "part.gguf"]).ok();
        sandbox.apr("validate part.gguf --strict").ok();
        let graph = sandbox.apr("graph part.gguf").ok().text();
        assert!(graph.contains("image_features"), "{name}: {graph}");
        let of_whole = sandbox.run(&["run", "part.gguf", "-i", &image, "--json"]).ok().json();
        let quantized = sandbox.apr("quantize part.gguf -t q8_0 -o part-q8.gguf").ok().text();
        assert!(!quantized.contains("part (metadata)"), "{name}: {quantized}");
        let of_codes = sandbox.run(&["run", "part-q8.gguf", "-i", &image, "--json"]).ok().json();
        let vector = |report: &Value| report["results"][0]["vector"].as_array().map(Vec::len);
        assert!(vector(&of_whole).is_some_and(|numbers| numbers > 0), "{name}");
        assert_eq!(vector(&of_whole), vector(&of_codes), "{name}");
        sandbox.run(&["canary", "create", "part.gguf", "--input", &image, "-o", "c.json"]).ok();
        sandbox.apr("canary check part.gguf --canary c.json").ok();
    }
}
