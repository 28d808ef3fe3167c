//! Arrays that NumPy wrote (`fixtures/numpy`), by their bytes as NumPy sees them; broken ones are errors.

use std::path::PathBuf;

use apr_core::{CheckpointReader, Code, Limits, Result};
use apr_numpy::NumpyReader;
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::Value;
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn fixture(folder: &str, name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(folder).join(name);
    std::fs::read(&path).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<NumpyReader> {
    apr_numpy::open(file, "a.npy", &Limits::default())
}

fn bytes_of(reader: &NumpyReader, tensor: usize, piece: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("a possible length");
    let mut bytes = vec![0; usize::try_from(len).expect("a small array")];
    let mut offset = 0;
    for chunk in bytes.chunks_mut(piece) {
        reader.read_tensor(tensor, offset, chunk).expect("readable");
        offset += chunk.len() as u64;
    }
    bytes
}

#[test]
fn every_array_has_the_bytes_that_numpy_gives_by_rows() {
    let expected: Value = serde_json::from_slice(&fixture("numpy", "expected.json")).expect("JSON");
    for (name, arrays) in expected.as_object().expect("an object") {
        let reader = open(fixture("numpy", name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(reader.tensors().len(), arrays.as_object().expect("an object").len(), "{name}");
        for (at, info) in reader.tensors().iter().enumerate() {
            let expected = &arrays[&info.name];
            let shape: Vec<u64> = serde_json::from_value(expected["shape"].clone()).expect("sizes");
            assert_eq!(info.shape.dims(), shape, "{name}: {}", info.name);
            for piece in [1, 3, 8, 100, 1 << 20] {
                let digest: String =
                    Sha256::digest(bytes_of(&reader, at, piece)).iter().map(|b| format!("{b:02x}")).collect();
                assert_eq!(expected["sha256"], digest, "{name}: {} by {piece}", info.name);
            }
        }
    }
}

#[test]
fn what_holds_no_numbers_is_left_out_or_refused_by_name() {
    let reader = open(fixture("numpy", "mixed.npz")).expect("one array is read");
    assert_eq!(reader.left_out(), ["text.npy"]);
    assert!(reader.warnings()[0].contains("dtype '<U1'"), "{:?}", reader.warnings());
    let error = open(fixture("scan", "evil.npy")).expect_err("objects");
    assert!(error.code() == Code::Format && error.message().contains("array of objects"), "{error}");
    let error = open(fixture("scan", "evil_deflated.npz")).expect_err("objects alone");
    assert!(error.code() == Code::Format && error.tensor() == Some("b"), "{error}");
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    let files = [fixture("numpy", "f4_F.npy"), fixture("scan", "floats.npz"), fixture("scan", "floats_deflated.npz")];
    for file in files {
        let broken = corrupt::truncations(&file).step_by(3).chain(corrupt::bit_flips(&file, 0..file.len()).step_by(3));
        for broken in broken {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(broken) {
                    // Damaged elements are met where they are read.
                    let _ = read_everything(&reader);
                }
            });
            assert!(peak < 16 << 20, "{peak}");
        }
    }
    let huge = String::from_utf8_lossy(&fixture("scan", "floats.npy")).contains("(2, 3)");
    assert!(huge, "the shape to replace");
    let mut file = fixture("scan", "floats.npy");
    let at = file.windows(6).position(|text| text == b"(2, 3)").expect("it is there");
    file[at..at + 6].copy_from_slice(b"(9**9)");
    assert_eq!(open(file.clone()).expect_err("no number").code(), Code::Format);
    file[at..at + 6].copy_from_slice(b"(9999)");
    assert_eq!(open(file).expect_err("too long").code(), Code::Corrupt);
}
