//! Legacy GGML as users of the crate see it.

use apr_core::{CheckpointReader, Code, Error, Limits, Result};
use apr_gguf::ggml::GgmlReader;
use apr_testkit::ggml::{GgmlBuilder, GgmlTensor};
use serde_json::{Value, json};

mod blocks;
mod families;
mod hostile;
mod real;

fn open(file: impl Into<Vec<u8>>) -> Result<GgmlReader> {
    apr_gguf::ggml::open(file.into(), "model.bin", &Limits::default(), None)
}

fn open_as(file: impl Into<Vec<u8>>, arch: &str) -> Result<GgmlReader> {
    apr_gguf::ggml::open(file.into(), "model.bin", &Limits::default(), Some(arch))
}

fn refused(file: impl Into<Vec<u8>>) -> Error {
    open(file).expect_err("the file is broken")
}

fn bytes_of(reader: &GgmlReader, tensor: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("checked when opened");
    let mut bytes = vec![0; usize::try_from(len).expect("small")];
    reader.read_tensor(tensor, 0, &mut bytes).expect("it is there");
    bytes
}

fn floats_of(reader: &GgmlReader, tensor: usize) -> Vec<f32> {
    let bytes = bytes_of(reader, tensor);
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect()
}

fn field<'a>(reader: &'a GgmlReader, key: &str) -> &'a Value {
    reader.metadata().get(key).unwrap_or(&Value::Null)
}

/// Returns a LLaMA with the tensors that its detection requires: f16, f32.
fn llama(magic: [u8; 4], version: Option<i32>) -> GgmlBuilder {
    GgmlBuilder::llama(magic, version)
        .tensor(GgmlTensor::f16("tok_embeddings.weight", &[4, 3]))
        .tensor(GgmlTensor::f32("layers.0.attention_norm.weight", &[4]))
}

const CONTAINERS: [([u8; 4], Option<i32>); 5] = [
    (*b"lmgg", None),
    (*b"fmgg", Some(1)),
    (*b"tjgg", Some(1)),
    (*b"tjgg", Some(2)),
    (*b"tjgg", Some(3)),
];
