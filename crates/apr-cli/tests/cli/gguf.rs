//! GGUF in and out. Points 61, 78, 81, 85 and 95 of `docs/qa.md`.

use std::collections::BTreeMap;
use std::fs;

use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::locate;
use serde_json::{Value, json};

use crate::families::{TinyModel, metadata, names};
use crate::support::{Sandbox, f32s, small_safetensors};

/// A sandbox with the trained fixture in the folder `llama`, without what trained it.
fn trained() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        let bytes =
            fs::read(locate::fixture("tiny-llama").join(name)).expect("the fixture is there");
        sandbox.write(&format!("llama/{name}"), bytes);
    }
    sandbox
}

/// A GGUF file as its specification says, read without any of the code under test.
struct Parsed {
    /// Number of the type and bytes of the value.
    keys: BTreeMap<String, (u32, Vec<u8>)>,
    /// Dimensions, innermost first; number of the type; offset in the data.
    tensors: BTreeMap<String, (Vec<u64>, u32, usize)>,
    data: Vec<u8>,
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken.to_vec()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn len(&mut self) -> usize {
        usize::try_from(self.u64()).expect("small")
    }

    fn text(&mut self) -> String {
        let len = self.len();
        String::from_utf8(self.take(len)).expect("UTF-8")
    }

    fn value(&mut self, kind: u32) -> Vec<u8> {
        match kind {
            0 | 1 | 7 => self.take(1),
            2 | 3 => self.take(2),
            4..=6 => self.take(4),
            10..=12 => self.take(8),
            8 => self.text().into_bytes(),
            9 => {
                let (item, count) = (self.u32(), self.len());
                (0..count).flat_map(|_| [self.value(item), b"\n".to_vec()].concat()).collect()
            }
            other => panic!("no type has number {other}"),
        }
    }
}

impl Parsed {
    fn new(file: &[u8], alignment: usize) -> Self {
        let mut cursor = Cursor(file);
        assert_eq!((cursor.take(4).as_slice(), cursor.u32()), (&b"GGUF"[..], 3));
        let (tensors, pairs) = (cursor.u64(), cursor.u64());
        let keys = (0..pairs).map(|_| {
            let (key, kind) = (cursor.text(), cursor.u32());
            let value = cursor.value(kind);
            (key, (kind, value))
        });
        let keys = keys.collect();
        let tensors = (0..tensors).map(|_| {
            let (name, count) = (cursor.text(), cursor.u32());
            let dims = (0..count).map(|_| cursor.u64()).collect();
            (name, (dims, cursor.u32(), cursor.len()))
        });
        let tensors: BTreeMap<_, (Vec<u64>, u32, usize)> = tensors.collect();
        assert!(tensors.values().all(|(.., offset)| offset % alignment == 0));
        let start = (file.len() - cursor.0.len()).next_multiple_of(alignment);
        Self { keys, tensors, data: file[start..].to_vec() }
    }

    fn number(&self, key: &str) -> u32 {
        let (kind, value) = &self.keys[key];
        assert!(matches!(kind, 4 | 5), "{key} has type {kind}");
        u32::from_le_bytes(value[..].try_into().expect("four bytes"))
    }

    fn text(&self, key: &str) -> &str {
        let (kind, value) = &self.keys[key];
        assert_eq!(*kind, 8, "{key}");
        std::str::from_utf8(value).expect("UTF-8")
    }

    fn bytes(&self, name: &str, len: usize) -> &[u8] {
        let (.., offset) = self.tensors[name];
        &self.data[offset..offset + len]
    }
}

/// The bytes of a tensor of a safetensors file.
fn of_safetensors(file: &[u8], name: &str) -> Vec<u8> {
    let len = usize::try_from(u64::from_le_bytes(file[..8].try_into().expect("eight bytes")))
        .expect("small");
    let header: Value = serde_json::from_slice(&file[8..8 + len]).expect("JSON");
    let offset = |end: usize| {
        usize::try_from(header[name]["data_offsets"][end].as_u64().expect("an offset"))
            .expect("small")
    };
    file[8 + len + offset(0)..8 + len + offset(1)].to_vec()
}

#[test]
fn qa_61_an_export_is_what_the_specification_of_gguf_says() {
    let sandbox = trained();
    sandbox.apr("import llama -o m.apr").ok();
    for line in ["export llama --format gguf -o direct", "export m.apr -o m.gguf"] {
        sandbox.apr(line).ok();
    }
    let source = sandbox.read("llama/model.safetensors");
    for name in ["direct", "m.gguf"] {
        let file = Parsed::new(&sandbox.read(name), 32);
        assert_eq!(file.text("general.architecture"), "llama");
        for (key, value) in [
            ("llama.block_count", 2),
            ("llama.context_length", 64),
            ("llama.embedding_length", 128),
            ("llama.feed_forward_length", 256),
            ("llama.attention.head_count", 4),
            ("llama.attention.head_count_kv", 2),
            ("tokenizer.ggml.bos_token_id", 256),
            ("tokenizer.ggml.eos_token_id", 257),
            ("general.file_type", 32),
        ] {
            assert_eq!(file.number(key), value, "{key}");
        }
        assert_eq!(file.text("tokenizer.ggml.model"), "gpt2");
        assert_eq!(file.tensors.len(), 21);
        // Dimensions innermost first; BF16 is number 30, and vectors are F32, number 0.
        let (dims, kind, _) = &file.tensors["blk.1.ffn_down.weight"];
        assert_eq!((&dims[..], *kind), (&[256, 128][..], 30));
        let (dims, kind, _) = &file.tensors["output_norm.weight"];
        assert_eq!((&dims[..], *kind), (&[128][..], 0));
        for (gguf, hf) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
            ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
            ("output.weight", "lm_head.weight"),
        ] {
            let expected = of_safetensors(&source, hf);
            assert!(file.bytes(gguf, expected.len()) == expected, "{gguf}");
        }
        // llama.cpp rotates neighbours where transformers rotates halves: the rows of each head
        // change places.
        let (query, head) =
            (of_safetensors(&source, "model.layers.0.self_attn.q_proj.weight"), 32 * 256);
        let rotated = file.bytes("blk.0.attn_q.weight", query.len());
        for row in 0..32 {
            let from = (row % 2 * 16 + row / 2) * 256;
            assert!(rotated[head + row * 256..][..256] == query[head + from..][..256], "row {row}");
        }
    }
}

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

/// A GGUF file of a model that nobody knows.
fn strange() -> Vec<u8> {
    let values: Vec<f32> = (0_u8..64).map(|at| f32::from(at) / 640.0 - 0.05).collect();
    GgufBuilder::new()
        .text("general.architecture", "strange")
        .entry(GgufEntry::new("net.weight", 0, &[32, 2], &f32s(&values)))
        .build()
}

#[test]
fn qa_78_a_gguf_file_of_an_unknown_architecture_is_not_imported_unasked() {
    let sandbox = Sandbox::new().with("m.gguf", strange());
    for line in ["import m.gguf -o m.apr", "convert m.gguf -o m.apr"] {
        let run = sandbox.apr(line).fails(
            5,
            &["'strange'", "not an architecture that apr knows", "--arch NAME", "--relaxed"],
        );
        run.says(&["nothing was written"]);
        assert_eq!(sandbox.files(), ["m.gguf"]);
    }
    let error = sandbox.apr("import m.gguf -o m.apr --json").fails(5, &[]).json()["error"].take();
    assert_eq!(
        (&error["misfits"][0]["what"], &error["misfits"][0]["name"]),
        (&json!("architecture"), &json!("strange"))
    );
    // Who says what it is gets it checked.
    sandbox
        .apr("import m.gguf -o m.apr --arch llama")
        .fails(5, &["'net.weight'", "no such tensor"]);
    sandbox.apr("import m.gguf -o m.apr --relaxed").ok().says(&[
        "warning",
        "'strange'",
        "unknown family",
    ]);
    assert_eq!(names(&sandbox, "m.apr"), ["net.weight"]);
    // To look at it or copy it, nobody needs to know.
    for line in ["inspect m.gguf", "validate m.gguf", "convert m.gguf -o copy.gguf"] {
        sandbox.apr(line).clean();
    }
}

#[test]
fn qa_78_a_known_architecture_is_imported_under_canonical_names() {
    let sandbox = trained();
    sandbox.apr("export llama -o m.gguf").ok();
    let run =
        sandbox.apr("import m.gguf -o m.apr").ok().says(&["LLaMA family, 21 tensors renamed"]);
    assert!(!run.stdout.is_empty());
    assert!(names(&sandbox, "m.apr").contains(&"layers.0.attn.q_proj.weight".to_owned()));
    sandbox.apr("validate m.apr").ok().says(&["VALID"]);
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
fn qa_82_qa_83_gguf_files_hold_the_floats_asked_for() {
    let sandbox = trained();
    // Vectors stay F32, as llama.cpp wants them.
    for (options, kind, file_type) in [
        ("--precision fp32", 0, 0),
        ("--precision fp16", 1, 1),
        ("--precision bf16", 30, 32),
        ("", 30, 32),
    ] {
        sandbox.apr(&format!("export llama -o m.gguf {options} -f")).ok();
        let file = Parsed::new(&sandbox.read("m.gguf"), 32);
        assert_eq!(
            (file.tensors["token_embd.weight"].1, file.tensors["output_norm.weight"].1),
            (kind, 0),
            "{options}"
        );
        assert_eq!(file.number("general.file_type"), file_type, "{options}");
    }
    sandbox.apr("quantize llama --type q8_0 -o q.gguf").ok();
    for (dtype, kind) in [("f32", 0), ("f16", 1), ("bf16", 30)] {
        sandbox.apr(&format!("convert q.gguf --dequantize {dtype} -o d.gguf -f")).ok();
        let file = Parsed::new(&sandbox.read("d.gguf"), 32);
        assert_eq!(
            (file.tensors["blk.0.attn_q.weight"].1, file.tensors["output_norm.weight"].1),
            (kind, 0),
            "{dtype}"
        );
        sandbox.apr("diff q.gguf d.gguf --tolerance 0.001 --exit-code").ok();
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
fn qa_95_a_gguf_file_says_its_family_and_names_are_mapped() {
    for (case, title) in
        [("llama", "LLaMA"), ("gpt_neox", "GPT-NeoX"), ("qwen2", "Qwen2"), ("bert", "BERT")]
    {
        let sandbox = TinyModel::new(case).sandbox();
        let lost = sandbox.apr("export m -o m.gguf --json").ok().json()["losses"].take();
        sandbox.apr("import m.gguf -o m.apr").ok().says(&[&format!("{title} family")]);
        sandbox.apr("explain m.gguf").ok().says(&[&format!("This is a **{title}** model.")]);
        let diff = sandbox.apr("diff m m.gguf --json").ok().json();
        assert!(
            diff["tensors"].as_array().expect("a list").iter().all(|row| row["max_delta"] == 0.0),
            "{diff}"
        );
        // Only what the export said it leaves out is missing.
        let names = |list: &Value, key: &str| -> Vec<String> {
            let rows = list.as_array().expect("a list").iter();
            rows.map(|row| row.get(key).unwrap_or(row).as_str().expect("a name").to_owned())
                .collect()
        };
        let lost = names(&lost, "name");
        assert!(
            names(&diff["removed"], "").iter().all(|name| lost.contains(name)),
            "{diff} {lost:?}"
        );
        assert_eq!(diff["added"], json!([]));
    }
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
    sandbox.apr("inspect cut-00001-of-00005.gguf").fails(3, &["cut-00003-of-00005.gguf"]);
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

#[test]
fn every_command_reads_a_quantized_gguf_file() {
    let sandbox = trained();
    sandbox.apr("quantize llama --type q4_k_m -o q.gguf").ok();
    let cases: [(&str, &[&str]); 10] = [
        (
            "inspect q.gguf",
            &["Format:      GGUF", "Type:        LLaMA", "q5_0", "GGUF keys", "259 x string"],
        ),
        (
            "inspect q.gguf --quantization",
            &[
                "Quantization\n  Scheme: q4_k_m",
                "Type: Q5_0, Block size: 32",
                "Type: Q4_K, Block size: 256",
            ],
        ),
        ("tensors q.gguf --stats", &["blk.0.ffn_down.weight", "q4_k", "[128, 256]"]),
        ("tensors q.gguf --hist token_embd.weight", &["bins of width"]),
        (
            "validate q.gguf",
            &["pass  Names and shapes shapes of the LLaMA family", "pass  Physics", "\nVALID"],
        ),
        ("diff q.gguf llama", &["tensor rounded, q4_k and bf16", "ROUNDED: 5 of 21"]),
        ("explain q.gguf", &["This is a **LLaMA** model.", "kv heads 2", "mostly q5_0", "GGUF"]),
        (
            "explain q.gguf --tensor blk.0.attn_q.weight",
            &["layers.0.attn.q_proj.weight", "Query projection", "Healthy"],
        ),
        ("lint q.gguf", &["[WARN] Metadata: Missing 'general.license'"]),
        (
            "debug q.gguf",
            &["Magic:           GGUF", "key_values:", "Health:          valid, 0 findings"],
        ),
    ];
    for (line, parts) in cases {
        sandbox.apr(line).ok().says(parts);
    }
    let remarks = sandbox.apr("lint q.gguf").ok().text();
    assert!(!remarks.contains("should be") && !remarks.contains("aligned"), "{remarks}");
    sandbox.apr("debug --drama q.gguf").ok().says(&["Magic bytes... GGUF", "PRODUCTION READY"]);
    let report = sandbox.apr("inspect q.gguf --quantization --json").ok().json();
    assert_eq!(report["quantization"]["scheme"], "q4_k_m");
    let keys = report["metadata"]["gguf"]["kv"].as_array().expect("a list");
    let tokens = keys.iter().find(|pair| pair["key"] == "tokenizer.ggml.tokens").expect("tokens");
    assert_eq!((&tokens["count"], tokens["value"].is_null()), (&json!(259), true), "{tokens}");
}

#[test]
fn lint_says_what_a_gguf_file_does_not_tell_of_itself() {
    let weight = || GgufEntry::new("token_embd.weight", 0, &[2, 1], &f32s(&[0.5, -0.5]));
    let bare = GgufBuilder::new()
        .text("general.architecture", "llama")
        .u32("general.file_type", 15)
        .entry(weight());
    let sandbox = Sandbox::new().with("bare.gguf", bare.build());
    sandbox.apr("lint bare.gguf").ok().says(&[
        "Missing 'general.name'",
        "Missing 'general.license'",
        "Missing a tokenizer",
        "'general.file_type' is 15, which stands for q4_k_m, but no tensor is q4_k",
    ]);
    let told = GgufBuilder::new()
        .text("general.architecture", "llama")
        .text("general.name", "Tiny")
        .text("general.license", "mit")
        .text("tokenizer.ggml.model", "llama")
        .u32("general.file_type", 0)
        .entry(weight());
    sandbox.write("told.gguf", told.build());
    let text = sandbox.apr("lint told.gguf").ok().text();
    assert!(!text.contains("Missing") && !text.contains("file_type"), "{text}");
}

#[test]
fn diff_tells_which_keys_differ() {
    let with = |layers: u32, name: &str| {
        let file =
            GgufBuilder::new().text("general.architecture", "llama").text("general.name", name);
        file.u32("llama.block_count", layers).entry(GgufEntry::i8("a", &[1])).build()
    };
    let common = "one name that goes on for so long that its end is not in sight for anybody, ";
    let sandbox = Sandbox::new().with("a.gguf", with(1, &format!("{common}left")));
    sandbox.write("b.gguf", with(2, &format!("{common}right")));
    let run = sandbox.apr("diff a.gguf b.gguf").ok();
    let run = run.says(&[
        "gguf.llama.block_count: 1 to 2",
        "gguf.general.name: …",
        "left\" to …",
        "right\"\n",
    ]);
    assert!(!run.text().contains("endian"), "{run}");
}

#[test]
fn a_folder_is_no_output_for_one_file() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.write("m.gguf", GgufBuilder::new().entry(GgufEntry::i8("a", &[1])).build());
    sandbox.shell("mkdir there").clean();
    let before = sandbox.files();
    for output in ["there", "there/", "absent/"] {
        for (model, format) in
            [("m.gguf", "gguf"), ("m.safetensors", "apr"), ("m.safetensors", "pytorch")]
        {
            let run = sandbox.apr(&format!("convert {model} -o {output} --format {format} -f"));
            run.fails(2, &[output, "is a folder, but the output is one file", "/model."]);
        }
    }
    assert_eq!(sandbox.files(), before);
}

#[test]
fn validate_looks_at_hyperparameters() {
    let sandbox = Sandbox::new();
    let weight = GgufEntry::new("token_embd.weight", 0, &[8, 2], &f32s(&[0.5; 16]));
    let sound = || {
        let file = GgufBuilder::new().text("general.architecture", "toy").u32("toy.block_count", 1);
        file.u32("toy.embedding_length", 8).entry(weight.clone())
    };
    sandbox.write("sound.gguf", sound().u32("toy.attention.head_count", 2).build());
    sandbox.apr("validate sound.gguf").ok().says(&["pass  Hyperparameters"]);
    sandbox.write("odd.gguf", sound().u32("toy.attention.head_count", 3).build());
    sandbox
        .apr("validate odd.gguf")
        .fails(5, &["FAIL  Hyperparameters", "toy.attention.head_count"]);
    let report = sandbox.apr("validate odd.gguf --json").fails(5, &[]).json();
    assert_eq!(report["findings"][0]["check"], "hyperparameters");
    sandbox.apr("validate odd.gguf --nan-check").ok();
}

/// Helium is taken here for a relative of LLaMA's that multiplies by four factors as Granite does,
/// which llama.cpp's `llama` does not have.
#[test]
fn qa_95_a_foreign_family_is_no_llama() {
    let factors = [
        ("embedding_multiplier", json!(12.0)),
        ("attention_multiplier", json!(0.0156)),
        ("residual_multiplier", json!(0.22)),
        ("logits_scaling", json!(8.0)),
    ];
    let listed = "attention_multiplier = 0.0156, embedding_multiplier = 12.0, logits_scaling = \
        8.0, residual_multiplier = 0.22";
    let relative = |model_type: &str| {
        let model = TinyModel::new("llama").configured("model_type", model_type);
        factors
            .iter()
            .fold(model, |model, (key, value)| model.configured(key, value.clone()))
            .sandbox()
    };
    let sandbox = relative("helium");
    sandbox
        .apr("convert m -o m.gguf")
        .fails(4, &["E001", "apr does not know 'helium'", "--arch NAME"]);
    sandbox.apr("quantize m -o q.gguf --type q8_0").fails(4, &["apr does not know 'helium'"]);
    assert!(!sandbox.path("m.gguf").exists());
    sandbox.apr("inspect m").clean().says(&["helium"]);
    sandbox.apr("import m -o m.apr").clean().says(&["unknown family, names as they are"]);
    sandbox.apr("convert m.apr -o back.safetensors").clean();
    assert_eq!(sandbox.read("back.safetensors"), sandbox.read("m/model.safetensors"));

    let run = sandbox.apr("convert m -o m.gguf --arch llama").ok();
    run.says(&[
        "warning: ",
        "llama.cpp computes without",
        listed,
        "not kept: architecture (hyperparameters: ",
    ]);
    let report = sandbox.apr("convert m -o again.gguf --arch llama --json").ok().json();
    let warnings = report["warnings"].as_array().expect("a list");
    assert!(
        warnings.iter().any(|warning| warning.as_str().is_some_and(|text| text.contains(listed))),
        "{warnings:?}"
    );
    // Under a known name, factors are still what llama.cpp lacks.
    relative("llama").apr("convert m -o m.gguf").ok().says(&["llama.cpp computes without", listed]);
}
