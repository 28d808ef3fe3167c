//! What is written is all there, and nothing else: folders that are replaced, shards of earlier
//! runs, files that travel along, pipes that end early, who may read an output.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::json;

use crate::container::workshop;
use crate::support::{Sandbox, model_folder, small_safetensors};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// Every folder layout that apr writes, with the command that writes it under the name `o`.
const LAYOUTS: [(&str, &str); 5] = [
    ("one file", "export $L --format safetensors"),
    ("shards", "convert $L --format safetensors --shard-size 200KB"),
    ("fewer shards", "convert $L --format safetensors --shard-size 400KB"),
    ("a graph", "export $L --format onnx"),
    ("a graph beside its weights", "export $L --format onnx --external-data always"),
];

fn line(layout: &str, output: &str) -> String {
    format!("{} -o {output}", layout.replace("$L", LLAMA))
}

/// Names and bytes of the files in a folder.
fn contents(sandbox: &Sandbox, folder: &str) -> Vec<(String, Vec<u8>)> {
    let names = fs::read_dir(sandbox.path(folder)).expect("a folder");
    let names = names.map(|entry| entry.expect("listed").file_name().into_string().expect("plain"));
    let mut files: Vec<_> =
        names.map(|name| (name.clone(), sandbox.read(&format!("{folder}/{name}")))).collect();
    files.sort();
    files
}

/// The entries at the top of the sandbox.
fn top(sandbox: &Sandbox) -> Vec<String> {
    let names = fs::read_dir(sandbox.path(".")).expect("a folder");
    let names = names.map(|entry| entry.expect("listed").file_name().into_string().expect("plain"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_folder_of_any_layout_becomes_one_of_any_other_as_if_it_were_new() {
    let sandbox = Sandbox::new();
    for (number, (_, layout)) in LAYOUTS.iter().enumerate() {
        sandbox.apr(&line(layout, &format!("new{number}"))).ok();
    }
    for (old, (was, _)) in LAYOUTS.iter().enumerate() {
        for (new, (is, layout)) in LAYOUTS.iter().enumerate() {
            sandbox.shell(&format!("rm -rf o && cp -r new{old} o")).clean();
            sandbox.apr(&line(layout, "o")).fails(1, &["E007", "already exists"]);
            assert!(contents(&sandbox, "o") == contents(&sandbox, &format!("new{old}")));
            sandbox.apr(&format!("{} -f", line(layout, "o"))).ok();
            assert!(
                contents(&sandbox, "o") == contents(&sandbox, &format!("new{new}")),
                "{was} becomes {is}"
            );
        }
    }
    assert_eq!(top(&sandbox), ["new0", "new1", "new2", "new3", "new4", "o"]);
}

#[test]
fn another_familys_tokenizer_and_modules_go_with_their_model() {
    let sandbox = Sandbox::new();
    model_folder(&sandbox, "o");
    sandbox.write("o/merges.txt", "a b");
    sandbox.apr(&format!("export {LLAMA} --format safetensors -o new")).ok();
    sandbox.apr(&format!("export {LLAMA} --format safetensors -o o -f")).ok();
    assert!(contents(&sandbox, "o") == contents(&sandbox, "new"));
}

#[test]
fn a_file_in_place_of_a_folder_is_named_and_overwrite_is_not_advised() {
    let sandbox = Sandbox::new();
    sandbox.write("f", "mine");
    for line in [
        format!("convert {LLAMA} -o f/x.gguf"),
        format!("export {LLAMA} --format safetensors -o f/x/y"),
    ] {
        let run = sandbox.apr(&line).fails(1, &["E007: f: this is a file, not a folder"]);
        assert!(!run.stderr.contains("--overwrite"), "{run}");
    }
    assert_eq!(sandbox.read("f"), b"mine");
}

#[test]
fn a_folder_with_files_of_somebody_else_is_refused_and_stays() {
    let sandbox = Sandbox::new();
    let export = |more: &str| format!("export {LLAMA} --format safetensors -o o {more}");
    sandbox.write("o/notes.txt", "mine");
    // Beside what is no model's, a first model may be written.
    sandbox.apr(&export("")).ok();
    sandbox.write("o/checkpoint-500/model.safetensors", "mine");
    let before = contents_below(&sandbox);
    sandbox.apr(&export("-f")).fails(
        1,
        &["E007", "o:", "checkpoint-500/model.safetensors, notes.txt", "move them, or choose"],
    );
    assert!(contents_below(&sandbox) == before);
    sandbox
        .shell(&format!(r#"cd o && rm -r notes.txt checkpoint-500 && "$APR" {} "#, {
            format!("export {LLAMA} --format safetensors -o . -f")
        }))
        .fails(1, &["E007", "the current folder can't be replaced"]);
}

fn contents_below(sandbox: &Sandbox) -> Vec<(String, Vec<u8>)> {
    sandbox.files().into_iter().map(|name| (name.clone(), sandbox.read(&name))).collect()
}

#[test]
fn a_folder_keeps_its_place_behind_a_link_and_its_mode() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("export {LLAMA} --format onnx -o real")).ok();
    fs::set_permissions(sandbox.path("real"), fs::Permissions::from_mode(0o700)).expect("ours");
    symlink("real", sandbox.path("o")).expect("links");
    sandbox.apr(&format!("export {LLAMA} --format safetensors -o o -f")).ok();
    assert!(sandbox.path("o").is_symlink());
    assert!(!sandbox.path("real/model.onnx").exists());
    assert!(sandbox.path("real/model.safetensors").exists());
    let mode = sandbox.path("real").metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn qa_98_a_folder_whose_replacement_is_killed_anywhere_is_the_old_one_or_the_new_one() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: there is no strace");
        return;
    }
    let sandbox = Sandbox::new();
    let old = line(LAYOUTS[1].1, "old");
    let new = line(LAYOUTS[0].1, "new");
    sandbox.apr(&old).ok();
    sandbox.apr(&new).ok();
    let (old, new) = (contents(&sandbox, "old"), contents(&sandbox, "new"));
    let line = format!("{} -f", line(LAYOUTS[0].1, "o"));
    let (mut olds, mut news) = (0, 0);
    for call in ["fsync", "mkdir", "linkat", "renameat2", "unlinkat"] {
        for turn in 1..50 {
            sandbox.shell("rm -rf o .o* && cp -r old o").clean();
            let fail = format!("inject={call}:signal=KILL:when={turn}");
            let run =
                sandbox.shell(&format!("strace -f -qq -o /dev/null -e {fail} \"$APR\" {line}"));
            let found = contents(&sandbox, "o");
            assert!(found == old || found == new, "killed at {call} {turn}: {run}");
            if run.code == Some(0) {
                break;
            }
            olds += usize::from(found == old);
            news += usize::from(found == new);
            // The next run removes what is left.
            sandbox.apr(&line).ok();
            assert!(contents(&sandbox, "o") == new);
            assert_eq!(top(&sandbox), ["new", "o", "old"], "after {call} {turn}");
        }
    }
    assert!(olds > 10 && news > 5, "old {olds} times, new {news} times");
}

#[test]
fn shards_of_an_earlier_run_are_removed_and_those_of_other_models_kept() {
    let sandbox = Sandbox::new().with("t-00001-of-00009.apr", "another model's");
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    let shards = |extension: &str| {
        let names = sandbox.files().into_iter();
        names.filter(|name| name.starts_with("s-") && name.ends_with(extension)).count()
    };
    sandbox.apr("shard m.apr --size 100KB -o s.apr").ok();
    let many = shards(".apr");
    sandbox.apr("shard m.apr --size 300KB -o s.apr -f").ok();
    assert!(shards(".apr") < many && shards(".apr") > 1);
    sandbox.apr("validate s.apr").ok();
    // Shards that the model was made from go with the manifest that named them.
    sandbox.apr("convert s.apr -o s.apr -f").ok();
    assert_eq!(shards(".apr"), 0);
    sandbox.apr("diff m.apr s.apr --exit-code").ok();

    sandbox.apr(&format!("quantize {LLAMA} --type q8_0 -o m.gguf")).ok();
    sandbox.apr("shard m.gguf --size 100KB -o s.gguf").ok();
    let many = shards(".gguf");
    sandbox.apr("shard m.gguf --size 200KB -o s.gguf -f").ok();
    let few = shards(".gguf");
    assert!(few < many && few > 1);
    // A split that is read is not what the output replaces.
    let first = format!("s-00001-of-{few:05}.gguf");
    sandbox.apr(&format!("join {first} -o s.gguf -f")).ok();
    assert_eq!(shards(".gguf"), few);
    assert!(sandbox.path("t-00001-of-00009.apr").exists());
}

#[test]
fn a_model_written_in_parts_replaces_one_with_more_shards() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    sandbox.apr("shard m.apr --size 100KB -o s.apr").ok();
    sandbox.apr("plan --parts 2 -o p.json convert m.apr -o s.apr -f").ok();
    let shards = || sandbox.files().iter().filter(|name| name.starts_with("s-0000")).count();
    let before = shards();
    sandbox.apr("run-part p.json 0").ok();
    sandbox.apr("run-part p.json 1").ok();
    // The old model is whole until the new one is.
    sandbox.apr("diff m.apr s.apr --exit-code").ok();
    assert!(shards() > before);
    sandbox.apr("finish p.json").ok();
    assert_eq!(shards(), 2);
    sandbox.apr("diff m.apr s.apr --exit-code").ok();
}

#[test]
fn companions_that_cannot_be_read_are_errors_that_name_them() {
    let sandbox = Sandbox::new();
    for name in ["config.json", "tokenizer.json", "1_Pooling/config.json"] {
        for kind in ["link", "pipe", "folder", "closed"] {
            sandbox.shell("chmod -R u+rw d 2> /dev/null; rm -rf d o.apr").says(&[]);
            model_folder(&sandbox, "d");
            let path = sandbox.path(&format!("d/{name}"));
            fs::remove_file(&path).expect("ours");
            match kind {
                "link" => symlink("../gone", &path).expect("links"),
                "pipe" => drop(sandbox.shell(&format!("mkfifo d/{name}")).ok()),
                "folder" if !name.contains('/') => fs::create_dir(&path).expect("ours"),
                "folder" => continue,
                _ => {
                    symlink("/proc/self/mem", &path).expect("links");
                }
            }
            let run = sandbox.apr("import d --arch auto -o o.apr");
            assert!(run.code != Some(0) && run.stderr.contains(name), "{name}, {kind}: {run}");
            assert!(!sandbox.path("o.apr").exists());
        }
    }
    // By itself, the file of the weights has the same companions.
    fs::remove_dir_all(sandbox.path("d")).expect("ours");
    model_folder(&sandbox, "d");
    fs::remove_file(sandbox.path("d/config.json")).expect("ours");
    symlink("../gone", sandbox.path("d/config.json")).expect("links");
    sandbox.apr("import d/model.safetensors -o o.apr").fails(1, &["E007", "config.json"]);
    fs::remove_file(sandbox.path("d/config.json")).expect("ours");
    sandbox.apr("import d/model.safetensors -o o.apr").ok();
}

#[test]
fn weights_of_modules_are_copied_and_other_files_of_subfolders_are_listed() {
    let sandbox = Sandbox::new();
    model_folder(&sandbox, "d");
    let dense = small_safetensors();
    sandbox.write("d/2_Dense/model.safetensors", &dense);
    sandbox.write("d/onnx/model.onnx", "another form of it");
    let modules = r#"[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]"#;
    sandbox.write("d/modules.json", modules);
    // transformers prefers the file to an index, too.
    sandbox.write("d/model.safetensors.index.json", "{}");
    let run = sandbox.apr("convert d -o x.apr").ok();
    run.says(&["not copied: model.safetensors.index.json, onnx/model.onnx"]);
    sandbox.apr("export x.apr --format safetensors -o back").ok();
    assert!(sandbox.read("back/2_Dense/model.safetensors") == dense);
    assert!(sandbox.path("back/1_Pooling/config.json").exists());
    // What the model is not whole without is not left out.
    sandbox.write_sparse("d/2_Dense/model.safetensors", 65 << 20);
    let run = sandbox.apr("convert d -o x.apr -f");
    run.fails(4, &["E008", "2_Dense/model.safetensors"]);
}

#[test]
fn a_closed_pipe_is_an_error_for_a_model_but_not_for_a_report() {
    let sandbox = Sandbox::new();
    sandbox
        .shell(&format!(
            r#"{{ "$APR" convert {LLAMA} --format safetensors -o - ; echo "exit $?" >&2; }} |
            head -c 100 > part"#
        ))
        .says(&["exit 1", "E007", "closed the pipe before the end"]);
    sandbox
        .shell(&format!(
            r#"{{ "$APR" tensors {LLAMA} --json; echo "exit $?" >&2; }} | head -c 10 > part"#
        ))
        .says(&["exit 0"]);
}

#[test]
fn an_output_is_not_more_readable_than_its_source() {
    let sandbox = workshop();
    sandbox.apr("encrypt plain.apr -o sealed.apr --recipient owner.pub").clean();
    let mode =
        |name: &str| sandbox.path(name).metadata().expect("there").permissions().mode() & 0o777;
    for (given, expected) in [(0o600, 0o600), (0o640, 0o640), (0o644, 0o644)] {
        fs::set_permissions(sandbox.path("sealed.apr"), fs::Permissions::from_mode(given))
            .expect("ours");
        for line in [
            "decrypt sealed.apr -o open.apr -f --key owner",
            "convert sealed.apr -o o.safetensors -f --key owner",
            "sign sealed.apr -o s.apr -f --key signer",
        ] {
            let output = line.split_whitespace().nth(3).expect("a name");
            let _ = fs::remove_file(sandbox.path(output));
            if line.starts_with("sign") && !sandbox.path("signer").exists() {
                sandbox.apr("keygen -o signer").clean();
            }
            sandbox.shell(&format!(r#"umask 002; exec "$APR" {line}"#)).ok();
            let group_may_write = 0o020 & if given & 0o040 == 0 { 0 } else { 0o020 };
            assert_eq!(mode(output), expected | group_may_write, "{line}, {given:o}");
        }
    }
    // Nor is a file that is replaced.
    fs::set_permissions(sandbox.path("sealed.apr"), fs::Permissions::from_mode(0o600))
        .expect("ours");
    sandbox.apr("decrypt sealed.apr -o open.apr -f --key owner").clean();
    assert_eq!(mode("open.apr"), 0o600);
}

/// Fails each call in turn that closes a folder, and each that removes something.
#[test]
fn a_disk_failure_at_close_or_unlink_does_not_panic_and_leftovers_are_listed() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: there is no strace");
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("export {LLAMA} --format onnx -o old")).ok();
    let here = sandbox.path(".").canonicalize().expect("there").display().to_string();
    let folders = format!("-P {LLAMA} -P {here} -P {here}/o");
    let line = format!("export {LLAMA} --format safetensors -o o -f");
    sandbox.shell("cp -r old o").clean();
    let fail = "-e inject=linkat:error=EIO:when=3 -e inject=unlinkat,rmdir:error=EIO";
    let run = sandbox.shell(&format!("strace -f -qq -o /dev/null {fail} \"$APR\" {line}"));
    run.fails(1, &["E007", "remove the incomplete", "/.o"]);
    assert!(contents(&sandbox, "o") == contents(&sandbox, "old"));

    let mut named = 0;
    for (call, only) in [("unlinkat", ""), ("unlink", ""), ("close", &folders)] {
        for turn in 1..=12 {
            sandbox.shell("rm -rf o .o* && cp -r old o").clean();
            let fail = format!("{only} -e inject={call}:error=EIO:when={turn}");
            let run = sandbox.shell(&format!("strace -f -qq -o /dev/null {fail} \"$APR\" {line}"));
            assert!(matches!(run.code, Some(0 | 1)), "{call} {turn}: {run}");
            assert!(!run.stderr.contains("panicked"), "{call} {turn}: {run}");
            let left = top(&sandbox).into_iter().find(|name| name.starts_with('.'));
            if let Some(left) = left {
                assert!(run.stderr.contains(&left), "{call} {turn}: {left} is not named: {run}");
                named += 1;
            }
        }
    }
    assert!(named > 0);
}

#[test]
fn a_folder_created_for_an_output_is_reported() {
    let sandbox = Sandbox::new();
    let convert = |rest: &str| sandbox.apr(&format!("convert {LLAMA} {rest}")).ok();
    convert("-o a/b/m.apr").says(&["made the folder a/b"]);
    let again = convert("-o a/b/n.apr --json").json();
    assert!(again["made_folders"].is_null(), "{again}");
    let folder = convert("-o c/d/ --format safetensors --json").json();
    assert_eq!(folder["made_folders"], json!(["c"]), "the output itself is not named");
}

#[test]
fn folders_created_for_files_beside_a_report_are_reported() {
    let sandbox = Sandbox::new().with("text.txt", "12+34=46 20+22=42 ".repeat(40));
    sandbox.apr(&format!("convert {LLAMA} -o m.apr")).ok();
    let lines = [
        "keygen -o OUT/key.pem",
        "validate m.apr --sarif OUT/log.sarif",
        "scan m.apr --sarif OUT/log.sarif",
        "imatrix m.apr --text text.txt --context 64 -o OUT/m.gguf",
        "trace m.apr --prompt 12+34= --export OUT/trace.json",
        "graph m.apr -o OUT/graph.svg",
        "watermark embed m.apr --id me --key mark.key --strength 0.1 -o OUT/m.apr",
        "edit m.apr --set a=b -o OUT/m.apr",
        "run m.apr --prompt 12+34= --prompt-cache OUT/cache",
    ];
    sandbox.write("mark.key", [7_u8; 32]);
    for (number, line) in lines.iter().enumerate() {
        let (text, json) = (format!("t{number}/in"), format!("j{number}/in"));
        let run = sandbox.apr(&line.replace("OUT", &text)).ok();
        let said = run.stderr.matches(&format!("made the folder {text}\n")).count();
        assert_eq!(said, 1, "{line}: {run}");
        if line.starts_with("graph") {
            // A picture has no report.
            continue;
        }
        let report = sandbox.apr(&format!("{} --json", line.replace("OUT", &json))).ok().json();
        let made = json!([format!("j{number}"), json]);
        assert_eq!(report["made_folders"], made, "{line}: {report}");
    }
    let quiet = sandbox.apr("keygen -o q/key.pem --quiet").ok();
    assert_eq!(quiet.stderr, "", "{quiet}");
}

#[test]
fn a_folder_with_graphs_of_an_encoder_and_a_decoder_is_replaced() {
    let sandbox = Sandbox::new();
    let whisper = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-whisper");
    for first in [
        format!("export {whisper} --format onnx -o o"),
        format!("export {whisper} --format onnx --with-past -o o"),
        format!("quantize {LLAMA} -t q8_0 -o q.apr"),
    ] {
        sandbox.apr(&first).ok();
        if first.ends_with("q.apr") {
            sandbox.apr("export q.apr --format safetensors -o o -f").ok();
            assert!(sandbox.path("o/scales.json").exists());
        }
        sandbox.apr(&format!("export {LLAMA} --format safetensors -o o -f")).ok();
        let left: Vec<String> = contents(&sandbox, "o").into_iter().map(|file| file.0).collect();
        assert!(!left.iter().any(|name| name.ends_with(".onnx")), "{left:?}");
        fs::remove_dir_all(sandbox.path("o")).expect("ours");
    }
}

#[test]
fn shards_without_a_list_and_data_of_a_graph_are_removed_with_the_model_that_they_belong_to() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("convert {LLAMA} --shard-size 300KB -o s.gguf")).ok();
    sandbox.write("s-00001-of-00002.gguf", "one of two");
    sandbox.apr(&format!("convert {LLAMA} -o s.gguf -f")).ok();
    assert_eq!(top(&sandbox), ["s-00001-of-00002.gguf", "s.gguf"], "a set with gaps is another's");

    sandbox.apr(&format!("convert {LLAMA} -o e.onnx --external-data always")).ok();
    assert!(sandbox.path("e.onnx_data").exists());
    sandbox.apr(&format!("convert {LLAMA} -o e.onnx -f --external-data never")).ok();
    assert!(!sandbox.path("e.onnx_data").exists());

    // Sources stay, although they have the name of the output.
    sandbox.apr(&format!("convert {LLAMA} --shard-size 300KB -o j.gguf")).ok();
    let shards = top(&sandbox).into_iter().filter(|name| name.starts_with("j-")).count();
    sandbox.apr("join j-00001-of-00003.gguf -o j.gguf -f").ok();
    assert_eq!(top(&sandbox).iter().filter(|name| name.starts_with("j-")).count(), shards);
}
