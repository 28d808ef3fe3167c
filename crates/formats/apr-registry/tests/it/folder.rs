//! Folders with companions that are too large or broken, and formats that hold no weights alone.

use apr_registry::{CheckpointReader, Code, Limits, Metadata, PlanOptions, keys, open_folder};
use apr_testkit::FolderInMemory;
use apr_testkit::locate::fixture;

fn weights() -> Vec<u8> {
    let header = br#"{"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[5, 6, 7, 8]].concat()
}

fn folder(config: &[u8], tokenizer: &[u8]) -> FolderInMemory {
    FolderInMemory::from([
        ("config.json", config.to_vec()),
        ("model.safetensors", weights()),
        ("tokenizer.json", tokenizer.to_vec()),
    ])
}

#[test]
fn companions_that_are_too_large_together_are_left_out_by_name() {
    let mut limits = Limits::default();
    limits.max_companion = 100;
    let open = |tokenizer: usize| {
        open_folder(&folder(br#"{"model_type":"llama"}"#, &vec![b' '; tokenizer]), &limits)
            .expect("a model")
    };
    let fits = open(100 - 22);
    assert_eq!(fits.companions().len(), 2);
    assert!(fits.left_out().is_empty());
    let one_byte_more = open(100 - 21);
    assert_eq!(
        one_byte_more.companions().iter().map(|one| one.name.as_str()).collect::<Vec<_>>(),
        ["config.json"]
    );
    assert_eq!(one_byte_more.left_out(), ["tokenizer.json"]);
}

#[test]
fn a_broken_configuration_is_a_warning_and_one_with_a_bom_is_read() {
    let broken =
        open_folder(&folder(b"{", b"{}"), &Limits::default()).expect("the weights are sound");
    assert!(
        broken.warnings().iter().any(|warning| warning.contains("config.json")),
        "{:?}",
        broken.warnings()
    );
    assert_eq!(broken.metadata().text(keys::MODEL_TYPE), None);
    let marked = folder(b"\xef\xbb\xbf{\"model_type\":\"llama\"}", b"{}");
    let marked = open_folder(&marked, &Limits::default()).expect("a model");
    assert_eq!(marked.metadata().text(keys::MODEL_TYPE), Some("llama"));
}

#[test]
fn an_onnx_file_opens_from_memory_and_is_not_written_without_a_graph() {
    let file = std::fs::read(fixture("onnx/storages.onnx")).expect("the fixture");
    let reader = apr_registry::open(file, "storages.onnx", &Limits::default()).expect("a model");
    assert_eq!(*reader.format(), apr_registry::onnx::FORMAT);
    assert!(!reader.tensors().is_empty());
    let options = PlanOptions::new(&apr_registry::onnx::FORMAT, "model.onnx");
    let refused = apr_registry::plan(reader.tensors(), &Metadata::new(), Vec::new(), &options);
    let error = refused.map(drop).expect_err("nothing says what it computes");
    assert_eq!(error.code(), Code::Format);
    assert!(error.message().contains("needs a graph"), "{error}");
}
