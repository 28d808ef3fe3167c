//! `apr diff`: what is the same, what is not, and what is only called differently.

use apr_registry::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::{Sandbox, safetensors, scrambled};

fn f32s(name: &str, dims: &[u64], values: &[f32]) -> Apr2Entry {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Apr2Entry::new(name, DType::F32, dims, &bytes)
}

fn model(entries: impl IntoIterator<Item = Apr2Entry>) -> Vec<u8> {
    entries.into_iter().fold(Apr2Builder::new(), Apr2Builder::entry).build()
}

fn two_layers() -> [Apr2Entry; 2] {
    [f32s("a.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]), f32s("b.weight", &[3], &[0.5, 0.0, -0.5])]
}

#[test]
fn qa_56_a_model_is_wholly_like_itself_and_its_weights_are_not_read() {
    let sandbox = Sandbox::new().with("a.apr", model(two_layers()));
    sandbox.apr("diff a.apr a.apr --exit-code").clean().says(&[
        "Similarity: 100%",
        "SAME",
        "2 of 2 tensors match",
    ]);
    let report = sandbox.apr("diff a.apr a.apr --json").clean().json();
    assert_eq!((&report["same"], &report["bytes_read"]), (&json!(true), &json!(0)));
}

#[test]
fn qa_57_one_changed_value_is_found_and_named() {
    let changed = [f32s("a.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.25]), two_layers()[1].clone()];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("b.apr", model(changed));
    let run = sandbox.apr("diff a.apr b.apr").clean();
    let run = run.says(&[
        "a.weight: DRIFT (delta = 0.2500",
        "Max delta 0.2500",
        "DIFFERENT",
        "1 of 2 tensors match",
    ]);
    assert!(!run.text().contains("b.weight"), "{run}");
    sandbox.apr("diff a.apr b.apr --exit-code").fails(5, &["DIFFERENT"]);
    sandbox.apr("diff a.apr b.apr --exit-code --tolerance 0.25").clean().says(&["SAME"]);
    sandbox
        .apr("diff a.apr b.apr --exit-code --tensors b.*")
        .clean()
        .says(&["b.weight: MATCH (equal by digest, not read)", "SAME"]);
}

#[test]
fn qa_50_the_distance_is_the_euclidean_norm_of_the_difference() {
    let far = [f32s("a.weight", &[2, 2], &[4.0, 6.0, 3.0, 4.0]), two_layers()[1].clone()];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("b.apr", model(far));
    let report = sandbox.apr("diff a.apr b.apr --json").clean().json();
    assert_eq!((&report["l2"], &report["max_delta"]), (&json!(5.0), &json!(4.0)));
    // 1 - 5 / (sqrt(30) + sqrt(77)) of the four elements that were compared, and all of the three
    // that are equal.
    let expected = 100.0 * (4.0 * (1.0 - 5.0 / (30_f64.sqrt() + 77_f64.sqrt())) + 3.0) / 7.0;
    let similarity = report["similarity"].as_f64().expect("a number");
    assert!((similarity - expected).abs() < 1e-9, "{similarity} is not {expected}");
}

#[test]
fn a_conversion_is_the_same_as_its_source_in_every_format() {
    let sandbox = Sandbox::new().with("a.apr", model(two_layers()));
    sandbox.apr("convert a.apr -o a.safetensors").ok();
    sandbox.apr("convert a.apr -o half.apr --precision fp16").ok();
    sandbox.apr("diff a.apr a.safetensors --exit-code").clean().says(&["Similarity: 100%", "SAME"]);
    sandbox
        .apr("diff a.safetensors half.apr --exit-code --tensors *")
        .clean()
        .says(&["MATCH (delta = 0, within 1e-6)"]);
}

#[test]
fn renamed_and_reshaped_tensors_are_found_by_their_bytes() {
    let other = [
        f32s("a.weight", &[4], &[1.0, 2.0, 3.0, 4.0]),
        f32s("second.weight", &[3], &[0.5, 0.0, -0.5]),
    ];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("b.apr", model(other));
    sandbox.apr("convert b.apr -o b.safetensors").ok();
    for right in ["b.apr", "b.safetensors"] {
        let run = sandbox.apr(&format!("diff a.apr {right} --exit-code"));
        run.fails(5, &["b.weight = second.weight: MATCH (equal by digest, not read)", "DIFFERENT"]);
    }
    sandbox
        .apr("diff a.apr b.apr")
        .clean()
        .says(&["a.weight: RESHAPED ([2, 2] to [4], equal by digest)"]);
}

#[test]
fn a_damaged_file_is_not_called_identical_where_its_bytes_are_read() {
    let sandbox = Sandbox::new().with("a.apr", model(two_layers()));
    let mut bytes = sandbox.read("a.apr");
    let values: Vec<u8> =
        [0.5_f32, 0.0, -0.5].iter().flat_map(|value| value.to_le_bytes()).collect();
    let at = bytes
        .windows(values.len())
        .position(|window| window == values)
        .expect("the values of b.weight");
    bytes[at + 2] ^= 0x40;
    sandbox.write("damaged.apr", bytes);
    // Digests alone can't show it, and that is what the report says.
    let run = sandbox.apr("diff a.apr damaged.apr --exit-code").clean();
    run.says(&["SAME", "2 tensors equal by digest, not read; --read compares the bytes"]);
    let report = sandbox.apr("diff a.apr damaged.apr --json").clean().json();
    assert_eq!(
        (&report["tensors"][0]["by_digest"], &report["bytes_read"]),
        (&json!(true), &json!(0))
    );

    let run = sandbox.apr("diff a.apr damaged.apr --exit-code --read");
    run.fails(
        5,
        &["b.weight: DRIFT", "1 tensor differs although the digests are equal", "apr validate"],
    );
    let report = sandbox.apr("diff a.apr damaged.apr --read --json").clean().json();
    let of = |key: &str| [report["tensors"][0][key].clone(), report["tensors"][1][key].clone()];
    assert_eq!(
        (of("by_digest"), of("damaged")),
        ([json!(false), json!(false)], [json!(false), json!(true)])
    );
    let run =
        sandbox.apr("diff a.apr a.apr --read --exit-code").clean().says(&["SAME", "(56 B read)"]);
    assert!(!run.text().contains("by digest"), "{run}");
    // Tensors that only their bytes pair are read for it, too.
    let renamed = [f32s("z.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]), two_layers()[1].clone()];
    sandbox.write("renamed.apr", model(renamed));
    sandbox
        .apr("diff a.apr renamed.apr")
        .clean()
        .says(&["a.weight = z.weight: MATCH (equal by digest, not read)"]);
    sandbox
        .apr("diff a.apr renamed.apr --read")
        .clean()
        .says(&["a.weight = z.weight: MATCH (same bytes)"]);
}

#[test]
fn rounding_by_the_dtype_is_not_drift_and_other_differences_are() {
    let values = |factor: f32| -> Vec<u8> {
        let value = |i: u64| ((scrambled(i) % 2001) as f32 / 1000.0 - 1.0) * factor;
        (0..2048).flat_map(|i| value(i).to_le_bytes()).collect()
    };
    let file = |factor: f32| safetensors(&[("a.weight", "F32", &[8, 256], values(factor))]);
    let sandbox =
        Sandbox::new().with("m.safetensors", file(1.0)).with("other.safetensors", file(1.1));
    let types = [
        "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "q4_1", "iq4_nl", "q3_k_m", "int8", "int4",
        "bf16", "fp16",
    ];
    for kind in types {
        for (source, rounded) in [("m", true), ("other", false)] {
            sandbox
                .apr(&format!("quantize {source}.safetensors --type {kind} --pure -o q.apr -f"))
                .ok();
            let tensor =
                sandbox.apr("diff m.safetensors q.apr --json").clean().json()["tensors"][0].take();
            let (off, allowed) = (&tensor["relative_error"], &tensor["allowed"]);
            // A tenth is less than what three bits can tell.
            let is_coarse = kind.starts_with("q3");
            let verdict = if rounded || is_coarse { "rounded" } else { "drift" };
            assert!(
                allowed.as_f64() > Some(0.0)
                    && (off.as_f64() < allowed.as_f64()) == (verdict == "rounded"),
                "{kind}: {tensor}"
            );
            assert_eq!(tensor["verdict"], verdict, "{kind} of {source}: {tensor}");
        }
    }
    sandbox.apr("quantize m.safetensors --type q4_0 -o q.apr -f").ok();
    let run = sandbox.apr("diff m.safetensors q.apr").clean();
    let run = run.says(&[
        "1 tensor rounded, f32 and q4_0: maximum error ",
        "ROUNDED: 0 of 1 tensor matches, 1 within the precision",
    ]);
    assert!(!run.text().contains("DRIFT"), "{run}");
    // Rounded values are other values.
    sandbox.apr("diff m.safetensors q.apr --exit-code").fails(5, &["ROUNDED"]);
    sandbox
        .apr("diff m.safetensors q.apr --tensors *")
        .clean()
        .says(&["a.weight: ROUNDED (f32 and q4_0, error"]);
}

#[test]
fn the_diff_of_the_readme_shows_no_drift() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("quantize {folder} --type q4_k_m -o small.gguf")).ok();
    let run = sandbox
        .apr(&format!("diff {folder} small.gguf"))
        .clean()
        .says(&["ROUNDED: 5 of 21 tensors match"]);
    assert!(!run.text().contains("DRIFT"), "{run}");
    // What the tokenizer's files say is what the file says.
    assert!(!run.text().contains("metadata: tokenizer"), "{run}");
}

#[test]
fn qa_50_a_distance_above_the_limit_fails() {
    let near = [f32s("a.weight", &[2, 2], &[1.5, 2.0, 3.0, 4.0]), two_layers()[1].clone()];
    let random = [f32s("a.weight", &[2, 2], &[-7.0, 5.0, 1.0, 9.0]), two_layers()[1].clone()];
    let nan = [f32s("a.weight", &[2, 2], &[1.0, 2.0, 3.0, f32::NAN]), two_layers()[1].clone()];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("near.apr", model(near));
    let sandbox = sandbox.with("random.apr", model(random)).with("nan.apr", model(nan));
    let sandbox = sandbox.with("part.apr", model([two_layers()[0].clone()]));
    sandbox
        .apr("diff a.apr near.apr --max-l2 1.0")
        .clean()
        .says(&["L2 distance: 0.5000 (limit: 1.0000) PASS"]);
    sandbox.apr("diff a.apr random.apr --max-l2 1.0").fails(5, &["(limit: 1.0000) FAIL"]);
    // No number is the distance to what is not a number, or not there.
    for other in ["nan.apr", "part.apr"] {
        sandbox.apr(&format!("diff a.apr {other} --max-l2 1e9")).fails(5, &["FAIL"]);
    }
    let report = sandbox.apr("diff a.apr near.apr --max-l2 0.25 --json").fails(5, &[]).json();
    assert_eq!(report["l2_gate"], json!({ "limit": 0.25, "passed": false }));
    sandbox.apr("diff a.apr near.apr --max-l2=-1").fails(2, &["--max-l2"]);
}

#[test]
fn a_mapping_pairs_what_is_called_differently() {
    let other = [f32s("x", &[2, 2], &[1.0, 2.0, 3.0, 5.0]), f32s("y", &[3], &[0.5, 0.0, -0.5])];
    let sandbox = Sandbox::new()
        .with("a.apr", model(two_layers()))
        .with("b.apr", model(other))
        .with("map.json", r#"{"a.weight": "x", "b.weight": "y"}"#)
        .with("wrong.json", r#"{"a.weight": "z"}"#);
    let run = sandbox.apr("diff a.apr b.apr --tensor-mapping map.json").clean();
    // What the mapping names is listed, whatever comes of it.
    run.says(&[
        "a.weight = x: DRIFT (delta = 1.0000",
        "b.weight = y: MATCH",
        "1 of 2 tensors match",
    ]);
    sandbox.apr("diff a.apr b.apr --tensor-mapping map.json --tolerance 1 --exit-code").clean();
    sandbox
        .apr("diff a.apr b.apr --tensor-mapping wrong.json")
        .fails(4, &["E001", "'z'", "right model"]);
    sandbox.apr("diff a.apr b.apr --tensor-mapping absent.json").fails(3, &["absent.json"]);
    sandbox.apr("diff a.apr b.apr --tensor-mapping a.apr").fails(2, &["mapping"]);
}

#[test]
fn missing_tensors_shapes_and_nan_are_reported() {
    let other = [
        f32s("a.weight", &[2, 2], &[1.0, 2.0, 3.0, f32::NAN]),
        f32s("c.weight", &[2], &[1.0, 1.0]),
    ];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("b.apr", model(other));
    let run = sandbox.apr("diff a.apr b.apr").clean();
    run.says(&[
        "a.weight: DRIFT (NaN or infinity in one of the two)",
        "only in the left model: b.weight",
        "only in the right model: c.weight",
    ]);
    let other = [f32s("a.weight", &[3], &[1.0, 2.0, 3.0]), two_layers()[1].clone()];
    sandbox.write("c.apr", model(other));
    sandbox
        .apr("diff a.apr c.apr")
        .clean()
        .says(&["a.weight: INCOMPARABLE (f32 [2, 2] and f32 [3]) !!!"]);
}

#[test]
fn changes_of_vocabulary_and_metadata_are_reported() {
    let with = |vocab: &str| {
        let metadata = json!({
            "apr_version": "2.0.0", "model_type": vocab, "architecture": {},
            "vocab": vocab.chars().collect::<Vec<_>>(),
        });
        two_layers()
            .into_iter()
            .fold(Apr2Builder::new().metadata(metadata.to_string()), Apr2Builder::entry)
            .build()
    };
    let sandbox = Sandbox::new().with("a.apr", with("abc")).with("b.apr", with("bcde"));
    let run = sandbox.apr("diff a.apr b.apr --exit-code");
    run.fails(
        5,
        &[
            "Vocab Changes: Added 2 tokens, Removed 1 token",
            r#"metadata: model_type: "abc" -> "bcde""#,
        ],
    );
}

/// A folder with another text in one of its files.
fn changed(sandbox: &Sandbox, folder: &str, name: &str, change: impl Fn(&str) -> String) {
    for entry in std::fs::read_dir(locate::fixture("tiny-llama")).expect("a fixture").flatten() {
        let file = entry.file_name().into_string().expect("a name");
        let mut bytes = std::fs::read(entry.path()).expect("a file");
        if file == name {
            let text = String::from_utf8(bytes).expect("a text");
            let other = change(&text);
            assert_ne!(text, other);
            bytes = other.into_bytes();
        }
        sandbox.write(&format!("{folder}/{file}"), bytes);
    }
}

#[test]
fn tokens_with_other_ids_are_a_difference() {
    let sandbox = Sandbox::new();
    let llama = locate::fixture("tiny-llama");
    // The ids of the digits 1 and 3.
    changed(&sandbox, "swapped", "tokenizer.json", |text| {
        let mut file: Value = serde_json::from_str(text).expect("JSON");
        let vocab = file["model"]["vocab"].as_object_mut().expect("a vocabulary");
        let ids = ["1", "3"].map(|token| vocab[token].clone());
        vocab["1"] = ids[1].clone();
        vocab["3"] = ids[0].clone();
        file.to_string()
    });
    let line = format!("diff {} swapped --exit-code", llama.display());
    sandbox.apr(&line).fails(5, &["Moved 2 tokens", "'1' 49 -> 51, '3' 51 -> 49", "DIFFERENT"]);
    let report = sandbox.apr(&format!("{line} --json"));
    let report: Value = report.fails(5, &[]).json();
    assert_eq!((&report["same"], &report["vocab"]["moved"]), (&json!(false), &json!(2)));
    let example = json!({"token": "1", "ids": [49], "other_ids": [51]});
    assert_eq!(report["vocab"]["examples"][0], example);

    // Rounding does not hide it.
    sandbox.apr("quantize swapped -t q8_0 -o q8.gguf").ok();
    let line = format!("diff {} q8.gguf", llama.display());
    sandbox.apr(&line).clean().says(&["Moved 2 tokens", "DIFFERENT"]);
}

#[test]
fn rules_of_a_tokenizer_and_chat_templates_are_compared() {
    let sandbox = Sandbox::new();
    let llama = locate::fixture("tiny-llama");
    let line = |other: &str| format!("diff {} {other} --exit-code", llama.display());
    changed(&sandbox, "normal", "tokenizer.json", |text| {
        let mut file: Value = serde_json::from_str(text).expect("JSON");
        file["normalizer"] = json!({"type": "Lowercase"});
        file.to_string()
    });
    sandbox
        .apr(&line("normal"))
        .fails(5, &["tokenizer differs: normalizer: null -> {", "DIFFERENT"]);
    for (folder, template) in [("one", "{{ messages }}"), ("other", "{{ messages[0] }}")] {
        changed(&sandbox, folder, "tokenizer.json", |text| format!("{text}\n"));
        sandbox.write(&format!("{folder}/chat_template.jinja"), template);
    }
    let run = sandbox.apr("diff one other --exit-code");
    run.fails(5, &["tokenizer differs: tokenizer.chat_template: other text", "DIFFERENT"]);
    let only = "tokenizer differs: tokenizer.chat_template: only in the";
    sandbox.apr(&line("one")).fails(5, &[only, "right model", "DIFFERENT"]);
    let back = format!("diff one {} --exit-code", llama.display());
    sandbox.apr(&back).fails(5, &[only, "left model", "DIFFERENT"]);
}

#[test]
fn what_changes_answers_makes_models_different() {
    let sandbox = Sandbox::new();
    let llama = locate::fixture("tiny-llama");
    let cases: [(&str, &str, &str, Value, &str); 7] = [
        ("decoder", "tokenizer.json", "/decoder", Value::Null, "tokenizer differs: decoder: {"),
        (
            "special",
            "tokenizer.json",
            "/added_tokens/1/special",
            false.into(),
            "tokenizer differs: added_tokens: \"</s> (special)\" -> \"</s> ()\"",
        ),
        (
            "bos",
            "tokenizer_config.json",
            "/add_bos_token",
            false.into(),
            "tokenizer differs: add_bos_token: ",
        ),
        (
            "generation",
            "generation_config.json",
            "/temperature",
            json!(0.2),
            "answers differ: generation.temperature: (absent) -> 0.2",
        ),
        (
            "window",
            "config.json",
            "/sliding_window",
            4.into(),
            "answers differ: architecture.sliding_window: ",
        ),
        (
            "context",
            "config.json",
            "/max_position_embeddings",
            2048.into(),
            "answers differ: architecture.max_position_embeddings: 64 -> 2048",
        ),
        (
            "end",
            "config.json",
            "/eos_token_id",
            258.into(),
            "answers differ: architecture.eos_token_id: 257 -> 258",
        ),
    ];
    for (folder, file, place, value, said) in cases {
        changed(&sandbox, folder, file, |text| {
            let mut json: Value = serde_json::from_str(text).expect("JSON");
            let (parent, key) = place.rsplit_once('/').expect("a path");
            json.pointer_mut(parent).expect("an object")[key] = value.clone();
            json.to_string()
        });
        let line = format!("diff {} {folder} --exit-code", llama.display());
        sandbox.apr(&line).fails(5, &[said, "DIFFERENT: 21 of 21 tensors match"]);
    }

    // What a format cannot state is not a difference, and names of dtypes do not change answers.
    sandbox.apr(&format!("export {} --format gguf -o m.gguf", llama.display())).ok();
    sandbox.apr(&format!("diff {} m.gguf --exit-code", llama.display())).ok().says(&["SAME"]);
    changed(&sandbox, "range", "config.json", |text| {
        text.replace("\"initializer_range\": 0.02", "\"initializer_range\": 0.5")
    });
    let line = format!("diff {} range --exit-code", llama.display());
    sandbox.apr(&line).ok().says(&["metadata: architecture.initializer_range", "SAME"]);
}

#[test]
fn a_heading_has_a_verdict_only_if_a_gate_was_asked_for() {
    let sandbox = Sandbox::new();
    let llama = locate::fixture("tiny-llama");
    let llama = llama.display();
    sandbox.apr(&format!("quantize {llama} -t q8_0 -o q8.gguf")).ok();
    let heading = |options: &str| {
        let run = sandbox.apr(&format!("diff {llama} q8.gguf --markdown {options}"));
        run.text().lines().next().expect("a heading").to_owned()
    };
    assert_eq!(heading(""), "### apr diff");
    assert_eq!(heading("--exit-code"), "### apr diff: FAILED");
    assert_eq!(heading("--max-l2 1000"), "### apr diff: passed");
}
