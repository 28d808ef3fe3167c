//! Files that are written.

use apr_core::{
    CheckpointReader, CheckpointWriter, Code, DType, Metadata, Notes, Shape, TensorInfo, keys,
};
use apr_gguf::{KeyValue, WriteOptions, ggml_type, plan};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use serde_json::json;

use crate::{assert_refused, contents, open, pairs, rewrite, write_to};

fn tensor(name: &str, dtype: DType, dims: &[u64]) -> TensorInfo {
    TensorInfo { name: name.into(), dtype, shape: Shape::from(dims.to_vec()) }
}

fn written(
    tensors: &[(TensorInfo, Vec<u8>)],
    metadata: &Metadata,
    options: &WriteOptions,
) -> Vec<u8> {
    let mut file = Vec::new();
    write_to(&mut file, tensors, metadata, options).expect("a valid plan");
    file
}

#[test]
fn a_file_of_version_3_comes_back_byte_for_byte() {
    let builder = GgufBuilder::new()
        .text("general.architecture", "llama")
        .pair("f", 6, &f32::NAN.to_le_bytes())
        .pair("d", 12, &(-0.0_f64).to_le_bytes())
        .array("bools", 7, 3, &[1, 0, 1])
        .texts("texts", &["a", "", "ö"])
        .array("none", 9, 0, b"")
        .entry(GgufEntry::new("z", 0, &[3, 1], &[1; 12]))
        .entry(GgufEntry::new("empty", 0, &[0], &[]))
        .entry(GgufEntry::new("a", 12, &[256, 2], &[2; 288]))
        .entry(GgufEntry::new("scalar", 27, &[], &[3; 8]));
    let file = builder.build();
    assert_eq!(rewrite(&open(file.clone()).expect("a sound file"), &WriteOptions::default()), file);
    for alignment in [8_usize, 4096] {
        let stated =
            builder.clone().u32("general.alignment", u32::try_from(alignment).expect("small"));
        let file = GgufBuilder { alignment, ..stated }.build();
        assert_eq!(
            rewrite(&open(file.clone()).expect("a sound file"), &WriteOptions::default()),
            file
        );
    }
}

#[test]
fn older_and_big_endian_files_become_version_3() {
    let of = |builder: GgufBuilder| {
        builder.text("general.architecture", "x").texts("k", &["a"]).entry(GgufEntry::i8("t", &[1]))
    };
    let expected = of(GgufBuilder::new()).build();
    for builder in [
        of(GgufBuilder::new().version(1)),
        of(GgufBuilder::new().version(2)),
        of(GgufBuilder::new().big_endian()),
    ] {
        assert_eq!(
            rewrite(&open(builder.build()).expect("a sound file"), &WriteOptions::default()),
            expected
        );
    }
}

#[test]
fn another_alignment_is_stated() {
    let builder = GgufBuilder::new()
        .u32("k", 1)
        .entry(GgufEntry::i8("a", &[1]))
        .entry(GgufEntry::i8("b", &[2]));
    let reader = open(builder.build()).expect("a sound file");
    let with = |alignment| WriteOptions { alignment: Some(alignment), ..WriteOptions::default() };
    assert_eq!(rewrite(&reader, &with(32)), builder.build());
    let expected = GgufBuilder { alignment: 128, ..builder.u32("general.alignment", 128) };
    let wide = rewrite(&reader, &with(128));
    assert_eq!(wide, expected.build());
    // One that is stated is replaced where it stands.
    let back = rewrite(&open(wide).expect("what was written"), &with(32));
    assert_eq!(
        pairs(&open(back).expect("what was written"))[1],
        KeyValue::new("general.alignment", 32_u32)
    );
    for alignment in [0, 3, 1 << 17, u32::MAX] {
        assert_refused(plan(&[], &Metadata::new(), &with(alignment)), Code::Format, "power of two");
    }
}

#[test]
fn every_dtype_of_ggml_is_written_and_others_are_refused() {
    for &dtype in DType::ALL {
        let info = tensor("t", dtype, &[2, dtype.block_len()]);
        let Some(len) = dtype.stored_len(&info.shape) else { continue };
        let bytes: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
        if ggml_type(dtype).is_some() {
            let file = written(
                &[(info.clone(), bytes.clone())],
                &Metadata::new(),
                &WriteOptions::default(),
            );
            assert_eq!(contents(&open(file).expect("what was written")), [(info, bytes)]);
        } else {
            let error = assert_refused(
                plan(&[info], &Metadata::new(), &WriteOptions::default()),
                Code::Format,
                dtype.name(),
            );
            assert_eq!(error.tensor(), Some("t"));
        }
    }
}

#[test]
fn models_that_llama_cpp_can_not_load_are_rejected() {
    let refused = |info: TensorInfo, expected: &str| {
        assert_refused(
            plan(&[info], &Metadata::new(), &WriteOptions::default()),
            Code::Format,
            expected,
        );
    };
    assert!(
        plan(
            &[tensor(&"n".repeat(63), DType::F32, &[1])],
            &Metadata::new(),
            &WriteOptions::default()
        )
        .is_ok()
    );
    refused(tensor(&"n".repeat(64), DType::F32, &[1]), "63 at most");
    refused(tensor("t", DType::F32, &[1; 5]), "5 dimensions");
    refused(tensor("t", DType::Q8_0, &[32, 31]), "is not compatible with");
    let twice = [tensor("t", DType::F32, &[1]), tensor("t", DType::F16, &[1])];
    assert_refused(
        plan(&twice, &Metadata::new(), &WriteOptions::default()),
        Code::Format,
        "two tensors",
    );
    let huge = [tensor("a", DType::I8, &[u64::MAX - 64]), tensor("b", DType::I8, &[64])];
    assert_refused(plan(&huge, &Metadata::new(), &WriteOptions::default()), Code::Memory, "2^64");
}

#[test]
fn pairs_from_a_hostile_container_are_checked() {
    let mut metadata = Metadata::new();
    for kv in [
        json!(7),
        json!([{"key": "k", "type": "u8", "value": 256}]),
        json!([{"key": "general.alignment", "type": "u32", "value": 13}]),
    ] {
        metadata.set(keys::GGUF, json!({ "kv": kv }));
        assert_refused(plan(&[], &metadata, &WriteOptions::default()), Code::Format, "");
    }
}

#[test]
fn a_checkpoint_of_another_format_is_identified_and_its_losses_are_reported() {
    let json = br#"{"apr_version": "2.0.0", "model_type": "llama", "model_name": "Tiny",
        "source": {}, "names": {}, "tied": {}, "loss": [], "violations": [], "license": "mit",
        "safetensors": {"metadata": {"format": "pt"}},
        "architecture": {"hidden_size": 8, "tie_word_embeddings": false}}"#;
    let metadata = Metadata::parse(json).expect("JSON");
    let writer = plan(&[], &metadata, &WriteOptions::default()).expect("a valid plan");
    let lost: Vec<_> = writer
        .layout()
        .losses
        .iter()
        .map(|loss| (loss.name.as_str(), loss.what.as_str()))
        .collect();
    assert_eq!(lost, [("architecture", "hyperparameters: hidden_size"), ("license", "metadata")]);
    let reader = open(written(&[], &metadata, &WriteOptions::default())).expect("what was written");
    let expected = [("general.architecture", "llama"), ("general.name", "Tiny")]
        .map(|(key, text)| KeyValue::new(key, text));
    assert_eq!(pairs(&reader), expected);
}

#[test]
fn a_file_that_is_read_and_rewritten_has_no_losses() {
    let builder = GgufBuilder::new()
        .text("general.architecture", "llama")
        .text("general.license", "MIT")
        .u32("llama.embedding_length", 8)
        .pair("llama.rope.freq_base", 6, &10_000_f32.to_le_bytes())
        .texts("tokenizer.ggml.tokens", &["a"])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .text("tokenizer.chat_template", "{{ x }}")
        .entry(GgufEntry::i8("token_embd.weight", &[1]));
    let reader = open(builder.build()).expect("a sound file");
    let writer =
        plan(reader.tensors(), reader.metadata(), &WriteOptions::default()).expect("a valid plan");
    assert_eq!(writer.layout().losses, []);
}

#[test]
fn more_or_fewer_bytes_than_planned_are_refused() {
    let start = || {
        let mut file = Vec::new();
        let infos = [tensor("a", DType::I8, &[2]), tensor("b", DType::I8, &[1])];
        let mut writer =
            plan(&infos, &Metadata::new(), &WriteOptions::default()).expect("a valid plan");
        writer.begin(&mut file).expect("memory takes everything");
        (writer, file)
    };
    let (mut writer, mut file) = start();
    assert_refused(
        writer.write_chunk(&mut file, &[1, 2, 3], None),
        Code::Corrupt,
        "tensor 'a': received 3 more bytes",
    );
    let (mut writer, mut file) = start();
    writer.write_chunk(&mut file, &[1, 2], None).expect("as planned");
    assert_refused(writer.finish(&mut file, &Notes::default()), Code::Corrupt, "tensor 'b'");
    writer.write_chunk(&mut file, &[3], None).expect("as planned");
    assert_refused(writer.write_chunk(&mut file, &[4], None), Code::Corrupt, "after the last");
}
