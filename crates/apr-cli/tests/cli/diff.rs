//! `apr diff`: what is the same, what is not, and what is only called differently.

use apr::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use serde_json::json;

use crate::support::Sandbox;

fn f32s(name: &str, dims: &[u64], values: &[f32]) -> Apr2Entry {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Apr2Entry::new(name, DType::F32, dims, &bytes)
}

fn model(entries: impl IntoIterator<Item = Apr2Entry>) -> Vec<u8> {
    entries.into_iter().fold(Apr2Builder::new(), Apr2Builder::entry).build()
}

fn two_layers() -> [Apr2Entry; 2] {
    [f32s("a.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]), f32s("b.weight", &[3], &[0.5, 0.0, -0.5])]
}

#[test]
fn qa_56_a_model_is_wholly_like_itself_and_its_weights_are_not_read() {
    let sandbox = Sandbox::new().with("a.apr", model(two_layers()));
    sandbox.apr("diff a.apr a.apr --exit-code").clean().says(&["Similarity: 100%", "SAME", "2 of 2 tensors match"]);
    let report = sandbox.apr("diff a.apr a.apr --json").clean().json();
    assert_eq!((&report["same"], &report["bytes_read"]), (&json!(true), &json!(0)));
}

#[test]
fn qa_57_one_changed_value_is_found_and_named() {
    let changed = [f32s("a.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.25]), two_layers()[1].clone()];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("b.apr", model(changed));
    let run = sandbox.apr("diff a.apr b.apr").clean();
    let run = run.says(&["a.weight: DRIFT (delta = 0.2500", "Max delta 0.2500", "DIFFERENT", "1 of 2 tensors match"]);
    assert!(!run.text().contains("b.weight"), "{run}");
    sandbox.apr("diff a.apr b.apr --exit-code").fails(5, &["DIFFERENT"]);
    sandbox.apr("diff a.apr b.apr --exit-code --tolerance 0.25").clean().says(&["SAME"]);
    sandbox.apr("diff a.apr b.apr --exit-code --tensors b.*").clean().says(&["b.weight: MATCH (same bytes)", "SAME"]);
}

#[test]
fn qa_50_the_distance_is_the_euclidean_norm_of_the_difference() {
    let far = [f32s("a.weight", &[2, 2], &[4.0, 6.0, 3.0, 4.0]), two_layers()[1].clone()];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("b.apr", model(far));
    let report = sandbox.apr("diff a.apr b.apr --json").clean().json();
    assert_eq!((&report["l2"], &report["max_delta"]), (&json!(5.0), &json!(4.0)));
    // 1 - 5 / (sqrt(30) + sqrt(77)) of the four elements that were compared, and all of the three that are equal.
    let expected = 100.0 * (4.0 * (1.0 - 5.0 / (30_f64.sqrt() + 77_f64.sqrt())) + 3.0) / 7.0;
    let similarity = report["similarity"].as_f64().expect("a number");
    assert!((similarity - expected).abs() < 1e-9, "{similarity} is not {expected}");
}

#[test]
fn a_conversion_is_the_same_as_its_source_in_every_format() {
    let sandbox = Sandbox::new().with("a.apr", model(two_layers()));
    sandbox.apr("convert a.apr -o a.safetensors").ok();
    sandbox.apr("convert a.apr -o half.apr --precision fp16").ok();
    sandbox.apr("diff a.apr a.safetensors --exit-code").clean().says(&["Similarity: 100%", "SAME"]);
    sandbox
        .apr("diff a.safetensors half.apr --exit-code --tensors *")
        .clean()
        .says(&["MATCH (delta = 0, within 1e-6)"]);
}

#[test]
fn renamed_and_reshaped_tensors_are_found_by_their_bytes() {
    let other = [f32s("a.weight", &[4], &[1.0, 2.0, 3.0, 4.0]), f32s("second.weight", &[3], &[0.5, 0.0, -0.5])];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("b.apr", model(other));
    sandbox.apr("convert b.apr -o b.safetensors").ok();
    for right in ["b.apr", "b.safetensors"] {
        let run = sandbox.apr(&format!("diff a.apr {right} --exit-code"));
        run.fails(5, &["b.weight = second.weight: MATCH (same bytes)", "DIFFERENT"]);
    }
    sandbox.apr("diff a.apr b.apr").clean().says(&["a.weight: RESHAPED ([2, 2] to [4], same bytes)"]);
}

#[test]
fn a_mapping_pairs_what_is_called_differently() {
    let other = [f32s("x", &[2, 2], &[1.0, 2.0, 3.0, 5.0]), f32s("y", &[3], &[0.5, 0.0, -0.5])];
    let sandbox = Sandbox::new()
        .with("a.apr", model(two_layers()))
        .with("b.apr", model(other))
        .with("map.json", r#"{"a.weight": "x", "b.weight": "y"}"#)
        .with("wrong.json", r#"{"a.weight": "z"}"#);
    let run = sandbox.apr("diff a.apr b.apr --tensor-mapping map.json").clean();
    run.says(&["a.weight = x: DRIFT (delta = 1.0000", "1 of 2 tensors match"]);
    sandbox.apr("diff a.apr b.apr --tensor-mapping map.json --tolerance 1 --exit-code").clean();
    sandbox.apr("diff a.apr b.apr --tensor-mapping wrong.json").fails(4, &["E001", "'z'", "right model"]);
    sandbox.apr("diff a.apr b.apr --tensor-mapping absent.json").fails(3, &["absent.json"]);
    sandbox.apr("diff a.apr b.apr --tensor-mapping a.apr").fails(2, &["mapping"]);
}

#[test]
fn missing_tensors_shapes_and_not_a_number_are_told() {
    let other = [f32s("a.weight", &[2, 2], &[1.0, 2.0, 3.0, f32::NAN]), f32s("c.weight", &[2], &[1.0, 1.0])];
    let sandbox = Sandbox::new().with("a.apr", model(two_layers())).with("b.apr", model(other));
    let run = sandbox.apr("diff a.apr b.apr").clean();
    run.says(&[
        "a.weight: DRIFT (delta = inf",
        "only in the left model: b.weight",
        "only in the right model: c.weight",
    ]);
    let other = [f32s("a.weight", &[3], &[1.0, 2.0, 3.0]), two_layers()[1].clone()];
    sandbox.write("c.apr", model(other));
    sandbox.apr("diff a.apr c.apr").clean().says(&["a.weight: INCOMPARABLE (f32 [2, 2] and f32 [3]) !!!"]);
}

#[test]
fn vocabulary_and_metadata_changes_are_told() {
    let with = |vocab: &str| {
        let metadata = json!({ "apr_version": "2.0.0", "model_type": vocab, "architecture": {}, "vocab": vocab.chars().collect::<Vec<_>>() });
        two_layers().into_iter().fold(Apr2Builder::new().metadata(metadata.to_string()), Apr2Builder::entry).build()
    };
    let sandbox = Sandbox::new().with("a.apr", with("abc")).with("b.apr", with("bcde"));
    let run = sandbox.apr("diff a.apr b.apr --exit-code");
    run.fails(5, &["Vocab Changes: Added 2 tokens, Removed 1 token", r#"metadata: model_type: "abc" to "bcde""#]);
}
