//! Checkpoints of a few hand-made parts, read as the weights that they stand for.

use apr_core::{CheckpointReader, DType, Limits, Result};
use apr_tensor::element::widen_f32;
use apr_testkit::FolderInMemory;
use apr_testkit::safetensors::{self, SafeTensor};

use super::Coded;

/// A tensor: its name, its dtype as safetensors has it, its shape and its bytes.
pub(super) type Part<'a> = (&'a str, &'a str, &'a [u64], &'a [u8]);

/// A tensor that was read.
#[derive(Debug, PartialEq)]
pub(super) struct Read {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    pub(super) values: Vec<f32>,
}

/// Returns a folder with these tensors and this `config.json`, which is omitted if empty.
pub(super) fn folder(parts: &[Part<'_>], config: &str) -> Box<dyn CheckpointReader> {
    opened(parts, None, "config.json", config)
}

/// Returns a folder with these tensors and these texts in the header of their file.
pub(super) fn folder_with(
    parts: &[Part<'_>],
    texts: &serde_json::Value,
) -> Box<dyn CheckpointReader> {
    opened(parts, Some(texts), "config.json", "")
}

/// Returns a folder with these tensors beside a file, which is omitted if empty.
pub(super) fn beside(parts: &[Part<'_>], name: &str, text: &str) -> Box<dyn CheckpointReader> {
    opened(parts, None, name, text)
}

fn opened(
    parts: &[Part<'_>],
    texts: Option<&serde_json::Value>,
    name: &str,
    text: &str,
) -> Box<dyn CheckpointReader> {
    let tensor = |&(name, dtype, shape, bytes): &Part<'_>| SafeTensor {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        shape: shape.to_vec(),
        bytes: bytes.to_vec(),
    };
    let tensors: Vec<SafeTensor> = parts.iter().map(tensor).collect();
    let mut folder = FolderInMemory::default();
    folder.0.insert("model.safetensors".into(), safetensors::file(texts, &tensors));
    if !text.is_empty() {
        folder.0.insert(name.into(), text.as_bytes().to_vec());
    }
    let model = apr_registry::open_folder(&folder, &Limits::default()).expect("a model");
    Coded::over(Box::new(model))
}

/// Reads the first tensor of such a folder, and asserts that pieces of any length give the same
/// bytes.
pub(super) fn first(parts: &[Part<'_>], config: &str) -> Result<Read> {
    let model = folder(parts, config);
    let info = &model.tensors()[0];
    let mut bytes = vec![0; usize::try_from(info.byte_len()?).expect("small")];
    model.read_tensor(0, 0, &mut bytes)?;
    for len in [1, 3, 7, 13] {
        let mut pieces = bytes.clone();
        for (number, piece) in pieces.chunks_mut(len).enumerate() {
            piece.fill(0);
            model.read_tensor(0, (number * len) as u64, piece)?;
        }
        assert_eq!(pieces, bytes, "in pieces of {len}");
    }
    let mut values = Vec::new();
    widen_f32(info.dtype, &bytes, &mut values);
    let coding = model.stored(0).coding();
    if let Some((coding, codes)) = coding.and_then(|coding| Some((coding, coding.in_memory?))) {
        let rows = usize::try_from(info.shape.dims()[0]).expect("small");
        let mut decoded = vec![0.0; values.len()];
        codes.keep(coding.base)?.decode(coding.base, 0..rows, 0, &mut decoded)?;
        assert_eq!(decoded, values, "from codes in memory");
    }
    let (name, shape) = (info.name.clone(), info.shape.dims().to_vec());
    Ok(Read { name, dtype: info.dtype, shape, values })
}

/// The error that such a folder ends with, and its code in front.
pub(super) fn error(parts: &[Part<'_>], config: &str) -> String {
    let error = first(parts, config).expect_err("an error");
    format!("{:?} {error}", error.code())
}

/// The bytes of floats.
pub(super) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The bytes of words.
pub(super) fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The bytes of elements of 16 bits.
pub(super) fn u16s(elements: &[u16]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}
