//! Files of llama.cpp and other projects.

use apr_core::{CheckpointReader, Code, DType};
use apr_gguf::{Value, WriteOptions};
use apr_testkit::locate;

use crate::{assert_refused, contents, open, pairs, rewrite};

fn file(path: &str) -> Option<Vec<u8>> {
    locate::shared_data(path).map(|path| std::fs::read(path).expect("a readable file"))
}

#[test]
fn files_of_llama_cpp_come_back_byte_for_byte() {
    for path in [
        "derived/stories260K_F16.gguf",
        "derived/stories260K_Q8_0.gguf",
        "gguf/ggerganov_llama.cpp__ggml-vocab-bert-bge.gguf",
        "gguf/ggerganov_llama.cpp__ggml-vocab-gpt-2.gguf",
        "gguf/ggerganov_llama.cpp__ggml-vocab-llama-spm.gguf",
    ] {
        let Some(bytes) = file(path) else { return };
        let reader = open(bytes.clone()).expect("a sound file");
        assert_eq!(reader.warnings(), [""; 0], "{path}");
        assert!(rewrite(&reader, &WriteOptions::default()) == bytes, "{path} changed");
    }
}

#[test]
fn files_of_older_versions_keep_their_pairs() {
    for (path, version, count, tokens) in [
        ("gguf/ggerganov_llama.cpp__v1_vocab-llama.gguf", 1, 13, 32_000),
        ("gguf/ggerganov_llama.cpp__v2_vocab-falcon.gguf", 2, 17, 65_024),
    ] {
        let Some(bytes) = file(path) else { return };
        let reader = open(bytes).expect("a sound file");
        assert_eq!(reader.container().header_fields()["version"], version);
        let read = pairs(&reader);
        assert_eq!(read.len(), count, "{path}");
        assert_eq!(reader.metadata().get("tokenizer.vocab_size"), Some(&tokens.into()));
        let again = open(rewrite(&reader, &WriteOptions::default())).expect("what was written");
        assert_eq!(pairs(&again), read);
    }
}

#[test]
fn a_model_is_described_by_its_pairs() {
    let Some(bytes) = file("derived/stories260K_Q8_0.gguf") else { return };
    let reader = open(bytes).expect("a sound file");
    assert_eq!(reader.metadata().text("model_type"), Some("llama"));
    assert_eq!(reader.tensors().len(), 47);
    assert_eq!(reader.tensors()[0].dtype, DType::Q8_0);
    assert_eq!(reader.tensors()[0].shape.dims(), [512, 64]);
    let heads = pairs(&reader).into_iter().find(|pair| pair.key == "llama.attention.head_count_kv");
    assert_eq!(heads.map(|pair| pair.value), Some(Value::U32(4)));
    assert_eq!(contents(&reader).iter().map(|(_, bytes)| bytes.len()).sum::<usize>() % 2, 0);
}

#[test]
fn a_file_whose_tensors_all_start_at_0_is_refused() {
    let Some(bytes) = file("gguf/ThreatFlux_gguf__test_model.gguf") else { return };
    assert_refused(open(bytes), Code::Corrupt, "overlap");
}
