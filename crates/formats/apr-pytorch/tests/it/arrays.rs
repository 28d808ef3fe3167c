//! Pickles of NumPy's arrays, as Paddle saves them: `fixtures/paddle`, with what Paddle reads.

use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;

fn fixture(name: &str) -> Vec<u8> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/paddle").join(name);
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
    for name in ["model.pdparams", "text.pdparams"] {
        let reader = open(fixture(name)).expect("a checkpoint");
        let values = reader.metadata().object("pytorch").expect("names of parameters");
        assert_eq!(values["StructuredToParameterName@@.0.weight"], "linear_0.w_0");
        assert!(reader.warnings().is_empty(), "{:?}", reader.warnings());
    }
}

#[test]
fn arrays_use_no_memory_before_they_are_read() {
    // Arrays lie in the pickle, which may be longer than what is kept of one.
    let mut limits = Limits::default();
    limits.max_metadata = 4096;
    let reader = apr_pytorch::open(fixture("model.pdparams"), "model.pdparams", &limits);
    assert_eq!(reader.expect("arrays don't count").tensors().len(), 9);

    // Text does from 64 KiB on only: no name is longer.
    let file = python2_array(&[200; 70_000], 70_000);
    let reader = apr_pytorch::open(file, "large.pdparams", &limits).expect("nor do strings");
    assert_eq!(bytes_of(&reader, 0, 1 << 20), [200; 70_000]);
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    for name in ["columns.pdparams", "split2.pdparams"] {
        let file = fixture(name);
        let flips = corrupt::bit_flips(&file, 0..file.len());
        for broken in corrupt::truncations(&file).chain(flips) {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(broken) {
                    let _ = read_everything(&reader);
                }
            });
            assert!(peak < 64 << 20, "{name}: {peak} bytes");
        }
    }
}

/// `{'w': array}` of `u1`, as Python 2 pickles it: bytes are its strings. The shape is `[dim]`.
fn python2_array(bytes: &[u8], dim: u32) -> Vec<u8> {
    let mut file =
        b"\x80\x02}U\x01wcnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n".to_vec();
    file.extend(b"K\0\x85U\x01b\x87R(K\x01J");
    file.extend(dim.to_le_bytes());
    file.extend(b"\x85cnumpy\ndtype\nU\x02u1K\0K\x01\x87R\x89T");
    file.extend(u32::try_from(bytes.len()).expect("few").to_le_bytes());
    file.extend(bytes);
    file.extend(b"tbs.");
    file
}

#[test]
fn strings_of_python_2_are_the_bytes_of_arrays() {
    // Whether they happen to be UTF-8 or not.
    for bytes in [&b"plain"[..], &[1, 200, 3, 255, 0]] {
        let reader = open(python2_array(bytes, 5)).expect("an array");
        assert_eq!(reader.tensors()[0].name, "w");
        assert_eq!(bytes_of(&reader, 0, 2), bytes);
    }
    for dim in [6, 1 << 30] {
        assert_eq!(refused(python2_array(b"plain", dim)).code(), Code::Corrupt);
    }
}

#[test]
fn split_arrays_must_add_up() {
    let file = fixture("split3.pdparams");
    for (from, to, message) in [
        (&b"split@@.2"[..], &b"split@@.1"[..], "in it twice"),
        (b"OriginShape", b"originShape", "without a shape"),
        (b"slices", b"Slices", "no list of parts"),
        (b"K\x02K\x03K\x04\x87", b"K\x02K\x03K\x05\x87", "do not add up"),
    ] {
        let at = file.windows(from.len()).rposition(|window| window == from).expect("it is there");
        let mut broken = file.clone();
        broken[at..at + to.len()].copy_from_slice(to);
        let error = refused(broken);
        assert_eq!(error.code(), Code::Corrupt, "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn pickles_other_than_dictionaries_of_arrays_are_still_rejected() {
    for pickle in [&b"\x80\x04]."[..], b"\x80\x04}.", b"\x80\x04K\x01."] {
        let error = refused(pickle.to_vec());
        assert_eq!(error.code(), Code::Format, "{error}");
    }
    // The bytes of an array that a program wrote twice: `os.system` behind the first pickle.
    let mut file = fixture("columns.pdparams");
    file.extend(b"\x80\x04cos\nsystem\n.");
    assert_eq!(refused(file).code(), Code::Format);
}
