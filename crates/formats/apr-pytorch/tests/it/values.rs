//! Names, dtypes, shapes and bytes against torch's own.

use apr_core::keys;
use apr_testkit::{CountingSource, locate, peak_memory};
use serde_json::{Value, json};

use super::*;

fn read(name: &str) -> Option<Vec<u8>> {
    match name.split_once('/') {
        Some(("golden", file)) => Some(golden(file)),
        Some((_, file)) => locate::shared_data("pytorch")
            .map(|folder| std::fs::read(folder.join(file)).expect("listed")),
        None => None,
    }
}

fn options(name: &str) -> OpenOptions {
    let classes =
        if name == "golden/user_module.pt" { vec!["__main__.Block".into()] } else { Vec::new() };
    // Of training checkpoints, too, torch reads all.
    OpenOptions { classes, prefix: Some(String::new()) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tensor as `make.py` describes it.
fn describe(reader: &Table, tensor: usize, piece: usize) -> Value {
    let info = &reader.tensors()[tensor];
    let bytes = bytes_of(reader, tensor, piece);
    json!([info.name, {
        "dtype": info.dtype.name(), "shape": info.shape.dims(), "len": bytes.len(),
        "crc32": crc32fast::hash(&bytes), "first": hex(&bytes[..bytes.len().min(64)]),
    }])
}

#[test]
fn every_tensor_is_what_torch_reads() {
    let expected: Value = serde_json::from_slice(&golden("expected.json")).expect("valid JSON");
    for (name, expected) in expected.as_object().expect("an object") {
        let Some(file) = read(name) else { return };
        let reader = open_with(file.clone(), &options(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for piece in [1 << 20, 37, 8] {
            // Small pieces of large tensors take long and show nothing more.
            if piece < 1000 && file.len() > 40_000 {
                continue;
            }
            let tensors: Vec<_> =
                (0..reader.tensors().len()).map(|i| describe(&reader, i, piece)).collect();
            let mut tensors = Value::Array(tensors);
            let mut expected = expected.clone();
            if name == "golden/script.pt" {
                // TorchScript pickles attributes in the order of their slots, not of the state
                // dict.
                sort(&mut tensors);
                sort(&mut expected);
            }
            assert_eq!(tensors, expected, "{name} in pieces of {piece}");
        }
    }
}

fn sort(tensors: &mut Value) {
    tensors.as_array_mut().expect("a list").sort_by_key(|tensor| tensor[0].to_string());
}

#[test]
fn gathering_gives_the_same_bytes_whether_or_not_the_source_lends_slices() {
    for name in ["strided.pt", "wide.pt", "strided_legacy.pt"] {
        let file = golden(name);
        let lending = open(file.clone()).expect(name);
        let counting = apr_pytorch::open(CountingSource::new(file), "model.pt", &Limits::default())
            .expect(name);
        for tensor in 0..lending.tensors().len() {
            let whole = bytes_of(&lending, tensor, 1 << 20);
            for piece in [1, 7, 160, 1200, 1 << 20] {
                assert_eq!(
                    bytes_of(&counting, tensor, piece),
                    whole,
                    "{name} tensor {tensor} by {piece}"
                );
                assert_eq!(
                    bytes_of(&lending, tensor, piece),
                    whole,
                    "{name} tensor {tensor} by {piece}"
                );
            }
            if let Some(slice) = lending.tensor_slice(tensor) {
                assert_eq!(slice, whole);
            }
        }
    }
}

#[test]
fn every_shared_file_opens_or_is_refused_for_its_reason() {
    let Some(folder) = locate::shared_data("pytorch") else { return };
    for file in
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
    {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let bytes = std::fs::read(&file).expect("readable");
        let result = open(bytes);
        if name.ends_with("broken.pt") {
            assert_eq!(result.map(drop).expect_err("three letters").code(), Code::Format);
        } else {
            let reader = result.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!reader.tensors().is_empty(), "{name}");
            apr_testkit::read_everything(&reader).expect("readable");
        }
    }
}

#[test]
fn tar_files_hold_the_values_they_were_made_with() {
    let Some(folder) = locate::shared_data("pytorch") else { return };
    let file = std::fs::read(folder.join("tracel-ai_burn__tar_weight_bias.tar")).expect("readable");
    let reader = open(file).expect("a TAR checkpoint");
    let shapes: Vec<_> =
        reader.tensors().iter().map(|info| (info.name.as_str(), info.shape.dims())).collect();
    assert_eq!(shapes, [("weight", &[2, 3][..]), ("bias", &[2][..])]);
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    };
    assert_eq!(floats(&bytes_of(&reader, 0, 100)), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
    assert_eq!(floats(&bytes_of(&reader, 1, 100)), [0.01, 0.02]);
}

#[test]
fn tensors_that_are_one_are_tied_and_views_of_another_shape_are_not() {
    for name in ["tied.pt", "tied_legacy.pt"] {
        let reader = open(golden(name)).expect(name);
        assert_eq!(
            reader.metadata().get(keys::TIED),
            Some(&json!({"head.weight": "embed.weight"})),
            "{name}"
        );
        assert_eq!(reader.tensors().len(), 3);
    }
}

#[test]
fn plain_values_go_to_the_metadata_by_their_path() {
    let reader = open(golden("nested.pt")).expect("a checkpoint");
    let values = reader.metadata().object("pytorch").expect("values");
    let expected = [
        ("epoch", json!(3)),
        ("lr", json!(0.5)),
        ("note", json!("résumé")),
        ("best", json!("inf")),
        ("done", json!(true)),
        ("optimizer.param_groups.0.betas.1", json!(0.999)),
    ];
    for (path, value) in expected {
        assert_eq!(values.get(path), Some(&value), "{path}");
    }
    assert!(!values.contains_key("nothing"));
}

#[test]
fn a_prefix_selects_and_is_taken_off() {
    let options = OpenOptions { prefix: Some("model.".into()), ..OpenOptions::default() };
    let reader = open_with(golden("nested.pt"), &options).expect("a checkpoint");
    let names: Vec<_> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["module.a", "layers.0", "layers.1.b"]);
    assert!(
        reader.warnings().iter().any(|warning| warning.contains("1 tensors outside")),
        "{:?}",
        reader.warnings()
    );

    let deep =
        [("optimizer.state.0.", "exp_avg"), ("model.layers.1.", "b"), ("model.module.", "a")];
    for (prefix, name) in deep {
        let options = OpenOptions { prefix: Some(prefix.into()), ..OpenOptions::default() };
        let reader = open_with(golden("nested.pt"), &options).expect(prefix);
        let names: Vec<_> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, [name], "{prefix}");
    }

    let options = OpenOptions { prefix: Some("net.".into()), ..OpenOptions::default() };
    let error = open_with(golden("nested.pt"), &options).map(drop).expect_err("no such prefix");
    assert!(error.message().contains("'model.module.a'"), "{error}");
}

#[test]
fn unsupported_tensors_are_rejected_with_their_name_and_kind() {
    let cases = [
        ("sparse_twice.pt", "some.sparse", "several values for one element"),
        ("quantized_floats.pt", "q", "zero points are not integers"),
        ("complex128.pt", "z", "ComplexDoubleStorage"),
    ];
    for (name, tensor, kind) in cases {
        let error = refused(golden(name));
        assert_eq!((error.code(), error.tensor()), (Code::Version, Some(tensor)), "{error}");
        assert!(error.message().contains(kind), "{error}");
    }
}

#[test]
fn a_class_of_the_user_is_refused_unless_named() {
    let error = refused(golden("user_module.pt"));
    assert!(error.message().contains("__main__.Block") && error.offset().is_some(), "{error}");
    assert!(open_with(golden("user_module.pt"), &options("golden/user_module.pt")).is_ok());
}

#[test]
fn opening_reads_headers_and_holds_little() {
    let Some(folder) = locate::shared_data("pytorch") else { return };
    let file = std::fs::read(folder.join("tracel-ai_burn__mnist.pt")).expect("readable");
    let len = file.len();
    let source = CountingSource::new(file);
    let copy = source.clone();
    let (reader, peak) = peak_memory(|| apr_pytorch::open(copy, "mnist.pt", &Limits::default()));
    reader.expect("a checkpoint");
    assert!(source.bytes_read() < len as u64 / 10, "{} bytes read", source.bytes_read());
    assert!(peak < 1 << 19, "{peak} bytes held");
}
