//! Points 32, 33, 38, 80, 87 and 88 of `docs/qa.md`: names and shapes against those that the
//! configuration leads to.

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::families::{TinyModel, metadata, names, refused};
use crate::support::{Sandbox, f32s};

/// Asserts that a model is valid before the change and fails afterwards.
///
/// The import rejects it for this tensor's shape, and validation fails. An import with relaxed
/// validation records the failure, and its output still fails.
#[track_caller]
fn assert_misshapen(
    family: &str,
    change: impl FnOnce(TinyModel) -> TinyModel,
    tensor: &str,
    said: &str,
) {
    let sandbox = TinyModel::new(family).sandbox();
    sandbox.apr("import m -o m.apr").clean();
    for line in ["validate m --shapes --strict", "validate m.apr --strict"] {
        sandbox.apr(line).clean().says(&["pass  Names and shapes"]);
    }

    let sandbox = change(TinyModel::new(family)).sandbox();
    let said = format!("tensor '{tensor}': {said}");
    refused(&sandbox, &[&said]);
    for line in ["validate m --shapes", "validate m"] {
        sandbox
            .apr(line)
            .fails(5, &["FAIL  Names and shapes", &format!("error: {said}"), "INVALID"]);
    }
    // Nobody asked for it here.
    sandbox.apr("validate m --nan-check --zero-check --physics").ok();

    let run = sandbox.apr("import m -o m.apr --relaxed").ok();
    assert!(run.stderr.contains(&format!("warning: {said}")), "{run}");
    assert_eq!(metadata(&sandbox, "m.apr")["violations"][0]["what"], "shape");
    sandbox.apr("validate m.apr").fails(5, &["FAIL  Names and shapes", "INVALID"]);
}

#[test]
fn qa_32_a_tensor_that_is_one_element_short_is_refused() {
    let gamma = "encoder.layer.1.output.LayerNorm.weight";
    let said = "expected [32] ([hidden]), found [31]";
    assert_misshapen("bert", |model| model.resized(gamma, &[31]), gamma, said);
    let bias = "model.encoder.layers.0.fc1.bias";
    let said = "expected [88] ([encoder_intermediate]), found [87]";
    assert_misshapen("whisper", |model| model.resized(bias, &[87]), bias, said);
}

#[test]
fn qa_33_a_vocabulary_size_that_the_embedding_has_not_is_refused() {
    let embeddings = [
        ("bert", "embeddings.word_embeddings.weight"),
        ("llama", "model.embed_tokens.weight"),
        ("whisper", "model.decoder.embed_tokens.weight"),
    ];
    for (family, embedding) in embeddings {
        for size in [100, 102] {
            let said = format!("expected [{size}, 32] ([vocab, hidden]), found [101, 32]");
            let change = |model: TinyModel| model.configured("vocab_size", size);
            assert_misshapen(family, change, embedding, &said);
        }
    }
}

#[test]
fn qa_38_a_truncated_positional_embedding_is_refused() {
    let cases = [
        ("bert", "embeddings.position_embeddings.weight", 40, "positions"),
        ("whisper", "model.decoder.embed_positions.weight", 40, "text_positions"),
        ("whisper", "model.encoder.embed_positions.weight", 36, "audio_positions"),
    ];
    for (family, name, rows, dimension) in cases {
        let short = rows - 1;
        let said = format!("expected [{rows}, 32] ([{dimension}, hidden]), found [{short}, 32]");
        assert_misshapen(family, |model| model.resized(name, &[short, 32]), name, &said);
    }
}

#[test]
fn qa_80_layers_are_mapped_and_a_renamed_one_is_refused() {
    let (name, wrong) =
        ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.query.weight");
    let sandbox = TinyModel::new("llama").sandbox();
    sandbox.apr("import m -o m.apr").clean().says(&["LLaMA family, 20 tensors renamed"]);
    let found = names(&sandbox, "m.apr");
    for canonical in [
        "token_embedding",
        "layers.0.attn.q_proj.weight",
        "layers.1.mlp.up_proj.weight",
        "norm.weight",
    ] {
        assert!(found.iter().any(|name| name == canonical), "{canonical} in {found:?}");
    }

    let rename = |there: &str| if there == name { wrong } else { there }.to_owned();
    let sandbox = TinyModel::new("llama").renamed(rename).sandbox();
    let said = [
        format!("tensor '{wrong}': not a tensor of this family; was it {name}, which is missing?"),
        format!("tensor '{name}': missing tensor"),
    ];
    refused(&sandbox, &[&said[0], &said[1]]);
    sandbox.apr("validate m --shapes").fails(5, &[&said[0], &said[1]]);
    // Taken as it is, it keeps the name that nobody knows.
    sandbox.apr("import m -o m.apr --relaxed").ok().says(&[&said[0]]);
    let found = names(&sandbox, "m.apr");
    assert!(found.iter().any(|name| name == wrong), "{found:?}");
    assert!(!found.iter().any(|name| name == "layers.0.attn.q_proj.weight"), "{found:?}");
}

#[test]
fn qa_80_a_missing_tensor_is_refused() {
    for (family, name) in [
        ("bert", "encoder.layer.1.attention.self.key.bias"),
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("whisper", "model.encoder.conv2.bias"),
    ] {
        let sandbox = TinyModel::new(family).without(name).sandbox();
        let said = format!("tensor '{name}': missing tensor");
        refused(&sandbox, &[&said]);
        sandbox.apr("validate m").fails(5, &[&said]);
    }
}

#[test]
fn qa_87_names_lose_the_model_prefix() {
    for (family, expected) in [
        ("llama", "layers.0.mlp.gate_proj.weight"),
        ("whisper", "encoder.conv1.weight"),
        ("whisper", "encoder.positional_embedding"),
        ("whisper", "decoder.layers.2.encoder_attn.q_proj.bias"),
    ] {
        let sandbox = TinyModel::new(family).sandbox();
        sandbox.apr("import m -o m.apr").clean();
        let found = names(&sandbox, "m.apr");
        assert!(found.iter().any(|name| name == expected), "{expected} in {found:?}");
        assert!(found.iter().all(|name| !name.starts_with("model.")), "{found:?}");
        // The source has its framework's names, the import canonical ones: neither is wrong.
        for model in ["m", "m.apr"] {
            let run = sandbox.apr(&format!("lint {model}")).clean();
            assert!(!run.text().contains("Tensor Naming"), "{run}");
        }
    }
}

#[test]
fn qa_87_both_forms_of_bert_become_the_same_names() {
    let bare = TinyModel::new("bert");
    let sandbox = bare.clone().renamed(|name| format!("bert.{name}")).sandbox();
    sandbox.apr("import m -o m.apr").clean().says(&["39 tensors renamed"]);
    assert_eq!(names(&sandbox, "m.apr"), bare.names());
    // Gamma and beta are what TensorFlow calls them.
    let old =
        |name: &str| name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta");
    let sandbox = bare.clone().renamed(old).sandbox();
    sandbox.apr("import m -o m.apr").clean().says(&["10 tensors renamed"]);
    let mut found = names(&sandbox, "m.apr");
    found.sort_unstable();
    assert_eq!(found, bare.names());
}

#[test]
fn qa_88_a_transposed_weight_is_refused() {
    let name = "encoder.layer.0.intermediate.dense.weight";
    let said = "expected [88, 32] ([intermediate, hidden]), found [32, 88]";
    assert_misshapen("bert", |model| model.transposed(name), name, said);
    let name = "model.layers.1.self_attn.k_proj.weight";
    let said = "expected [16, 32] ([kv_heads * head_dim, hidden]), found [32, 16]";
    assert_misshapen("llama", |model| model.transposed(name), name, said);
}

#[test]
fn qa_88_a_transposed_view_of_a_checkpoint_is_written_row_by_row() {
    // 4 rows of 6 numbers that count up, seen as 6 rows of 4, beside the same storage as it lies.
    let file = locate::workspace().join("crates/formats/apr-pytorch/tests/golden/strided.pt");
    let sandbox = Sandbox::new().with("m.pt", std::fs::read(file).expect("a fixture"));
    sandbox.apr("import m.pt -o m.apr").ok().says(&["conversions write separate copies"]);
    let report = sandbox.apr("tensors m.apr --json").clean().json();
    let expected = |name: &str| -> (Value, Vec<f32>) {
        match name {
            "transposed" => {
                (json!([6, 4]), (0_u8..24).map(|at| f32::from(at / 4 + at % 4 * 6)).collect())
            }
            _ => (json!([4, 6]), (0_u8..24).map(f32::from).collect()),
        }
    };
    for name in ["transposed", "flat"] {
        let (shape, values) = expected(name);
        let tensors = report["tensors"].as_array().expect("a list");
        let tensor = tensors.iter().find(|tensor| tensor["name"] == name).expect("it was imported");
        assert_eq!(tensor["shape"], shape, "{name}");
        let offset = tensor["offset"]
            .as_u64()
            .and_then(|offset| usize::try_from(offset).ok())
            .expect("a place");
        assert_eq!(sandbox.read("m.apr")[offset..offset + 96], f32s(&values), "{name}");
    }
}

#[test]
fn qa_32_a_layer_that_the_configuration_does_not_have_is_refused() {
    let sandbox = TinyModel::new("llama").configured("num_hidden_layers", 1).sandbox();
    let missing = "no layer 1: the configuration has 1, numbered from 0";
    refused(&sandbox, &["tensor 'model.layers.1.self_attn.q_proj.weight'", missing]);
    sandbox.apr("validate m --shapes").fails(5, &[missing]);

    let stray = |name: &str| name.replace("layers.0.self_attn.q_proj", "layers.7.self_attn.q_proj");
    let sandbox = TinyModel::new("llama").renamed(stray).sandbox();
    refused(
        &sandbox,
        &["tensor 'model.layers.7.self_attn.q_proj.weight'", "no layer 7", "missing tensor"],
    );
}

#[test]
fn qa_48_what_an_import_adds_is_no_stranger_in_the_model() {
    let sandbox = TinyModel::new("whisper").sandbox();
    let filters = [[0.125; 9]; 10];
    let preprocessor = serde_json::json!({
        "feature_size": 10, "n_fft": 16, "hop_length": 8, "sampling_rate": 16000,
        "mel_filters": filters,
    });
    sandbox.write("m/preprocessor_config.json", preprocessor.to_string());
    sandbox.apr("import m -o m.apr").ok();
    sandbox.apr("tensors m.apr").clean().says(&["audio.mel_filterbank"]);
    sandbox.apr("validate m.apr").ok().says(&["\nVALID"]);
    sandbox.apr("lint m.apr").ok();
    sandbox.apr("convert m.apr -o again.apr").clean();
    sandbox.apr("diff m m.apr --exit-code").ok().says(&["SAME"]);
    sandbox.apr("inspect m.apr --filters").clean().says(&[
        "Mel filterbank",
        "10 mels of 9 frequencies",
        "16000",
    ]);
    sandbox.apr("export m.apr -o back").ok();
    assert_eq!(sandbox.read("back/model.safetensors"), sandbox.read("m/model.safetensors"));
}

#[test]
fn qa_48_a_filterbank_of_another_number_of_mels_fails() {
    let sandbox = TinyModel::new("whisper").sandbox();
    let preprocessor = |mels: usize| {
        serde_json::json!({
            "feature_size": mels, "n_fft": 16, "hop_length": 8, "sampling_rate": 16000,
            "mel_filters": vec![[0.125; 9]; mels],
        })
    };
    sandbox.write("m/preprocessor_config.json", preprocessor(12).to_string());
    let what = "the preprocessor has 12 mel filters, but the configuration's num_mel_bins is 10";
    refused(&sandbox, &[what]);
    sandbox.apr("validate m").fails(5, &[what, "INVALID"]);
    sandbox.apr("validate m --shapes").fails(5, &[what]);
    sandbox.apr("lint m").says(&[what]);
    // Whoever lets it pass has it in the file.
    sandbox.apr("import m -o m.apr --relaxed").ok();
    sandbox.apr("validate m.apr").fails(5, &[what, "INVALID"]);
    sandbox.apr("lint m.apr").says(&[what]);
    sandbox.write("m/preprocessor_config.json", preprocessor(10).to_string());
    sandbox.apr("validate m").ok().says(&["\nVALID"]);
}
