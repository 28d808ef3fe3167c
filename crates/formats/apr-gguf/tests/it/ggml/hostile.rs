//! Broken and hostile files: an error that says where, within bounded time and memory.

use std::time::{Duration, Instant};

use apr_testkit::{corrupt, peak_memory, read_everything};

use super::*;

fn samples() -> Vec<Vec<u8>> {
    let mut samples: Vec<_> =
        CONTAINERS.iter().map(|&(magic, version)| llama(magic, version).build()).collect();
    let block = GgmlTensor::new("layers.0.w", 2, &[32], &[7; 20]);
    samples.push(llama(*b"tjgg", Some(2)).tensor(block).build());
    samples
        .push(GgmlBuilder::whisper().tensor(GgmlTensor::f32("encoder.blocks.0.b", &[4])).build());
    samples.push(GgmlBuilder::silero().tensor(GgmlTensor::f16("_model.encoder.0.w", &[4])).build());
    samples.push(GgmlBuilder::gptj().tensor(GgmlTensor::f16("transformer.h.0.w", &[4, 2])).build());
    samples
}

/// Opens a file with detection and as each architecture, and reads all of it if it opens. Memory
/// must stay small.
fn survives(file: &[u8]) {
    let architectures = apr_gguf::ggml::architectures().map(Some);
    for arch in architectures.chain([None]) {
        let source = file.to_vec();
        let (_, peak) = peak_memory(|| {
            let reader = apr_gguf::ggml::open(source, "", &Limits::default(), arch);
            reader.map(|reader| read_everything(&reader).expect("what opens can be read"))
        });
        assert!(peak < 1 << 20, "{arch:?} takes {peak} bytes");
    }
}

#[test]
fn files_cut_anywhere_are_refused_or_have_fewer_tensors() {
    for sample in samples() {
        let whole = open(sample.clone()).expect("a sound file").tensors().len();
        for cut in corrupt::truncations(&sample) {
            survives(&cut);
            match open(cut.clone()) {
                // Only at the end of a tensor; where its layer is missing there is a warning.
                Ok(reader) => assert!(reader.tensors().len() < whole, "cut at {}", cut.len()),
                Err(error) => {
                    assert!(error.offset().is_some(), "cut at {}: {error}", cut.len());
                    assert!(
                        [Code::Corrupt, Code::Format].contains(&error.code()),
                        "cut at {}: {error}",
                        cut.len()
                    );
                }
            }
        }
    }
}

#[test]
fn flipped_bits_are_survived() {
    for sample in samples() {
        corrupt::bit_flips(&sample, 0..sample.len()).for_each(|broken| survives(&broken));
    }
}

#[test]
fn a_truncated_tensor_is_reported_with_its_offset() {
    let file = llama(*b"tjgg", Some(3)).build();
    let error = refused(&file[..file.len() - 1]);
    assert_eq!(
        (error.code(), error.tensor()),
        (Code::Corrupt, Some("layers.0.attention_norm.weight"))
    );
    assert_eq!(error.offset(), Some(file.len() as u64 - 16));
    assert!(error.message().starts_with("read as a file of llama: "), "{error}");
    assert!(error.message().contains("truncated"), "{error}");
}

#[test]
fn other_bytes_are_refused() {
    for (file, code) in [
        (&b""[..], Code::Corrupt),
        (b"lmg", Code::Corrupt),
        (b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", Code::Format),
        (b"ggjt\0\0\0\x03\0\0\0\0", Code::Version),
        (b"tjgg\x04\0\0\0\0\0\0\0", Code::Version),
        (b"tjgg\0\0\0\0\0\0\0\0", Code::Version),
        (b"fmgg\x02\0\0\0\0\0\0\0", Code::Version),
        (b"lmgg", Code::Format),
        (b"tjgg\x03\0\0\0", Code::Format),
    ] {
        let error = refused(file);
        assert_eq!(error.code(), code, "{error}");
        assert_eq!(error.file(), Some("model.bin"));
    }
}

#[test]
fn hostile_counts_are_refused_without_memory() {
    for count in [i32::MAX, i32::MIN, -1, 1 << 24, 1 << 20] {
        let tokens = GgmlBuilder { token_count: Some(count), ..GgmlBuilder::whisper() };
        let mut given = GgmlBuilder::gptneox();
        given.hyperparameters[0] = count;
        let mels =
            GgmlBuilder { filterbank: Some((count, count, vec![])), ..GgmlBuilder::whisper() };
        let mut layers = GgmlBuilder::silero();
        layers.hyperparameters[5] = count;
        for file in [tokens.build(), given.build(), mels.build(), layers.build()] {
            survives(&file);
            assert!(refused(file).offset().is_some());
        }
    }
}

#[test]
fn hostile_tensors_are_refused_where_they_are() {
    let sound = || GgmlTensor::f32("encoder.b", &[4]);
    for (tensor, code) in [
        (GgmlTensor { name_len: Some(i32::MAX), ..sound() }, Code::Format),
        (GgmlTensor { name_len: Some(-1), ..sound() }, Code::Format),
        (GgmlTensor { name_len: Some(0), ..sound() }, Code::Format),
        (GgmlTensor { name_len: Some(4000), ..sound() }, Code::Corrupt),
        (GgmlTensor { n_dims: Some(i32::MAX), ..sound() }, Code::Format),
        (GgmlTensor { n_dims: Some(5), ..sound() }, Code::Format),
        (GgmlTensor { n_dims: Some(-1), ..sound() }, Code::Format),
        (GgmlTensor { dims: vec![-4], ..sound() }, Code::Format),
        (GgmlTensor { dims: vec![0], ..sound() }, Code::Format),
        (GgmlTensor { dims: vec![i32::MAX; 4], ..sound() }, Code::Format),
        (GgmlTensor { dims: vec![i32::MAX; 2], ..sound() }, Code::Corrupt),
        // 2^64 elements of 4 bytes, and 2^62 of them.
        (GgmlTensor { dims: vec![1 << 16; 4], ..sound() }, Code::Format),
        (GgmlTensor { dims: vec![1 << 30, 1 << 16, 1 << 16], ..sound() }, Code::Format),
        (GgmlTensor { type_number: -1, ..sound() }, Code::Format),
        (GgmlTensor { type_number: 15, ..sound() }, Code::Format),
        (GgmlTensor { type_number: 30, ..sound() }, Code::Format),
        (GgmlTensor { type_number: i32::MAX, ..sound() }, Code::Format),
        (GgmlTensor { name: b"encoder.\xff".to_vec(), ..sound() }, Code::Format),
        (GgmlTensor { name: b"audio.mel_filterbank".to_vec(), ..sound() }, Code::Format),
    ] {
        let file = GgmlBuilder::whisper().tensor(tensor.clone()).build();
        survives(&file);
        let error = refused(file);
        assert_eq!(error.code(), code, "{tensor:?}: {error}");
        assert!(error.offset().is_some(), "{tensor:?}: {error}");
        assert!(error.message().starts_with("read as a file of whisper: "), "{tensor:?}: {error}");
    }
}

#[test]
fn twins_and_trailing_bytes_are_refused() {
    let twin = || GgmlTensor::f32("encoder.b", &[4]);
    let error = refused(GgmlBuilder::whisper().tensor(twin()).tensor(twin()).build());
    assert_eq!((error.code(), error.tensor()), (Code::Format, Some("encoder.b")));
    for tail in [&[0][..], &[0; 12], &[0; 64], b"PK\x05\x06"] {
        let file = GgmlBuilder { tail: tail.to_vec(), ..GgmlBuilder::whisper().tensor(twin()) };
        assert!([Code::Corrupt, Code::Format].contains(&refused(file.build()).code()));
    }
}

#[test]
fn limits_bound_vocabulary_and_index() {
    let mut limits = Limits::default();
    limits.max_metadata = 8;
    limits.max_index = 100;
    let code = |file: &GgmlBuilder, arch| {
        apr_gguf::ggml::open(file.build(), "", &limits, Some(arch))
            .expect_err("over the limit")
            .code()
    };
    assert_eq!(code(&GgmlBuilder::whisper(), "whisper"), Code::Memory);
    let tensor = |name| GgmlTensor::f32(name, &[1]);
    assert_eq!(
        code(&GgmlBuilder::silero().tensor(tensor("_model.a")).tensor(tensor("b")), "silero"),
        Code::Memory
    );
}

#[test]
fn a_large_vocabulary_opens_fast() {
    let tokens: Vec<Vec<u8>> = (0..32_000_u32).map(|id| id.to_string().into_bytes()).collect();
    let mut file = GgmlBuilder { tokens, ..GgmlBuilder::llama(*b"tjgg", Some(3)) };
    file.hyperparameters[0] = 32_000;
    let file = file.build();
    let start = Instant::now();
    assert_eq!(open(file).expect("a vocabulary").vocabulary_tokens().len(), 32_000);
    // A few milliseconds when nothing else runs.
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn data_is_not_read_on_opening() {
    let large = GgmlTensor {
        bytes: vec![0; 1 << 22],
        ..GgmlTensor::new("layers.0.w", 0, &[1 << 10, 1 << 10], &[])
    };
    let file = llama(*b"tjgg", Some(3)).tensor(large).build();
    let source = std::sync::Arc::new(apr_testkit::CountingSource::new(file));
    apr_gguf::ggml::open(source.clone(), "", &Limits::default(), None).expect("a sound file");
    assert!(source.bytes_read() < 1 << 20, "{} bytes were read", source.bytes_read());
}
