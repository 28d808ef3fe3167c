//! Pickles of NumPy's arrays, as Paddle saves them: `fixtures/paddle`, with what Paddle reads.

use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/paddle").join(name);
    std::fs::read(&path).expect("the fixture is in the repository")
}

#[test]
fn every_array_is_what_paddle_reads() {
    let expected: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    for (name, arrays) in expected.as_object().expect("an object") {
        let reader = open(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let arrays = arrays.as_object().expect("an object");
        assert_eq!(reader.tensors().len(), arrays.len(), "{name}");
        for (at, info) in reader.tensors().iter().enumerate() {
            let expected = &arrays[&info.name];
            let dtype = expected["dtype"].as_str().expect("a name");
            let dtype = dtype.replace("float", "f").replace("uint", "u").replace("int", "i");
            assert_eq!(dtype, info.dtype.name(), "{name}: {}", info.name);
            let shape: Vec<u64> = serde_json::from_value(expected["shape"].clone()).expect("sizes");
            assert_eq!(info.shape.dims(), shape, "{name}: {}", info.name);
            for piece in [3, 1 << 20] {
                let digest = Sha256::digest(bytes_of(&reader, at, piece));
                let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(expected["sha256"], hex, "{name}: {}", info.name);
            }
        }
    }
    let reader = open(fixture("model.pdparams")).expect("a checkpoint");
    let values = reader.metadata().object("pytorch").expect("names of parameters");
    assert_eq!(values["StructuredToParameterName@@.0.weight"], "linear_0.w_0");
    assert!(reader.warnings().is_empty(), "{:?}", reader.warnings());
}

#[test]
fn arrays_take_no_memory_before_they_are_read() {
    // Arrays lie in the pickle, which may be longer than what is kept of one.
    let file = fixture("model.pdparams");
    let mut limits = Limits::default();
    limits.max_metadata = 4096;
    let reader = apr_pytorch::open(file, "model.pdparams", &limits).expect("arrays don't count");
    assert_eq!(reader.tensors().len(), 9);
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    let file = fixture("columns.pdparams");
    let flips = corrupt::bit_flips(&file, 0..file.len());
    for broken in corrupt::truncations(&file).chain(flips) {
        let ((), peak) = peak_memory(|| {
            if let Ok(reader) = open(broken) {
                let _ = read_everything(&reader);
            }
        });
        assert!(peak < 64 << 20, "{peak} bytes");
    }
}

#[test]
fn arrays_whose_bytes_are_text_are_told_by_their_protocol() {
    let error = refused(fixture("text.pdparams"));
    assert_eq!(error.code(), Code::Version, "{error}");
    assert!(error.to_string().contains("protocol 2"), "{error}");
}

#[test]
fn what_is_no_dictionary_of_arrays_is_still_refused() {
    for pickle in [&b"\x80\x04]."[..], b"\x80\x04}.", b"\x80\x04K\x01."] {
        let error = refused(pickle.to_vec());
        assert_eq!(error.code(), Code::Format, "{error}");
    }
    // The bytes of an array that a program wrote twice: `os.system` behind the first pickle.
    let mut file = fixture("columns.pdparams");
    file.extend(b"\x80\x04cos\nsystem\n.");
    assert_eq!(refused(file).code(), Code::Format);
}
