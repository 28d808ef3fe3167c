//! Points 28, 29, 30, 35, 37 and 89 of `docs/qa.md`: values against those of a healthy model of the
//! family.

use serde_json::json;

use crate::families::{TinyModel, refused};
use crate::support::Sandbox;

/// A layer norm of each family.
const NORMS: [(&str, &str); 3] = [
    ("bert", "encoder.layer.0.output.LayerNorm"),
    ("llama", "model.layers.1.input_layernorm"),
    ("whisper", "model.encoder.layer_norm"),
];

/// A figure of one tensor, as `apr tensors --stats` reports it.
#[track_caller]
fn figure(sandbox: &Sandbox, model: &str, tensor: &str, figure: &str) -> f64 {
    let run = sandbox.apr(&format!("tensors {model} --stats --filter {tensor} --json")).ok();
    run.json()["tensors"][0]["stats"][figure]
        .as_f64()
        .unwrap_or_else(|| panic!("no {figure}: {run}"))
}

/// Asserts that validation of the folder `m` and of its import gives a warning, which only
/// `--strict` treats as an error.
#[track_caller]
fn assert_odd(sandbox: &Sandbox, tensor: &str, canonical: &str, what: &str) {
    let run = sandbox.apr("import m -o m.apr").ok();
    let run = run.says(&[&format!("tensor '{tensor}': {what}"), "outside the expected"]);
    assert_eq!(run.to_string().matches("outside the expected").count(), 1, "{run}");
    for (model, file, name) in [("m", "model.safetensors: ", tensor), ("m.apr", "", canonical)] {
        for line in [format!("validate {model}"), format!("validate {model} --physics")] {
            sandbox
                .apr(&line)
                .ok()
                .says(&[&format!("warning: {file}tensor '{name}': {what}"), "\nVALID"]);
            sandbox.apr(&format!("{line} --strict")).fails(5, &["INVALID"]);
        }
        sandbox.apr(&format!("validate {model} --nan-check --strict")).clean();
    }
}

#[test]
fn qa_28_a_gamma_near_one_is_healthy_and_one_of_eleven_is_refused() {
    for (family, norm) in NORMS {
        let gamma = format!("{norm}.weight");
        let sandbox = TinyModel::new(family).sandbox();
        let mean = figure(&sandbox, "m", &gamma, "mean");
        assert!((0.5..=3.0).contains(&mean), "{gamma}: {mean}");
        sandbox.apr("import m -o m.apr").clean().says(&["tensors valid"]);
        sandbox.apr("validate m.apr --strict").clean();

        let sandbox = TinyModel::new(family).map(&gamma, |value| value + 10.0).sandbox();
        let mean = figure(&sandbox, "m", &gamma, "mean");
        assert!((10.5..=11.5).contains(&mean), "{gamma}: {mean}");
        refused(&sandbox, &["the mean of this norm weight (gamma) is 1", "outside the expected"]);
        for line in ["validate m", "validate m --physics"] {
            let said = format!(
                "error: model.safetensors: tensor '{gamma}': the mean of this norm weight (gamma) \
                 is 1"
            );
            sandbox.apr(line).fails(5, &[&said, "INVALID"]);
        }
    }
}

#[test]
fn qa_29_a_beta_near_zero_is_healthy_and_one_of_five_is_refused() {
    // The norms of LLaMA have no beta.
    for (family, norm) in [NORMS[0], NORMS[2]] {
        let beta = format!("{norm}.bias");
        let sandbox = TinyModel::new(family).sandbox();
        let mean = figure(&sandbox, "m", &beta, "mean");
        assert!((-0.5..=0.5).contains(&mean), "{beta}: {mean}");
        sandbox.apr("validate m --physics --strict").clean();

        let sandbox = TinyModel::new(family).map(&beta, |value| value + 5.0).sandbox();
        assert!((figure(&sandbox, "m", &beta, "mean") - 5.0).abs() < 1e-6);
        refused(&sandbox, &["the mean of this norm bias (beta) is 5, ", "outside the expected"]);
        let said = format!(
            "error: model.safetensors: tensor '{beta}': the mean of this norm bias (beta) is 5, "
        );
        sandbox.apr("validate m --physics").fails(5, &[&said, "INVALID"]);
    }
}

#[test]
fn qa_30_an_embedding_with_a_deviation_of_one_warns() {
    let embeddings = [
        ("bert", "embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"),
        ("llama", "model.embed_tokens.weight", "token_embedding"),
        ("whisper", "model.decoder.embed_tokens.weight", "decoder.token_embedding"),
    ];
    for (family, name, canonical) in embeddings {
        let sandbox = TinyModel::new(family).sandbox();
        let std = figure(&sandbox, "m", name, "std");
        assert!((0.02..=0.05).contains(&std), "{name}: {std}");
        sandbox.apr("validate m --strict").clean();

        let sandbox = TinyModel::new(family).map(name, |value| 35.0 * value).sandbox();
        let std = figure(&sandbox, "m", name, "std");
        assert!((0.9..=1.1).contains(&std), "{name}: {std}");
        assert_odd(&sandbox, name, canonical, "the standard deviation of this embedding is ");
    }
}

#[test]
fn qa_35_a_linear_weight_with_a_mean_of_one_warns() {
    let weights = [
        (
            "bert",
            "encoder.layer.1.attention.self.query.weight",
            "encoder.layer.1.attention.self.query.weight",
            "linear weight",
        ),
        (
            "llama",
            "model.layers.0.self_attn.q_proj.weight",
            "layers.0.attn.q_proj.weight",
            "linear weight",
        ),
        (
            "whisper",
            "model.decoder.layers.1.fc1.weight",
            "decoder.layers.1.fc1.weight",
            "linear weight",
        ),
        ("whisper", "model.encoder.conv1.weight", "encoder.conv1.weight", "convolution kernel"),
    ];
    for (family, name, canonical, kind) in weights {
        let sandbox = TinyModel::new(family).sandbox();
        assert!(figure(&sandbox, "m", name, "mean").abs() < 0.01, "{name}");
        sandbox.apr("validate m --strict").clean();

        let sandbox = TinyModel::new(family).map(name, |value| value + 1.0).sandbox();
        assert_odd(&sandbox, name, canonical, &format!("the mean of this {kind} is "));
    }
}

#[test]
fn qa_35_a_projection_a_hundred_times_too_wide_or_a_millionth_warns() {
    let weights = [
        (
            "bert",
            "encoder.layer.1.attention.self.query.weight",
            "encoder.layer.1.attention.self.query.weight",
        ),
        ("llama", "model.layers.0.self_attn.q_proj.weight", "layers.0.attn.q_proj.weight"),
        ("whisper", "model.decoder.layers.1.fc1.weight", "decoder.layers.1.fc1.weight"),
    ];
    for (family, name, canonical) in weights {
        for factor in [100.0, 1e-6] {
            let sandbox = TinyModel::new(family).map(name, |value| factor * value).sandbox();
            assert_odd(
                &sandbox,
                name,
                canonical,
                "the standard deviation of this linear weight is ",
            );
            let run = sandbox.apr("convert m -o c.safetensors").ok();
            let run = run.says(&["the standard deviation of this linear weight"]);
            assert_eq!(run.to_string().matches("outside the expected").count(), 1, "{run}");
        }
    }
    // Where no family is known, the names of the specification speak.
    let name = "model.layers.0.self_attn.q_proj.weight";
    let strange = TinyModel::new("llama").configured("model_type", "granite");
    let sandbox = strange.map(name, |value| 100.0 * value).sandbox();
    sandbox.apr("validate m --physics").ok().says(&[&format!("'{name}': the standard deviation")]);
}

/// The fixture was trained by another program, and has no anomalies.
#[test]
fn qa_35_a_trained_model_has_no_odd_deviation() {
    let sandbox = Sandbox::new();
    for name in ["config.json", "model.safetensors"] {
        let bytes = std::fs::read(apr_testkit::locate::fixture("tiny-llama").join(name))
            .expect("the fixture is there");
        sandbox.write(&format!("llama/{name}"), bytes);
    }
    sandbox.apr("validate llama --strict").clean();
}

/// Returns the preprocessor configuration of a Whisper model: ten mel filters of nine bins, one of
/// them with this weight.
fn preprocessor(weight: f64) -> String {
    let mut filters = vec![vec![0.125; 9]; 10];
    filters[3][2] = weight;
    json!({
        "feature_size": 10, "n_fft": 16, "hop_length": 8, "sampling_rate": 16000,
        "mel_filters": filters,
    })
    .to_string()
}

#[test]
fn qa_37_a_mel_filterbank_with_a_negative_value_warns() {
    let sandbox =
        TinyModel::new("whisper").sandbox().with("m/preprocessor_config.json", preprocessor(0.5));
    sandbox.apr("import m -o m.apr").clean().says(&["114 tensors valid"]);
    sandbox.apr("validate m.apr --physics --strict").clean();

    sandbox.write("m/preprocessor_config.json", preprocessor(-0.25));
    let run = sandbox.apr("import m -o m.apr -f").ok();
    assert!(
        run.stderr
            .contains("warning: preprocessor_config.json: its mel_filters have negative values"),
        "{run}"
    );
    let said = "negative values in a filterbank, down to -0.25";
    run.says(&[&format!("warning: tensor 'audio.mel_filterbank': {said}")]);
    let run = sandbox.apr("validate m.apr --physics").ok();
    run.says(&[&format!("warning: tensor 'audio.mel_filterbank': {said}")]);
    sandbox.apr("validate m.apr --physics --strict").fails(5, &[said]);
}

#[test]
fn qa_89_a_gamma_scaled_by_eleven_stops_the_import_and_passes_when_it_is_scaled_back() {
    for (family, norm) in NORMS {
        let gamma = format!("{norm}.weight");
        let scaled = TinyModel::new(family).map(&gamma, |value| 11.0 * value);
        refused(&scaled.sandbox(), &["the mean of this norm weight (gamma) is 1"]);
        let sandbox = scaled.map(&gamma, |value| value / 11.0).sandbox();
        sandbox.apr("import m -o m.apr").clean().says(&["tensors valid"]);
    }
}

#[test]
fn qa_89_a_gamma_that_is_stored_without_its_one_is_what_gemma_has_and_whisper_has_not() {
    let sandbox = TinyModel::new("gemma").sandbox();
    assert!(figure(&sandbox, "m", "model.norm.weight", "mean").abs() < 0.05);
    sandbox.apr("import m -o m.apr").clean().says(&["Gemma family", "20 tensors valid"]);
    sandbox.apr("validate m.apr --strict").clean();

    let sandbox = TinyModel::new("whisper")
        .map("model.encoder.layer_norm.weight", |gamma| gamma - 1.0)
        .sandbox();
    let (name, canonical) = ("model.encoder.layer_norm.weight", "encoder.layer_norm.weight");
    assert_odd(&sandbox, name, canonical, "the mean of this norm weight (gamma) is ");
}

/// Trained norms have means far outside of the usual range (Whisper tiny.en 11, Gemma 3 over 300),
/// and values that differ: only what no training makes is refused.
#[test]
fn a_trained_norm_outside_the_usual_range_warns() {
    for (family, norm) in NORMS {
        let gamma = format!("{norm}.weight");
        let mut sign = 1.0;
        let spread = move |value: f32| {
            sign = -sign;
            value + 40.0 + 5.0 * sign
        };
        let sandbox = TinyModel::new(family).map(&gamma, spread).sandbox();
        let mean = figure(&sandbox, "m", &gamma, "mean");
        assert!((40.5..=41.5).contains(&mean), "{gamma}: {mean}");
        let run = sandbox.apr("import m -o m.apr").ok();
        run.says(&[
            "1 warning",
            "the mean of this norm weight (gamma) is 4",
            "outside the expected",
        ]);
        sandbox.apr("validate m --strict").fails(5, &["outside the expected", "INVALID"]);
    }
}

#[test]
fn qa_28_a_beta_in_the_place_of_its_gamma_is_refused() {
    let swapped = |name: &str| match name.strip_prefix("encoder.layer.1.output.LayerNorm.") {
        Some("weight") => "encoder.layer.1.output.LayerNorm.bias".to_owned(),
        Some("bias") => "encoder.layer.1.output.LayerNorm.weight".to_owned(),
        _ => name.to_owned(),
    };
    let sandbox = TinyModel::new("bert").renamed(swapped).sandbox();
    sandbox.apr("import m -o m.apr").fails(
        5,
        &["encoder.layer.1.output.LayerNorm.", "outside the expected", "nothing was written"],
    );
}

/// Values of a norm with `times` their mean.
fn spread(times: f32) -> impl FnMut(f32) -> f32 + Clone {
    let mut sign = times / 8.0;
    move |value: f32| {
        sign = -sign;
        times * value + sign
    }
}

/// Returns a model of five layers whose norms are halved, except for the norm of the layer in the
/// middle.
fn halved_beside(norm: &str) -> TinyModel {
    assert_eq!(norm, "model.layers.2.input_layernorm.weight");
    [0, 1, 3, 4].iter().fold(TinyModel::new("smollm3"), |model, layer| {
        let other = format!("model.layers.{layer}.input_layernorm.weight");
        model.map(&other, |value| 0.5 * value)
    })
}

#[test]
fn import_and_convert_give_the_same_warning_about_an_outlier_norm_as_validate() {
    let norm = "model.layers.2.input_layernorm.weight";
    let sandbox = halved_beside(norm).map(norm, spread(6.0)).sandbox();
    let report = sandbox.apr("validate m --json").ok().json();
    let findings = report["findings"].as_array().expect("a list");
    let [finding] = &findings[..] else { panic!("{report}") };
    let message = finding["message"].as_str().expect("a message");

    let jobs = [
        "convert m -o c.apr",
        "convert m --format safetensors -o c",
        "import m -o i.apr",
        "convert m -o c.gguf",
    ];
    for line in jobs {
        let report = sandbox.apr(&format!("{line} --json")).ok().json();
        let odd = report["validation"]["warnings"].as_array().expect("a list");
        assert_eq!(odd.len(), 1, "{line}: {odd:?}");
        assert_eq!((&odd[0]["message"], &odd[0]["what"]), (&json!(message), &json!("siblings")));
        let tensor = if line.ends_with("gguf") { "blk.2.attn_norm.weight" } else { norm };
        assert_eq!(odd[0]["tensor"], tensor, "{line}");
        sandbox.apr(&format!("{line} -f")).ok().says(&["1 warning", message]);
    }

    // Each part sees some of the layers.
    sandbox.apr("plan --parts 3 -o plan.json convert m -o parts.apr").ok();
    for part in 0..3 {
        let run = sandbox.apr(&format!("run-part plan.json {part}")).ok();
        assert!(!run.text().contains("warning"), "{run}");
    }
    let report = sandbox.apr("finish plan.json --json").ok().json();
    assert_eq!(report["odd"][0]["message"], message, "{report}");

    sandbox.apr("convert m -o c.apr -f --relaxed").ok().says(&["1 warning", message]);
    let healthy = halved_beside(norm).map(norm, spread(4.0)).sandbox();
    let run = healthy.apr("convert m -o c.apr").ok();
    assert!(!run.text().contains("warning"), "{run}");
}

/// Six is a gain that trained norms can have. If all other layers have a gain of a half, only those
/// layers show the error.
#[test]
fn a_norm_far_above_the_other_layers_warns_in_one_file_shards_and_parts() {
    let norm = "model.layers.2.input_layernorm.weight";
    let model = halved_beside(norm);
    model.clone().map(norm, spread(4.0)).sandbox().apr("validate m --strict").clean();
    let sandbox = model.map(norm, spread(6.0)).sandbox();
    let said = "the mean of this norm weight (gamma) is 5.9";
    let beside = "times the median of this norm in all layers";
    for line in ["validate m", "validate m --physics"] {
        let named = format!("warning: model.safetensors: tensor '{norm}': {said}");
        let run = sandbox.apr(line).ok().says(&[&named, beside, "(4 siblings)", "\nVALID"]);
        assert!(!run.text().contains("outside the expected"), "{run}");
    }
    sandbox.apr("validate m --strict").fails(5, &[beside, "INVALID"]);
    sandbox.apr("validate m --nan-check --strict").clean();
    sandbox.apr("convert m --analyze-source").ok().says(&["layers.2", beside]);

    sandbox.apr("convert m -o cut.apr --shard-size 20000").ok();
    for (model, parts) in [("m", 3), ("cut.apr", 3)] {
        let whole = sandbox.apr(&format!("validate {model}")).ok();
        assert_eq!(whole.text().matches(beside).count(), 1, "{whole}");
        sandbox.apr(&format!("plan --parts {parts} -o plan.json -f validate {model}")).ok();
        for part in 0..parts {
            sandbox.apr(&format!("run-part plan.json {part}")).ok();
        }
        let finished = sandbox.apr("finish plan.json").ok();
        assert_eq!(finished.to_string(), whole.to_string(), "{model}");
    }
}
