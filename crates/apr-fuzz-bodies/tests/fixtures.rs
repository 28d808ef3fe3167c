//! The bodies of the fuzz targets over what fuzzing found, and over broken copies of small files.

use std::path::Path;

use apr_fuzz_bodies::{
    dequantize_any, probe_any, read_apr2, read_ggml, read_gguf, read_pytorch, read_safetensors, roundtrip_apr2,
    roundtrip_gguf,
};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::ggml::{GgmlBuilder, GgmlTensor};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::{corrupt, locate};

type Body = fn(&[u8]);

const BODIES: [(&str, Body); 9] = [
    ("dequantize_any", dequantize_any),
    ("read_apr2", read_apr2),
    ("read_ggml", read_ggml),
    ("read_gguf", read_gguf),
    ("read_pytorch", read_pytorch),
    ("read_safetensors", read_safetensors),
    ("roundtrip_apr2", roundtrip_apr2),
    ("roundtrip_gguf", roundtrip_gguf),
    ("probe_any", probe_any),
];

#[test]
fn what_fuzzing_found_stays_fixed() {
    for (target, body) in BODIES {
        let folder = locate::fixture("regression").join(target);
        for file in files(&folder) {
            body(&std::fs::read(&file).expect("fixtures can be read"));
        }
    }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    entries.map(|entry| entry.expect("the folder can be listed").path()).collect()
}

#[test]
fn broken_copies_of_an_apr2_file_convert_or_fail() {
    let bytes: Vec<u8> = (0..24).collect();
    let good =
        Apr2Builder::new().entry(Apr2Entry::of_bytes("a", &bytes)).entry(Apr2Entry::of_bytes("b", &bytes[..5])).build();
    read_apr2(&good);
    corrupt::truncations(&good).for_each(|broken| probe_any(&broken));
    corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_apr2(&broken));
}

#[test]
fn broken_copies_of_a_safetensors_file_convert_or_fail() {
    let header = br#"{"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},"b":{"dtype":"F4","shape":[4],"data_offsets":[8,10]}}"#;
    let mut good = (header.len() as u64).to_le_bytes().to_vec();
    good.extend_from_slice(header);
    good.extend(0..10);
    read_safetensors(&good);
    corrupt::truncations(&good).for_each(|broken| probe_any(&broken));
    corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_safetensors(&broken));
}

#[test]
fn any_bytes_are_blocks() {
    let mut state = 1_u64;
    let mut random = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56).to_le_bytes()[0]
    };
    for choice in 0..=255 {
        let mut bytes: Vec<u8> = (0..4000).map(&mut random).collect();
        bytes[0] = choice;
        dequantize_any(&bytes);
        // Small scales, so that values are finite.
        bytes.iter_mut().skip(2).for_each(|byte| *byte &= 0x37);
        dequantize_any(&bytes);
    }
}

#[test]
fn broken_copies_of_a_gguf_file_convert_or_fail() {
    let builder = GgufBuilder::new()
        .text("general.architecture", "llama")
        .texts("tokenizer.ggml.tokens", &["a", "b"])
        .entry(GgufEntry::new("token_embd.weight", 1, &[2, 2], &[1; 8]))
        .entry(GgufEntry::new("q", 8, &[32], &[2; 34]));
    let good = builder.build();
    read_gguf(&good);
    corrupt::truncations(&good).for_each(|broken| probe_any(&broken));
    corrupt::bit_flips(&good, 0..builder.header().len()).for_each(|broken| read_gguf(&broken));
}

#[test]
fn generated_gguf_checkpoints_come_back() {
    // Any bytes are instructions; these are spread over what they can mean.
    let mut state = 1_u64;
    for len in 0..400 {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56).to_le_bytes()[0]
            })
            .collect();
        roundtrip_gguf(&bytes);
    }
}

#[test]
fn broken_copies_of_ggml_files_convert_or_fail() {
    let llama = GgmlBuilder::llama(*b"tjgg", Some(1))
        .tensor(GgmlTensor::f16("tok_embeddings.weight", &[4, 3]))
        .tensor(GgmlTensor::new("layers.0.w", 2, &[32], &[0x3c; 20]));
    let whisper = GgmlBuilder::whisper().tensor(GgmlTensor::f32("encoder.blocks.0.attn_ln.bias", &[4]));
    for good in [llama.build(), whisper.build()] {
        read_ggml(&good);
        corrupt::truncations(&good).for_each(|broken| read_ggml(&broken));
        corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_ggml(&broken));
    }
}
