//! Digests and arrays of tensors, and the lists that `validate --manifest` compares with.

use std::fs;

use apr_testkit::locate::fixture;

use crate::support::Sandbox;

#[test]
fn digests_are_those_of_hashlib_in_the_form_of_sha256sum() {
    let sandbox = Sandbox::new();
    let folder = fixture("tiny-llama").join("model.safetensors");
    let model = folder.to_str().expect("UTF-8");
    let printed = sandbox.run(&["tensors", model, "--digest"]).ok().text();
    let expected = fs::read_to_string(fixture("edit/tiny-llama.sha256")).expect("a fixture");
    let sorted = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&printed), sorted(&expected));
    // What is no tensor has no digest.
    assert!(printed.starts_with("# not read: check.py, train.py\n"), "{printed}");
    sandbox.write("list", &printed);
    let report = sandbox.run(&["validate", model, "--manifest", "list", "--json"]).ok().json();
    let checks = report["checks"].as_array().expect("a list");
    let check = checks.iter().find(|check| check["check"] == "manifest").expect("the check");
    assert_eq!(check["detail"], "21 of 21 tensors match the manifest");
    let row = sandbox.run(&["tensors", model, "--digest", "--filter", "lm_head*", "--json"]);
    let row = row.ok().json()["tensors"][0]["sha256"].as_str().expect("a digest").to_owned();
    assert!(expected.contains(&format!("{row}  lm_head.weight")));
}

#[test]
fn lists_of_gguf_hash_are_checked() {
    let sandbox = Sandbox::new();
    let model = fs::read(fixture("edit/digests.gguf")).expect("a fixture");
    let list = fs::read_to_string(fixture("edit/digests.txt")).expect("a fixture");
    sandbox.write("digests.gguf", &model);
    sandbox.write("list", &list);
    sandbox.apr("validate digests.gguf --manifest list").ok().says(&[
        "2 of 2 tensors match the manifest, and all of them together; 4 lines of other algorithms",
    ]);
    let mut changed = model;
    // Before the padding.
    let last = changed.len() - 64;
    changed[last] ^= 1;
    sandbox.write("changed.gguf", changed);
    sandbox
        .apr("validate changed.gguf --manifest list")
        .fails(5, &["E004", "2 of 3 digests do not match", "token_embd.weight' differs (line 4)"]);
}

#[test]
fn a_file_that_is_not_a_list_and_names_missing_in_the_model_are_reported() {
    let sandbox = Sandbox::new();
    let model = fixture("edit").join("digests.gguf");
    let model = model.to_str().expect("UTF-8");
    let digest = "0f".repeat(32);
    sandbox.write("list", format!("{digest}  output_nrom.weight\n"));
    sandbox
        .run(&["validate", model, "--manifest", "list"])
        .fails(5, &["is missing (line 1; the nearest name is 'output_norm.weight')"]);
    sandbox.write("list", format!("{digest}  a\nhello\n"));
    sandbox.run(&["validate", model, "--manifest", "list"]).fails(4, &["line 2", "list"]);
    sandbox.run(&["validate", model, "--manifest", "none"]).fails(3, &["none"]);
    sandbox
        .run(&["tensors", model, model, "--digest"])
        .fails(2, &["--digest takes the tensors of one model"]);
}

#[test]
fn arrays_are_those_that_numpy_writes() {
    let sandbox = Sandbox::new();
    let model = fixture("edit").join("arrays.safetensors");
    let model = model.to_str().expect("UTF-8");
    sandbox.run(&["tensors", model, "-o", "out"]).ok().says(&["9 arrays"]);
    let expected = fs::read_dir(fixture("edit/arrays")).expect("a fixture").flatten();
    let mut count = 0;
    for entry in expected {
        let name = entry.file_name().into_string().expect("text");
        let found = sandbox.read(&format!("out/{name}"));
        assert!(found == fs::read(entry.path()).expect("a file"), "{name} differs");
        count += 1;
    }
    assert_eq!(count, 9);
    sandbox.run(&["tensors", model, "-o", "out"]).fails(1, &["E007", "already exists"]);
    sandbox.run(&["tensors", model, "-o", "out", "-f", "--filter", "row*"]).ok();
}

#[test]
fn dtypes_that_numpy_lacks_are_decoded() {
    let sandbox = Sandbox::new();
    let tiny = fixture("tiny-llama");
    let tiny = tiny.to_str().expect("UTF-8");
    let report = sandbox.run(&["tensors", tiny, "-o", "bf16", "--filter", "lm_head*", "--json"]);
    let report = report.ok().json();
    let row = &report["arrays"][0];
    assert_eq!((&row["dtype"], &row["array_dtype"]), (&"bf16".into(), &"f32".into()));
    sandbox.run(&["quantize", tiny, "-o", "q8.gguf", "--type", "q8_0"]).ok();
    sandbox.apr("tensors q8.gguf -o q8 --filter token_embd*").ok().says(&["f32: q8_0"]);

    // The arrays hold the numbers that the report of values has.
    let values = |model: &str, name: &str| {
        let part = format!("{name}[0:1]");
        let report = sandbox.run(&["tensors", model, "--values", &part, "--json"]).ok().json();
        report["values"].as_array().expect("a list").clone()
    };
    for (model, name, file) in [
        (tiny, "lm_head.weight", "bf16/lm_head.weight.npy"),
        ("q8.gguf", "token_embd.weight", "q8/token_embd.weight.npy"),
    ] {
        assert_eq!(values(model, name), values(file, "array"), "{name}");
    }
}
