//! Pairs and tensors of GGUF files.

use std::collections::HashSet;
use std::fs;
use std::io::Cursor;

use apr_quantize::Scheme;
use apr_registry::OpenOptions;
use apr_testkit::locate::fixture;
use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, Value};

use crate::Outcome;
use crate::written::{Decoded, decoded, gguf, pure_gguf};

/// Schemes whose types candle supports.
const SCHEMES: [Scheme; 17] = [
    Scheme::Fp32,
    Scheme::Fp16,
    Scheme::Bf16,
    Scheme::Q4_0,
    Scheme::Q4_1,
    Scheme::Q5_0,
    Scheme::Q5_1,
    Scheme::Q8_0,
    Scheme::Q2_K,
    Scheme::Q3_K_S,
    Scheme::Q3_K_M,
    Scheme::Q3_K_L,
    Scheme::Q4_K_S,
    Scheme::Q4_K_M,
    Scheme::Q5_K_S,
    Scheme::Q5_K_M,
    Scheme::Q6_K,
];

#[test]
fn tensors_have_the_same_names_shapes_bytes_and_values() -> Outcome {
    let mut seen = HashSet::new();
    // Rows of 256 are rare in a model so small, and the mix has other types than Q2_K for them.
    let bare = [(Scheme::Q2_K, pure_gguf(Scheme::Q2_K))];
    for (scheme, file) in SCHEMES.map(|scheme| (scheme, gguf(scheme))).into_iter().chain(bare) {
        let file = file?;
        let content = Content::read(&mut Cursor::new(&file))?;
        let ours = decoded(&file)?;
        assert_eq!(content.tensor_infos.len(), ours.len(), "{scheme}");
        for Decoded { name, shape, bytes, values } in ours {
            let tensor = content.tensor(&mut Cursor::new(&file), &name, &Device::Cpu)?;
            assert_eq!(tensor.shape().dims(), shape, "{scheme}: {name}");
            assert!(*tensor.data()? == bytes, "{scheme}: bytes of {name}");
            let theirs = tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
            let equal = theirs
                .iter()
                .map(|value| value.to_bits())
                .eq(values.iter().map(|value| value.to_bits()));
            assert!(equal, "{scheme}: values of {name}, {:?}", tensor.dtype());
            seen.insert(tensor.dtype());
        }
    }
    use GgmlDType::{BF16, F16, F32, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    assert_eq!(
        seen,
        HashSet::from([F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K])
    );
    Ok(())
}

#[test]
fn pairs_contain_the_values_of_the_configuration() -> Outcome {
    for (scheme, file_type) in [(Scheme::Fp16, 1), (Scheme::Q8_0, 7), (Scheme::Q4_K_M, 15)] {
        let file = gguf(scheme)?;
        let content = Content::read(&mut Cursor::new(&file))?;
        let pair =
            |key: &str| content.metadata.get(key).ok_or_else(|| format!("{scheme} lacks {key}"));
        assert_eq!(pair("general.architecture")?.to_string()?, "llama");
        assert_eq!(pair("general.file_type")?.to_u32()?, file_type);
        for (key, expected) in [
            ("block_count", 2),
            ("context_length", 64),
            ("embedding_length", 128),
            ("feed_forward_length", 256),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("rope.dimension_count", 32),
            ("vocab_size", 259),
        ] {
            assert_eq!(pair(&format!("llama.{key}"))?.to_u32()?, expected, "{scheme}: {key}");
        }
        assert_eq!(pair("llama.attention.layer_norm_rms_epsilon")?.to_f32()?, 1e-5);
        assert_eq!(pair("llama.rope.freq_base")?.to_f32()?, 10_000.0);
    }
    Ok(())
}

#[test]
fn the_tokenizer_is_the_models_own() -> Outcome {
    let file = gguf(Scheme::Fp16)?;
    let content = Content::read(&mut Cursor::new(&file))?;
    let pair = |key: &str| content.metadata.get(key).ok_or_else(|| format!("lacks {key}"));
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(fixture("tiny-llama/tokenizer.json"))?)?;
    let tokens = pair("tokenizer.ggml.tokens")?.to_vec()?;
    let vocabulary = json["model"]["vocab"].as_object().ok_or("a vocabulary")?;
    assert!(tokens.len() == 259 && vocabulary.len() >= 256);
    for (token, id) in vocabulary {
        let id = usize::try_from(id.as_u64().ok_or("an id")?)?;
        assert_eq!(tokens[id].to_string()?, token);
    }
    for (key, id, token) in [("bos", 256, "<s>"), ("eos", 257, "</s>"), ("padding", 258, "<pad>")] {
        assert_eq!(pair(&format!("tokenizer.ggml.{key}_token_id"))?.to_u32()?, id);
        assert_eq!(tokens[id as usize].to_string()?, token);
    }
    assert!(pair("tokenizer.ggml.add_bos_token")?.to_bool()?);
    Ok(())
}

#[test]
fn no_pair_is_lost_or_of_another_type() -> Outcome {
    let file = gguf(Scheme::Q8_0)?;
    let content = Content::read(&mut Cursor::new(&file))?;
    let reader = apr_registry::open(file, "tiny-llama.gguf", OpenOptions::default())?;
    let ours = apr_registry::gguf::key_values(reader.metadata())?.ok_or("pairs")?;
    assert_eq!(content.metadata.len(), ours.len());
    for pair in ours.to_vec() {
        let theirs =
            content.metadata.get(&pair.key).ok_or_else(|| format!("lacks {}", pair.key))?;
        assert_eq!(type_name(theirs), pair.value.type_name(), "{}", pair.key);
    }
    Ok(())
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::U8(_) => "u8",
        Value::I8(_) => "i8",
        Value::U16(_) => "u16",
        Value::I16(_) => "i16",
        Value::U32(_) => "u32",
        Value::I32(_) => "i32",
        Value::U64(_) => "u64",
        Value::I64(_) => "i64",
        Value::F32(_) => "f32",
        Value::F64(_) => "f64",
        Value::Bool(_) => "bool",
        Value::String(_) => "string",
        Value::Array(_) => "array",
    }
}
