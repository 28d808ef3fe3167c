//! APR1 as this crate writes it.

use apr_core::{CheckpointReader, CheckpointWriter, Code, DType, Metadata, Notes, TensorInfo};
use apr_format::apr1::{self, WriteOptions};
use apr_format::apr2::CompanionFile;
use apr_testkit::locate;
use apr_testkit::older::Apr1Builder;
use serde_json::json;

use super::built::whisper;
use super::{bytes_of, open};

/// Returns the file that is written from the contents of a reader.
fn rewritten(reader: &dyn CheckpointReader) -> Vec<u8> {
    let plan = apr1::plan(reader.tensors(), reader.metadata(), &[], &WriteOptions::default());
    let mut writer = plan.expect("what was read can be written");
    assert_eq!(writer.layout().losses, []);
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory takes everything");
    for planned in writer.layout().tensors.clone() {
        let bytes = bytes_of(reader, &reader.tensors()[planned.source].name);
        writer.write_chunk(&mut file, &bytes, None).expect("the planned bytes");
    }
    writer.finish(&mut file, &Notes::default()).expect("all tensors are there");
    assert_eq!(writer.layout().files[0].len, file.len() as u64);
    file
}

#[test]
fn a_file_that_was_read_is_written_with_the_same_bytes() {
    let half = Apr1Builder {
        quantization: 1,
        tensors: vec![
            ("a", 0, &[2, 1, 1, 1], vec![0, 0x3c, 0, 0xc0]),
            ("empty", 0, &[0], Vec::new()),
        ],
        filterbank: Some((1, 1, vec![1.0])),
        ..Apr1Builder::default()
    };
    let bare = Apr1Builder { vocabulary: None, filterbank: None, ..whisper() };
    for file in [whisper(), half, bare, Apr1Builder::default()].map(|builder| builder.build()) {
        assert_eq!(rewritten(&*open(file.clone()).expect("a sound file")), file);
    }
    let Some(path) = locate::shared_data("apr/whisper-apr-0.1.0-f32.apr1.apr") else { return };
    let file = std::fs::read(path).expect("it can be read");
    assert_eq!(rewritten(&*open(file.clone()).expect("a sound file")), file);
}

fn metadata() -> Metadata {
    let json = json!({"model_type": "whisper", "architecture": {
        "vocab_size": 3, "num_mel_bins": 80, "d_model": 8, "max_source_positions": 9,
        "encoder_layers": 1, "encoder_attention_heads": 2, "max_target_positions": 4,
        "decoder_layers": 1, "decoder_attention_heads": 2,
    }});
    Metadata::parse(json.to_string().as_bytes()).expect("JSON")
}

fn info(name: &str, dtype: DType, dims: &[u64]) -> TensorInfo {
    TensorInfo { name: name.into(), dtype, shape: dims.to_vec().into() }
}

#[test]
fn tensors_that_the_format_can_not_hold_are_rejected_by_name() {
    let refused = |tensors: &[TensorInfo]| {
        let planned = apr1::plan(tensors, &metadata(), &[], &WriteOptions::default());
        planned.map(drop).expect_err("it does not fit")
    };
    let name = "n".repeat(49);
    for (bad, expected) in [
        (info(&name, DType::F32, &[1]), name.as_str()),
        (info("", DType::F32, &[1]), ""),
        (info("deep", DType::F32, &[1, 1, 1, 1, 1]), "deep"),
        (info("long", DType::F32, &[1 << 32]), "long"),
        (info("blocks", DType::Q8_0, &[32]), "blocks"),
        (info("brain", DType::BF16, &[1]), "brain"),
        (info("half", DType::F16, &[1]), "half"),
        (info("a", DType::F32, &[1]), "a"),
    ] {
        let error = refused(&[info("a", DType::F32, &[1]), bad]);
        assert_eq!((error.code(), error.tensor()), (Code::Format, Some(expected)), "{error}");
    }
    let many: Vec<_> = (0..=65_535).map(|at| info(&format!("t{at}"), DType::F32, &[0])).collect();
    assert!(refused(&many).message().contains("65536 tensors"));
    let error = apr1::plan(&[], &Metadata::new(), &[], &WriteOptions::default())
        .map(drop)
        .expect_err("no Whisper");
    assert!(error.message().contains("vocab_size"), "{error}");
}

#[test]
fn merges_are_read_from_the_tokenizers_file_if_the_metadata_have_none() {
    let mut metadata = metadata();
    metadata.set("tokenizer.vocabulary", json!(["\u{120}", "t", "\u{120}t"]));
    metadata.set("license", "mit");
    let merges =
        CompanionFile { name: "merges.txt".into(), bytes: "#version: 0.2\n\u{120} t\n".into() };
    let mut writer =
        apr1::plan(&[], &metadata, &[merges], &WriteOptions::default()).expect("it fits");
    assert_eq!(
        writer.layout().losses.iter().map(|loss| loss.name.as_str()).collect::<Vec<_>>(),
        ["license"]
    );
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory takes everything");
    writer.finish(&mut file, &Notes::default()).expect("there are no tensors");
    // Magic and header; length 24; 3 tokens, 1 merge; lengths and bytes.
    let section = [
        &[24_u32, 3, 1].map(u32::to_le_bytes).concat()[..],
        b"\x01\0 \x01\0t\x02\0 t\x01\0 \x01\0t",
    ]
    .concat();
    assert_eq!(file[52..file.len() - 4], section);
}
