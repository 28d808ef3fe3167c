//! Every cut and every flipped bit of a small file.

use apr_core::{CheckpointReader, Code, Limits};
use apr_gguf::WriteOptions;
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::{corrupt, peak_memory, read_everything};

use crate::{contents, open, pairs, rewrite};

fn small(version: u32, big_endian: bool) -> GgufBuilder {
    let builder = GgufBuilder { big_endian, ..GgufBuilder::new().version(version) };
    let nested = |builder: &GgufBuilder| {
        let inner = GgufBuilder { big_endian, ..GgufBuilder::new().version(version) }.array(
            "",
            1,
            2,
            &[1, 255],
        );
        let item = inner.pairs[0].2.clone();
        builder.clone().array("nested", 9, 2, &[item.clone(), item].concat())
    };
    nested(
        &builder
            .text("general.architecture", "llama")
            .u32("general.alignment", 32)
            .texts("tokenizer.ggml.tokens", &["a", "ö"]),
    )
    .pair("b", 7, &[1])
    .entry(GgufEntry::new("a", 0, &[2, 2], &[7; 16]))
    .entry(GgufEntry::new("q", 8, &[32], &[9; 34]))
}

#[test]
fn a_file_cut_anywhere_is_refused_or_whole() {
    for (version, big_endian) in [(1, false), (2, false), (3, false), (3, true)] {
        let builder = small(version, big_endian);
        let file = builder.build();
        let whole = contents(&open(file.clone()).expect("a sound file"));
        // Only the zeros after the last tensor may be absent.
        let needed = GgufBuilder { pads_last: false, ..builder }.build().len();
        for cut in corrupt::truncations(&file) {
            let len = cut.len();
            match open(cut) {
                Ok(reader) => assert!(len >= needed && contents(&reader) == whole, "cut at {len}"),
                Err(error) => {
                    assert!(error.code() == Code::Corrupt && len < needed, "cut at {len}: {error}");
                }
            }
        }
    }
}

#[test]
fn a_flipped_bit_of_the_header_gives_an_error_or_another_sound_file() {
    for (version, big_endian) in [(1, false), (3, false), (3, true)] {
        let builder = small(version, big_endian);
        let (file, header) = (builder.build(), builder.header().len());
        for flipped in corrupt::bit_flips(&file, 0..header) {
            let (opened, peak) = peak_memory(|| open(flipped.clone()));
            assert!(peak < 1 << 20, "{peak} bytes");
            let Ok(reader) = opened else { continue };
            read_everything(&reader).expect("an open file is readable");
            // What was accepted can be written, unless llama.cpp could not take it, and reads the
            // same again.
            let writer =
                apr_gguf::plan(reader.tensors(), reader.metadata(), &WriteOptions::default());
            if writer.is_ok() {
                let again = open(rewrite(&reader, &WriteOptions::default()))
                    .expect("what was written can be read");
                assert_eq!(contents(&again), contents(&reader));
                assert_eq!(format!("{:?}", pairs(&again)), format!("{:?}", pairs(&reader)));
            }
        }
    }
}

#[test]
fn small_limits_are_kept() {
    let file = small(3, false).build();
    let mut limits = Limits::default();
    limits.max_metadata = 64;
    let error = apr_gguf::open(file.clone(), "", &limits).expect_err("its pairs take more");
    assert_eq!(error.code(), Code::Memory);
    let mut limits = Limits::default();
    limits.max_index = 64;
    let error = apr_gguf::open(file, "", &limits).expect_err("its infos take more");
    assert_eq!(error.code(), Code::Memory);
}
