//! Word vectors that gensim and fastText wrote and read back (`fixtures/vectors`), by their bytes;
//! broken ones are errors.

use std::path::PathBuf;

use apr_bin::vectors::{FASTTEXT, WORD2VEC};
use apr_core::{CheckpointReader, Code, Limits, Result, Table};
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/vectors");
    std::fs::read(folder.join(name)).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_bin::vectors::open(file, "a.bin", &Limits::default())
}

fn tensors(reader: &Table, piece: usize) -> Map<String, Value> {
    let of = |(tensor, info): (usize, &apr_core::TensorInfo)| {
        let len = info.byte_len().expect("a possible length");
        let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
        let chunks: Vec<_> = bytes.chunks_mut(piece).collect();
        let mut offset = len;
        // From the last to the first: places are found by any read.
        for chunk in chunks.into_iter().rev() {
            offset -= chunk.len() as u64;
            reader.read_tensor(tensor, offset, chunk).expect("readable");
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
fn every_matrix_and_word_is_what_the_programs_read() {
    let all: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    for (name, expected) in all.as_object().expect("an object") {
        let file = fixture(name);
        let format = if name.starts_with('s') { &FASTTEXT } else { &WORD2VEC };
        assert!((format.recognises)(&file[..file.len().min(512)]), "{name}");
        for piece in [1, 7, 1 << 20] {
            let reader = open(file.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut found =
                Map::from_iter([("tensors".to_owned(), tensors(&reader, piece).into())]);
            for (at, companion) in reader.companions().iter().enumerate() {
                let text = reader.read_companion(at).expect("readable");
                assert_eq!(text.len() as u64, companion.len, "{name}: {}", companion.name);
                found.insert(companion.name.clone(), String::from_utf8(text).expect("text").into());
            }
            assert_eq!(expected, &Value::Object(found), "{name} by {piece}");
            assert!(reader.warnings().is_empty(), "{name}");
        }
    }
    let model = open(fixture("supervised.bin")).expect("a model");
    let arguments = model.metadata().object("fasttext").expect("arguments");
    assert_eq!(
        (&arguments["model"], &arguments["loss"]),
        (&"supervised".into(), &"softmax".into())
    );
    assert_eq!((&arguments["labels"], &arguments["bucket"]), (&2.into(), &7.into()));
}

#[test]
fn quantized_models_are_reported() {
    let error = open(fixture("quantized.ftz")).expect_err("codes");
    assert_eq!(error.code(), Code::Version);
    assert!(error.to_string().contains("quantized fastText models"), "{error}");
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    for name in ["lines.bin", "gensim.bin", "supervised.bin", "skipgram.bin"] {
        let file = fixture(name);
        let flips = corrupt::bit_flips(&file, 0..file.len().min(600));
        for broken in corrupt::truncations(&file).chain(flips) {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(broken) {
                    let _ = read_everything(&reader);
                    for companion in 0..reader.companions().len() {
                        let _ = reader.read_companion(companion);
                    }
                }
            });
            assert!(peak < 2 << 20, "{name}: {peak} bytes");
        }
    }
}

#[test]
fn counts_that_the_file_does_not_hold_are_refused_in_bounded_memory() {
    let word2vec = |header: &str| [header.as_bytes(), b"king \0\0\0\0"].concat();
    let fast_text = |at: usize, bytes: &[u8]| {
        let mut file = fixture("supervised.bin");
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let huge = i64::MAX.to_le_bytes();
    let files = [
        word2vec("999999999999 999999999999\n"),
        word2vec("2 1\n"),
        word2vec("1 3\n"),
        // Entries, words and labels; n-grams of a pruned model.
        fast_text(64, &[0xff, 0xff, 0xff, 0x7f]),
        fast_text(64, &[0xff; 12]),
        fast_text(84, &huge),
        // Rows of the first matrix.
        fast_text(fixture("supervised.bin").len() - 8 - 32 - 17 - 4 * 4 * 13 - 8, &huge),
    ];
    for (at, file) in files.into_iter().enumerate() {
        let ((), peak) = peak_memory(|| {
            let error = open(file).expect_err("more than there is");
            assert_eq!(error.code(), Code::Corrupt, "{at}: {error}");
        });
        assert!(peak < 1 << 20, "{at}: {peak} bytes");
    }
    let version = fast_text(4, &[13]);
    assert_eq!(open(version).expect_err("another version").code(), Code::Version);
}

#[test]
fn vectors_of_mixed_forms_are_errors_where_they_are_read() {
    // The second vector lacks the line feed that the first has, and bytes behind the last.
    for file in [&b"2 1\na \0\0\0\0\nb \0\0\0\0c"[..], b"2 1\na \0\0\0\0b \0\0\0\0\n"] {
        let reader = open(file.to_vec()).expect("the first vector is fine");
        let error = reader.read_tensor(0, 0, &mut [0; 8]).expect_err("mixed");
        assert_eq!(error.code(), Code::Corrupt, "{error}");
        reader.read_tensor(0, 0, &mut [0; 4]).expect("the first vector is fine");
    }
}
