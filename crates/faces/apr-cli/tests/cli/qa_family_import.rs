//! Points 84, 85, 86, 90, 93, 94 and 95 of `docs/qa.md`, D: what comes along with a model of a
//! known family.

use std::fs;

use apr_testkit::locate;
use serde_json::{Map, Value, json};

use crate::families::{TinyModel, metadata, names, refused};
use crate::support::{Run, Sandbox, f32s, safetensors};

/// A tokenizer of this many tokens, three of them special.
fn tokenizer(size: usize) -> String {
    let special = ["<unk>", "<s>", "</s>"];
    let text =
        |id: usize| special.get(id).map_or_else(|| format!("token{id}"), |&text| text.to_owned());
    let vocabulary: Map<String, Value> = (0..size).map(|id| (text(id), id.into())).collect();
    let added: Vec<Value> = (0..)
        .zip(special)
        .map(|(id, text)| json!({ "id": id, "content": text, "special": true }))
        .collect();
    let model = json!({ "type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>" });
    json!({ "version": "1.0", "model": model, "added_tokens": added }).to_string()
}

/// A LLaMA model with a tokenizer.
fn with_tokenizer(size: usize) -> Sandbox {
    TinyModel::new("llama").sandbox().with("m/tokenizer.json", tokenizer(size)).with(
        "m/tokenizer_config.json",
        r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
            "unk_token": "<unk>"}"#,
    )
}

/// The import of `m`, which must succeed and warn of this.
#[track_caller]
fn warns(sandbox: &Sandbox, line: &str, warning: &str) -> Run {
    let run = sandbox.apr(line).ok();
    assert!(run.stderr.starts_with("warning: ") && run.stderr.contains(warning), "{run}");
    run
}

#[test]
fn qa_84_every_token_is_imported_and_a_truncated_vocabulary_shows() {
    let sandbox = with_tokenizer(101);
    sandbox.apr("import m -o whole.apr").clean();
    sandbox.write("m/tokenizer.json", tokenizer(50));
    let warning = "it has 50 tokens, but config.json's vocab_size is 101; is it complete?";
    warns(&sandbox, "import m -o cut.apr", warning);
    for (model, held) in [("whole.apr", 101), ("cut.apr", 50)] {
        let report = sandbox.apr(&format!("inspect {model} --vocab --json")).clean().json();
        assert_eq!(report["vocabulary"]["size"], held);
        assert_eq!(report["vocabulary"]["tokens"][3], json!({ "id": 3, "text": "token3" }));
        assert_eq!(metadata(&sandbox, model)["tokenizer.vocab_size"], held);
        // The embedding is as large as it was.
        assert_eq!(report["vocab_size"], 101);
        sandbox.apr(&format!("export {model} -o back -f")).clean();
        assert_eq!(sandbox.read("back/tokenizer.json"), tokenizer(held).into_bytes());
    }
    // Whoever comes later is told, too.
    let warning = "the tokenizer has 50 tokens, the embedding 101 rows: is it complete?";
    sandbox.apr("validate cut.apr").ok().says(&["VALID", warning]);
    sandbox.apr("validate m").ok().says(&[warning]);
    sandbox.apr("validate cut.apr --strict").fails(5, &[warning]);
    sandbox.apr("inspect cut.apr").ok().says(&[warning]);
    assert!(!sandbox.apr("validate whole.apr").ok().text().contains("is it complete"));
    let run = sandbox.apr("diff whole.apr cut.apr --exit-code");
    run.fails(5, &["Vocab Changes: Added 0 tokens, Removed 51 tokens"]);
}

#[test]
fn qa_84_a_token_without_a_row_of_the_embedding_is_refused() {
    let sandbox = with_tokenizer(103);
    refused(&sandbox, &["the tokenizer has 103 tokens, the embedding 101 rows"]);
    sandbox
        .apr("import m -o m.apr --relaxed")
        .ok()
        .says(&["the tokenizer has 103 tokens, the embedding 101 rows"]);
    let violation = &metadata(&sandbox, "m.apr")["violations"][0];
    assert_eq!((&violation["token_count"], &violation["rows"]), (&json!(103), &json!(101)));
    // A check of the result, and one of the source, say the same.
    for model in ["m", "m.apr"] {
        sandbox
            .apr(&format!("validate {model}"))
            .fails(5, &["the tokenizer has 103 tokens, the embedding 101 rows"]);
    }
    sandbox.apr("validate m.apr").fails(5, &["imported with 1 violation"]);
}

#[test]
fn qa_84_a_marker_that_no_text_yields_needs_no_row() {
    let sandbox = with_tokenizer(102);
    // The one token past the rows has the role of a pad.
    sandbox.write("m/special_tokens_map.json", r#"{"pad_token": "token101"}"#);
    sandbox.apr("import m -o m.apr").ok().says(&["valid"]);
    for model in ["m", "m.apr"] {
        sandbox.apr(&format!("validate {model}")).ok().says(&["\nVALID"]);
    }
}

#[test]
fn qa_85_special_tokens_keep_their_ids() {
    let sandbox = with_tokenizer(101);
    sandbox.apr("import m -o m.apr").clean();
    let found = metadata(&sandbox, "m.apr");
    for (role, text, id) in [("unk", "<unk>", 0), ("bos", "<s>", 1), ("eos", "</s>", 2)] {
        assert_eq!(found[format!("tokenizer.{role}_token")], text);
        assert_eq!(found[format!("tokenizer.{role}_token_id")], id);
    }
    assert_eq!(found["tokenizer.special_tokens"], json!({ "<unk>": 0, "<s>": 1, "</s>": 2 }));
    // The ids are those of the source, not of the order that tokens are usually in.
    sandbox.write("m/tokenizer_config.json", r#"{"bos_token": "token7", "eos_token": "token9"}"#);
    sandbox.apr("import m -o m.apr -f").clean();
    let found = metadata(&sandbox, "m.apr");
    assert_eq!(
        (&found["tokenizer.bos_token_id"], &found["tokenizer.eos_token_id"]),
        (&json!(7), &json!(9))
    );

    sandbox.write("m/tokenizer_config.json", r#"{"bos_token": "<bos>", "eos_token": "</s>"}"#);
    warns(&sandbox, "import m -o m.apr -f", "the bos_token '<bos>' is not in the vocabulary");
    let found = metadata(&sandbox, "m.apr");
    assert_eq!(
        (found.get("tokenizer.bos_token_id"), &found["tokenizer.eos_token_id"]),
        (None, &json!(2))
    );
}

#[test]
fn qa_86_model_card_and_licence_come_along_and_a_model_without_is_warned_of() {
    let text = "                                 Apache License\n                           \
        Version 2.0, January 2004\n";
    let sandbox = TinyModel::new("bert").sandbox().with("m/LICENSE", text);
    let card = sandbox.read("m/README.md");
    sandbox.apr("import m -o m.apr").clean();
    let found = metadata(&sandbox, "m.apr");
    assert_eq!(found["license"], "apache-2.0");
    assert_eq!(found["model_card"], json!({ "license": "apache-2.0", "language": "en" }));
    fs::rename(sandbox.path("m"), sandbox.path("gone")).expect("it is there");
    sandbox.apr("export m.apr -o back").clean();
    assert_eq!((sandbox.read("back/README.md"), sandbox.read("back/LICENSE")), (card, text.into()));
    fs::rename(sandbox.path("gone"), sandbox.path("m")).expect("it is there");

    // The text alone says as much.
    fs::remove_file(sandbox.path("m/README.md")).expect("it is there");
    sandbox.apr("import m -o m.apr -f").clean();
    let found = metadata(&sandbox, "m.apr");
    assert_eq!((&found["license"], found.get("model_card")), (&json!("apache-2.0"), None));

    fs::remove_file(sandbox.path("m/LICENSE")).expect("it is there");
    warns(&sandbox, "import m -o m.apr -f", "no licence stated");
    assert!(metadata(&sandbox, "m.apr").get("license").is_none());
    sandbox.apr("lint m.apr").ok().says(&["Missing 'license' field", "Missing 'model_card'"]);
    // Who says it on the command line has answered.
    sandbox.apr("import m -o m.apr -f --license mit").clean();
    assert_eq!(metadata(&sandbox, "m.apr")["license"], "mit");
}

#[test]
fn qa_90_shards_are_one_model_and_a_missing_one_is_named() {
    let sandbox = TinyModel::new("llama").sandbox();
    sandbox.apr("export m -o cut --shard-size 50000").clean();
    let shards: Vec<String> =
        sandbox.files().into_iter().filter(|name| name.starts_with("cut/model-0000")).collect();
    assert!(shards.len() > 2, "{shards:?}");
    sandbox.apr("import cut -o cut.apr").clean().says(&["LLaMA family", "21 tensors valid"]);
    sandbox.apr("diff cut.apr m --exit-code").clean().says(&["SAME: 21 of 21 tensors match"]);

    let second = shards[1].strip_prefix("cut/").expect("it is in there");
    fs::remove_file(sandbox.path(&shards[1])).expect("it is there");
    fs::remove_file(sandbox.path("cut.apr")).expect("it is there");
    let files = sandbox.files();
    for line in [
        "import cut -o cut.apr",
        "import cut/model.safetensors.index.json -o cut.apr",
        "import cut -o cut.apr -f",
    ] {
        sandbox
            .apr(line)
            .fails(3, &["E007", second, "model.safetensors.index.json names this shard"]);
        assert_eq!(sandbox.files(), files);
    }
}

#[test]
fn qa_90_a_shard_without_its_index_is_not_taken_for_the_model() {
    let sandbox =
        Sandbox::new().with("m/config.json", "{}").with("m/README.md", "---\nlicense: mit\n---\n");
    sandbox.write("m/model-00001-of-00003.safetensors", crate::support::small_safetensors());
    for line in ["import m -o m.apr", "inspect m", "validate m"] {
        sandbox.apr(line).fails(
            3,
            &[
                "E007",
                "model-00001-of-00003.safetensors",
                "shard 1 of 3",
                "does not contain the index",
            ],
        );
    }
    let run = sandbox.apr("import m/model-00001-of-00003.safetensors -o m.apr").ok();
    assert!(run.to_string().contains("only shard 1 of 3"), "{run}");
}

#[test]
fn qa_90_pickled_shards_are_one_model_and_a_missing_one_is_named() {
    let golden = locate::workspace().join("crates/formats/apr-pytorch/tests/golden");
    let shard = |number: u32| format!("pytorch_model-0000{number}-of-00002.bin");
    let content = [
        ("tied.pt", vec!["embed.weight", "head.weight", "view"]),
        (
            "strided.pt",
            vec![
                "transposed",
                "sliced",
                "stepped",
                "expanded",
                "permuted",
                "column",
                "outer",
                "flat",
            ],
        ),
    ];
    let sandbox = Sandbox::new();
    let mut map = Map::new();
    for (number, (file, tensors)) in (1..).zip(&content) {
        sandbox.write(
            &format!("m/{}", shard(number)),
            fs::read(golden.join(file)).expect("a fixture"),
        );
        map.extend(tensors.iter().map(|&name| (name.to_owned(), shard(number).into())));
    }
    sandbox.write(
        "m/pytorch_model.bin.index.json",
        json!({ "metadata": {}, "weight_map": map }).to_string(),
    );
    sandbox.apr("import m -o m.apr").ok().says(&["conversions write separate copies"]);
    assert_eq!(
        names(&sandbox, "m.apr"),
        content.iter().flat_map(|(_, names)| names.clone()).collect::<Vec<_>>()
    );
    sandbox.apr("diff m m.apr --exit-code").ok();

    fs::remove_file(sandbox.path(&format!("m/{}", shard(2)))).expect("it is there");
    fs::remove_file(sandbox.path("m.apr")).expect("it is there");
    let files = sandbox.files();
    sandbox
        .apr("import m -o m.apr")
        .fails(3, &["E007", &shard(2), "pytorch_model.bin.index.json names this shard"]);
    assert_eq!(sandbox.files(), files);
}

#[cfg(unix)]
#[test]
fn qa_93_a_source_with_another_sha_256_is_refused() {
    let sandbox = TinyModel::new("bert").sandbox();
    let files = sandbox.files();
    let digest = sandbox.shell("sha256sum < m/model.safetensors").ok().text();
    let digest = digest.split_whitespace().next().expect("a digest").to_owned();
    let lines = ["import m -o m.apr --sha256", "import m/model.safetensors -o m.apr --sha256"];
    for line in lines {
        for digest in [digest.clone(), digest.to_uppercase()] {
            sandbox.apr(&format!("{line} {digest}")).clean();
            let source = &metadata(&sandbox, "m.apr")["source"];
            assert_eq!(source["sha256"], digest.to_lowercase());
            assert_eq!(
                (&source["format"], &source["file"]),
                (&json!("safetensors"), &json!("model.safetensors"))
            );
            fs::remove_file(sandbox.path("m.apr")).expect("it was written");
        }
    }
    // One bit of the last weight, which no other check would mind.
    let mut bytes = sandbox.read("m/model.safetensors");
    *bytes.last_mut().expect("it has weights") ^= 1;
    sandbox.write("m/model.safetensors", bytes);
    for line in lines {
        for option in ["", "--relaxed", "--force"] {
            let run = sandbox.apr(&format!("{line} {digest} {option}"));
            run.fails(
                5,
                &["E004", "m/model.safetensors", "its SHA-256 is ", &format!("not {digest}")],
            );
            assert_eq!(sandbox.files(), files);
        }
        for malformed in [&digest[1..], &digest[2..], &"+f".repeat(32), &"é".repeat(32)] {
            sandbox.apr(&format!("{line} {malformed}")).fails(2, &["64 hexadecimal digits"]);
        }
    }
    // What comes through a pipe or a redirection is hashed, too.
    for (before, after) in [("cat m/model.safetensors |", ""), ("", "< m/model.safetensors")] {
        let right = sandbox.shell("sha256sum < m/model.safetensors").ok().text();
        let right = right.split_whitespace().next().expect("a digest").to_owned();
        sandbox
            .shell(&format!("{before} \"$APR\" import - -o p.apr -f --sha256 {right} {after}"))
            .ok();
        let run = sandbox
            .shell(&format!("{before} \"$APR\" import - -o q.apr --sha256 {digest} {after}"));
        run.fails(5, &["E004", "its SHA-256 is"]);
    }
    assert!(!sandbox.path("q.apr").exists());
    fs::remove_file(sandbox.path("p.apr")).expect("it was written");
    sandbox.apr("import m -o m.apr").clean();
}

#[test]
fn qa_94_a_licence_against_commercial_use_is_warned_of() {
    let sandbox = TinyModel::new("bert").sandbox();
    let said = "the licence cc-by-nc-4.0 forbids commercial use";
    for (license, warned) in
        [("apache-2.0", false), ("cc-by-nc-4.0", true), ("CC-BY-NC-4.0", true), ("mit", false)]
    {
        sandbox.write("m/README.md", format!("---\nlicense: {license}\n---\n# Tiny\n"));
        match warned {
            true => drop(warns(&sandbox, "import m -o m.apr -f", said)),
            false => drop(sandbox.apr("import m -o m.apr -f").clean()),
        }
        assert_eq!(metadata(&sandbox, "m.apr")["license"], license.to_lowercase());
        // What the command line says wins over the card.
        warns(&sandbox, "import m -o m.apr -f --license cc-by-nc-4.0", said);
        sandbox.apr("import m -o m.apr -f --license apache-2.0").clean();
    }
    fs::remove_file(sandbox.path("m/README.md")).expect("it is there");
    sandbox.write("m/LICENSE", "Attribution-NonCommercial 4.0 International\n\n====\n");
    warns(&sandbox, "import m -o m.apr -f", said);
}

#[test]
fn qa_95_a_family_is_known_by_its_configuration_or_by_its_names() {
    for (family, title) in [("bert", "BERT"), ("llama", "LLaMA"), ("whisper", "Whisper")] {
        let told = TinyModel::new(family);
        let untold = TinyModel::new(family).anonymous();
        let lines = [
            (&told, "import m -o m.apr"),
            (&untold, "import m -o m.apr"),
            (&untold, "convert m/model.safetensors -o m.apr"),
        ];
        for (model, line) in lines {
            let sandbox = model.sandbox();
            sandbox.apr(line).clean().says(&[&format!("{title} family")]);
            let report = sandbox.apr("inspect m.apr --json").clean().json();
            assert_eq!(
                (&report["model_type"], &report["family"]["title"]),
                (&json!(family), &json!(title))
            );
            sandbox.apr("explain m.apr").clean().says(&[&format!("This is a **{title}** model.")]);
            sandbox.apr("validate m.apr --strict").clean();
        }
    }
}

/// Returns a model of a family that only its user knows.
fn toy() -> Sandbox {
    let weight: Vec<f32> = (0_u8..64).map(|at| f32::from(at) / 640.0 - 0.05).collect();
    let names = ["net.0.w", "net.1.w", "net.2.w"];
    let tensors = names.map(|name| (name, "F32", &[8, 8][..], f32s(&weight)));
    Sandbox::new()
        .with("m/model.safetensors", safetensors(&tensors))
        .with("m/config.json", r#"{"model_type": "toy", "num_layers": 3, "width": 8}"#)
        .with("m/README.md", "---\nlicense: mit\n---\n")
}

const TOY: &str = r#"
name = "toy"
title = "Toy"
model_types = ["toy"]
purpose = "Playing"

[dimensions]
width = ["width"]

[indices]
layer = "num_layers"

[[tensor]]
name = "layers.{layer}.weight"
huggingface = "net.{layer}.w"
shape = ["width", "width"]
kind = "linear"
role = "Weight of layer {layer}"
"#;

#[test]
fn qa_95_an_unknown_family_is_imported_as_it_is_and_that_is_told() {
    let sandbox = toy();
    sandbox.apr("import m -o m.apr").clean().says(&["unknown family, names unchanged", "--arch"]);
    assert_eq!(names(&sandbox, "m.apr"), ["net.0.w", "net.1.w", "net.2.w"]);
    sandbox.apr("explain m.apr").clean().says(&["This is a model of an unknown family", "'toy'"]);
    sandbox.apr("validate m.apr").clean().says(&["skip  Names and shapes  unknown family"]);
    sandbox.apr("export m.apr -o back").clean();
    assert_eq!(sandbox.read("back/model.safetensors"), sandbox.read("m/model.safetensors"));
}

#[test]
fn qa_95_the_table_that_an_explanation_begins_describes_the_model() {
    let sandbox = toy();
    let explained = sandbox.apr("explain m").clean();
    let table = drafted(&sandbox);
    assert!(explained.text().ends_with(&table), "{table}");
    for line in ["name = \"toy\"", "layer = \"layers\"", "name = \"net.{layer}.w\""] {
        assert!(table.lines().any(|it| it == line), "{line}\n{table}");
    }
    sandbox.write("mine.toml", table);
    sandbox.apr("import m -o m.apr --arch-file mine.toml").clean();
    sandbox.apr("validate m.apr --arch-file mine.toml").clean().says(&["pass  Names and shapes"]);

    // On top of a known family.
    let sandbox = TinyModel::new("llama")
        .configured("model_type", "llama9")
        .configured("architectures", json!(["Llama9ForCausalLM"]))
        .sandbox();
    let table = drafted(&sandbox);
    assert!(table.contains("extends = \"llama\""), "{table}");
    sandbox.write("mine.toml", table);
    let files = sandbox.files();
    sandbox.apr("validate m --arch-file mine.toml").ok().says(&["pass  Names and shapes"]);
    sandbox
        .apr("graph m --arch-file mine.toml")
        .fails(4, &["E003", "the family llama9 has no [graph]"]);
    sandbox
        .apr("convert m -o m.gguf --arch-file mine.toml")
        .fails(4, &["E003", "its files were not compared with llama.cpp's model yet"]);
    assert_eq!(sandbox.files(), files);
}

/// The beginning of a table for the model `m`.
fn drafted(sandbox: &Sandbox) -> String {
    let report = sandbox.apr("explain m --json").clean().json();
    report["draft"].as_str().expect("the family is unknown").to_owned()
}

#[test]
fn qa_95_a_family_that_does_not_fit_or_does_not_exist_is_refused() {
    let sandbox = toy();
    let files = sandbox.files();
    let run = sandbox.apr("import m -o m.apr --arch llama");
    run.fails(
        5,
        &[
            "the tensors do not match the LLaMA family",
            "'net.0.w'",
            "not a tensor of this family",
            "nothing was written",
        ],
    );
    sandbox
        .apr("import m -o m.apr --arch nonsense")
        .fails(2, &["no family 'nonsense'", "llama", "whisper"]);
    sandbox
        .apr("import m -o m.apr --arch whispr")
        .fails(2, &["no family 'whispr'; did you mean whisper?"]);
    sandbox.apr("import m -o m.apr --arch-file absent.toml").fails(3, &["E007", "absent.toml"]);
    sandbox.write("wrong.toml", "title = 3\n");
    sandbox
        .apr("import m -o m.apr --arch-file wrong.toml")
        .fails(4, &["E001", "wrong.toml", "not a family file"]);
    fs::remove_file(sandbox.path("wrong.toml")).expect("it is there");
    assert_eq!(sandbox.files(), files);
    // Names alone do not tell related families apart; a user who knows better can say so.
    let sandbox = TinyModel::new("llama").anonymous().sandbox();
    for (option, title) in
        [("", "LLaMA family (guessed from tensor names)"), ("--arch mistral", "Mistral family")]
    {
        let run = sandbox.apr(&format!("import m -o m.apr -f {option}")).clean();
        run.says(&[&format!("{title}, 20 tensors renamed")]);
    }
}

#[test]
fn qa_95_a_configuration_that_the_tensors_belie_is_refused() {
    let sandbox = TinyModel::new("bert").configured("model_type", "llama").sandbox();
    let what = "the configuration has LLaMA, but 0 of";
    refused(&sandbox, &[what, "the tensor names match family bert"]);
    sandbox.apr("import m -o m.apr --arch bert").clean().says(&["BERT family"]);
    let run = sandbox.apr("import m -o r.apr --relaxed").ok();
    assert!(run.to_string().contains(what), "{run}");
}

#[test]
fn qa_95_a_belied_configuration_stops_every_conversion_of_the_folder() {
    let sandbox = TinyModel::new("bert").configured("model_type", "llama").sandbox();
    for output in ["x.safetensors", "x.pt", "x.apr"] {
        let run = sandbox.apr(&format!("convert m -o {output}"));
        run.fails(5, &["the configuration has LLaMA", "nothing was written"]);
    }
}

#[test]
fn qa_87_what_a_training_framework_put_around_a_model_is_taken_off_and_put_back() {
    for wrapper in ["module.", "_orig_mod.", "base_model.model."] {
        let model = TinyModel::new("llama").renamed(|name| format!("{wrapper}{name}"));
        let sandbox = model.sandbox();
        sandbox
            .apr("import m -o m.apr")
            .clean()
            .says(&["LLaMA family, 21 tensors renamed", "valid"]);
        assert!(names(&sandbox, "m.apr").contains(&"layers.0.attn.q_proj.weight".to_owned()));
        sandbox.apr("export m.apr -o back").clean();
        assert_eq!(sandbox.read("back/model.safetensors"), model.safetensors(), "{wrapper}");
    }
}

#[test]
fn qa_80_a_head_that_nobody_lists_is_told_and_kept() {
    let own_head = |name: &str| name.replace("classifier.", "my_head.");
    let sandbox = TinyModel::new("bert_classifier").renamed(own_head).sandbox();
    let run = sandbox.apr("import m -o m.apr").ok();
    assert!(
        run.to_string().contains(
            "not in the family, kept if the output can hold them: my_head.bias, my_head.weight"
        ),
        "{run}"
    );
    assert!(names(&sandbox, "m.apr").contains(&"my_head.weight".to_owned()));
    sandbox.apr("validate m.apr").ok().says(&["warning: tensor 'my_head.weight'", "\nVALID"]);
}

#[test]
fn qa_80_an_untied_head_and_a_layer_of_either_tower_may_not_be_missing() {
    let missing = [
        ("llama", "lm_head.weight"),
        ("clip", "text_model.encoder.layers.0.self_attn.q_proj.weight"),
        ("clip", "vision_model.encoder.layers.1.mlp.fc1.weight"),
    ];
    for (family, name) in missing {
        let sandbox = TinyModel::new(family).without(name).sandbox();
        refused(&sandbox, &[&format!("tensor '{name}': missing tensor")]);
    }
}

#[test]
fn qa_95_a_family_of_the_users_own_maps_names_and_an_export_gives_them_back() {
    let sandbox = toy().with("toy.toml", TOY);
    for line in [
        "import m -o m.apr -f --arch-file toy.toml",
        "import m -o m.apr -f --arch-file toy.toml --arch toy",
    ] {
        sandbox.apr(line).clean().says(&["Toy family, 3 tensors renamed", "3 tensors valid"]);
        assert_eq!(
            names(&sandbox, "m.apr"),
            ["layers.0.weight", "layers.1.weight", "layers.2.weight"]
        );
    }
    let run = sandbox.apr("explain m.apr --tensor layers.1.weight --arch-file toy.toml").clean();
    run.says(&["Weight of layer 1", "(width, width)"]);
    sandbox
        .apr("diff m m.apr --exit-code --arch-file toy.toml")
        .clean()
        .says(&["SAME: 3 of 3 tensors match"]);
    fs::remove_file(sandbox.path("toy.toml")).expect("it is there");
    sandbox.apr("export m.apr -o back").clean();
    assert_eq!(sandbox.read("back/model.safetensors"), sandbox.read("m/model.safetensors"));
    // Its shapes are held against its configuration as those of any other family.
    sandbox.write("toy.toml", TOY);
    sandbox.write("m/config.json", r#"{"model_type": "toy", "num_layers": 4, "width": 9}"#);
    let run = sandbox.apr("import m -o n.apr --arch-file toy.toml");
    run.fails(
        5,
        &[
            "'net.0.w': expected [9, 9] ([width, width]), found [8, 8]",
            "'net.3.w'",
            "missing tensor",
        ],
    );
}
