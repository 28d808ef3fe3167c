//! Points 52 and 66 to 69 of `docs/qa.md`, C, on models of known families.

use serde_json::{Value, json};

use crate::families::{TinyModel, metadata, refused};
use crate::support::{Run, Sandbox, f32s, safetensors};

/// The layer norm that the broken model has a mean of eleven in.
const GAMMA: &str = "model.encoder.layer_norm.weight";

/// A Whisper model whose encoder's last layer norm has a mean of 11. Such a model repeats tokens.
fn broken() -> TinyModel {
    TinyModel::new("whisper").map(GAMMA, |gamma| 11.0 * gamma)
}

/// Returns a file without a recorded origin: unaligned, with short names, and a tensor of 1.44 MB.
fn careless() -> Vec<u8> {
    let values: Vec<f32> = (0..360_000_u32).map(|at| (at % 11) as f32 / 100.0 - 0.05).collect();
    safetensors(&[
        ("encoder.b", "F32", &[3], f32s(&[0.1, 0.2, 0.3])),
        ("encoder.w", "F32", &[600, 600], f32s(&values)),
        ("model.head.weight", "F32", &[3], f32s(&[0.1, 0.2, 0.3])),
    ])
}

/// The remarks of `apr lint` on a topic: severity and message.
#[track_caller]
fn remarks(sandbox: &Sandbox, model: &str, topic: &str) -> Vec<(String, String)> {
    let report = sandbox.apr(&format!("lint {model} --json")).ok().json();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let remarks = report["remarks"].as_array().expect("a list").iter();
    let remarks = remarks.filter(|remark| remark["topic"] == topic);
    remarks.map(|remark| (text(&remark["severity"]), text(&remark["message"]))).collect()
}

#[test]
fn qa_52_lint_warns_of_what_no_file_says() {
    let sandbox = TinyModel::new("llama").sandbox();
    sandbox.apr("import m -o m.apr").clean();
    sandbox.apr("lint m.apr --strict").clean().says(&["no findings"]);

    let bare = TinyModel::new("llama").sandbox();
    std::fs::remove_file(bare.path("m/README.md")).expect("it is there");
    let missing = ["Missing 'license' field", "Missing 'model_card'", "Missing 'provenance'"];
    let lines = missing.map(|message| format!("[WARN] Metadata: {message}"));
    let run = bare.apr("lint m").ok();
    run.says(&lines.each_ref().map(String::as_str));
    bare.apr("lint m --strict").fails(5, &lines.each_ref().map(String::as_str));
    // An import writes down where the model comes from, and nobody knows the rest.
    bare.apr("import m -o m.apr").ok();
    let warned = |message: &str| ("WARN".to_owned(), message.to_owned());
    assert_eq!(remarks(&bare, "m.apr", "Metadata"), [warned(missing[0]), warned(missing[1])]);
    bare.apr("lint m.apr --strict").fails(5, &["2 warnings"]);
    bare.apr("import m -o m.apr -f --license mit").ok();
    assert_eq!(remarks(&bare, "m.apr", "Metadata"), [warned(missing[1])]);
}

#[test]
fn lint_reads_what_stands_beside_the_weights_as_an_import_does() {
    let sandbox = TinyModel::new("llama").sandbox();
    sandbox.write("m/README.md", "---\nlicense: mit\n---\n# A model\n");
    for model in ["m", "m/model.safetensors"] {
        for topic in ["Metadata", "Tensor Naming"] {
            assert_eq!(remarks(&sandbox, model, topic), [], "{model}: {topic}");
        }
        sandbox.apr(&format!("lint {model} --strict")).clean();
    }
}

#[test]
fn qa_52_lint_remarks_on_names_alignment_and_size() {
    let sandbox = Sandbox::new().with("m.safetensors", careless());
    let run = sandbox.apr("lint m.safetensors").ok();
    run.says(&[
        "[INFO] Tensor Naming: 'encoder.b' should be 'encoder.bias' for auto-mapping",
        "[INFO] Tensor Naming: 'encoder.w' should be 'encoder.weight' for auto-mapping",
        "[INFO] Efficiency: 3 tensors could be aligned to 64 bytes (currently 4)",
    ]);
    // In an .apr file the framework's prefix is one too much.
    sandbox.apr("import m.safetensors -o m.apr --license mit").ok();
    let expected = (
        "INFO".to_owned(),
        "'model.head.weight' should be 'head.weight' for auto-mapping".to_owned(),
    );
    assert!(remarks(&sandbox, "m.apr", "Tensor Naming").contains(&expected));
    // What is only a remark does not fail.
    for (align, unaligned) in [("32", true), ("64", false)] {
        sandbox
            .apr(&format!("import m.safetensors -o m.apr -f --align {align} --license mit"))
            .ok();
        assert_eq!(!remarks(&sandbox, "m.apr", "Efficiency").is_empty(), unaligned, "{align}");
        let large = remarks(&sandbox, "m.apr", "Compression");
        let [(severity, message)] = &large[..] else { panic!("{large:?}") };
        assert!(severity == "INFO" && message.starts_with("1 uncompressed tensor"), "{large:?}");
    }
    let sandbox = TinyModel::new("whisper").sandbox();
    sandbox.apr("import m -o m.apr").clean();
    for topic in ["Tensor Naming", "Efficiency", "Compression"] {
        assert_eq!(remarks(&sandbox, "m.apr", topic), [], "{topic}");
    }
    // A folder has the names that the framework's programs expect, and they are right there.
    assert_eq!(remarks(&sandbox, "m", "Tensor Naming"), []);
}

#[test]
fn qa_66_a_tensor_is_explained_by_role_shape_and_statistics() {
    let sandbox = TinyModel::new("whisper").sandbox();
    sandbox.apr("import m -o m.apr").clean();
    let said = |run: Run| {
        run.clean().says(&[
            "- **Role**: Initial feature extraction (Audio -> Latent)",
            "- **Shape**: [32, 10, 3] (Filters, Input Channels, Kernel Size)",
            "- **Stats**: Mean ",
            ", Std 0.02",
            "(Healthy)",
        ])
    };
    said(sandbox.apr("explain m.apr --tensor encoder.conv1.weight"))
        .says(&["**encoder.conv1.weight**"]);
    // The source knows it by both names.
    for name in ["model.encoder.conv1.weight", "encoder.conv1.weight"] {
        let run = said(sandbox.apr(&format!("explain m --tensor {name}")));
        run.says(&["**model.encoder.conv1.weight**", "- **Canonical name**: encoder.conv1.weight"]);
    }
    let report =
        sandbox.apr("explain m.apr --tensor decoder.layers.1.fc1.weight --json").clean().json();
    assert_eq!((&report["shape"], &report["kind"]), (&json!([72, 32]), &json!("linear")));
    assert!(
        report["role"].as_str().is_some_and(|role| role.ends_with("decoder layer 1")),
        "{report}"
    );

    let run = broken().sandbox().apr("explain m --tensor encoder.layer_norm.weight").clean();
    run.says(&[
        "Gamma of the layer norm",
        "Mean 1",
        "(Unhealthy: the mean of this norm weight (gamma) is 1",
    ]);
}

#[test]
fn qa_66_a_name_that_is_almost_one_gets_the_names_like_it() {
    let sandbox = TinyModel::new("whisper").sandbox();
    for name in ["encoder.conv1.wieght", "encodr.conv1.weight", "model.encoder.conv.weight"] {
        for line in ["explain m --tensor", "explain --tensor"] {
            let run = sandbox.apr(&format!("{line} {name}"));
            run.fails(
                1,
                &[&format!("no tensor '{name}'"), "nearest names", "encoder.conv1.weight"],
            );
        }
    }
}

#[test]
fn qa_66_a_name_that_is_like_no_other_gets_examples_of_names() {
    let sandbox = TinyModel::new("whisper").sandbox();
    for line in ["explain m --tensor nonexistent", "explain --tensor nonexistent"] {
        let said = ["no tensor 'nonexistent' and no similar name; names that exist:", ".weight"];
        sandbox.apr(line).fails(1, &said);
    }
}

#[test]
fn qa_66_a_tensor_is_explained_without_a_model() {
    let sandbox = Sandbox::new();
    let role = "Query projection of attention in layer 3";
    for name in [
        "model.layers.3.self_attn.q_proj.weight",
        "blk.3.attn_q.weight",
        "layers.3.attn.q_proj.weight",
    ] {
        let run = sandbox.apr(&format!("explain --tensor {name}")).clean();
        let run = run.says(&[&format!("layers.3.attn.q_proj.weight: {role}\n  in LLaMA, ")]);
        // One line for all families with this role.
        let line = format!("layers.3.attn.q_proj.weight: {role}\n");
        assert_eq!(run.text().matches(&line).count(), 1, "{run}");
    }
    let run = sandbox.apr("explain --tensor encoder.conv1.weight").clean();
    run.says(&["encoder.conv1.weight: Initial feature extraction", "  in Whisper"]);
    sandbox.apr("explain").fails(2, &["required"]);
}

#[test]
fn qa_67_the_source_is_judged_tensor_by_tensor_and_nothing_is_written() {
    let sandbox = TinyModel::new("whisper").sandbox();
    let files = sandbox.files();
    let run = sandbox.apr("convert m/model.safetensors --analyze-source --arch whisper").clean();
    assert_eq!(run.text().lines().filter(|line| line.starts_with("[PASS] ")).count(), 113, "{run}");
    let run = run.says(&[
        "[PASS] encoder.conv1.weight: mean=",
        "(expected [-0.2, 0.2])",
        "\nPASS family: Whisper",
    ]);
    assert!(!run.text().contains("FAIL"), "{run}");

    broken().write(&sandbox, "m");
    for line in [
        "convert m/model.safetensors --analyze-source --arch whisper",
        "convert m --analyze-source",
    ] {
        let run = sandbox.apr(line).fails(5, &["\nFAIL (1) family: Whisper"]);
        let text = run.text();
        let failed: Vec<&str> = text.lines().filter(|line| line.starts_with("[FAIL] ")).collect();
        let [failed] = failed[..] else { panic!("{run}") };
        assert!(failed.starts_with("[FAIL] encoder.layer_norm.weight: mean=1"), "{failed}");
        assert!(
            failed.contains("(expected [0.5, 3])")
                && failed.ends_with("-> SOURCE ALREADY CORRUPT?"),
            "{failed}"
        );
    }
    let report = sandbox.apr("convert m --analyze-source --json").fails(5, &[]).json();
    let bad = |tensor: &&Value| tensor["pass"] == json!(false);
    let bad: Vec<_> = report["tensors"].as_array().expect("a list").iter().filter(bad).collect();
    assert_eq!((bad.len(), &bad[0]["source_name"]), (1, &json!(GAMMA)));
    sandbox.apr("convert m --analyze-source -o m.apr").fails(2, &["writes nothing: leave out -o"]);
    assert_eq!(sandbox.files(), files);
}

#[test]
fn qa_67_a_source_that_does_not_open_or_lacks_a_tensor_fails() {
    let name = "model.encoder.conv1.bias";
    let sandbox = TinyModel::new("whisper").without(name).sandbox();
    let run = sandbox.apr("convert m --analyze-source");
    run.fails(5, &[&format!("[FAIL] {name}: missing tensor"), "\nFAIL (1)"]);
    let mut cut = TinyModel::new("whisper").safetensors();
    cut.truncate(cut.len() - 1);
    sandbox.write("m/model.safetensors", cut);
    sandbox.apr("convert m --analyze-source").fails(4, &["E002"]);
}

#[test]
fn qa_68_a_bad_mean_aborts_every_way_to_write_and_leaves_nothing() {
    let healthy = TinyModel::new("whisper").sandbox();
    let sandbox = broken().sandbox();
    let files = sandbox.files();
    for line in [
        "import m -o m.apr",
        "import m/model.safetensors -o new/folder.apr",
        "convert m -o m.apr",
        "convert m/model.safetensors -o m.apr --precision bf16",
        "convert m -o m.safetensors",
        "convert m -o m.pt",
    ] {
        healthy.apr(&format!("{line} --json")).ok();
        let run = sandbox
            .apr(line)
            .fails(5, &["layer_norm.weight': the mean of this norm weight (gamma) is 1"]);
        assert!(sandbox.files() == files, "{line}: {run}{:?}", sandbox.files());
        std::fs::remove_file(healthy.path(line.split(' ').nth(3).expect("the output")))
            .expect("it was written");
    }
    // To standard output, what was written before cannot be taken back: it must not be a whole
    // file.
    let run = sandbox.apr("import m -o -").fails(5, &[]);
    sandbox.write("piped.apr", &run.stdout);
    sandbox.apr("validate piped.apr").fails(4, &[]);
}

#[test]
fn qa_68_nan_and_infinity_abort_too() {
    for (value, said) in
        [(f32::NAN, "1 of 1,024 values are NaN"), (f32::INFINITY, "1 of 1,024 values are infinite")]
    {
        let sandbox = TinyModel::new("whisper")
            .first("model.decoder.layers.0.self_attn.q_proj.weight", value)
            .sandbox();
        refused(&sandbox, &["decoder.layers.0.self_attn.q_proj.weight", said]);
    }
}

#[test]
fn qa_69_relaxed_and_force_go_on_and_write_down_what_they_let_pass() {
    let sandbox = broken().sandbox();
    refused(&sandbox, &["layer_norm.weight"]);
    for option in ["--relaxed", "--force"] {
        let run = sandbox.apr(&format!("import m -o m.apr {option}")).ok();
        run.says(&[
            "1 error",
            "error: tensor 'model.encoder.layer_norm.weight': the mean of this norm weight (gamma) \
             is 1",
        ]);
        let found = &metadata(&sandbox, "m.apr")["violations"];
        let [violation] = &found.as_array().expect("a list")[..] else { panic!("{found}") };
        let expected =
            [("tensor", "model.encoder.layer_norm.weight"), ("what", "mean"), ("level", "error")];
        expected.into_iter().for_each(|(key, value)| assert_eq!(violation[key], value));
        assert!(
            violation["mean"].as_f64().is_some_and(|mean| (10.5..11.5).contains(&mean)),
            "{violation}"
        );

        let run = sandbox.apr("validate m.apr").fails(5, &["FAIL  Physics", "INVALID"]);
        run.says(&[
            "error: tensor 'encoder.layer_norm.weight': the mean of this norm weight (gamma) is 1",
        ]);
        // What was written is a sound file: only its values are not.
        sandbox.apr("validate m.apr --checksum --strict").clean();
        std::fs::remove_file(sandbox.path("m.apr")).expect("it was written");
    }
    let healthy = TinyModel::new("whisper").sandbox();
    healthy.apr("import m -o m.apr --force").clean();
    assert!(metadata(&healthy, "m.apr").get("violations").is_none());
}

#[test]
fn qa_69_relaxed_and_force_do_not_replace_a_file() {
    let sandbox = broken().sandbox().with("m.apr", "precious");
    for option in ["--relaxed", "--force"] {
        sandbox.apr(&format!("import m -o m.apr {option}")).fails(1, &["E007", "already exists"]);
    }
    sandbox.apr("import m -o m.apr -f").fails(5, &["nothing was written"]);
    assert_eq!(sandbox.read("m.apr"), b"precious");
    sandbox.apr("import m -o m.apr --force -f").ok();
    assert_ne!(sandbox.read("m.apr"), b"precious");
}
