//! `apr canary`, and canaries as a gate.

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

/// A folder with tiny-llama, and a canary of three of its sums.
fn recorded() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        let bytes = fs::read(locate::fixture("tiny-llama").join(name)).expect("the fixture");
        sandbox.write(&format!("llama/{name}"), bytes);
    }
    let sums = ["--prompt", "12+34=", "--prompt", "5+6=", "--prompt", "90+9="];
    let line = [&["canary", "create", "llama"][..], &sums, &["-o", "canary.json"]].concat();
    sandbox.run(&line).ok();
    sandbox
}

/// The model with a layer's projection set to zero.
fn damaged(sandbox: &Sandbox) {
    let mut bytes = sandbox.read("llama/model.safetensors");
    let header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")))
        .expect("a small file");
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
    let place = &json["model.layers.0.mlp.down_proj.weight"]["data_offsets"];
    let at = |end: usize| {
        8 + header + usize::try_from(place[end].as_u64().expect("an offset")).expect("small")
    };
    bytes[at(0)..at(1)].fill(0);
    sandbox.write("broken/model.safetensors", bytes);
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        sandbox.write(&format!("broken/{name}"), sandbox.read(&format!("llama/{name}")));
    }
}

#[test]
fn qa_72_a_canary_finds_a_regression() {
    let sandbox = recorded();
    let report = sandbox.run(&["canary", "check", "llama", "--canary", "canary.json", "--json"]);
    let report = report.ok().json();
    assert_eq!((&report["passed"], &report["cases"][0]["found"]), (&true.into(), &"46\n".into()));

    damaged(&sandbox);
    let line = ["canary", "check", "broken", "--canary", "canary.json"];
    sandbox.run(&line).fails(5, &["Character error rate", "FAIL"]);
}

#[test]
fn prompts_of_a_text_have_the_most_tokens() {
    let sandbox = recorded();
    sandbox.write("sums.txt", "12+12=\n\n21+21=\n34+56=\n78+90=\n12+34=\n");
    let line = "canary create llama --from sums.txt --count 3 -o chosen.json --json";
    let report = sandbox.apr(line).clean().json();
    let inputs: Vec<&str> = report["cases"]
        .as_array()
        .expect("cases")
        .iter()
        .filter_map(|case| case["input"].as_str())
        .collect();
    // Digits are tokens of their own. The first line has 2 of them, and two lines have 4.
    assert_eq!(inputs, ["34+56=", "78+90=", "12+12="]);
    let coverage = &report["coverage"];
    assert_eq!((&coverage["covered"], &coverage["token_count"]), (&12.into(), &12.into()));
    sandbox
        .apr("canary create llama --from sums.txt -o all.json")
        .clean()
        .says(&["3 prompts from sums.txt, with 12 of its 12 different tokens"]);

    // The vectors of '7' and '8' exchanged: no prompt with either digit, no difference.
    let mut bytes = sandbox.read("llama/model.safetensors");
    swap_tokens(&sandbox, &mut bytes, ["7", "8"]);
    sandbox.write("broken/model.safetensors", bytes);
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        sandbox.write(&format!("broken/{name}"), sandbox.read(&format!("llama/{name}")));
    }
    sandbox.apr("canary check broken --canary canary.json").ok();
    sandbox.apr("canary check broken --canary chosen.json").fails(5, &["78+90="]);

    // A field of a file is not an option, even if there is an option of its name.
    let run = sandbox.apr("canary check llama --canary llama/config.json");
    run.fails(4, &["not a canary file: missing field 'format'"]);

    sandbox.write("empty.txt", "\n \n");
    sandbox.apr("canary create llama --from empty.txt -o no.json").fails(4, &["the text is empty"]);
    sandbox.apr("canary create llama --prompt a --count 3 -o no.json").fails(2, &["--from"]);
    sandbox.apr("canary create llama --tokens 1 --chat -o no.json").fails(2, &["--chat"]);
}

/// Exchanges the rows of two tokens in the embedding.
fn swap_tokens(sandbox: &Sandbox, bytes: &mut [u8], tokens: [&str; 2]) {
    let tokenizer: Value =
        serde_json::from_slice(&sandbox.read("llama/tokenizer.json")).expect("JSON");
    let size = |bytes: &[u8]| {
        usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")))
            .expect("a small file")
    };
    let header: Value = serde_json::from_slice(&bytes[8..8 + size(bytes)]).expect("a header");
    let entry = &header["model.embed_tokens.weight"];
    let number = |value: &Value| usize::try_from(value.as_u64().expect("a number")).expect("small");
    let [rows, width] = [0, 1].map(|axis| number(&entry["shape"][axis]));
    let start = 8 + size(bytes) + number(&entry["data_offsets"][0]);
    let row = (number(&entry["data_offsets"][1]) + 8 + size(bytes) - start) / rows;
    assert_eq!(row, 2 * width);
    let [one, other] =
        tokens.map(|token| start + row * number(&tokenizer["model"]["vocab"][token]));
    for at in 0..row {
        bytes.swap(one + at, other + at);
    }
}

#[test]
fn a_vocabulary_with_exchanged_tokens_does_not_pass_by_a_symmetric_sum() {
    let sandbox = recorded();
    sandbox.apr("canary create llama --prompt 13+31= -o symmetric.json -q").ok();
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        sandbox.write(&format!("broken/{name}"), sandbox.read(&format!("llama/{name}")));
    }
    let bytes = sandbox.read("llama/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&bytes).expect("JSON");
    let vocabulary = &mut tokenizer["model"]["vocab"];
    let [one, three] = ["1", "3"].map(|token| vocabulary[token].clone());
    (vocabulary["1"], vocabulary["3"]) = (three, one);
    sandbox.write("broken/tokenizer.json", tokenizer.to_string());
    sandbox.apr("canary check llama --canary symmetric.json").ok();
    let says = "the tokenizer reads the input differently: token 49 at position 0 is now token 51";
    sandbox.apr("canary check broken --canary symmetric.json").fails(5, &[says]);
}

#[test]
fn a_strict_canary_fails_for_a_model_that_was_quantized() {
    let sandbox = recorded();
    let line = "canary create llama --prompt 12+34= --strict -o strict.json -q";
    sandbox.apr(line).ok();
    sandbox.apr("canary check llama --canary strict.json").clean();
    sandbox.apr("quantize llama --type q4_0 -o small.gguf -q").ok();
    sandbox.apr("canary check small.gguf --canary canary.json").ok();
    let report =
        sandbox.apr("canary check small.gguf --canary strict.json --json").fails(5, &[]).json();
    assert!(report["cases"][0]["logprob_change"].as_f64() > Some(0.01), "{report}");
}

#[test]
fn a_quantized_model_that_fails_a_canary_does_not_appear() {
    let sandbox = recorded();
    let quantize = |model: &str, output: &str, more: &[&str]| {
        let line = ["quantize", model, "--type", "q8_0", "-o", output, "--canary", "canary.json"];
        sandbox.run(&[&line[..], more].concat())
    };
    quantize("llama", "good.gguf", &[]).ok().says(&["canary: 3 of 3 answers as expected"]);

    damaged(&sandbox);
    quantize("broken", "bad.gguf", &["--relaxed"]).fails(5, &["quality gate failed"]);
    assert!(!sandbox.path("bad.gguf").exists());

    quantize("broken", "bad.gguf", &["--force"]).ok().says(&["answers differ"]);
    assert!(sandbox.path("bad.gguf").exists());
}

#[test]
fn a_folder_is_checked_before_it_appears() {
    let sandbox = recorded();
    let line = ["export", "llama", "--format", "safetensors", "-o", "out"];
    sandbox.run(&[&line[..], &["--canary", "canary.json"]].concat()).ok();
    assert!(sandbox.path("out/config.json").exists());

    damaged(&sandbox);
    let line = ["export", "broken", "--format", "safetensors", "-o", "bad", "--relaxed"];
    sandbox.run(&[&line[..], &["--canary", "canary.json"]].concat()).fails(5, &["Canary"]);
    assert!(!sandbox.path("bad").exists());
}

#[test]
fn another_answer_may_be_expected_than_the_models() {
    let sandbox = recorded();
    let line = ["canary", "create", "llama", "--prompt", "1+1=", "--expect", "3", "-o", "c.json"];
    sandbox.run(&line).ok();
    let line = ["canary", "check", "llama", "--canary", "c.json", "--json"];
    let report = sandbox.run(&line).fails(5, &[]).json();
    let case = &report["cases"][0];
    assert_eq!((&case["original"], &case["character_error_rate"]), (&"2\n".into(), &1.0.into()));
}

#[test]
fn white_space_around_an_answer_is_not_compared() {
    let sandbox = recorded();
    let line = ["canary", "create", "llama", "--prompt", "1+1=", "--expect", "2", "-o", "c.json"];
    sandbox.run(&line).ok();
    let recorded = String::from_utf8(sandbox.read("c.json")).expect("JSON");
    let other = recorded.replace("\"2\\n\"", "\" 2\"");
    assert_ne!(recorded, other);
    sandbox.write("c.json", other);
    sandbox.run(&["canary", "check", "llama", "--canary", "c.json"]).ok().says(&["PASS"]);
}

#[test]
fn a_file_is_stored_by_name_and_digest_or_embedded() {
    let sandbox = recorded();
    sandbox.write("sum.txt", "20+22=");
    let create = ["canary", "create", "llama", "--input", "sum.txt", "-o", "named.json"];
    sandbox.run(&create).ok();
    let create = ["canary", "create", "llama", "--input", "sum.txt", "-o", "whole.json", "--embed"];
    sandbox.run(&create).ok();

    let check =
        |canary: &str| sandbox.run(&["canary", "check", "llama", "--canary", canary, "--json"]);
    assert_eq!(check("named.json").ok().json()["cases"][0]["found"], "42\n");
    sandbox.write("sum.txt", "20+23=");
    check("named.json").fails(5, &["E004", "sum.txt"]);
    assert_eq!(check("whole.json").ok().json()["cases"][0]["found"], "42\n");
}

#[test]
fn canaries_of_other_models_and_broken_ones_are_refused() {
    let sandbox = recorded();
    let whole = String::from_utf8(sandbox.read("canary.json")).expect("JSON");
    let cases = [
        ("\"llama\"", "\"bert\"", 2, "of type 'bert'"),
        ("\"vocab_size\": 259", "\"vocab_size\": 300", 2, "vocabulary of 300"),
        ("\"version\": 1", "\"version\": 9", 4, "E003"),
        ("apr-canary", "other", 4, "not a canary file"),
        ("\"character_error_rate\": 0.0", "\"character_error_rate\": -1.0", 4, "tolerance"),
        ("\"prompt\"", "\"prompts\"", 4, "E001"),
    ];
    for (from, to, code, says) in cases {
        assert!(whole.contains(from), "{from}");
        sandbox.write("other.json", whole.replace(from, to));
        let found = sandbox.run(&["canary", "check", "llama", "--canary", "other.json"]);
        found.fails(code, &[says]);
    }

    for cut in (0..whole.len() - 2).step_by(97) {
        sandbox.write("cut.json", &whole[..cut]);
        sandbox.run(&["canary", "check", "llama", "--canary", "cut.json"]).fails(4, &["E001"]);
    }
    sandbox.run(&["canary", "create", "llama", "-o", "none.json"]).fails(2, &["needs an input"]);
    assert!(!sandbox.path("none.json").exists());
}

#[test]
fn tokens_that_the_vocabulary_does_not_have_are_refused() {
    let sandbox = recorded();
    let create = ["canary", "create", "llama", "--tokens", "1,5,20", "-o", "tokens.json"];
    sandbox.run(&create).ok();
    let mut canary: Value = serde_json::from_slice(&sandbox.read("tokens.json")).expect("JSON");
    for (id, said) in [
        (-5, "the canary '1,5,20' has a token below 0"),
        (259, "the canary '1,5,20' has token 259, and the vocabulary has 259"),
        (i64::MAX, "and the vocabulary has 259"),
    ] {
        canary["cases"][0]["input"]["ids"][1] = id.into();
        sandbox.write("tokens.json", canary.to_string());
        sandbox.apr("canary check llama --canary tokens.json").fails(4, &["E001", said]);
        let gate = "quantize llama --type q8_0 --canary tokens.json -o m.gguf";
        sandbox.apr(gate).fails(4, &["E001", said]);
        assert!(!sandbox.path("m.gguf").exists());
    }
}

#[cfg(unix)]
#[test]
fn files_of_a_canary_must_be_regular_and_are_read_before_anything_is_written() {
    let sandbox = recorded();
    sandbox.write("sum.txt", "20+22=");
    let create = ["canary", "create", "llama", "--input", "sum.txt", "-o", "named.json"];
    sandbox.run(&create).ok();
    let named = String::from_utf8(sandbox.read("named.json")).expect("JSON");
    for (file, code) in [("/dev/zero", 1), ("gone.txt", 3), ("..", 1)] {
        let other = named.replace("\"file\": \"sum.txt\"", &format!("\"file\": \"{file}\""));
        assert_ne!(named, other);
        sandbox.write("other.json", other);
        let line = ["canary", "check", "llama", "--canary", "other.json"];
        sandbox.run(&line).fails(code, &["E007", file]);
    }

    sandbox.write("cut.json", "{");
    let quantize = |canary: &str, output: &str| {
        let line = ["quantize", "llama", "--type", "q8_0", "--canary", canary, "-o", output];
        sandbox.run(&line)
    };
    quantize("cut.json", "out.gguf").fails(4, &["E001", "cut.json"]);
    quantize("gone.json", "out.gguf").fails(3, &["E007", "gone.json"]);
    let line =
        ["convert", "llama", "--format", "safetensors", "--canary", "canary.json", "-o", "-"];
    sandbox.run(&line).fails(2, &["name a file or a folder"]);
    assert!(!sandbox.path("out.gguf").exists());
}

#[test]
fn a_failed_gate_names_the_answer_and_leaves_the_old_file() {
    let sandbox = recorded();
    damaged(&sandbox);
    sandbox.write("old.gguf", "old");
    let line = ["quantize", "broken", "--type", "q8_0", "--relaxed", "-f", "-o", "old.gguf"];
    let line = [&line[..], &["--canary", "canary.json"]].concat();
    let says = ["quality gate failed", "Canary \"12+34=\" failed: expected \"46", "--force"];
    sandbox.run(&line).fails(5, &says);
    let found = sandbox.run(&[&line[..], &["--json"]].concat()).fails(5, &[]).json();
    assert_eq!(found["error"]["canary"]["passed"], false);
    assert_eq!(sandbox.read("old.gguf"), b"old");
}

#[test]
fn a_single_file_is_checked_with_the_companions_beside_it() {
    let sandbox = recorded();
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        sandbox.write(&format!("out/{name}"), sandbox.read(&format!("llama/{name}")));
    }
    let line = ["convert", "llama", "--precision", "fp16", "--canary", "canary.json", "-o"];
    for output in ["out/model.safetensors", "whole.apr", "parts.apr"] {
        let shards: &[&str] = if output == "parts.apr" { &["--shard-size", "200KB"] } else { &[] };
        let says = ["canary: 3 of 3 answers as expected"];
        sandbox.run(&[&line[..], &[output], shards].concat()).ok().says(&says);
    }
    let line = ["export", "llama", "--format", "onnx", "-o", "out/model.onnx"];
    sandbox.run(&[&line[..], &["--canary", "canary.json"]].concat()).ok();
}

#[test]
fn an_input_outside_of_the_canarys_folder_is_found_again() {
    let sandbox = recorded();
    sandbox.write("data/sum.txt", "20+22=");
    let create = ["canary", "create", "llama", "--input", "data/sum.txt", "-o", "far/off/c.json"];
    sandbox.run(&create).ok();
    let canary = String::from_utf8(sandbox.read("far/off/c.json")).expect("JSON");
    assert!(canary.contains("\"../../data/sum.txt\""), "{canary}");
    let line = ["canary", "check", "llama", "--canary", "far/off/c.json", "--json"];
    assert_eq!(sandbox.run(&line).ok().json()["cases"][0]["found"], "42\n");
}

#[cfg(unix)]
#[test]
fn an_input_whose_name_is_not_utf_8_is_embedded() {
    let sandbox = recorded();
    let create = |more: &str| {
        sandbox.shell(&format!(
            "f=$(printf 'a\\377.txt'); printf 20+22= > \"$f\"; \
             \"$APR\" canary create llama --input \"$f\" -o c.json {more}"
        ))
    };
    create("").fails(2, &["not UTF-8", "pass --embed"]);
    create("--embed").ok();
    let line = ["canary", "check", "llama", "--canary", "c.json", "--json"];
    assert_eq!(sandbox.run(&line).ok().json()["cases"][0]["found"], "42\n");
}

#[test]
fn the_target_and_the_tokens_are_looked_at_before_the_model_runs() {
    let sandbox = recorded();
    let create = |model: &str, more: &[&str]| {
        sandbox.run(&[&["canary", "create", model][..], more].concat())
    };
    let to = ["--prompt", "1+1=", "-o", "canary.json"];
    create("gone", &to).fails(1, &["E007", "canary.json", "already exists"]);
    create("gone", &["--prompt", "1+1=", "-o", "llama"]).fails(1, &["E007", "a folder"]);
    create("gone", &["--prompt", "1+1=", "-o", "llama/config.json/c.json"]).fails(1, &["E007"]);

    create("llama", &["--tokens", "1,259", "-o", "new/c.json"]).fails(2, &["--tokens: 259"]);
    assert!(!sandbox.path("new").exists());
}

#[test]
fn an_expected_answer_is_of_a_model_that_answers_with_text() {
    let sandbox = Sandbox::new();
    let bert = locate::fixture("run/tiny-bert").display().to_string();
    let create = ["canary", "create", &bert, "--prompt", "a", "-o", "c.json"];
    sandbox.run(&[&create[..], &["--expect", "b"]].concat()).fails(2, &["--expect", "'a'"]);
    assert!(!sandbox.path("c.json").exists());
    sandbox.run(&create).ok();
}

#[test]
fn a_vector_is_near_in_length_too() {
    let sandbox = Sandbox::new();
    let bert = locate::fixture("run/tiny-bert").display().to_string();
    sandbox.run(&["canary", "create", &bert, "--prompt", "a", "-o", "c.json"]).ok();
    let mut canary: Value = serde_json::from_slice(&sandbox.read("c.json")).expect("JSON");
    let values = &mut canary["cases"][0]["expected"]["arrays"][0]["values"];
    for value in values.as_array_mut().expect("an embedding") {
        *value = (2.0 * value.as_f64().expect("a number")).into();
    }
    sandbox.write("c.json", canary.to_string());
    let line = ["canary", "check", &bert, "--canary", "c.json"];
    let report = sandbox.run(&[&line[..], &["--json"]].concat()).fails(5, &[]).json();
    let case = &report["cases"][0];
    let near = |key: &str, to: f64| (case[key].as_f64().expect("a number") - to).abs() < 1e-6;
    assert!(near("cosine", 1.0) && near("relative_l2", 0.5), "{case}");
    sandbox.run(&line).fails(5, &["Relative L2 distance: 0.5", "0.15 is allowed"]);
}

#[test]
fn an_encrypted_output_is_checked_where_a_key_opens_it() {
    let sandbox = recorded();
    sandbox.run(&["keygen", "--for", "encryption", "-o", "k"]).ok();
    let convert = |output: &str, more: &[&str]| {
        let line = ["convert", "llama", "--recipient", "k.pub", "--canary", "canary.json"];
        sandbox.run(&[&line[..], &["-o", output], more].concat())
    };
    convert("none.apr", &[]).fails(2, &["--canary", "encrypted", "--key FILE"]);
    assert!(!sandbox.path("none.apr").exists());
    let says = ["canary: 3 of 3 answers as expected"];
    convert("good.apr", &["--key", "k"]).ok().says(&says);
    sandbox.write("word", "secret");
    let password = ["--encrypt", "--password-file", "word"];
    convert("better.apr", &password).ok().says(&says);

    let forced = convert("forced.apr", &["--force", "--json"]).ok();
    assert!(forced.stderr.contains("the canary was not checked"), "{}", forced.stderr);
    let report = forced.json();
    assert!(report["canary"].is_null() && report["warnings"][0].is_string(), "{report}");
    assert!(sandbox.path("forced.apr").exists());
}
