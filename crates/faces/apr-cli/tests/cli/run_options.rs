//! `apr run`: the context of a model, how tokens are chosen, what leaves the program; and
//! `apr tokenize`.

use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::Sandbox;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures");
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// A copy of the small LLaMA whose settings for generation are these.
fn with_settings(sandbox: &Sandbox, settings: &Value) -> String {
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        sandbox.write(&format!("m/{name}"), fs::read(format!("{LLAMA}/{name}")).expect("a file"));
    }
    sandbox.write("m/generation_config.json", settings.to_string());
    "m".to_owned()
}

fn ones(count: usize) -> String {
    vec!["49"; count].join(",")
}

#[test]
fn the_context_holds_in_every_container() {
    let sandbox = Sandbox::new();
    // Nothing ends this text but the context.
    let endless = json!({ "eos_token_id": 258, "suppress_tokens": [258] });
    let folder = with_settings(&sandbox, &endless);
    sandbox.apr(&format!("import {folder} -o m.apr")).ok();
    sandbox.apr(&format!("export {folder} -o m.gguf")).ok();
    sandbox.apr("import m.gguf -o of_gguf.apr").ok();
    sandbox.apr(&format!("export {folder} --format onnx -o onnx")).ok();
    for model in [&folder, "m.apr", "m.gguf", "of_gguf.apr", "onnx"] {
        let run = |rest: &str| sandbox.apr(&format!("run {model} {rest}"));
        run(&format!("--tokens {}", ones(65))).fails(2, &["65 tokens", "64", "--truncate"]);
        let most = if model == "onnx" { "--want logits" } else { "" };
        run(&format!("--tokens {} {most}", ones(65))).fails(2, &["--truncate"]);
        let full = run(&format!("--tokens {} --max-tokens 9 --json", ones(60))).ok();
        let report = full.json();
        if report["ended"] != "end" {
            let added = report["added"].as_array().expect("tokens").len();
            assert_eq!((added, &report["ended"]), (4, &json!("context")), "{model}: {report}");
            assert!(full.stderr.contains("ended: context"), "{model}: {}", full.stderr);
        }
    }
    let full = sandbox.apr(&format!("run {folder} --tokens {} --json", ones(64))).ok().json();
    assert_eq!((&full["added"], &full["ended"]), (&json!([]), &json!("context")));
    let cut = format!("run m.gguf --tokens {} --truncate --json --max-tokens 5", ones(80));
    let cut = sandbox.apr(&cut).ok();
    assert_eq!(cut.json()["added"].as_array().map(Vec::len), Some(5));
    assert!(cut.stderr.contains("the last 21 of 80 tokens"), "{}", cut.stderr);
}

#[test]
fn texts_beside_pictures_are_refused_beyond_the_context() {
    let sandbox = Sandbox::new();
    let (model, picture) =
        (format!("{FIXTURES}/run/tiny-clip"), format!("{FIXTURES}/picture/a.png"));
    let long = "a ".repeat(60);
    let line = ["run", &model, "--input", &picture, "--prompt", &long];
    sandbox.run(&line).fails(2, &["--truncate", "tokens long"]);
    sandbox.run(&[&line[..], &["--truncate"]].concat()).ok().says(&["truncated to 20 tokens"]);
}

#[test]
fn generation_settings_are_applied_or_reported() {
    let sandbox = Sandbox::new();
    let settings = json!({ "eos_token_id": [10, 257], "num_beam_groups": 3, "max_new_tokens": 1 });
    let model = with_settings(&sandbox, &settings);
    let run = |rest: &[&str]| {
        sandbox.run(&[&["run", &*model, "--prompt", "12+34=", "--json"], rest].concat()).ok()
    };
    let made = run(&[]);
    assert_eq!(made.json()["ignored"], json!(["num_beam_groups (3)"]));
    assert_eq!((&made.json()["text"], &made.json()["ended"]), (&json!("4"), &json!("max_tokens")));
    assert!(made.stderr.contains("num_beam_groups (3)"), "{}", made.stderr);
    let made = run(&["--max-tokens", "9"]).json();
    assert_eq!((&made["text"], &made["ended"]), (&json!("46"), &json!("end")), "two ends");

    let settings = json!({ "eos_token_id": 257, "suppress_tokens": [52], "stop_strings": ["5"] });
    let model = with_settings(&sandbox, &settings);
    let run = |rest: &[&str]| {
        let line = [&["run", &*model, "--prompt", "12+34=", "--json"], rest].concat();
        sandbox.run(&line).ok().json()
    };
    assert_eq!((&run(&[])["text"], &run(&[])["ended"]), (&json!(""), &json!("stop")));
}

/// Compares with the text that transformers generates with the same file, from
/// `fixtures/run/settings.py`.
#[test]
fn settings_lead_to_the_tokens_of_transformers() {
    let sandbox = Sandbox::new();
    let text = fs::read_to_string(locate::fixture("run/settings.json")).expect("the fixture");
    let expected: Value = serde_json::from_str(&text).expect("JSON");
    let prompt = expected["prompt"].as_str().expect("a text");
    for case in expected["cases"].as_array().expect("cases") {
        let model = with_settings(&sandbox, &case["settings"]);
        let made = sandbox.run(&["run", &model, "--prompt", prompt, "--json"]).clean().json();
        assert_eq!((&made["added"], &made["ended"]), (&case["added"], &case["ended"]), "{case}");
    }
}

#[test]
fn penalties_and_probabilities_are_options() {
    let sandbox = Sandbox::new();
    let run = |rest: &[&str]| {
        let line = [&["run", LLAMA, "--prompt", "11+11=", "--json"], rest].concat();
        sandbox.run(&line).ok()
    };
    assert_eq!(run(&[]).json()["text"], "22\n");
    assert_ne!(run(&["--presence-penalty", "30"]).json()["text"], "22\n");
    assert_ne!(run(&["--repeat-penalty", "90"]).json()["text"], "22\n");
    let made = run(&["--logprobs", "2"]).json();
    let first = &made["logprobs"][0];
    assert_eq!((&first["token"], &first["id"]), (&json!("2"), &json!(50)));
    assert_eq!(first["top"].as_array().map(Vec::len), Some(2));
    let logprob = |value: &Value| value["logprob"].as_f64().expect("a number");
    assert!(logprob(first) <= 0.0 && logprob(&first["top"][0]) >= logprob(&first["top"][1]));
    let idle = run(&["--top-k", "3", "--seed", "4"]);
    assert!(
        idle.stderr.contains(
            "--top-k, --seed had no effect with greedy decoding: pass --temperature 1 to sample"
        ),
        "{}",
        idle.stderr
    );
    assert!(run(&["--min-p", "0.1", "--temperature", "1"]).stderr.is_empty());
}

/// Their arithmetic is compared in `apr-run`, by `fixtures/run/samplers.json`.
#[test]
fn samplers_of_llama_cpp_are_options() {
    let sandbox = Sandbox::new();
    let run = |rest: &[&str]| {
        sandbox.run(&[&["run", LLAMA, "--prompt", "11+11=", "--json"], rest].concat())
    };
    // Some of the texts go on until the context is full, which is a warning.
    let text = |rest: &[&str]| run(rest).ok().json()["text"].clone();
    assert_eq!(text(&[]), "22\n");
    assert_ne!(text(&["--logit-bias", "50=-inf", "--max-tokens", "2"]), "22");
    assert_eq!(text(&["--logit-bias", "7=1000", "--max-tokens", "2"]), "\u{7}\u{7}");
    assert_eq!(text(&["--logit-bias", "7=-1", "--logit-bias", "A=1000", "--max-tokens", "1"]), "A");
    let ended = run(&["--logit-bias", "</s>=1000"]).clean().json();
    assert_eq!((&ended["text"], &ended["ended"]), (&json!(""), &json!("end")));
    assert_ne!(text(&["--frequency-penalty", "30"]), "22\n");
    assert_ne!(text(&["--frequency-penalty", "-30"]), "22\n");
    assert_eq!(text(&["--repeat-penalty", "90", "--repeat-last-n", "0"]), "22\n");
    assert_ne!(text(&["--repeat-penalty", "90", "--repeat-last-n", "1"]), "22\n");
    assert_eq!(text(&["--dry-multiplier", "90", "--dry-allowed-length", "9"]), "22\n");
    let endless = run(&["--ignore-eos", "--max-tokens", "9"]).clean().json();
    assert_eq!(endless["ended"], "max_tokens");
    let longer = run(&["--min-tokens", "6", "--max-tokens", "7"]).clean().json();
    assert!(longer["added"].as_array().expect("tokens").len() >= 6);
    let sampled = ["--temperature", "1", "--seed", "3"];
    for rest in [
        &["--mirostat", "1", "--mirostat-tau", "0.1"][..],
        &["--mirostat", "2", "--mirostat-tau", "0.1", "--mirostat-eta", "0.2"],
        &["--typical-p", "0.5", "--top-p", "0.9"],
        &["--xtc-probability", "0.5", "--xtc-threshold", "0.2", "--min-p", "0.1"],
        &["--dry-multiplier", "1", "--dry-base", "2", "--dry-penalty-last-n", "9"],
        &["--dry-multiplier", "1", "--dry-sequence-breaker", "\\n+"],
    ] {
        let line = [&sampled[..], rest].concat();
        assert_eq!(text(&line), text(&line), "the same seed: {line:?}");
    }

    let idle = run(&["--typical-p", "0.5", "--xtc-probability", "1"]).ok();
    let said = "--typical-p, --xtc-probability had no effect with greedy decoding";
    assert!(idle.stderr.contains(said), "{}", idle.stderr);
    for (rest, said) in [
        (&["--mirostat", "2", "--top-k", "4"][..], "--top-k"),
        (&["--mirostat-tau", "2"], "--mirostat"),
        (&["--dry-base", "2"], "--dry-multiplier"),
        (&["--dry-multiplier", "1", "--dry-base", "0.5"], "1 or more"),
        (&["--xtc-threshold", "0.2"], "--xtc-probability"),
        (&["--xtc-probability", "1", "--xtc-threshold", "0.6"], "0.5"),
        (&["--logit-bias", "300=1"], "vocabulary"),
        (&["--logit-bias", "11=inf"], "-inf"),
        (&["--logit-bias", "7"], "TOKEN=X"),
        (&["--ignore-eos", "--min-tokens", "3"], "--min-tokens"),
        (&["--min-tokens", "10", "--max-tokens", "5"], "--min-tokens 10 exceeds --max-tokens 5"),
        (&["--want", "logits", "--min-tokens", "3"], "--min-tokens"),
    ] {
        run(rest).fails(2, &[said]);
    }
    // Without the tokenizer's files, ids do.
    for name in ["config.json", "model.safetensors"] {
        sandbox.write(&format!("b/{name}"), fs::read(format!("{LLAMA}/{name}")).expect("a file"));
    }
    let bare = |rest: &str| sandbox.apr(&format!("run b --tokens 49,43 --max-tokens 2 {rest}"));
    bare("--logit-bias 50=2 --dry-multiplier 1").ok();
    bare("--logit-bias A=2").fails(2, &["tokenizer"]);
    bare("--dry-multiplier 1 --dry-sequence-breaker A").fails(2, &["tokenizer"]);
}

#[test]
fn values_may_begin_with_hyphens_and_errors_name_the_option() {
    let sandbox = Sandbox::new().with("ids.json", "[[1, 2]]");
    let run = |rest: &[&str]| sandbox.run(&[&["run", LLAMA, "--max-tokens", "1"], rest].concat());
    run(&["--prompt", "- item"]).ok();
    run(&["--prompt", "--json"]).ok();
    run(&["--prompt", "a", "--stop", "-"]).ok();
    for (option, value) in [
        ("--temperature", "-1"),
        ("--top-p", "-0.5"),
        ("--top-p", "2"),
        ("--min-p", "-1"),
        ("--min-p", "nan"),
        ("--top-k", "-1"),
        ("--repeat-penalty", "0"),
        ("--presence-penalty", "inf"),
        ("--logprobs", "-1"),
        ("--seed", "-1"),
        ("--separator", "\\x"),
    ] {
        run(&["--prompt", "a", option, value]).fails(2, &[option, value]);
    }
    run(&["--tokens", "1,-1"]).fails(2, &["--tokens", "-1"]);
    run(&["--tokens", "1,x"]).fails(2, &["--tokens", "x"]);
    run(&["--tokens", "1,259"]).fails(2, &["--tokens", "259", "0 to 258"]);
    sandbox
        .apr(&format!("run {LLAMA} -i input_ids=ids.json -i input_ids=ids.json"))
        .fails(2, &["--input", "duplicate input 'input_ids'"]);
}

/// A negative number is not an unknown option, and a text can begin with any character.
#[test]
fn hyphens_begin_values_of_every_command() {
    let sandbox = Sandbox::new();
    for (line, option) in [
        ("export x -o y.onnx --opset -1", "--opset"),
        ("convert x -o y.apr --shard-size -5", "--shard-size"),
        ("quantize x -o y.gguf --type q8_0 --max-drift -1", "--max-drift"),
        ("diff x y --tolerance -1", "--tolerance"),
        ("debug x --limit -1", "--limit"),
        ("diff x y --tolerance nan", "--tolerance"),
        ("run x --top -1", "--top"),
        ("inspect x --threads -1", "--threads"),
        ("inspect x --max-memory -1", "--max-memory"),
        ("graph x --depth -1", "--depth"),
    ] {
        let run = sandbox.apr(line);
        let value = line.split(' ').next_back().expect("a value");
        run.fails(2, &[&format!("invalid value '{value}' for '{option}"), option]);
    }
    sandbox.apr(&format!("tokenize {LLAMA} --prompt -item")).ok();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    sandbox.apr("keygen -o signer").ok();
    let issue = ["license", "issue", "m.apr", "--key", "signer"];
    let texts = ["--licensee", "-Ann & Co-", "--terms", "- one seat"];
    let report = sandbox.run(&[&issue[..], &texts, &["--json"]].concat()).ok().to_string();
    assert!(report.contains("\"terms\": \"- one seat\""), "{report}");
    let embed = ["watermark", "embed", "m.apr", "-o", "marked.apr", "--key", "signer"];
    sandbox.run(&[&embed[..], &["--id", "- a copy", "--strength", "0.1"]].concat()).ok();
}

#[test]
fn answers_leave_the_program_byte_for_byte() {
    let sandbox = Sandbox::new();
    let run = |rest: &[&str]| {
        let line = [&["run", LLAMA, "--prompt", "12+34=", "--prompt", "11+11="], rest].concat();
        sandbox.run(&line).ok()
    };
    assert_eq!(sandbox.apr(&format!("run {LLAMA} --prompt 12+34=")).ok().text(), "46\n");
    let mixed = run(&[]);
    assert_eq!(mixed.text(), "46\n\n22\n");
    assert!(mixed.stderr.contains("--separator"), "{}", mixed.stderr);
    let apart = run(&["--separator", "\\0"]);
    assert_eq!((apart.text().as_str(), apart.stderr.as_str()), ("46\n\u{0}22\n", ""));
    assert_eq!(run(&["--json"]).reports().len(), 2);
}

#[test]
fn whispers_keep_the_number_of_tokens() {
    let sandbox = Sandbox::new();
    let line = format!(
        "run {FIXTURES}/run/tiny-whisper --input {FIXTURES}/sound/a.wav --language en --json"
    );
    let whole = sandbox.apr(&line).ok().json();
    let tokens = whole["results"][0]["tokens"].as_array().expect("tokens").clone();
    assert!(tokens.len() > 3, "{whole}");
    let cut = sandbox.apr(&format!("{line} --max-tokens 3")).ok().json();
    assert_eq!(cut["results"][0]["tokens"], json!(tokens[..3]));
    assert_eq!(cut["results"][0]["ended"], "max_tokens");
}

#[test]
fn the_inputs_are_written() {
    let sandbox = Sandbox::new();
    let features = |model: &str, rest: &[&str]| {
        let model = format!("{FIXTURES}/{model}");
        let line = [&["run", &*model, "--want", "features", "--json"], rest].concat();
        sandbox.run(&line).ok().json()["outputs"].clone()
    };
    let tokens = features("tiny-llama", &["--prompt", "12"]);
    assert_eq!(
        (&tokens[0]["name"], &tokens[0]["values"]),
        (&json!("input_ids"), &json!([256, 49, 50]))
    );
    let sound = format!("{FIXTURES}/sound/a.wav");
    let waveform = features("run/tiny-wav2vec2", &["--input", &sound, "-o", "wave.npy"]);
    assert_eq!(waveform[0]["name"], "input_values");
    let picture = format!("{FIXTURES}/picture/a.png");
    let pixels = features("run/tiny-vit", &["--input", &picture, "--input", &picture]);
    assert_eq!((&pixels[0]["name"], &pixels[0]["shape"][0]), (&json!("pixel_values"), &json!(2)));
    let mel = features("run/tiny-whisper", &["--input", &sound]);
    assert_eq!(
        (&mel[0]["name"], &mel[0]["shape"]),
        (&json!("input_features"), &json!([1, 16, 100]))
    );

    // What is written goes in again.
    let again = sandbox.apr(&format!(
        "run {FIXTURES}/run/tiny-wav2vec2 --input input_values=wave.npy --want logits --json"
    ));
    assert_eq!(again.ok().json()["outputs"][0]["name"], "logits");
    sandbox
        .apr(&format!("run {FIXTURES}/run/tiny-vit -i {picture} --want features --want logits"))
        .fails(
            2,
            &["--want features can't be combined with other values: it returns the preprocessed \
               input and does not run the model"],
        );
}

#[test]
fn texts_are_cut_and_tokens_decoded_by_any_tokenizer() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    sandbox.apr(&format!("export {LLAMA} -o m.gguf")).ok();
    for model in [LLAMA, "m.apr", "m.gguf"] {
        let cut = sandbox.run(&["tokenize", model, "--prompt", "-aé", "--decode", "--json"]);
        let cut = cut.ok().json()["results"][0].clone();
        assert_eq!(cut["ids"], json!([256, 45, 97, 195, 169]), "{model}");
        assert_eq!(cut["decoded"], "<s>-aé", "{model}");
        let token = &cut["tokens"][2];
        assert_eq!(
            (&token["token"], &token["start"], &token["end"]),
            (&json!("a"), &json!(1), &json!(2))
        );
        assert_eq!(cut["tokens"][0]["special"], true, "{model}");
    }
    let plain = format!("tokenize {LLAMA} --no-special-tokens");
    let text = sandbox.piped(&format!("{plain} --decode"), b"a b\n").ok().text();
    assert_eq!(text, "a b");
    assert_eq!(sandbox.piped(&plain, b"a").ok().text(), "97  a  0..1\n");
    let named = sandbox.apr(&format!("tokenize {LLAMA} --tokens 49,257 --decode")).ok().text();
    assert_eq!(named, "1</s>");
    sandbox.apr(&format!("tokenize {LLAMA} --tokens 999")).fails(2, &["--tokens", "999"]);
    sandbox.apr("tokenize nowhere --prompt a").fails(3, &["nowhere"]);
}

#[test]
fn vocabularies_alone_cut_texts_too() {
    let Some(folder) = locate::shared_data("gguf") else { return };
    let name = "ggerganov_llama.cpp__ggml-vocab-llama-spm.gguf";
    let path = folder.join(name).display().to_string();
    let line = ["tokenize", &path, "--prompt", "Hello World", "--json"];
    let made = Sandbox::new().run(&line).ok().json();
    assert_eq!(made["results"][0]["ids"], json!([1, 15043, 2787]));
}

#[test]
fn options_of_other_tasks_are_rejected_or_reported_as_without_effect() {
    let sandbox = Sandbox::new();
    let line = format!("run {} --prompt 12+34=", locate::fixture("tiny-llama").display());
    let top = format!("{line} --top 3");
    sandbox.apr(&top).fails(2, &["--top applies to labels and ranked documents"]);
    let one = sandbox.apr(&format!("{line} --separator ;")).ok();
    one.says(&["--separator has no effect: there is only one text"]);
}
