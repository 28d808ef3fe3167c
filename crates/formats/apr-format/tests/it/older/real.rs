//! Files that published programs wrote. Their values are those of the safetensors file that they
//! were made from, which is read here without any of the code under test.

use std::collections::BTreeMap;

use apr_core::DType;
use apr_testkit::locate;
use serde_json::{Value, json};

use super::{bytes_of, covered, open, values_of};

fn file(name: &str) -> Option<Vec<u8>> {
    locate::shared_data(&format!("apr/{name}"))
        .map(|path| std::fs::read(path).expect("it can be read"))
}

/// Shape and values by name.
type Originals = BTreeMap<String, (Vec<u64>, Vec<f32>)>;

fn source() -> Option<Originals> {
    let bytes = file("source-model.safetensors")?;
    let (len, rest) = bytes.split_first_chunk::<8>().expect("a header length");
    let (header, data) =
        rest.split_at(usize::try_from(u64::from_le_bytes(*len)).expect("a short header"));
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).expect("JSON");
    let tensors =
        header.into_iter().filter(|(name, _)| name != "__metadata__").map(|(name, entry)| {
            assert_eq!(entry["dtype"], "F32");
            let at = |which: usize| {
                usize::try_from(entry["data_offsets"][which].as_u64().expect("a number"))
                    .expect("small")
            };
            let values = data[at(0)..at(1)]
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect();
            let shape = entry["shape"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|dim| dim.as_u64().expect("a number"));
            (name, (shape.collect(), values))
        });
    Some(tensors.collect())
}

/// Opens a conversion of the source, and compares each value; `allowed` is the largest difference,
/// from dtype, the largest value of the tensor, and the value.
fn compare(name: &str, allowed: impl Fn(DType, f32, f32) -> f32) {
    let (Some(bytes), Some(source)) = (file(name), source()) else { return };
    let reader = open(bytes.clone()).expect("a sound file");
    assert_eq!(reader.format(), &apr_format::dialect::FORMAT);
    assert_eq!(covered(&*reader, &bytes), Some(true));
    assert_eq!(reader.tensors().len(), source.len());
    for info in reader.tensors() {
        let (shape, expected) = &source[&info.name];
        assert_eq!(info.shape.dims(), shape, "{}", info.name);
        let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        for (ours, theirs) in values_of(&*reader, &info.name).iter().zip(expected) {
            let allowed = allowed(info.dtype, largest, *theirs);
            assert!((ours - theirs).abs() <= allowed, "{}: {ours} for {theirs}", info.name);
        }
    }
}

#[test]
fn an_import_has_the_values_of_its_source() {
    compare("aprender-core-0.72.3-import-f32.v2.apr", |dtype, _, _| {
        assert_eq!(dtype, DType::F32);
        0.0
    });
}

#[test]
fn a_conversion_to_half_precision_is_within_its_rounding() {
    compare("aprender-core-0.72.3-conv-fp16.v2.apr", |dtype, _, value| {
        assert_eq!(dtype, DType::F16);
        (value.abs() * 2.0_f32.powi(-11)).max(2.0_f32.powi(-25))
    });
}

#[test]
fn a_conversion_to_int8_is_within_half_a_step() {
    compare("aprender-core-0.72.3-conv-int8.v2.apr", |dtype, largest, _| match dtype {
        DType::F32 => 0.0,
        dtype => {
            assert_eq!(dtype, DType::I8_ROW);
            largest / 127.0 * 0.500_01
        }
    });
}

#[test]
fn metadata_get_the_keys_of_this_project() {
    let Some(bytes) = file("aprender-core-0.72.3-import-f32.v2.apr") else { return };
    let reader = open(bytes).expect("a sound file");
    assert_eq!(reader.metadata().text("model_type"), Some("llama"));
    let expected = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 64, "intermediate_size": 64, "max_position_embeddings": 256,
        "rope_theta": 10000.0, "rms_norm_eps": 0.00001,
    });
    assert_eq!(reader.metadata().get("architecture"), Some(&expected));
}

#[test]
fn every_dtype_of_the_dialect_is_read() {
    let Some(bytes) = file("apr-format-0.72.3-alldtypes.v2.apr") else { return };
    let reader = open(bytes.clone()).expect("a sound file");
    assert_eq!(covered(&*reader, &bytes), Some(true));
    let found: Vec<_> =
        reader.tensors().iter().map(|info| (info.name.as_str(), info.dtype)).collect();
    let expected = [
        ("scalar.i64", DType::I64),
        ("w.bf16", DType::BF16),
        ("w.f16", DType::F16),
        ("w.f32", DType::F32),
        ("w.q4", DType::Q4_0),
        ("w.q8", DType::I8_ROW),
    ];
    assert_eq!(found, expected);
    assert_eq!(bytes_of(&*reader, "scalar.i64"), 7_i64.to_le_bytes());
    // All of them were made from the values of w.f32.
    let values = values_of(&*reader, "w.f32");
    assert_eq!(values.len(), 1024);
    let near = |name: &str, step: &dyn Fn(&[f32], f32) -> f32| {
        for (ours, theirs) in values_of(&*reader, name).chunks(32).zip(values.chunks(32)) {
            for (ours, value) in ours.iter().zip(theirs) {
                assert!((ours - value).abs() <= step(theirs, *value), "{name}: {ours} for {value}");
            }
        }
    };
    let largest =
        |values: &[f32]| values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    near("w.bf16", &|_, value| value.abs() / 128.0);
    near("w.f16", &|_, value| (value.abs() / 2048.0).max(3e-8));
    near("w.q4", &|block, _| largest(block) / 7.0 * 0.502);
    near("w.q8", &|_, _| largest(&values) / 127.0 * 0.500_01);
    assert!(
        reader.warnings().iter().any(|warning| warning.contains("QUANTIZED is not set")),
        "{:?}",
        reader.warnings()
    );
    assert!(reader.warnings().iter().any(|warning| warning.contains("VOCABULARY is not set")));
}

#[test]
fn the_dialect_with_the_magic_of_apr2_is_distinguished_from_apr2() {
    let Some(bytes) = file("aprender-0.20.0-v2.APR2magic.apr") else { return };
    let reader = open(bytes.clone()).expect("a sound file");
    assert_eq!(
        (reader.format(), covered(&*reader, &bytes)),
        (&apr_format::dialect::FORMAT, Some(true))
    );
    assert_eq!(values_of(&*reader, "a.weight"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(reader.tensors()[1].dtype, DType::BF16);
    assert_eq!(values_of(&*reader, "b.bf16"), [1.0, 2.0]);
}

#[test]
fn the_container_of_whisper_apr_is_read_with_its_filterbank() {
    let Some(bytes) = file("whisper-apr-0.1.0-f32.apr1.apr") else { return };
    let reader = open(bytes.clone()).expect("a sound file");
    assert_eq!(
        (reader.format(), covered(&*reader, &bytes)),
        (&apr_format::apr1::FORMAT, Some(true))
    );
    let quarters: Vec<f32> = (-12..12).map(|quarter: i8| f32::from(quarter) / 4.0).collect();
    assert_eq!(reader.tensors()[0].shape.dims(), [2, 4, 3]);
    assert_eq!(values_of(&*reader, "encoder.conv1.weight"), quarters);
    assert_eq!(values_of(&*reader, "encoder.conv1.bias"), [0.5, -0.5]);
    assert_eq!(values_of(&*reader, "audio.mel_filterbank"), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
    assert_eq!(reader.tensors()[2].shape.dims(), [2, 3]);
    let architecture = reader.metadata().object("architecture").expect("hyperparameters");
    assert_eq!(
        (&architecture["vocab_size"], &architecture["d_model"]),
        (&json!(51_865), &json!(384))
    );
    assert_eq!(reader.warnings(), [""; 0]);
}

#[test]
fn the_container_with_a_json_index_is_read() {
    let Some(bytes) = file("aprender-0.20.0-json.apr1.apr") else { return };
    let reader = open(bytes.clone()).expect("a sound file");
    assert_eq!(
        (reader.format(), covered(&*reader, &bytes)),
        (&apr_format::apr1::FORMAT, Some(true))
    );
    assert_eq!(values_of(&*reader, "a.weight"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(reader.tensors()[0].shape.dims(), [2, 3]);
    assert_eq!(values_of(&*reader, "b.bias"), [0.5, -0.5]);
    assert_eq!(reader.metadata().text("model_type"), Some("whisper"));
}
