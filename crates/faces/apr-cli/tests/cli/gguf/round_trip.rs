//! What comes back after a trip: values, key-value pairs, special tokens, parts and bytes.

use std::fs;

use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use serde_json::{Value, json};

use super::parsed::Parsed;
use super::trained;
use crate::families::metadata;
use crate::support::Sandbox;

#[test]
fn a_model_is_the_same_after_a_trip_to_gguf() {
    let sandbox = trained();
    let report = sandbox.apr("export llama -o m.gguf --json").ok().json();
    // The folder's name is the model's, for want of a better one, and no loss.
    assert!(
        report["losses"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|loss| loss["name"] != "model_name"),
        "{report}"
    );
    assert_eq!(Parsed::new(&sandbox.read("m.gguf"), 32).text("general.name"), "Llama");
    sandbox.apr("export m.gguf -o back --precision bf16").ok();
    // Values, names, their order, and the file's header.
    assert!(sandbox.read("back/model.safetensors") == sandbox.read("llama/model.safetensors"));
    let json = |name: &str| serde_json::from_slice::<Value>(&sandbox.read(name)).expect("JSON");
    assert_eq!(json("back/tokenizer.json"), json("llama/tokenizer.json"));
    let (back, original) = (json("back/config.json"), json("llama/config.json"));
    for (key, value) in back.as_object().expect("an object") {
        assert_eq!(value, &original[key], "{key}");
    }
    for key in [
        "model_type",
        "architectures",
        "num_hidden_layers",
        "rope_theta",
        "rms_norm_eps",
        "vocab_size",
        "tie_word_embeddings",
    ] {
        assert_eq!(back.get(key), original.get(key), "{key}");
    }
    // By way of an .apr file too.
    sandbox.apr("import m.gguf -o m.apr").ok();
    sandbox.apr("export m.apr -o again --precision bf16").ok();
    assert!(sandbox.read("again/model.safetensors") == sandbox.read("llama/model.safetensors"));
    sandbox.apr("diff llama m.gguf --exit-code").ok().says(&["21 of 21 tensors match"]);
}

#[test]
fn qa_81_a_quantized_file_comes_back_byte_for_byte() {
    let sandbox = trained();
    for scheme in ["q8_0", "q4_k_m"] {
        sandbox.apr(&format!("quantize llama --type {scheme} -o q.gguf -f")).ok();
        sandbox.apr("import q.gguf -o q.apr -f").ok();
        sandbox.apr("export q.apr -o back.gguf -f").ok();
        assert!(sandbox.read("back.gguf") == sandbox.read("q.gguf"), "{scheme}");
        sandbox.apr("convert q.gguf -o copy.gguf -f").ok();
        assert!(sandbox.read("copy.gguf") == sandbox.read("q.gguf"), "{scheme}");
        let types = |model: &str| {
            sandbox.apr(&format!("inspect {model} --json")).ok().json()["dtypes"].take()
        };
        assert_eq!(types("q.apr"), types("q.gguf"));
        sandbox.apr("validate q.gguf").ok();
    }
}

/// The pairs are part of metadata that are set, parted, hidden, listed in a manifest and put
/// together again.
#[test]
fn pairs_stay_with_the_metadata_wherever_these_go() {
    let file = GgufBuilder::new()
        .text("general.architecture", "llama")
        .texts("tokenizer.ggml.tokens", &["a", "\u{e9}\n\"", ""])
        .pair("odd.nan", 6, &0x7fc0_1234_u32.to_le_bytes())
        .array("odd.floats", 6, 2, &[0, 0, 128, 127, 1, 0, 0, 0])
        .entry(GgufEntry::new("blk.0.attn_q.weight", 0, &[32, 2], &[7; 256]))
        .entry(GgufEntry::new("token_embd.weight", 0, &[32, 3], &[5; 384]))
        .build();
    let sandbox = Sandbox::new().with("m.gguf", &file);
    sandbox.apr("keygen --for encryption -o k.pem").ok();
    let ways: [&[&str]; 4] = [
        &["convert m.gguf -o b.apr --relaxed"],
        &["convert m.gguf -o a.apr --relaxed", "edit a.apr --set note=changed -o b.apr"],
        &["convert m.gguf -o b.apr --relaxed --recipient k.pem.pub --encrypt-metadata"],
        &[
            "convert m.gguf -o a.apr --relaxed",
            "shard a.apr --size 300B -o p.apr",
            "join p.apr -o b.apr",
        ],
    ];
    for way in ways {
        way.iter().for_each(|line| drop(sandbox.apr(&format!("{line} -f")).ok()));
        sandbox.apr("convert b.apr -o again.gguf --key k.pem --relaxed -f").ok();
        assert_eq!(sandbox.read("again.gguf"), file, "{way:?}");
    }
}

#[test]
fn qa_85_special_tokens_keep_their_ids_through_gguf() {
    let sandbox = trained();
    let roles = [("bos", "<s>", 256), ("eos", "</s>", 257), ("pad", "<pad>", 258)];
    sandbox.apr("export llama -o m.gguf").ok();
    sandbox.apr("import m.gguf -o m.apr").ok();
    let file = Parsed::new(&sandbox.read("m.gguf"), 32);
    assert_eq!(file.number("tokenizer.ggml.padding_token_id"), 258);
    for model in ["m.gguf", "m.apr"] {
        let found = metadata(&sandbox, model);
        for (role, token, id) in roles {
            let of = |what: &str| &found[format!("tokenizer.{role}_token{what}")];
            assert_eq!((of(""), of("_id")), (&json!(token), &json!(id)), "{model}");
        }
    }
    sandbox.apr("export m.apr -o back").ok();
    let config: Value =
        serde_json::from_slice(&sandbox.read("back/tokenizer_config.json")).expect("JSON");
    let map: Value =
        serde_json::from_slice(&sandbox.read("back/special_tokens_map.json")).expect("JSON");
    for (role, token, _) in roles {
        assert_eq!(
            (&config[format!("{role}_token")], &map[format!("{role}_token")]),
            (&json!(token), &json!(token))
        );
    }
    let tokenizer: Value =
        serde_json::from_slice(&sandbox.read("back/tokenizer.json")).expect("JSON");
    assert_eq!(tokenizer["model"]["vocab"]["</s>"], 257);
}

#[test]
fn shards_of_gguf_are_one_model() {
    let sandbox = trained();
    sandbox.apr("quantize llama --type q8_0 -o q.gguf").ok();
    sandbox.apr("convert q.gguf -o cut.gguf --shard-size 100KB").ok().says(&["in 5 files"]);
    let shards: Vec<String> =
        sandbox.files().into_iter().filter(|name| name.starts_with("cut")).collect();
    assert_eq!(shards.len(), 5);
    assert_eq!(shards[0], "cut-00001-of-00005.gguf");
    let report = sandbox.apr("inspect cut-00001-of-00005.gguf --json").ok().json();
    assert_eq!((&report["tensor_count"], &report["parameters"]), (&json!(21), &json!(361_856)));
    sandbox.apr("convert cut-00001-of-00005.gguf -o joined.gguf").ok();
    assert!(sandbox.read("joined.gguf") == sandbox.read("q.gguf"));
    sandbox.apr("import cut-00001-of-00005.gguf -o cut.apr").ok();
    sandbox.apr("diff q.gguf cut.apr --exit-code").ok();
    fs::remove_file(sandbox.path(&shards[2])).expect("it is there");
    sandbox.apr("inspect cut-00001-of-00005.gguf").ok().says(&["cut-00003-of-00005.gguf", "E007"]);
    sandbox
        .apr("convert cut-00001-of-00005.gguf -o part.gguf")
        .fails(3, &["cut-00003-of-00005.gguf"]);
}

#[test]
fn gguf_goes_through_pipes_and_takes_another_alignment() {
    let sandbox = trained();
    sandbox.apr("quantize llama --type q8_0 -o q.gguf").ok();
    let written = sandbox.read("q.gguf");
    let piped =
        sandbox.apr("quantize llama --type q8_0 --format gguf -o -").ok().says(&["21 tensors"]);
    assert!(piped.stdout == written);
    for line in ["inspect -", "validate -", "tensors - --stats"] {
        sandbox.piped(line, &written).ok();
    }
    assert!(sandbox.piped("convert - --format gguf -o - -q", &written).ok().stdout == written);

    sandbox.apr("convert q.gguf --align 64 -o wide.gguf").ok();
    let wide = Parsed::new(&sandbox.read("wide.gguf"), 64);
    assert_eq!(wide.number("general.alignment"), 64);
    sandbox.apr("diff q.gguf wide.gguf --exit-code").ok();
    sandbox.apr("convert wide.gguf --align 32 -o back.gguf").ok();
    let (back, original) = (Parsed::new(&sandbox.read("back.gguf"), 32), Parsed::new(&written, 32));
    assert!(back.data == original.data);
    for wrong in ["48", "7", "0"] {
        sandbox
            .apr(&format!("convert q.gguf --align {wrong} -o x.gguf"))
            .fails(2, &["power of two"]);
    }
    sandbox.apr("convert q.gguf --align 128 -o x.apr").fails(2, &["32 or 64"]);
    sandbox.apr("convert q.gguf --align 64 -o x.safetensors").fails(2, &["--align works for"]);
}
