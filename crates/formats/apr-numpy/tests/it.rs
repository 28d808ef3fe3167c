//! Arrays that NumPy wrote (`fixtures/numpy`), by their bytes as NumPy sees them; broken ones are
//! errors.

use std::path::PathBuf;

use apr_core::{CheckpointReader, Code, Limits, Result, Table};
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::Value;
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn fixture(folder: &str, name: &str) -> Vec<u8> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures").join(folder).join(name);
    std::fs::read(&path).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_numpy::open(file, "a.npy", &Limits::default())
}

fn bytes_of(reader: &Table, tensor: usize, piece: usize) -> Vec<u8> {
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
                let digest: String = Sha256::digest(bytes_of(&reader, at, piece))
                    .iter()
                    .map(|b| format!("{b:02x}"))
                    .collect();
                assert_eq!(expected["sha256"], digest, "{name}: {} by {piece}", info.name);
            }
        }
    }
}

/// The header states column-major order, but a single number has no columns.
#[test]
fn a_swapped_number_by_columns_is_read() {
    let mut header = b"{'descr': '>f4', 'fortran_order': True, 'shape': (), }".to_vec();
    header.resize(117, b' ');
    header.push(b'\n');
    let file = [b"\x93NUMPY\x01\0\x76\0", &header[..], &1.0_f32.to_be_bytes()].concat();
    let reader = open(file).expect("an array");
    assert_eq!(bytes_of(&reader, 0, 4), 1.0_f32.to_le_bytes());
}

#[test]
fn arrays_without_numbers_are_skipped_or_rejected_by_name() {
    let reader = open(fixture("numpy", "mixed.npz")).expect("one array is read");
    assert_eq!(reader.left_out(), ["text.npy"]);
    assert!(reader.warnings()[0].contains("dtype '<U1'"), "{:?}", reader.warnings());
    let error = open(fixture("scan", "evil.npy")).expect_err("objects");
    assert!(error.code() == Code::Format && error.message().contains("object arrays"), "{error}");
    let error = open(fixture("scan", "evil_deflated.npz")).expect_err("objects alone");
    assert!(error.code() == Code::Format && error.tensor() == Some("b"), "{error}");
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    let files = [
        fixture("numpy", "f4_F.npy"),
        fixture("scan", "floats.npz"),
        fixture("scan", "floats_deflated.npz"),
    ];
    for file in files {
        let broken = corrupt::truncations(&file)
            .step_by(3)
            .chain(corrupt::bit_flips(&file, 0..file.len()).step_by(3));
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

/// A tensor's bytes are borrowed if the file stores them unchanged.
#[test]
fn arrays_in_rows_are_borrowed_and_arrays_in_columns_are_not() {
    let file = fixture("numpy", "f4_C.npy");
    let reader = open(file.clone()).expect("an array");
    let lent = reader.tensor_slice(0).expect("its bytes are in a row");
    assert_eq!(lent, bytes_of(&reader, 0, 1 << 20));
    assert_eq!(lent, &file[file.len() - lent.len()..]);
    assert_eq!(reader.tensor_slice(1), None);
    assert_eq!(open(fixture("numpy", "f4_F.npy")).expect("an array").tensor_slice(0), None);
}

#[test]
fn reading_past_an_array_is_an_error_with_its_name_and_file() {
    let reader = open(fixture("numpy", "f4_C.npy")).expect("an array");
    let len = reader.tensors()[0].byte_len().expect("a possible length");
    for offset in [len - 3, len, u64::MAX] {
        let error = reader.read_tensor(0, offset, &mut [0; 4]).expect_err("there are fewer bytes");
        assert_eq!(
            (error.code(), error.tensor(), error.file()),
            (Code::Corrupt, Some("array"), Some("a.npy"))
        );
        assert!(error.message().contains(&format!("its {len} bytes")), "{error}");
    }
    let nameless =
        apr_numpy::open(fixture("numpy", "f4_C.npy"), "", &Limits::default()).expect("an array");
    assert_eq!(nameless.read_tensor(0, len, &mut [0]).expect_err("no byte is left").file(), None);
}

#[test]
fn archive_entries_that_are_not_arrays_are_skipped_by_name() {
    // Python's zipfile writes names the same way in both places of the archive.
    let mut file = fixture("scan", "floats.npz");
    let places: Vec<_> =
        (0..file.len() - 4).filter(|&at| file[at..].starts_with(b".npy")).collect();
    assert!(places.len() >= 4, "at least two entries");
    let last = places[places.len() / 2 - 1];
    for at in [last, places[places.len() - 1]] {
        file[at..at + 4].copy_from_slice(b".txt");
    }
    let reader = open(file).expect("the other arrays");
    assert_eq!(reader.left_out().len(), 1);
    assert!(reader.left_out()[0].ends_with(".txt"), "{:?}", reader.left_out());
    assert_eq!(reader.tensors().len(), places.len() / 2 - 1);
}

#[test]
fn facts_about_a_file_are_shown() {
    let reader = open(fixture("numpy", "f4_F.npy")).expect("an array");
    let fields = reader.container().header_fields().to_string();
    assert_eq!(fields, r#"{"container":"npy"}"#);
    let shown = format!("{reader:?}");
    assert!(shown.contains("a.npy") && shown.contains("F32"), "{shown}");
}
