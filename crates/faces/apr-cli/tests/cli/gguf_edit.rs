//! `edit`, `shard` and `join` on GGUF, beside what gguf-py's scripts do.

use std::process::Command;

use apr_testkit::corrupt;
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::locate;
use serde_json::{Value, json};

use crate::changes::undo_file;
use crate::support::{Run, Sandbox, f32s};

const NAMES: [&str; 4] =
    ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight", "output_norm.weight"];

/// Four tensors of 256 bytes and pairs of several types, in `m.gguf`.
fn sandbox() -> Sandbox {
    let model = GgufBuilder::new()
        .text("general.architecture", "llama")
        .text("general.name", "first")
        .u32("llama.context_length", 64)
        .u32("llama.block_count", 1)
        .pair("llama.rope.freq_base", 6, &10_000_f32.to_le_bytes())
        .texts("tokenizer.ggml.tokens", &["a", "b"]);
    let model = (0_u8..).zip(NAMES).fold(model, |model, (i, name)| {
        let values: Vec<f32> = (0..64_u8).map(|at| f32::from(i) + f32::from(at)).collect();
        model.entry(GgufEntry::new(name, 0, &[64], &f32s(&values)))
    });
    Sandbox::new().with("m.gguf", model.build())
}

/// The pairs of a file, by their keys.
fn pair(sandbox: &Sandbox, file: &str, key: &str) -> Value {
    let report = sandbox.apr(&format!("inspect {file} --json --full")).ok().json();
    let pairs = report["metadata"]["gguf"]["kv"].as_array().cloned().unwrap_or_default();
    pairs.into_iter().find(|pair| pair["key"] == key).unwrap_or(Value::Null)
}

/// The bytes of the tensors, which are the last of the file.
fn data(file: &[u8]) -> &[u8] {
    &file[file.len() - 4 * 256..]
}

#[test]
fn an_edit_that_fits_changes_the_header_alone() {
    let sandbox = sandbox();
    let before = sandbox.read("m.gguf");
    sandbox
        .apr("edit m.gguf --set llama.context_length=128 --set general.name=other")
        .ok()
        .says(&["in place"]);
    let after = sandbox.read("m.gguf");
    assert_eq!((after.len(), data(&after)), (before.len(), data(&before)));
    let different = before.iter().zip(&after).filter(|(old, new)| old != new).count();
    assert!((1..=7).contains(&different), "{different} bytes");
    assert_eq!(pair(&sandbox, "m.gguf", "llama.context_length")["value"], 128);
    sandbox.apr("edit m.gguf --set general.name=other").ok().says(&["unchanged"]);
    // Undone, the file is what it was.
    sandbox.apr("edit m.gguf --set llama.context_length=64 --set general.name=first").ok();
    assert_eq!(sandbox.read("m.gguf"), before);
    assert_eq!(sandbox.files(), ["m.gguf"]);
}

#[test]
fn an_edit_that_needs_space_writes_a_new_file_and_keeps_types_names_and_bytes() {
    let sandbox = sandbox();
    let before = sandbox.read("m.gguf");
    sandbox.write("t.jinja", "{{ messages }}".repeat(100));
    let line = "edit m.gguf --chat-template t.jinja --unset llama.block_count --set \
        llama.rope.freq_base=500000 --set general.tags=[\"x\"] -o e.gguf";
    sandbox.apr(line).ok().says(&["e.gguf: written"]);
    assert_eq!(sandbox.read("m.gguf"), before);
    assert_eq!(data(&sandbox.read("e.gguf")), data(&before));
    assert_eq!(
        pair(&sandbox, "e.gguf", "tokenizer.chat_template")["value"],
        "{{ messages }}".repeat(100)
    );
    assert_eq!(pair(&sandbox, "e.gguf", "llama.block_count"), Value::Null);
    let expected = json!({"key": "llama.rope.freq_base", "type": "f32", "value": 500_000.0});
    assert_eq!(pair(&sandbox, "e.gguf", "llama.rope.freq_base"), expected);
    // Into itself, too.
    sandbox.apr("edit m.gguf --chat-template t.jinja").ok().says(&["m.gguf: written"]);
    assert_eq!(data(&sandbox.read("m.gguf")), data(&before));
    sandbox.apr("edit m.gguf --unset tokenizer.chat_template").ok();
    assert_eq!(sandbox.read("m.gguf"), before);
    sandbox.apr("edit m.gguf --set general.name=x -o e.gguf").fails(1, &["E007", "already exists"]);
}

#[test]
fn tensors_are_renamed_and_left_out() {
    let sandbox = sandbox();
    let before = sandbox.read("m.gguf");
    sandbox
        .apr("edit m.gguf --rename output_norm.weight=output_mean.weight")
        .ok()
        .says(&["in place"]);
    sandbox.apr("tensors m.gguf").ok().says(&["output_mean.weight"]);
    sandbox.apr("edit m.gguf --rename output_mean.weight=output_norm.weight").ok();
    assert_eq!(sandbox.read("m.gguf"), before);
    sandbox.apr("edit m.gguf --drop blk.*").fails(2, &["2 of 4 tensors", "-o", "--force"]);
    assert_eq!(sandbox.read("m.gguf"), before);
    sandbox.apr("edit m.gguf --drop blk.* -o d.gguf").ok().says(&["without 2 tensors"]);
    assert_eq!(
        sandbox.apr("tensors d.gguf --json").ok().json()["tensors"].as_array().map(Vec::len),
        Some(2)
    );
    sandbox
        .apr("edit m.gguf --rename outputnorm.weight=x")
        .fails(2, &["--rename outputnorm.weight", "do you mean", "output_norm.weight"]);
    sandbox
        .apr("edit m.gguf --rename output_norm.weight=token_embd.weight")
        .fails(4, &["E001", "token_embd.weight"]);
}

#[test]
fn an_invalid_request_changes_nothing() {
    let sandbox = sandbox();
    let before = sandbox.read("m.gguf");
    let requests = [
        ("", "--set, --unset, --rename, --drop, --keep, --add or --chat-template"),
        ("--set llama.block_count=many", "of type u32"),
        ("--set general.alignment=64", "describes the file itself"),
        ("--unset split.count", "describes the file itself"),
        ("--unset general.author", "missing key 'general.author'"),
        ("--set general.author", "KEY=VALUE"),
        ("--drop nothing*", "no tensor matches"),
    ];
    for (request, expected) in requests {
        sandbox.apr(&format!("edit m.gguf {request}")).fails(2, &[expected]);
        assert_eq!(sandbox.read("m.gguf"), before, "{request}");
    }
}

#[test]
fn an_edit_that_died_halfway_is_undone_by_the_next() {
    let sandbox = sandbox();
    let long = |letter: &str| {
        format!("edit m.gguf --set general.name={letter} --set note={}", letter.repeat(900))
    };
    sandbox.apr(&long("a")).ok().says(&["written"]);
    let before = sandbox.read("m.gguf");
    sandbox.apr(&long("b")).ok().says(&["in place"]);
    let after = sandbox.read("m.gguf");
    let front = before.len() - data(&before).len();
    // A disk writes whole sectors.
    let torn = [&after[..512], &before[512..]].concat();
    sandbox.write("m.gguf", torn);
    sandbox.write(".m.gguf.undo", undo_file(&before, &after, front, before.len()));
    sandbox.apr("tensors m.gguf --stats").says(&["E002", "m.gguf", "interrupted"]);
    sandbox.apr("edit m.gguf --set llama.context_length=65").ok().says(&[
        "warning",
        "interrupted",
        "undone",
    ]);
    assert_eq!(pair(&sandbox, "m.gguf", "general.name")["value"], "a");
    assert_eq!(sandbox.files(), ["m.gguf"]);
}

#[test]
fn a_damaged_file_is_rejected_and_not_changed() {
    let sandbox = sandbox();
    let file = sandbox.read("m.gguf");
    let damaged = corrupt::truncations(&file)
        .step_by(97)
        .chain(corrupt::bit_flips(&file, 0..300).step_by(211));
    for bytes in damaged {
        sandbox.write("d.gguf", &bytes);
        let run = sandbox.apr("edit d.gguf --set general.name=other");
        assert!(!run.stderr.contains("panicked"), "{run}");
        if run.code != Some(0) {
            assert_eq!(sandbox.read("d.gguf"), bytes);
        }
    }
}

#[test]
fn joining_split_files_restores_the_original_file() {
    let sandbox = sandbox();
    sandbox.apr("shard m.gguf --size 512 -o cut.gguf").ok().says(&["in 2 files"]);
    assert_eq!(sandbox.files(), ["cut-00001-of-00002.gguf", "cut-00002-of-00002.gguf", "m.gguf"]);
    // Any part names the model.
    for part in ["cut-00001-of-00002.gguf", "cut-00002-of-00002.gguf"] {
        sandbox.apr(&format!("join {part} -o joined.gguf -f")).ok().says(&["4 tensors"]);
        assert_eq!(sandbox.read("joined.gguf"), sandbox.read("m.gguf"));
        sandbox.apr(&format!("join {part} -o {part} -f")).fails(2, &["is one of the splits"]);
        sandbox
            .apr(&format!("edit {part} --set general.name=x"))
            .fails(1, &["one of 2 splits", "apr join"]);
    }
    let counts = ["split.no", "split.count", "split.tensors.count"].map(|key| {
        let report = sandbox.apr("debug cut-00002-of-00002.gguf --strings").ok().text();
        report.contains(key)
    });
    assert_eq!(counts, [true; 3]);
    // Parts are cut anew, smaller.
    sandbox
        .apr("shard cut-00001-of-00002.gguf --size 256 -o small.gguf")
        .ok()
        .says(&["in 4 files"]);
    sandbox.apr("join small-00003-of-00004.gguf -o joined.gguf -f").ok();
    assert_eq!(sandbox.read("joined.gguf"), sandbox.read("m.gguf"));
    sandbox.apr("join m.gguf -o k.gguf").fails(2, &["not a GGUF split"]);
    sandbox.apr("join small-00003-of-00004.gguf -o k.apr").fails(2, &["apr convert"]);
    sandbox.apr("shard m.gguf --size 1GB -o one.gguf").ok();
    assert_eq!(sandbox.read("one.gguf"), sandbox.read("m.gguf"));
    std::fs::remove_file(sandbox.path("small-00002-of-00004.gguf")).expect("it is there");
    sandbox
        .apr("join small-00001-of-00004.gguf -o k.gguf")
        .fails(3, &["small-00002-of-00004.gguf"]);
}

/// Runs gguf-py if it is installed; the first of `arguments` is the script.
fn gguf_py(sandbox: &Sandbox, arguments: &[&str]) -> Option<Run> {
    let interpreter = locate::reference_python()?;
    let python = |arguments: &[&str]| {
        let mut command = Command::new(&interpreter);
        command.current_dir(sandbox.path("")).args(arguments);
        Run::of(command)
    };
    if python(&["-c", "import gguf"]).code != Some(0) {
        println!("skipped: the reference Python has no gguf");
        return None;
    }
    Some(python(arguments).ok())
}

#[test]
fn an_edit_in_place_is_the_bytes_of_gguf_set_metadata() {
    let sandbox = sandbox();
    sandbox.write("theirs.gguf", sandbox.read("m.gguf"));
    let script = [
        "-m",
        "gguf.scripts.gguf_set_metadata",
        "--force",
        "theirs.gguf",
        "llama.context_length",
        "4096",
    ];
    if gguf_py(&sandbox, &script).is_none() {
        return;
    }
    sandbox.apr("edit m.gguf --set llama.context_length=4096").ok().says(&["in place"]);
    assert_eq!(sandbox.read("m.gguf"), sandbox.read("theirs.gguf"));
}

#[test]
fn an_edited_file_says_to_gguf_py_what_gguf_new_metadata_writes() {
    const READ: &str = "import gguf, sys\n\
        r = gguf.GGUFReader(sys.argv[1])\n\
        fields = [(k, f.contents()) for k, f in r.fields.items() if not k.startswith('GGUF.')]\n\
        print(sorted(fields), [(t.name, t.tensor_type, t.data.tobytes()) for t in r.tensors])";
    let sandbox = sandbox();
    let script = [
        "-m",
        "gguf.scripts.gguf_new_metadata",
        "--general-name",
        "second",
        "--chat-template",
        "{{ messages }}",
        "--remove-metadata",
        "llama.block_count",
        "m.gguf",
        "theirs.gguf",
        "--force",
    ];
    if gguf_py(&sandbox, &script).is_none() {
        return;
    }
    sandbox.write("t.jinja", "{{ messages }}");
    sandbox
        .apr(
            "edit m.gguf --chat-template t.jinja --set general.name=second --unset \
            llama.block_count -o e.gguf",
        )
        .ok();
    let [ours, theirs] =
        ["e.gguf", "theirs.gguf"].map(|file| gguf_py(&sandbox, &["-c", READ, file]));
    assert_eq!(ours.expect("it is installed").text(), theirs.expect("it is installed").text());
}
