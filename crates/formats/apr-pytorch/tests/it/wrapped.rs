//! Checkpoints of training scripts: `fixtures/torch/wrapped.py`.

use serde_json::Value;

use super::today::fixture;
use super::*;

/// Names and values of all tensors.
fn tensors(reader: &Table) -> Vec<(String, Vec<f32>)> {
    let values = |at: usize| {
        let bytes = bytes_of(reader, at, 1000);
        let (values, _) = bytes.as_chunks::<4>();
        values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let infos = reader.tensors().iter().enumerate();
    infos.map(|(at, info)| (info.name.clone(), values(at))).collect()
}

/// Returns the tensors that the script wrote into a file.
fn expected(name: &str) -> Vec<(String, Vec<f32>)> {
    let expected: Value = serde_json::from_slice(&fixture("wrapped.json")).expect("JSON");
    let values = |value: &Value| serde_json::from_value(value.clone()).expect("numbers");
    let file = expected[name].as_object().expect("an object").iter();
    let mut file: Vec<_> = file.map(|(name, value)| (name.clone(), values(value))).collect();
    file.sort_by(|(one, _), (other, _)| one.cmp(other));
    file
}

#[track_caller]
fn assert_holds(name: &str) -> Table {
    let reader = open(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut found = tensors(&reader);
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert_eq!(found, expected(name), "{name}");
    reader
}

#[test]
fn weights_beside_an_optimizer_have_their_own_names_in_both_containers() {
    for name in ["wrapped.pt", "wrapped_legacy.pt"] {
        let reader = assert_holds(name);
        assert_eq!(reader.left_out(), ["optimizer_state_dict (6 tensors)"], "{name}");
        assert_eq!(reader.container().header_fields()["kind"], "training checkpoint", "{name}");
        assert_eq!(reader.warnings(), [""; 0], "{name}");
        let values = reader.metadata().object("pytorch").expect("plain values");
        assert_eq!((&values["epoch"], &values["loss"]), (&3.into(), &0.5.into()), "{name}");
    }
}

#[test]
fn with_two_sets_of_weights_the_first_is_read_and_a_warning_lists_both() {
    let reader = assert_holds("two_sets.pt");
    assert_eq!(reader.left_out(), ["model (2 tensors)", "ema (2 tensors)"]);
    let [warning] = reader.warnings() else { panic!("{:?}", reader.warnings()) };
    assert!(warning.contains("under 'state_dict' and 'model'"), "{warning}");

    let others = OpenOptions { prefix: Some("model.".into()), ..OpenOptions::default() };
    let others = open_with(fixture("two_sets.pt"), &others).expect("a good file");
    assert_eq!(tensors(&others)[0].1[0], 2.0, "the prefix reads the other set");
}

#[test]
fn a_model_of_several_parts_keeps_the_names_of_its_parts() {
    let reader = assert_holds("parts.pt");
    assert_eq!(reader.left_out(), [""; 0]);
    assert!(reader.container().header_fields().get("kind").is_none());
}
