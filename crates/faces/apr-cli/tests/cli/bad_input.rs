//! What is not a model, or not an honest one.

use crate::support::{Sandbox, f32s, safetensors, safetensors_header, small_safetensors, sound};
use apr_testkit::apr2::Apr2Builder;
use apr_testkit::locate;
use serde_json::json;

/// Every way to open a model.
const OPENERS: [&str; 8] = [
    "inspect MODEL",
    "tensors MODEL",
    "tensors MODEL --stats",
    "validate MODEL",
    "debug MODEL",
    "import MODEL -o t.apr",
    "convert MODEL -o t.apr",
    "export MODEL -o t",
];

/// Asserts that every command rejects the model with this code and text, and writes nothing.
#[track_caller]
fn refused(sandbox: &Sandbox, model: &str, code: i32, parts: &[&str]) {
    let before = sandbox.files();
    for opener in OPENERS {
        sandbox.apr(&opener.replace("MODEL", model)).fails(code, parts);
    }
    assert_eq!(sandbox.files(), before);
    assert!(!sandbox.path("t").exists());
}

#[cfg(unix)]
#[test]
fn a_pipe_on_disk_is_refused_and_not_waited_for() {
    let sandbox = Sandbox::new();
    sandbox
        .shell("mkfifo m.safetensors m.apr && mkdir folder && mkfifo folder/model.safetensors")
        .clean();
    for model in ["m.safetensors", "m.apr"] {
        refused(&sandbox, model, 1, &["E007", model, "a pipe or a device"]);
    }
    sandbox.apr("debug --hex m.apr").fails(1, &["E007"]);
    sandbox.apr("debug --strings m.apr").fails(1, &["E007"]);
    refused(&sandbox, "folder", 1, &["E007", "folder/model.safetensors", "a pipe or a device"]);
    sandbox.apr("inspect /dev/null").fails(1, &["E007", "a pipe or a device"]);
}

#[test]
fn a_folder_without_weights_reports_its_contents() {
    let sandbox = Sandbox::new().with("folder/config.json", "{}").with("folder/model.ot", "");
    let run = sandbox.apr("inspect folder");
    run.fails(4, &["E001", "folder", "no supported weights file in the folder", "it has model.ot"]);
    sandbox.write("two/a.safetensors", small_safetensors());
    sandbox.write("two/b.safetensors", small_safetensors());
    sandbox.apr("inspect two").fails(4, &["E001", "name one of a.safetensors, b.safetensors"]);
    sandbox.apr("inspect two/b.safetensors").clean();
}

#[test]
fn errors_of_a_file_in_a_models_folder_name_it_with_the_folder() {
    let llama = locate::fixture("tiny-llama");
    let mut weights = std::fs::read(llama.join("model.safetensors")).expect("a fixture");
    weights.truncate(3000);
    let config = std::fs::read(llama.join("config.json")).expect("a fixture");
    let modules = r#"[{"path": "0_StaticEmbedding", "type": "a.StaticEmbedding"}]"#;
    let sandbox = Sandbox::new()
        .with("a/cut/model.safetensors", &weights)
        .with("first/modules.json", modules)
        .with("first/0_StaticEmbedding/model.safetensors", &weights)
        .with("shards/model.safetensors.index.json", r#"{"weight_map": {"w": "m-1.safetensors"}}"#);
    for (model, file) in [
        ("a/cut", "a/cut/model.safetensors"),
        ("a/cut/", "a/cut/model.safetensors"),
        ("first", "first/0_StaticEmbedding/model.safetensors"),
        ("shards", "shards/m-1.safetensors"),
        ("shards/model.safetensors.index.json", "shards/m-1.safetensors"),
    ] {
        let run = sandbox.apr(&format!("inspect {model}"));
        assert!(run.stderr.contains(&format!(": {file}: ")), "{model}: {run}");
    }

    // Found when the model is used, not when it is opened.
    let folder = sandbox.path("words");
    std::fs::create_dir(&folder).expect("room");
    std::fs::copy(llama.join("model.safetensors"), folder.join("model.safetensors")).expect("room");
    std::fs::write(folder.join("config.json"), &config).expect("room");
    std::fs::write(folder.join("tokenizer.json"), "{").expect("room");
    sandbox.apr("run words --prompt x").fails(4, &["E001: words/tokenizer.json: "]);
    // The file of that name in the working folder could be meant.
    sandbox.write("tokenizer.json", "{");
    sandbox.apr("run words --prompt x").fails(4, &["E001: tokenizer.json: "]);
}

#[test]
fn a_name_longer_than_any_column_is_shown_all_the_same() {
    // Each of these characters is spelt out by five.
    let name = "\u{1}".repeat(20_000);
    let file = safetensors(&[
        (&name, "F32", &[2], f32s(&[1.0, 2.0])),
        ("short", "F32", &[1], f32s(&[3.0])),
    ]);
    let sandbox = Sandbox::new().with("m.safetensors", file);
    for line in [
        "tensors m.safetensors",
        "tensors m.safetensors --stats --offset",
        "inspect m.safetensors --full",
    ] {
        sandbox.apr(line).ok();
    }
    let text = sandbox.apr("tensors m.safetensors --stats").ok().text();
    assert!(text.contains(&r"\u{1}".repeat(20_000)), "the name is shown in full");
    let short = text.lines().find(|line| line.starts_with("short ")).expect("a row");
    assert!(short.len() < 250, "{short}");
}

#[test]
fn an_empty_file_is_refused_as_such() {
    let sandbox = Sandbox::new().with("m.safetensors", "").with("m.apr", "").with("m", "");
    for model in ["m.safetensors", "m.apr", "m"] {
        refused(&sandbox, model, 4, &["E001", model, "the file is empty"]);
    }
    sandbox.piped("inspect -", b"").fails(4, &["E001", "standard input", "the file is empty"]);
    sandbox.apr("debug --hex m").clean();
    sandbox.apr("debug --strings m").clean();
}

#[test]
fn files_of_other_formats_are_identified() {
    let cases: [(&[u8], &str); 1] =
        [(b"ptrt\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "is recognized, not supported")];
    for (bytes, what) in cases {
        // The extension is a hint, and bytes decide.
        let sandbox = Sandbox::new().with("m.safetensors", bytes).with("m.bin", bytes);
        refused(&sandbox, "m.safetensors", 4, &["E001", "m.safetensors", what]);
        refused(&sandbox, "m.bin", 4, &["E001", "m.bin", what]);
    }
}

#[test]
fn a_model_that_is_not_there_is_exit_3() {
    let sandbox = Sandbox::new();
    for model in
        ["absent.safetensors", "absent.apr", "absent", "absent/absent.apr", "absent.index.json"]
    {
        let said = if cfg!(windows) { "(os error " } else { "No such file" };
        refused(&sandbox, model, 3, &["E007", model, said]);
    }
}

#[test]
fn a_name_that_looks_like_a_location_gets_the_form_of_one() {
    let sandbox = Sandbox::new();
    for (name, advice) in [
        ("openai/whisper-tiny", "hf://openai/whisper-tiny"),
        ("openai/whisper-tiny.en", "hf://openai/whisper-tiny.en"),
        ("Qwen/Qwen2.5-0.5B", "hf://Qwen/Qwen2.5-0.5B"),
        ("hf:openai/whisper-tiny", "hf://openai/whisper-tiny"),
        ("ftp://host/m.gguf", "begin with hf://, https://, http:// or s3://"),
        ("gs://bucket/m.gguf", "begin with hf://, https://, http:// or s3://"),
        ("file:///tmp/none.gguf", "pass the path of a file: /tmp/none.gguf"),
    ] {
        sandbox.run(&["inspect", name]).fails(3, &["E007", name, advice]);
    }
    for name in ["absent/absent.apr", "absent", "a/b/c", "/absent/model"] {
        let run = sandbox.run(&["inspect", name]).fails(3, &["E007"]);
        assert!(!run.stderr.contains("hf://"), "{run}");
    }
}

#[test]
fn a_cut_safetensors_file_is_corrupt_wherever_it_is_cut() {
    let file = small_safetensors();
    for len in [1, 7, 8, 9, 100, file.len() / 2, file.len() - 1] {
        let sandbox = Sandbox::new().with("m.safetensors", &file[..len]);
        sandbox.apr("validate m.safetensors").fails(4, &["E00", "m.safetensors"]);
        sandbox.apr("convert m.safetensors -o t.apr").fails(4, &["E00", "m.safetensors"]);
        assert_eq!(sandbox.files(), ["m.safetensors"]);
    }
}

#[cfg(unix)]
#[test]
fn an_index_cannot_name_files_outside_its_folder() {
    let sandbox = Sandbox::new().with("secret.safetensors", small_safetensors());
    let absolute = sandbox.path("secret.safetensors");
    let absolute = absolute.to_str().expect("a plain path");
    for shard in [
        "../secret.safetensors",
        absolute,
        "..",
        "sub/../../secret.safetensors",
        "a\\b.safetensors",
        "",
    ] {
        let index = json!({ "weight_map": { "layers.0.bias": shard } });
        sandbox.write("m/model.safetensors.index.json", index.to_string());
        sandbox.apr("inspect m/model.safetensors.index.json").fails(4, &["E001"]);
        sandbox.apr("inspect m").fails(4, &["E001"]);
        sandbox.apr("import m -o t.apr").fails(4, &["E001"]);
    }
    // A link inside the folder that leads out is no better.
    std::os::unix::fs::symlink(absolute, sandbox.path("m/link.safetensors")).expect("a new link");
    let index = json!({ "weight_map": { "layers.0.bias": "link.safetensors" } });
    sandbox.write("m/model.safetensors.index.json", index.to_string());
    sandbox.apr("inspect m/model.safetensors.index.json").fails(4, &["E001", "leads out"]);
}

/// Formats with files beside the model read them from the folder of the link.
#[test]
fn a_named_file_can_be_a_link_to_anywhere_in_every_format() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let onnx = locate::fixture("graph/limits.onnx");
    sandbox.write("other/m.onnx", std::fs::read(onnx).expect("the fixture"));
    sandbox.write("here/readme", "");
    for (target, link) in [("../m.safetensors", "m.safetensors"), ("../other/m.onnx", "m.onnx")] {
        let path = sandbox.path("here").join(link);
        std::os::unix::fs::symlink(target, path).expect("a new link");
        sandbox.apr(&format!("inspect here/{link}")).ok();
        sandbox.apr(&format!("convert here/{link} -o out.apr -f")).ok();
    }
}

#[test]
fn a_missing_shard_is_reported_with_the_file_that_needs_it() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("export m.safetensors -o cut --shard-size 100").clean();
    let files = sandbox.files();
    let shard = files
        .iter()
        .find_map(|name| name.strip_prefix("cut/").filter(|name| name.contains("-00002-")));
    let shard = shard.expect("there are several");
    std::fs::remove_file(sandbox.path("cut").join(shard)).expect("it is there");
    let parts = ["E007", shard, "model.safetensors.index.json names this shard"];
    for model in ["cut", "cut/model.safetensors.index.json"] {
        for command in ["import -o t.apr", "convert -o t.apr", "export -o t"] {
            sandbox.apr(&format!("{command} {model}")).fails(3, &parts);
        }
        sandbox.apr(&format!("validate {model}")).fails(5, &["E007", shard, "INVALID"]);
        for command in ["inspect", "tensors"] {
            sandbox.apr(&format!("{command} {model}")).ok().says(&["warning", shard]);
        }
    }
    assert!(!sandbox.path("t.apr").exists() && !sandbox.path("t").exists());
}

/// Starts a terminal's window title, hides text, forges a line.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2Kx\r\n\u{202e}VALID";

/// Expected escaped form of the text.
const SHOWN: &str = r"\u{1b}]0;owned\u{7}\u{1b}[2Kx\r\n\u{202e}VALID";

#[test]
fn names_with_escape_sequences_are_shown_escaped() {
    let tensors =
        [(HOSTILE, "F32", &[2_u64][..], f32s(&[1e6, f32::NAN])), ("x", "F32", &[1], f32s(&[0.0]))];
    let sandbox = Sandbox::new().with("m.safetensors", safetensors(&tensors));
    let lines = [
        ("tensors m.safetensors --stats", 0),
        ("tensors m.safetensors --hist owne", 1),
        ("validate m.safetensors", 5),
        ("debug m.safetensors --drama", 5),
        ("convert m.safetensors --dry-run --format apr", 0),
        ("convert m.safetensors -f --relaxed -o m.apr --precision fp16", 0),
    ];
    for (line, code) in lines {
        let run = sandbox.apr(&format!("{line} --color never")).fails(code, &[SHOWN]);
        assert!(!run.to_string().contains(['\u{1b}', '\u{202e}', '\r']), "{line}: {run}");
        // With colour there are escape sequences, but only our own.
        let run = sandbox.apr(&format!("{line} --color always")).fails(code, &[SHOWN]);
        assert!(
            !run.to_string().contains("\u{1b}]") && !run.to_string().contains("\u{1b}[2K"),
            "{line}: {run}"
        );
    }
}

#[test]
fn all_other_texts_of_a_file_are_escaped() {
    let metadata = json!({
        "apr_version": "2.0.0", "model_type": HOSTILE,
        "architecture": { HOSTILE: HOSTILE, "vocab_size": 1 }, "vocab": [HOSTILE], HOSTILE: HOSTILE,
    });
    let sandbox = Sandbox::new().with("m.apr", sound().metadata(metadata.to_string()).build());
    let entry = json!({ HOSTILE: { "dtype": HOSTILE, "shape": [1], "data_offsets": [0, 1] } });
    sandbox.write("dtype.safetensors", safetensors_header(&entry));
    sandbox.write(
        "model.safetensors.index.json",
        json!({ "weight_map": { "a": HOSTILE } }).to_string(),
    );
    sandbox.write("folder/model.safetensors", small_safetensors());
    if cfg!(unix) {
        sandbox.write(&format!("folder/{}", HOSTILE.replace('/', "")), "");
    }
    let mut unsorted = Apr2Builder { unsorted: true, ..sound() };
    unsorted.entries[0].name = format!("b{HOSTILE}").into();
    sandbox.write("unsorted.apr", unsorted.build());
    let lines = [
        ("inspect m.apr --full --vocab", 0),
        ("inspect m.apr", 0),
        ("debug m.apr", 0),
        ("debug m.apr --strings", 0),
        ("inspect dtype.safetensors", 4),
        ("inspect model.safetensors.index.json", 4),
        ("inspect folder", 0),
        ("tensors folder", 0),
        ("inspect unsorted.apr", 4),
    ];
    for (line, code) in lines {
        for color in ["never", "always"] {
            let run = sandbox.apr(&format!("{line} --color {color}")).fails(code, &[]);
            let said = run.to_string();
            let own = color == "always";
            assert!(own || !said.contains('\u{1b}'), "{line}: {said}");
            assert!(
                !said.contains("\u{1b}]") && !said.contains('\u{202e}') && !said.contains('\r'),
                "{line}: {said}"
            );
        }
    }
}

#[cfg(unix)]
#[test]
fn file_names_with_escape_sequences_are_shown_escaped() {
    let sandbox = Sandbox::new().with(HOSTILE, small_safetensors());
    let target = format!("{HOSTILE}.apr");
    let lines: [&[&str]; 7] = [
        &["inspect", HOSTILE],
        &["tensors", HOSTILE],
        &["validate", HOSTILE],
        &["debug", HOSTILE],
        &["convert", HOSTILE, "-o", &target],
        &["convert", HOSTILE, "-o", &target],
        &["explain", HOSTILE],
    ];
    for line in lines {
        let run = sandbox.run(&[line, &["--color", "always"]].concat());
        assert!(!run.to_string().contains("\u{1b}]"), "{line:?}: {run}");
    }
}

#[test]
fn messages_about_files_and_prefixes_are_whole_sentences() {
    let sandbox = Sandbox::new()
        .with("unknown.bin", b"\x07\x00\x00\x00 nothing that anybody knows")
        .with("m.safetensors", small_safetensors())
        .with("flat.safetensors", safetensors(&[("weight", "F32", &[1], f32s(&[1.0]))]));
    sandbox
        .apr("inspect unknown.bin")
        .fails(4, &["unknown model format: a .bin file that is not PyTorch, GGML"]);
    // The start of a Parakeet file, as whisper.cpp's converter writes it.
    let mut head = vec![
        0x6767_6d6c_u32,
        8192,
        5000,
        1024,
        8,
        24,
        128,
        1,
        512,
        8,
        256,
        640,
        2,
        5,
        10,
        128,
        257,
    ];
    head.extend([0; 300]);
    sandbox.write(
        "parakeet.bin",
        head.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>(),
    );
    sandbox
        .apr("inspect parakeet.bin")
        .fails(4, &["E001", "whisper.cpp's Parakeet files are not supported", ".nemo"]);
    let run = sandbox.apr("convert m.safetensors -o x.apr --prefix model.");
    run.fails(
        2,
        &["no tensor's name starts with the prefix 'model.'; prefixes in the file: layers."],
    );
    let run = sandbox.apr("convert flat.safetensors -o x.apr --prefix model.");
    run.fails(2, &["the prefix 'model.'; no name has a prefix that ends with a dot"]);
}

#[cfg(unix)]
#[test]
fn an_input_without_end_is_read_up_to_the_memory_limit() {
    let llama = locate::fixture("tiny-llama").display().to_string();
    let said = "/dev/zero: the file exceeds the memory limit (67108864 bytes): raise --max-memory";
    let line = format!("validate {llama} {llama} --quality --input /dev/zero --max-memory 64MiB");
    Sandbox::new().apr(&line).fails(4, &["E008", said]);
}

#[test]
fn layers_that_no_memory_would_hold_are_the_models_fault() {
    let sandbox = Sandbox::new();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let bytes = std::fs::read(locate::fixture("tiny-llama").join(name)).expect("the fixture");
        sandbox.write(&format!("m/{name}"), bytes);
    }
    let mut config: serde_json::Value =
        serde_json::from_slice(&sandbox.read("m/config.json")).expect("JSON");
    config["num_hidden_layers"] = 1_000_000_000.into();
    sandbox.write("m/config.json", config.to_string());
    let said = "m: the configuration has 1000000000 layers, and a graph has 4096 at most";
    for line in ["run m --prompt 1", "trace m --prompt 1", "graph m"] {
        let run = sandbox.apr(line).fails(4, &["E008", said]);
        assert!(!run.stderr.contains("--max-memory"), "{}", run.stderr);
    }
}
