//! Models inside other files (`fixtures/wrapped`) have the tensors of the files inside.

use apr_registry::{CheckpointReader, Code, Limits, Result};
use apr_testkit::{corrupt, locate, read_everything};

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(locate::fixture(name)).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>, name: &str) -> Result<Box<dyn CheckpointReader>> {
    apr_registry::open(file, name, &Limits::default())
}

/// Compares all tensors, and checks that they are at the file positions that the reader reports.
fn compare(outer: &str, inner: &str) -> Box<dyn CheckpointReader> {
    let file = bytes(outer);
    let reader = open(file.clone(), outer).unwrap_or_else(|error| panic!("{outer}: {error}"));
    let expected = open(bytes(inner), inner).expect("the file inside");
    assert_eq!(reader.tensors(), expected.tensors());
    assert_eq!(reader.format(), expected.format());
    assert_eq!(reader.files()[0].len, file.len() as u64);
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let len = usize::try_from(info.byte_len().expect("a length")).expect("small");
        let (mut own, mut other) = (vec![0; len], vec![0; len]);
        reader.read_tensor(tensor, 0, &mut own).expect("readable");
        expected.read_tensor(tensor, 0, &mut other).expect("readable");
        assert_eq!(own, other, "{}", info.name);
        let range = reader.stored(tensor).range;
        let at = usize::try_from(range.offset).expect("small");
        assert_eq!(file[at..at + len], own, "{}", info.name);
    }
    reader
}

#[test]
fn a_nemo_archive_has_a_checkpoint_and_its_configuration() {
    let reader = compare("wrapped/small.nemo", "torch/lightning.ckpt");
    let names: Vec<&str> = reader.companions().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["0a1b_tokenizer.model", "model_config.yaml"]);
    assert_eq!(reader.read_companion(0).expect("a file"), b"words");
    assert!(reader.read_companion(2).is_err());
}

#[test]
fn a_llamafile_has_a_gguf_model() {
    let reader = compare("wrapped/small.llamafile", "quantize/imatrix.gguf");
    assert_eq!(reader.left_out(), ["the program around the model"]);
}

#[test]
fn a_missing_inner_model_is_an_error() {
    let error = |file: &[u8], name| open(file.to_vec(), name).map(drop).expect_err(name);
    let gzip = error(b"\x1f\x8b\x08\0\0\0\0\0", "a.nemo");
    assert!(gzip.code() == Code::Version && gzip.message().contains("gunzip"), "{gzip}");
    let program = error(b"MZqFpD='\n", "a.llamafile");
    assert_eq!(program.code(), Code::Corrupt, "{program}");
}

#[test]
fn broken_files_are_errors_or_readable() {
    for (name, step) in [("wrapped/small.nemo", 13), ("wrapped/small.llamafile", 5)] {
        let file = bytes(name);
        let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(step);
        for broken in corrupt::truncations(&file).step_by(step).chain(flips) {
            if let Ok(reader) = open(broken, name) {
                // Damaged weights are met where they are read.
                let _ = read_everything(&*reader);
            }
        }
    }
}
