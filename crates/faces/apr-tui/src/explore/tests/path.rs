//! From tensors to boxes of the graph, and back.

use apr_registry::{CheckpointReader, OpenOptions};
use apr_testkit::locate::{fixture, shared_data};

use super::{drawn, press, tiny_llama, with_screen};
use crate::explore::View;

/// Asserts that each tensor leads to its box, and that the box leads to tensors including this one.
fn assert_there_and_back(reader: &dyn CheckpointReader) {
    with_screen(&[reader], |screen| {
        screen.settle();
        for tensor in 0..reader.tensors().len() {
            let name = &reader.tensors()[tensor].name;
            press(screen, "t\u{1b}");
            screen.choose(tensor);
            press(screen, "u");
            assert_eq!(screen.view, View::Graph, "{name}");
            let text = drawn(screen, (100, 30));
            assert!(text.contains(" ◆ ━"), "{name} marks no box:\n{text}");
            press(screen, "u");
            assert_eq!(screen.view, View::Tensors, "{name}: {:?}", screen.message);
            let listed = (0..screen.order.len()).filter_map(|row| screen.order.tensor(row));
            let listed: Vec<usize> = listed.collect();
            assert!(listed.contains(&tensor), "{name} is not in {listed:?}");
        }
    });
}

#[test]
fn each_tensor_leads_to_a_box_that_leads_back() {
    assert_there_and_back(tiny_llama().reader());
}

#[test]
fn tensors_of_other_formats_lead_to_boxes_too() {
    let gguf = shared_data("derived/stories260K_Q8_0.gguf");
    // Its names begin with slashes.
    let onnx = shared_data("onnx/snakers4_silero-vad__silero_vad_16k_op15.onnx");
    for path in [fixture("run/tiny-t5")].into_iter().chain(gguf).chain(onnx) {
        let model = apr::Model::open(path).expect("the model");
        assert_there_and_back(model.reader());
    }
}

#[test]
fn boxes_around_the_path_are_marked_and_n_goes_on() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        press(screen, "/layers.1.mlp.up\n");
        press(screen, "u");
        let text = drawn(screen, (80, 24));
        assert!(text.contains("model › layers.0-1 › mlp") && text.contains("━ up ◆ ━"), "{text}");
        assert!(text.contains("◆ model.layers.1.mlp.up_proj.weight: 1 use"), "{text}");
        press(screen, "\u{1b}\u{1b}");
        let text = drawn(screen, (80, 24));
        assert!(text.contains("layers.0-1 (×2) ▸ ◆"), "{text}");
        press(screen, "kkn");
        assert!(drawn(screen, (80, 24)).contains("━ up ◆ ━"));
        press(screen, "\u{1b}\u{1b}\u{1b}");
        assert!(!drawn(screen, (80, 24)).contains('◆'));
        press(screen, "n");
        assert!(drawn(screen, (80, 24)).contains("no tensor is marked"));
        press(screen, "u");
        assert!(drawn(screen, (80, 24)).contains("18 of 21 tensors"));
    });
}

#[test]
fn a_graph_without_the_tensor_reports_that() {
    let bytes = apr_testkit::onnx::cyclic();
    let reader = apr_registry::open(bytes, "cyclic.onnx", OpenOptions::default()).expect("a model");
    with_screen(&[&*reader], |screen| {
        screen.settle();
        press(screen, "gu");
        assert!(drawn(screen, (80, 24)).contains("does not read tensors"));
    });
}
