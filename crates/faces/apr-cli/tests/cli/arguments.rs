//! Arguments that are wrong end with exit code 2, and the message names what was typed.

use serde_json::json;

use crate::support::{Sandbox, f32s, safetensors, small_safetensors, sound};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

#[test]
fn wrong_values_are_errors_in_the_arguments() {
    let sandbox = Sandbox::new().with("secret", [7; 32]);
    for (line, said) in [
        ("convert $L -o a.apr --rename zzz=b", "--rename zzz: no such tensor"),
        ("convert $L -o a.gguf --prefix zzz.", "no tensor's name starts with the prefix 'zzz.'"),
        ("convert $L --analyze-source --prefix zzz.", "starts with the prefix 'zzz.'"),
        ("run $L --prompt 1 --regex [", "--regex: unclosed character class"),
        ("graph $L --task foo", "'--task <TASK>': unknown task 'foo'"),
        ("export $L -o x.onnx --task foo", "'--task <TASK>': unknown task 'foo'"),
        ("run $L --prompt 1 --task foo", "'--task <TASK>': unknown task 'foo'"),
        ("watermark embed $L -o w.apr --key secret --id x --strength 9", "'--strength <X>'"),
        ("watermark embed $L -o w.apr --key secret --id=", "'--id <TEXT>': an id is one line"),
        ("watermark detect $L --key secret --id=", "'--id <TEXT>': an id is one line"),
        ("convert $L -o a.apr --shard-size -1", "'-1' is below zero"),
        ("diff $L $L --tensors typo*", "no tensor matches --tensors typo*"),
        ("debug $L/config.json --limit 2", "--limit applies to --hex and --strings"),
        // What one requires, another one excludes.
        ("debug $L/config.json --drama --tensor x", "--hex"),
        ("validate $L --min-score 95 --strict", "--quality"),
        ("validate $L $L --checksum", "--quality"),
        ("trace $L $L --prompt 1 --trace-payload", "--diff"),
        ("imatrix $L --input secret --part 1/2 -o i.gguf", "--text <FILE>"),
        ("prune $L --prune-threshold 0.1 --prune-scope global -o p.apr", "--prune <SHARE>"),
        ("plan -o j prune $L --prune-threshold 0.1 --prune-scope global", "--prune <SHARE>"),
        ("merge $L --lora a --seed 4 -o m.apr", "--seed and --lora exclude each other"),
        ("tokenize $L --tokens 1 --no-special-tokens", "with --decode only"),
    ] {
        let run = sandbox.apr(&line.replace("$L", LLAMA)).fails(2, &[said]);
        assert!(!run.stderr.contains("E001"), "{run}");
    }
    assert_eq!(sandbox.files(), ["secret"]);
}

#[test]
fn names_in_an_onnx_file_are_changed_by_a_conversion_as_an_edit_advises() {
    let sandbox = Sandbox::new();
    let model = LLAMA.replace("tiny-llama", "onnx/exports/dynamo.onnx");
    sandbox
        .apr(&format!("edit {model} --rename input_ids=ids -o e.onnx"))
        .fails(2, &["`apr convert MODEL --rename OLD=NEW -o OUT` renames values and tensors"]);
    sandbox.apr(&format!("convert {model} --rename input_ids=ids -o e.onnx")).ok();
    sandbox.apr("graph e.onnx").ok().says(&["ids"]);
    sandbox.apr("edit --help").clean().says(&["for ONNX files, `apr convert"]);
}

/// A message about options that do not apply names those that were given.
#[test]
fn only_given_options_are_named() {
    let sandbox = Sandbox::new();
    for (options, said) in [
        ("x.gguf --opset 17", "--opset applies to ONNX and TorchScript output only"),
        ("x.gguf --with-past --merged", "--with-past and --merged apply to ONNX"),
        ("x.onnx --precision bf16 --keep-io", "--keep-io applies to --precision fp16"),
    ] {
        let run = sandbox.apr(&format!("convert {LLAMA} -o {options}")).fails(2, &[said]);
        assert!(!run.stderr.contains("--latent-cache"), "{run}");
    }
}

#[test]
fn an_environment_variable_is_named_if_its_value_is_wrong() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    for (variable, value, said) in [
        ("APR_THREADS", "0", "APR_THREADS must be 1 or more"),
        ("APR_THREADS", "many", "for 'APR_THREADS': expected a whole number"),
        ("APR_COLOR", "maybe", "invalid value 'maybe' for 'APR_COLOR'"),
        ("APR_RAM_LIMIT", "much", "for 'APR_RAM_LIMIT'"),
    ] {
        let mut command = sandbox.command(&["inspect", "m.apr"]);
        let output = command.env(variable, value).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(said), "{stderr}");
    }
    // An option that was typed is named as such.
    let mut command = sandbox.command(&["inspect", "m.apr", "--threads", "0"]);
    let output = command.env("APR_THREADS", "2").output().expect("it starts");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--threads must be 1 or more"));
}

#[test]
fn what_is_neither_a_file_nor_a_code_is_reported_as_such() {
    let sandbox = Sandbox::new().with("model.apr", sound().build());
    sandbox.apr("explain q4_k").fails(1, &["'q4_k' is neither a file nor an error code"]);
    sandbox.apr("explain modle").fails(1, &["neither a file nor", "E001, E002"]);
    sandbox.apr("explain model").fails(1, &["did you mean model.apr?"]);
    sandbox.apr("explain E009").fails(1, &["Unknown Error Code 'E009'; the codes are E001"]);
}

#[test]
fn help_and_versions_are_those_of_one_program() {
    let sandbox = Sandbox::new();
    let version = format!("apr {}\n", env!("CARGO_PKG_VERSION"));
    for line in ["--version", "inspect --version", "lora extract --version"] {
        assert_eq!(sandbox.apr(line).clean().stdout, version.as_bytes(), "{line}");
    }
    let help = sandbox.apr("help inspect").clean();
    assert_eq!(sandbox.apr("help inspect --json").clean().stdout, help.stdout);
    assert_eq!(sandbox.apr("help --json inspect").clean().stdout, help.stdout);
    sandbox.apr("help E002").fails(2, &["`apr explain E002` explains the error code"]);
    sandbox.apr("man pages").ok();
    let page = String::from_utf8(sandbox.read("pages/apr-inspect.1")).expect("UTF-8");
    let version = format!(".SH VERSION\napr {}\n", env!("CARGO_PKG_VERSION"));
    assert!(page.contains(&version), "{page}");
}

/// Files are named as they were typed.
#[test]
fn a_file_in_a_folder_is_named_with_its_folder() {
    let sandbox = Sandbox::new().with("a/config.json", r#"{"model_type": "llama"}"#);
    sandbox.apr("inspect a/config.json").fails(4, &["E001: a/config.json: not a shard index"]);
    sandbox.write("a/train.py", "import os");
    sandbox.write("a/b/train.py", "import os");
    sandbox.write("a/model.safetensors", small_safetensors());
    let run = sandbox.apr("scan a").ok();
    run.says(&["not run: a/b/train.py, a/train.py (loading"]);
}

#[test]
fn counts_of_one_have_no_plural() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.write("one.safetensors", safetensors(&[("only", "F32", &[2], f32s(&[1.0, 2.0]))]));
    let plan = sandbox.apr("plan --parts 9 -o q.json convert one.safetensors -o one.apr").ok();
    assert!(!plan.to_string().contains("up to 0"), "{plan}");
    plan.says(&["1 part instead of 9", "1 part,", "apr run-part q.json 0\n", "the part is"]);
    let merged = sandbox.apr("merge m.safetensors m.safetensors -o m.apr").ok();
    merged.says(&["m.safetensors + m.safetensors -> m.apr", "average of 2 models"]);
    let report = sandbox.apr("merge m.safetensors m.safetensors -o m.apr -f --json").ok().json();
    let names: Vec<_> = report["merge"]["models"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|model| model["name"].clone())
        .collect();
    assert_eq!(names, [json!("m.safetensors"), json!("m.safetensors")]);
}
