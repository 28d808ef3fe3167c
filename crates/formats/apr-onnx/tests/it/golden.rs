//! Small models of the repository: every way of storing tensors, and broken copies of them.

use std::fs;

use apr_core::{CheckpointReader, Code, Limits};
use apr_onnx::open_as_stored;
use apr_testkit::{FolderInMemory, corrupt, locate, peak_memory, read_everything};

use crate::corpus::open;
use crate::listing::lines;
use crate::skeleton::rewritten;

const MODELS: [&str; 3] = ["kinds.onnx", "storages.onnx", "external/model.onnx"];

fn fixture(name: &str) -> Vec<u8> {
    fs::read(locate::fixture("onnx").join(name)).expect("a fixture")
}

/// The `.txt` beside each model is what the `onnx` package reads of it.
#[test]
fn every_storage_and_dtype_reads_as_the_onnx_package_reads_it() {
    for name in MODELS {
        let path = locate::fixture("onnx").join(name);
        let reader = open(&path, &Limits::default()).expect("a sound file");
        let expected = fixture(&name.replace(".onnx", ".txt"));
        let expected: Vec<_> = str::from_utf8(&expected).expect("text").lines().collect();
        assert_eq!(lines(&reader, &fixture(name)), expected, "{name}");
    }
}

#[test]
fn tensors_without_a_dtype_are_omitted_by_name_and_widening_gives_a_warning() {
    let reader =
        open(&locate::fixture("onnx/storages.onnx"), &Limits::default()).expect("a sound file");
    let expected = [
        "2 tensors of complex numbers of 128 bits are not read, the first is 'COMPLEX128_raw'",
        "1 tensor of text is not read, the first is 'STRING_typed'",
        "8 tensors of integers of 4 or 2 bits are read as integers of 8 bits, the first is \
         'UINT4_raw'",
        "it has operators of domains that apr does not know: com.example",
    ];
    assert_eq!(reader.warnings(), expected);
}

#[test]
fn tensors_that_share_their_bytes_are_tied() {
    let reader = open(&locate::fixture("onnx/external/model.onnx"), &Limits::default())
        .expect("a sound file");
    let tied = reader.metadata().object(apr_core::keys::TIED).expect("two share theirs");
    assert_eq!(serde_json::to_string(tied).expect("JSON"), r#"{"again":"a"}"#);
}

#[test]
fn small_models_come_back_byte_for_byte() {
    for name in MODELS.into_iter().chain(["outside/model.onnx"]) {
        let path = locate::fixture("onnx").join(name);
        let reader = open(&path, &Limits::default()).expect("a sound file");
        for (file, bytes) in rewritten(&reader, "model.onnx").files() {
            let original =
                if file == "model.onnx" { path.clone() } else { path.with_file_name(file) };
            assert!(*bytes == fs::read(original).expect("a fixture"), "{name}: {file}");
        }
    }
}

/// Opens a file and uses all of it.
fn use_all(file: Vec<u8>) {
    let folder = FolderInMemory([("model.onnx".to_owned(), file)].into());
    if let Ok(reader) = open_as_stored(&folder, "model.onnx", &Limits::default()) {
        // Damaged elements are met where they are read.
        let _ = read_everything(&reader);
        let _ = reader.graph();
        let _ =
            (0..reader.companions().len()).try_for_each(|at| reader.read_companion(at).map(drop));
    }
    let _ = apr_onnx::open_in(&folder, "model.onnx", &Limits::default());
}

#[test]
fn broken_copies_end_in_an_error_or_an_answer_within_bounded_memory() {
    let file = fixture("storages.onnx");
    let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(3);
    for broken in corrupt::truncations(&file).chain(flips) {
        let ((), peak) = peak_memory(|| use_all(broken));
        assert!(peak < 16 << 20, "{peak}");
    }
}

/// Checks that the skeleton contains the tensors that only the graph reads, even from other files.
///
/// None of them is read as zeros.
#[test]
fn the_skeleton_has_what_only_the_graph_reads() {
    let folder = apr_io::ModelFolder::open(locate::fixture("onnx/outside")).expect("a folder");
    let reader =
        apr_onnx::open_in(&folder, "model.onnx", &Limits::default()).expect("a sound file");
    let own = reader.graph().expect("a graph").expect("a graph");
    let restored = apr_onnx::skeleton::graph_of(&reader, &Limits::default());
    assert_eq!(restored.expect("a skeleton").expect("a graph").body, own.body);
}

#[test]
fn broken_skeletons_end_in_an_error_or_an_answer() {
    let reader = open(&locate::fixture("onnx/external/model.onnx"), &Limits::default())
        .expect("a sound file");
    let skeleton = reader.read_companion(0).expect("readable");
    let options = apr_onnx::skeleton::RestoreOptions::default();
    for broken in
        corrupt::truncations(&skeleton).chain(corrupt::bit_flips(&skeleton, 0..skeleton.len()))
    {
        let _ = apr_onnx::skeleton::restore(broken, reader.tensors(), &options, &Limits::default());
    }
    let cut = skeleton[..skeleton.len() - 1].to_vec();
    let error = apr_onnx::skeleton::restore(cut, reader.tensors(), &options, &Limits::default())
        .expect_err("cut off");
    assert_eq!(error.code(), Code::Corrupt);
}
