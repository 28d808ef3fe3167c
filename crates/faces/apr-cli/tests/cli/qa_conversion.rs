//! Points 76, 82, 83, 96, 97 and 99 of `docs/qa.md`, D: conversion and interoperability. Point 98
//! is in `interruption`.

use std::path::Path;

use crate::support::{Run, Sandbox, f32s, model_folder, safetensors, small_safetensors};

#[test]
fn qa_76_a_safetensors_file_is_imported_and_a_renamed_text_file_refused() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let lines =
        ["import m.safetensors -o m.apr -f", "import m.safetensors --from safetensors -o m.apr -f"];
    lines.iter().for_each(|line| drop(sandbox.apr(line).clean()));
    sandbox.apr("validate m.apr").clean();

    std::fs::remove_file(sandbox.path("m.apr")).expect("it is there");
    let texts: [&[u8]; 5] = [
        b"This is a letter, and no model at all.\n",
        b"short",
        b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n",
        b"{\"model_type\": \"llama\"}\n",
    ];
    for text in texts {
        sandbox.write("m.safetensors", text);
        for line in lines {
            sandbox.apr(line).fails(4, &["E00", "m.safetensors"]);
        }
    }
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}

#[test]
fn qa_76_a_source_of_another_format_than_the_expected_one_is_refused() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let run = sandbox.apr("import m.safetensors --from apr -o m.apr");
    run.fails(4, &["E001", "this is safetensors, not APR2"]);
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}

/// The dtypes of a model's tensors, by name.
fn dtypes(run: &Run) -> Vec<(String, String)> {
    let list = run.json()["tensors"].as_array().expect("a list").clone();
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    list.iter().map(|tensor| (text(&tensor["name"]), text(&tensor["dtype"]))).collect()
}

fn assert_dtypes(sandbox: &Sandbox, model: &str, expected: &[(&str, &str)]) {
    let run = sandbox.apr(&format!("tensors {model} --sort name --json")).ok();
    let found = dtypes(&run);
    let found: Vec<_> = found.iter().map(|(name, dtype)| (name.as_str(), dtype.as_str())).collect();
    assert_eq!(found, expected);
}

/// Floats of four widths, and two tensors that no cast may touch.
fn mixed() -> Vec<u8> {
    safetensors(&[
        ("a.f64", "F64", &[1], 0.1_f64.to_le_bytes().to_vec()),
        ("b.f32", "F32", &[2], f32s(&[1.0, 0.1])),
        ("c.f16", "F16", &[1], vec![0x00, 0x3c]),
        ("d.bf16", "BF16", &[1], vec![0x80, 0x3f]),
        ("e.i64", "I64", &[1], 5_i64.to_le_bytes().to_vec()),
        ("f.u8", "U8", &[1], vec![7]),
    ])
}

#[test]
fn qa_82_floats_become_bf16_and_nothing_else_does() {
    let sandbox = Sandbox::new().with("m.safetensors", mixed());
    let expected = [
        ("a.f64", "bf16"),
        ("b.f32", "bf16"),
        ("c.f16", "bf16"),
        ("d.bf16", "bf16"),
        ("e.i64", "i64"),
        ("f.u8", "u8"),
    ];
    for output in ["b.apr", "b.safetensors"] {
        sandbox.apr(&format!("convert m.safetensors --precision bf16 -o {output}")).clean();
        assert_dtypes(&sandbox, output, &expected);
        sandbox.apr(&format!("validate {output}")).clean();
    }
}

#[test]
fn qa_83_bf16_becomes_f32_without_a_rounding() {
    let bytes = vec![0x80, 0x3f, 0x49, 0xc0, 0x01, 0x00, 0x7f, 0x7f];
    let sandbox = Sandbox::new().with("m.safetensors", safetensors(&[("w", "BF16", &[4], bytes)]));
    for precision in ["fp32", "f32"] {
        let run = sandbox
            .apr(&format!("convert m.safetensors --precision {precision} -o w.safetensors -f"))
            .clean();
        run.says(&["(exact)"]);
        assert_dtypes(&sandbox, "w.safetensors", &[("w", "f32")]);
        let wide = f32s(&[
            1.0,
            f32::from_bits(0xc049_0000),
            f32::from_bits(0x0001_0000),
            f32::from_bits(0x7f7f_0000),
        ]);
        assert!(sandbox.read("w.safetensors").ends_with(&wide));
    }
    // And back: every value is one of bf16.
    sandbox.apr("convert w.safetensors --precision bf16 -o back.safetensors").clean();
    assert_eq!(sandbox.read("back.safetensors"), sandbox.read("m.safetensors"));
}

#[test]
fn qa_96_every_command_writes_where_output_says() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors()).with("there/old", "");
    let cases = [
        ("convert m.safetensors -o here.apr", "here.apr"),
        ("convert m.safetensors --output there/a.apr", "there/a.apr"),
        ("convert m.safetensors --format apr -o without-extension", "without-extension"),
        ("import m.safetensors -o new/folders/b.apr", "new/folders/b.apr"),
        ("export m.safetensors -o there/c.safetensors", "there/c.safetensors"),
        ("export m.safetensors -o folder", "folder/model.safetensors"),
        ("export m.safetensors --format apr -o d.apr", "d.apr"),
    ];
    let mut files = sandbox.files();
    for (line, written) in cases {
        sandbox.apr(line).clean();
        files.push(written.to_owned());
        files.sort();
        assert_eq!(sandbox.files(), files, "{line}");
        sandbox.apr(&format!("validate {written}")).clean();
    }
}

#[test]
fn qa_96_an_output_that_cannot_be_is_an_error() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors()).with("file", "");
    sandbox.apr("convert m.safetensors -o file/m.apr").fails(1, &["E007", "file"]);
    sandbox.apr("convert m.safetensors").fails(2, &["--output"]);
    sandbox.apr("convert m.safetensors -o m.tflite").fails(2, &["--format"]);
    std::fs::create_dir(sandbox.path("folder.apr")).expect("a new folder");
    sandbox
        .apr("convert m.safetensors -o folder.apr")
        .fails(2, &["folder.apr", "the output is one file"]);
    assert_eq!(sandbox.files(), ["file", "m.safetensors"]);
}

#[test]
fn qa_97_a_file_that_exists_is_replaced_only_with_overwrite() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    for (command, output) in
        [("convert", "t.apr"), ("import", "t.apr"), ("export", "t.safetensors")]
    {
        sandbox.write(output, "precious");
        let line = format!("{command} m.safetensors -o {output}");
        sandbox.apr(&line).fails(1, &["E007", output, "already exists", "-f (--overwrite)"]);
        for keeps in ["--force", "--relaxed"] {
            sandbox
                .apr(&format!("{line} {keeps}"))
                .fails(1, &["E007", "already exists", "--force does not"]);
        }
        assert_eq!(sandbox.read(output), b"precious");
        for replaces in ["-f", "--overwrite"] {
            sandbox.apr(&format!("{line} {replaces}")).clean();
            sandbox.apr(&format!("validate {output}")).clean();
        }
    }
    assert_eq!(sandbox.files(), ["m.safetensors", "t.apr", "t.safetensors"]);
}

#[test]
fn qa_97_overwrite_does_not_let_a_sick_model_replace_a_good_one() {
    let sick = safetensors(&[("a.weight", "F32", &[2], f32s(&[1.0, f32::NAN]))]);
    let sandbox =
        Sandbox::new().with("good.safetensors", small_safetensors()).with("sick.safetensors", sick);
    for (command, output) in
        [("convert", "m.apr"), ("import", "m.apr"), ("quantize --type fp16", "m.gguf")]
    {
        let family = if output == "m.gguf" { "--arch llama" } else { "" };
        sandbox.write(output, "precious");
        for option in ["-f", "--overwrite"] {
            let run =
                sandbox.apr(&format!("{command} sick.safetensors -o {output} {option} {family}"));
            assert_ne!(run.code, Some(0), "{run}");
            assert_eq!(sandbox.read(output), b"precious", "{command} {option}");
        }
    }
    sandbox
        .apr("convert sick.safetensors -o m.apr -f")
        .fails(5, &["1 of 2 values are NaN", "--relaxed writes it nevertheless"]);
    sandbox.apr("convert sick.safetensors -o m.apr -f --force").ok().says(&["1 error"]);
    assert_ne!(sandbox.read("m.apr"), b"precious");
}

#[test]
fn qa_97_one_file_that_exists_keeps_a_folder_as_it_is() {
    let sandbox = Sandbox::new();
    model_folder(&sandbox, "folder");
    sandbox.apr("import folder -o m.apr").clean();
    sandbox.write("out/config.json", "precious");
    let name = Path::new("out").join("config.json").display().to_string();
    sandbox.apr("export m.apr -o out").fails(1, &["E007", &name, "already exists"]);
    assert_eq!(sandbox.read("out/config.json"), b"precious");
    assert!(!sandbox.path("out/model.safetensors").exists());
    sandbox.apr("export m.apr -o out -f").clean();
    assert_eq!(sandbox.read("out/config.json"), sandbox.read("folder/config.json"));
}

#[test]
fn qa_97_the_source_can_be_replaced_by_its_conversion() {
    let sandbox = Sandbox::new().with("m.safetensors", mixed());
    sandbox.apr("convert m.safetensors -o m.safetensors").fails(1, &["already exists"]);
    assert_eq!(sandbox.read("m.safetensors"), mixed());
    sandbox.apr("convert m.safetensors -o m.safetensors -f --precision fp32").clean();
    sandbox.apr("validate m.safetensors").clean();
    assert_ne!(sandbox.read("m.safetensors"), mixed());
}

#[test]
fn qa_99_a_memory_limit_that_is_too_low_is_e008() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    for line in [
        "validate m.safetensors",
        "tensors m.safetensors --stats",
        "convert m.safetensors -o m.apr",
    ] {
        let run = sandbox.with_env(&[("APR_RAM_LIMIT", "1M")], line);
        run.fails(4, &["E008", "1048576", "--max-memory", "APR_RAM_LIMIT"]);
        sandbox.apr(&format!("{line} --max-memory 1M -q")).fails(4, &["E008"]);
        // An option wins over the environment.
        sandbox.with_env(&[("APR_RAM_LIMIT", "1M")], &format!("{line} --max-memory 64M")).clean();
        let _ = std::fs::remove_file(sandbox.path("m.apr"));
    }
    // Looking at a header needs no buffers.
    sandbox.with_env(&[("APR_RAM_LIMIT", "1M")], "inspect m.safetensors").clean();
    sandbox
        .with_env(&[("APR_RAM_LIMIT", "much")], "inspect m.safetensors")
        .fails(2, &["much", "512M"]);
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}

#[cfg(unix)]
#[test]
fn qa_99_a_model_far_larger_than_the_limit_passes_within_it() {
    let sandbox = Sandbox::new();
    sandbox.write_sparse("m.safetensors", 1 << 30);
    let lines = ["validate --zero-check m.safetensors", "tensors --stats m.safetensors"];
    for line in lines {
        // The address space holds program, thread stacks and 64 MB of buffers, but no gigabyte.
        let script = format!(
            r#"export APR_RAM_LIMIT=64M APR_THREADS=2; ulimit -v 400000; exec "$APR" {line}"#
        );
        sandbox.shell(&script).clean();
    }
}

#[test]
fn qa_96_the_extension_of_an_export_says_its_format() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    for (output, start) in [("m.apr", &b"APR2"[..]), ("m.pt", b"PK"), ("m.bin", b"PK")] {
        sandbox.apr(&format!("export m.safetensors -o {output}")).clean();
        assert!(sandbox.read(output).starts_with(start), "{output}");
    }
    sandbox.apr("export m.safetensors -o m.tflite").fails(2, &["extension", "--format"]);
    sandbox
        .apr("import m.safetensors -o x.safetensors")
        .fails(2, &["import writes .apr files", "apr convert"]);
}
