//! Models that llama.cpp's converter was run over, with what it wrote (`fixtures/gguf`).

use std::collections::BTreeMap;
use std::path::Path;

use apr_core::{CheckpointReader, KeyValue, Metadata, has_no, pass_on};
use half::{bf16, f16};
use serde_json::{Map, Value, json};

use crate::FolderInMemory;
use crate::locate::fixture;

/// Model of a fixture, with the converter's output for it.
#[derive(Debug, Clone)]
pub struct Model {
    /// Name of the fixture.
    pub name: String,
    /// Fixture: `config`, `card`, `dtype`, `tensors` with their shapes, and the expected output.
    pub json: Value,
}

/// Returns all models, sorted by name.
#[must_use]
pub fn models() -> Vec<Model> {
    let mut paths: Vec<_> = std::fs::read_dir(fixture("gguf"))
        .expect("the fixtures are there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    assert!(paths.len() > 30, "{} cases", paths.len());
    paths.iter().map(|path| read(path)).collect()
}

/// The one of this name.
#[must_use]
pub fn model(name: &str) -> Model {
    read(&fixture("gguf").join(format!("{name}.json")))
}

fn read(path: &Path) -> Model {
    let json =
        serde_json::from_slice(&std::fs::read(path).expect("it can be read")).expect("it is JSON");
    Model { name: path.file_stem().expect("a name").to_string_lossy().into_owned(), json }
}

impl Model {
    /// The folder of the model, as Hugging Face has it.
    #[must_use]
    pub fn folder(&self) -> FolderInMemory {
        let json = &self.json;
        let mut folder = FolderInMemory::default();
        folder.0.insert("model.safetensors".to_owned(), safetensors(json));
        folder.0.insert("config.json".to_owned(), json["config"].to_string().into_bytes());
        folder.0.insert("README.md".to_owned(), json["card"].as_str().expect("a card").into());
        for (name, content) in json["beside"].as_object().expect("files") {
            folder.0.insert(name.clone(), content.to_string().into_bytes());
        }
        folder
    }
}

/// Returns the tokenizer keys that distinguish families of encoders.
#[must_use]
pub fn tokenizer(json: &Value) -> Vec<KeyValue> {
    let model = match json["config"]["model_type"].as_str().expect("a family") {
        "bert" | "distilbert" => "bert",
        "roberta" => "gpt2",
        _ => "llama",
    };
    let mut tokenizer = vec![KeyValue::new("tokenizer.ggml.model", model)];
    let pad = json["config"]["pad_token_id"].as_u64().and_then(|pad| u32::try_from(pad).ok());
    tokenizer.extend(pad.map(|pad| KeyValue::new("tokenizer.ggml.padding_token_id", pad)));
    tokenizer
}

/// The numbers of `fixtures/gguf/make.py`.
fn values(name: &str, count: u64) -> impl Iterator<Item = f32> + use<> {
    let seed: u64 = name.bytes().map(u64::from).sum();
    (0..count).map(move |at| ((at * 37 + seed) % 251) as f32 - 125.0).map(|value| value / 64.0)
}

/// None of them needs more bits than the shortest of these dtypes has.
fn bytes_of(name: &str, count: u64, dtype: &str) -> Vec<u8> {
    let values = values(name, count);
    match dtype {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole numbers from 0 to 250"
        )]
        "uint8" => values.map(|value| (value * 64.0 + 125.0) as u8).collect(),
        "float32" => values.flat_map(f32::to_le_bytes).collect(),
        "float16" => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        _ => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
    }
}

fn safetensors(json: &Value) -> Vec<u8> {
    let dtype = json["dtype"].as_str().expect("a dtype");
    let (mut header, mut data) = (Map::new(), Vec::new());
    let tensors: BTreeMap<&String, &Value> =
        json["tensors"].as_object().expect("tensors").iter().collect();
    for (name, shape) in tensors {
        let count = shape.as_array().expect("a shape").iter().filter_map(Value::as_u64).product();
        let start = data.len();
        let is_bytes = name.ends_with("_blocks") || name.ends_with("_scales");
        let dtype = if is_bytes { "uint8" } else { dtype };
        data.extend(bytes_of(name, count, dtype));
        let code = match dtype {
            "uint8" => "U8",
            "float32" => "F32",
            "float16" => "F16",
            _ => "BF16",
        };

        header.insert(
            name.clone(),
            json!({"dtype": code, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }

    let header = Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    file
}

/// A checkpoint as a reader of GGUF shows it: without family and configuration.
pub struct AsGguf<'a> {
    base: &'a dyn CheckpointReader,
    metadata: Metadata,
}

impl<'a> AsGguf<'a> {
    /// # Panics
    /// Where the checkpoint has no such pairs.
    #[must_use]
    pub fn new(base: &'a dyn CheckpointReader) -> Self {
        let mut metadata = Metadata::new();
        metadata.set("gguf", base.metadata().get("gguf").expect("keys").clone());
        let pairs = base.metadata().key_values().expect("pairs").expect("keys");
        metadata.set_key_values((*pairs).clone());
        Self { base, metadata }
    }
}

impl CheckpointReader for AsGguf<'_> {
    pass_on!(base: format, tensors, stored, read_tensor, tensor_slice, container, files);
    has_no!(companions, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
