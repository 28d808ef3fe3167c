//! Architectures and families: known, unknown and foreign ones.

use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use serde_json::{Value, json};

use super::trained;
use crate::families::{TinyModel, names};
use crate::support::{Sandbox, f32s};

/// Returns a GGUF file of a model of an unknown family.
fn strange() -> Vec<u8> {
    let values: Vec<f32> = (0_u8..64).map(|at| f32::from(at) / 640.0 - 0.05).collect();
    GgufBuilder::new()
        .text("general.architecture", "strange")
        .entry(GgufEntry::new("net.weight", 0, &[32, 2], &f32s(&values)))
        .build()
}

#[test]
fn qa_78_a_gguf_file_of_an_unknown_architecture_is_not_imported_unasked() {
    let sandbox = Sandbox::new().with("m.gguf", strange());
    for line in ["import m.gguf -o m.apr", "convert m.gguf -o m.apr"] {
        let run = sandbox.apr(line).fails(
            5,
            &["'strange'", "names and shapes are not checked", "--arch NAME", "--relaxed"],
        );
        run.says(&["nothing was written"]);
        assert_eq!(sandbox.files(), ["m.gguf"]);
    }
    let error = sandbox.apr("import m.gguf -o m.apr --json").fails(5, &[]).json()["error"].take();
    assert_eq!(
        (&error["misfits"][0]["what"], &error["misfits"][0]["name"]),
        (&json!("architecture"), &json!("strange"))
    );
    // Who says what it is gets it checked.
    sandbox
        .apr("import m.gguf -o m.apr --arch llama")
        .fails(5, &["'net.weight'", "not a tensor of this family"]);
    sandbox.apr("import m.gguf -o m.apr --relaxed").ok().says(&[
        "warning",
        "'strange'",
        "unknown family",
    ]);
    assert_eq!(names(&sandbox, "m.apr"), ["net.weight"]);
    // To look at it or copy it, nobody needs to know.
    for line in ["inspect m.gguf", "validate m.gguf", "convert m.gguf -o copy.gguf"] {
        sandbox.apr(line).clean();
    }
}

#[test]
fn qa_78_a_known_architecture_is_imported_under_canonical_names() {
    let sandbox = trained();
    sandbox.apr("export llama -o m.gguf").ok();
    let run =
        sandbox.apr("import m.gguf -o m.apr").ok().says(&["LLaMA family, 21 tensors renamed"]);
    assert!(!run.stdout.is_empty());
    assert!(names(&sandbox, "m.apr").contains(&"layers.0.attn.q_proj.weight".to_owned()));
    sandbox.apr("validate m.apr").ok().says(&["VALID"]);
}

#[test]
fn qa_95_a_gguf_file_says_its_family_and_names_are_mapped() {
    for (case, title) in
        [("llama", "LLaMA"), ("gpt_neox", "GPT-NeoX"), ("qwen2", "Qwen2"), ("bert", "BERT")]
    {
        let sandbox = TinyModel::new(case).sandbox();
        let lost = sandbox.apr("export m -o m.gguf --json").ok().json()["losses"].take();
        sandbox.apr("import m.gguf -o m.apr").ok().says(&[&format!("{title} family")]);
        sandbox.apr("explain m.gguf").ok().says(&[&format!("This is a **{title}** model.")]);
        let diff = sandbox.apr("diff m m.gguf --json").ok().json();
        assert!(
            diff["tensors"].as_array().expect("a list").iter().all(|row| row["max_delta"] == 0.0),
            "{diff}"
        );
        // Only what the export said it leaves out is missing.
        let names = |list: &Value, key: &str| -> Vec<String> {
            let rows = list.as_array().expect("a list").iter();
            rows.map(|row| row.get(key).unwrap_or(row).as_str().expect("a name").to_owned())
                .collect()
        };
        let lost = names(&lost, "name");
        assert!(
            names(&diff["removed"], "").iter().all(|name| lost.contains(name)),
            "{diff} {lost:?}"
        );
        assert_eq!(diff["added"], json!([]));
    }
}

/// InternLM 3 is taken here for a relative of LLaMA's that multiplies by four factors as Granite
/// does, which llama.cpp's `llama` does not have.
#[test]
fn qa_95_a_foreign_family_is_no_llama() {
    let factors = [
        ("embedding_multiplier", json!(12.0)),
        ("attention_multiplier", json!(0.0156)),
        ("residual_multiplier", json!(0.22)),
        ("logits_scaling", json!(8.0)),
    ];
    let listed = "attention_multiplier = 0.0156, embedding_multiplier = 12.0, logits_scaling = \
        8.0, residual_multiplier = 0.22";
    let relative = |model_type: &str| {
        let model = TinyModel::new("llama").configured("model_type", model_type);
        factors
            .iter()
            .fold(model, |model, (key, value)| model.configured(key, value.clone()))
            .sandbox()
    };
    let sandbox = relative("internlm9");
    let said = ["E001", "'internlm9' is unknown", "apr explain", "--arch-file"];
    sandbox.apr("convert m -o m.gguf").fails(4, &said);
    sandbox.apr("quantize m -o q.gguf --type q8_0").fails(4, &["'internlm9' is unknown"]);
    assert!(!sandbox.path("m.gguf").exists());
    sandbox.apr("inspect m").clean().says(&["internlm9"]);
    sandbox.apr("import m -o m.apr").clean().says(&["unknown family, names unchanged"]);
    sandbox.apr("convert m.apr -o back.safetensors").clean();
    assert_eq!(sandbox.read("back.safetensors"), sandbox.read("m/model.safetensors"));

    let run = sandbox.apr("convert m -o m.gguf --arch llama").ok();
    run.says(&[
        "warning: ",
        "no GGUF key for this architecture, ignored by llama.cpp",
        listed,
        "lost: architecture (hyperparameters: ",
    ]);
    let report = sandbox.apr("convert m -o again.gguf --arch llama --json").ok().json();
    let warnings = report["warnings"].as_array().expect("a list");
    assert!(
        warnings.iter().any(|warning| warning.as_str().is_some_and(|text| text.contains(listed))),
        "{warnings:?}"
    );
    // Under a known name, factors are still what llama.cpp lacks.
    relative("llama")
        .apr("convert m -o m.gguf")
        .ok()
        .says(&["no GGUF key for this architecture, ignored by llama.cpp", listed]);
}
