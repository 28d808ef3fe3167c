//! Weights that Flax wrote and read back (`fixtures/flax`), by their bytes; broken ones are errors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use apr_core::{CheckpointReader, Code, Limits, Result, Table};
use apr_flax::FORMAT;
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/flax");
    std::fs::read(folder.join(name)).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_flax::open(file, "a.msgpack", &Limits::default())
}

fn found(reader: &Table, piece: usize) -> BTreeMap<String, Value> {
    let of = |(tensor, info): (usize, &apr_core::TensorInfo)| {
        let len = info.byte_len().expect("a possible length");
        let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
        let mut offset = 0;
        for chunk in bytes.chunks_mut(piece) {
            reader.read_tensor(tensor, offset, chunk).expect("readable");
            offset += chunk.len() as u64;
        }
        let sha256: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let shape = info.shape.dims();
        let value = json!({ "dtype": info.dtype.name(), "shape": shape, "sha256": sha256 });
        (info.name.clone(), value)
    };
    reader.tensors().iter().enumerate().map(of).collect()
}

#[test]
fn every_array_has_the_bytes_that_flax_reads() {
    let all: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    for (name, arrays) in all.as_object().expect("an object") {
        assert!((FORMAT.recognises)(&fixture(name)), "{name}");
        let reader = open(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut arrays: BTreeMap<String, Value> =
            serde_json::from_value(arrays.clone()).expect("an object");
        arrays.retain(|path, _| !path.starts_with("opt_state/"));
        for piece in [1, 3, 1 << 20] {
            assert_eq!(found(&reader, piece), arrays, "{name} by {piece}");
        }
    }
}

#[test]
fn values_that_are_not_weights_are_skipped_by_name() {
    let reader = open(fixture("state.msgpack")).expect("a state");
    let left = ["the optimizer's state (1 array)", "step (it is an integer)"];
    assert_eq!(reader.left_out(), left);
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    for name in ["state.msgpack", "pieces.msgpack"] {
        let file = fixture(name);
        let broken = corrupt::truncations(&file).chain(corrupt::bit_flips(&file, 0..file.len()));
        for broken in broken {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(broken) {
                    read_everything(&reader).expect("what was opened is all there");
                }
            });
            assert!(peak < 1 << 20, "{name}: {peak} bytes");
        }
    }
}

#[test]
fn files_that_claim_more_than_they_hold_are_rejected() {
    // A map of 2^32 - 1 pairs, one of 200 in each other, and an array of 2^63 bytes.
    let deep = [&b"\x81\xa1a".repeat(200)[..], b"\x01"].concat();
    let long =
        b"\x81\xa1w\xc7\x1e\x01\x93\x91\xcf\x7f\xff\xff\xff\xff\xff\xff\xff\xa7float32\xc6\xff\
        \xff\xff\xff\0\0\0\0\0"
            .to_vec();
    let cases = [(b"\xdf\xff\xff\xff\xff".to_vec(), Code::Corrupt), (deep, Code::Format)];
    for (file, code) in cases.into_iter().chain([(long, Code::Corrupt)]) {
        let ((), peak) = peak_memory(|| {
            assert_eq!(open(file).expect_err("too much").code(), code);
        });
        assert!(peak < 1 << 20, "{peak} bytes");
    }
}
