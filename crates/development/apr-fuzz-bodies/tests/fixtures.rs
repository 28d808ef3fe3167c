//! The bodies of the fuzz targets over what fuzzing found, and over broken copies of small files.

use std::path::Path;

use apr_fuzz_bodies::{
    decode_block, dequantize_any, open_encrypted, probe_any, read_adapter, read_answers, read_apr1,
    read_apr2, read_aprn, read_coded, read_coreml, read_ctranslate2, read_flax, read_ggml,
    read_gguf, read_keras, read_manifest, read_merge, read_numpy, read_onnx, read_openvino,
    read_orbax, read_ort, read_plan, read_pytorch, read_safetensors, read_tensorflow, read_tflite,
    read_trees, read_vectors, roundtrip_apr2, roundtrip_gguf, scan_any,
};
use apr_registry::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::ggml::{GgmlBuilder, GgmlTensor};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::older::{Apr1Builder, apr1_json, dialect_a, dialect_d, f32s};
use apr_testkit::{corrupt, locate};

type Body = fn(&[u8]);

const BODIES: [(&str, Body); 33] = [
    ("read_adapter", read_adapter),
    ("read_answers", read_answers),
    ("decode_block", decode_block),
    ("open_encrypted", open_encrypted),
    ("read_aprn", read_aprn),
    ("read_keras", read_keras),
    ("read_manifest", read_manifest),
    ("dequantize_any", dequantize_any),
    ("read_apr1", read_apr1),
    ("read_apr2", read_apr2),
    ("read_coded", read_coded),
    ("read_coreml", read_coreml),
    ("read_flax", read_flax),
    ("read_ggml", read_ggml),
    ("read_gguf", read_gguf),
    ("read_merge", read_merge),
    ("read_numpy", read_numpy),
    ("read_onnx", read_onnx),
    ("read_openvino", read_openvino),
    ("read_orbax", read_orbax),
    ("read_ort", read_ort),
    ("read_plan", read_plan),
    ("read_pytorch", read_pytorch),
    ("read_safetensors", read_safetensors),
    ("read_tensorflow", read_tensorflow),
    ("read_tflite", read_tflite),
    ("read_trees", read_trees),
    ("read_vectors", read_vectors),
    ("read_ctranslate2", read_ctranslate2),
    ("roundtrip_apr2", roundtrip_apr2),
    ("roundtrip_gguf", roundtrip_gguf),
    ("probe_any", probe_any),
    ("scan_any", scan_any),
];

#[test]
fn inputs_that_fuzzing_found_stay_fixed() {
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
fn broken_copies_of_an_onnx_model_are_read_or_refused() {
    let good = std::fs::read(locate::fixture("onnx/storages.onnx")).expect("a fixture");
    read_onnx(&good);
    corrupt::truncations(&good).step_by(7).for_each(|broken| probe_any(&broken));
    corrupt::bit_flips(&good, 0..good.len()).step_by(61).for_each(|broken| read_onnx(&broken));
}

#[test]
fn broken_copies_of_an_apr2_file_convert_or_fail() {
    let bytes: Vec<u8> = (0..24).collect();
    let good = Apr2Builder::new()
        .entry(Apr2Entry::of_bytes("a", &bytes))
        .entry(Apr2Entry::of_bytes("b", &bytes[..5]))
        .build();
    read_apr2(&good);
    corrupt::truncations(&good).for_each(|broken| probe_any(&broken));
    corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_apr2(&broken));
}

#[test]
fn weights_in_codes_are_read_or_refused() {
    for file in files(&locate::fixture("coded")) {
        let good = std::fs::read(file).expect("fixtures can be read");
        read_coded(&good);
        corrupt::truncations(&good).step_by(3).for_each(|broken| read_coded(&broken));
        flipped(&good, 5).for_each(|broken| read_coded(&broken));
    }
}

#[test]
fn broken_copies_of_a_safetensors_file_convert_or_fail() {
    let header =
        br#"{"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},
"b":{"dtype":"F4","shape":[4],"data_offsets":[8,10]}}"#;
    let mut good = (header.len() as u64).to_le_bytes().to_vec();
    good.extend_from_slice(header);
    good.extend(0..10);
    read_safetensors(&good);
    corrupt::truncations(&good).for_each(|broken| probe_any(&broken));
    corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_safetensors(&broken));
}

#[test]
fn broken_configurations_of_merges_and_adapters_are_read_or_refused() {
    let slices =
        b"base_model: a\nmerge_method: ties\nslices:\n- sources:\n  - {model: a, layer_range: \
        [0, 2]}\n  - {model: b, layer_range: [1, 3], parameters: {density: 0.5, weight: [0, \
        {filter: mlp, value: 1}]}}\ndtype: bfloat16\n";
    let several = b"merge_method: linear\nname: c\nmodels: &m\n- {model: a}\n- {model: b, \
        parameters: {weight: 2}}\n---\nmerge_method: passthrough\nmodels: [{model: c}]\n";
    let experts = b"base_model: a\ngate_mode: cheap_embed\nexperts:\n- {source_model: b, \
        positive_prompts: [x, yz], residual_scale: 0.5}\n- {source_model: c, positive_prompts: \
        [y], negative_prompts: [z], noise_scale: 0.1}\n";
    for good in [&slices[..], several, experts] {
        read_merge(good);
        corrupt::truncations(good).for_each(|broken| read_merge(&broken));
        flipped(good, 1).for_each(|broken| read_merge(&broken));
    }

    let good = std::fs::read(locate::fixture("lora/patterns/adapter_config.json"));
    let good = good.expect("the fixture is there");
    read_adapter(&good);
    corrupt::truncations(&good).for_each(|broken| read_adapter(&broken));
    flipped(&good, 3).for_each(|broken| read_adapter(&broken));
}

#[test]
fn any_bytes_are_blocks() {
    let mut state = 1_u64;
    let mut random = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
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
    let whisper =
        GgmlBuilder::whisper().tensor(GgmlTensor::f32("encoder.blocks.0.attn_ln.bias", &[4]));
    for good in [llama.build(), whisper.build()] {
        read_ggml(&good);
        corrupt::truncations(&good).for_each(|broken| read_ggml(&broken));
        corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_ggml(&broken));
    }
}

#[test]
fn broken_copies_of_older_files_convert_or_fail() {
    let whisper = Apr1Builder {
        tensors: vec![("a", 0, &[2], f32s(&[1.0, 2.0]))],
        filterbank: Some((1, 1, vec![0.5])),
        ..Apr1Builder::default()
    };
    let index = r#"[{"name":"a","dtype":"F32","shape":[1],"offset":0,"size":4}]"#;
    let block = [&[0, 0x3c][..], &[0x21; 16]].concat();
    for good in [
        whisper.build(),
        apr1_json("{}", 1, index, &[0; 4]),
        dialect_a(
            *b"APR\0",
            0x400,
            "{}",
            &[("a", 128, &[32], block), ("b", 129, &[1, 2], vec![0, 0, 0x80, 0x3f, 1, 2])],
        ),
        dialect_d(0, &[], &[("a", 4, &[3], vec![0x21, 0x03])]),
    ] {
        read_apr1(&good);
        corrupt::truncations(&good).for_each(|broken| probe_any(&broken));
        corrupt::bit_flips(&good, 0..good.len()).for_each(|broken| read_apr1(&broken));
    }
}

/// A copy of a fixture with each of some bits flipped: one in `step`.
fn flipped(file: &[u8], step: usize) -> impl Iterator<Item = Vec<u8>> {
    corrupt::bit_flips(file, 0..file.len()).step_by(step)
}

#[test]
fn broken_copies_of_typed_models_load_or_fail() {
    for name in ["card-licence-zstd19.apr", "kmeans.apr", "recipient-x09.apr"] {
        let good =
            std::fs::read(locate::fixture("valid/aprn").join(name)).expect("the fixture is there");
        read_aprn(&good);
        corrupt::truncations(&good).for_each(|broken| read_aprn(&broken));
        flipped(&good, 1).for_each(|broken| read_aprn(&broken));
    }
}

#[test]
fn broken_copies_of_an_encrypted_file_open_or_fail() {
    let good =
        std::fs::read(locate::fixture("valid/apr2/sealed.apr")).expect("the fixture is there");
    open_encrypted(&good);
    let front = 2048;
    flipped(&good[..front], 7)
        .for_each(|broken| open_encrypted(&[&broken, &good[front..]].concat()));
    flipped(&good, 9973).for_each(|broken| open_encrypted(&broken));
    (0..good.len()).step_by(1009).for_each(|len| open_encrypted(&good[..len]));
}

#[test]
fn broken_blocks_decode_or_fail() {
    let element =
        (DType::ALL.iter().position(|&dtype| dtype == DType::BF16)).expect("it is one of all");
    for (name, flags) in
        [("constant", 3), ("entropy", 3), ("entropy_planes", 0x13), ("lz4", 1), ("zstd", 2)]
    {
        let read =
            |suffix| std::fs::read(locate::fixture("codec").join(format!("{name}.{suffix}")));
        let (block, raw) = (read("block").expect("it is there"), read("raw").expect("it is there"));
        let len = u32::try_from(raw.len()).expect("fixtures are small").to_le_bytes();
        let head = [flags, u8::try_from(element).expect("there are fewer than 256")];
        let good = [&head[..], &len, &block[4..]].concat();
        decode_block(&good);
        corrupt::truncations(&good).step_by(3).for_each(|broken| decode_block(&broken));
        flipped(&good, 5).for_each(|broken| decode_block(&broken));
    }
}

#[test]
fn broken_answers_of_servers_are_read_or_refused() {
    let listing = br#"{"sha": "0123456789012345678901234567890123456789",
        "siblings": [{"rfilename": "a/b", "size": 1}]}"#;
    let page =
        b"<ListBucketResult><Contents><Key>a%20b</Key><Size>7</Size></Contents></ListBucketResult>";
    let journal = br#"{"len": 9, "etag": "x", "done": [[0, 3], [5, 9]]}"#;
    for good in [&listing[..], page, journal, b"bytes 0-9/100", b"hf://org/repo@refs/pr/1/a/b.gguf"]
    {
        read_answers(good);
        corrupt::truncations(good).for_each(|broken| read_answers(&broken));
        corrupt::bit_flips(good, 0..good.len()).for_each(|broken| read_answers(&broken));
    }
}

#[test]
fn broken_manifests_parse_or_fail() {
    let good = br#"{"apr_version": "2.0.0", "sharded": true, "shard_count": 2,
        "shards": [{"file": "m-00001-of-00002.apr", "size": 4096, "crc32": "0a1b2c3d"},
                   {"file": "m-00002-of-00002.apr", "size": 256, "crc32": "00000000"}],
        "tensor_shard_map": {"a": 0, "b": 1}, "metadata": {"model_type": "test"},
        "companions": [{"name": "config.json", "len": 512}],
        "tensors": [{"name": "b", "dtype": "f32", "shape": [8, 4]},
                    {"name": "a", "dtype": "u8", "shape": []}]}"#;
    read_manifest(good);
    corrupt::truncations(good).for_each(|broken| read_manifest(&broken));
    flipped(good, 1).for_each(|broken| read_manifest(&broken));
}

#[test]
fn plans_and_results_that_are_cut_or_flipped_come_to_no_panic() {
    let digest = "00".repeat(32);
    let plan = format!(
        r#"{{"apr_plan":1,"apr":"0.1.0",
"job":{{"command":"diff","options":{{"left":"a","right":["b"]}}}},
"inputs":[{{"path":"a","files":[{{"name":"a","size":9,"modified":1}}],
"companions":[],"front":"{digest}","tensors":[]}}],
"parts":[{{"units":[0,1],"reads":[{{"input":0,"file":0,"offset":1,"len":8}}]}}]}}"#
    );
    let output = r#"{"apr_plan":1,"apr":"0.1.0","job":{"command":"convert"},"inputs":[],
"output":{"path":"o.apr","shard_size":1,"manifest":null},
"parts":[{"file":"o.apr","size":1,"reads":[]}]}"#;
    let result =
        format!(r#"{{"apr_part":1,"plan":"{digest}","part":0,"report":{{"tensor_count":1}}}}"#);
    for good in [plan.as_str(), output, &result] {
        read_plan(good.as_bytes());
        corrupt::truncations(good.as_bytes()).for_each(|broken| read_plan(&broken));
        flipped(good.as_bytes(), 1).for_each(|broken| read_plan(&broken));
    }
}
