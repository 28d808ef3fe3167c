//! Against llama.cpp's converter: `fixtures/tokenizers`.

mod key_values;
mod rebuilt_files;
mod refusals;
mod warnings;

use apr_core::Error;
use apr_gguf::{Array, KeyValue, Value};
use apr_testkit::locate;
use serde_json::Value as Json;

use super::{Options, Tokenizer, tokenizer_key_values};

type Change = fn(&mut Json);

pub(super) struct Case {
    architecture: String,
    rows: u64,
    files: Vec<(String, Vec<u8>)>,
    pub(super) key_values: Vec<KeyValue>,
}

const CASES: [&str; 12] = [
    "bert",
    "bert_cased",
    "gpt2",
    "llama3",
    "qwen2",
    "smollm",
    "spm",
    "spm_model",
    "spm_trained",
    "t5_gaps",
    "t5_model",
    "xlm_roberta",
];

impl Case {
    pub(super) fn read(name: &str) -> Self {
        let bytes = std::fs::read(locate::fixture(&format!("tokenizers/{name}.json"))).unwrap();
        let case: Json = serde_json::from_slice(&bytes).unwrap();
        let files = case["files"].as_object().unwrap();
        let mut files: Vec<_> = files
            .iter()
            .map(|(name, file)| (name.clone(), file.to_string().into_bytes()))
            .collect();
        if let Some(model) = case["sentencepiece"].as_str() {
            let name = if name.starts_with("t5") { "spiece.model" } else { "tokenizer.model" };
            let model = std::fs::read(locate::fixture(&format!("sentencepiece/{model}"))).unwrap();
            files.push((name.to_owned(), model));
        }
        Self {
            architecture: case["architecture"].as_str().unwrap().to_owned(),
            rows: case["rows"].as_u64().unwrap(),
            files,
            key_values: case["key_values"].as_array().unwrap().iter().map(key_value).collect(),
        }
    }

    fn write(&self) -> Tokenizer {
        tokenizer_key_values(&self.architecture, &self.files, Some(self.rows), &Options::default())
            .unwrap()
    }

    /// The case with its `tokenizer.json` changed.
    fn with(self, change: impl FnOnce(&mut Json)) -> Self {
        self.with_file("tokenizer.json", change)
    }

    fn with_file(mut self, name: &str, change: impl FnOnce(&mut Json)) -> Self {
        let file = self.files.iter_mut().find(|(there, _)| there == name).unwrap();
        let mut json = serde_json::from_slice(&file.1).unwrap();
        change(&mut json);
        file.1 = json.to_string().into_bytes();
        self
    }

    fn error(&self) -> Error {
        tokenizer_key_values(&self.architecture, &self.files, Some(self.rows), &Options::default())
            .unwrap_err()
    }
}

fn key_value(entry: &Json) -> KeyValue {
    let value = &entry[2];
    let value = match entry[1].as_str().unwrap() {
        "string" => Value::from(value.as_str().unwrap()),
        "bool" => Value::from(value.as_bool().unwrap()),
        "u32" => Value::from(u32::try_from(value.as_u64().unwrap()).unwrap()),
        "[string" => Value::from(serde_json::from_value::<Vec<String>>(value.clone()).unwrap()),
        "[f32" => Value::from(serde_json::from_value::<Vec<f32>>(value.clone()).unwrap()),
        "[i32" => Value::from(serde_json::from_value::<Vec<i32>>(value.clone()).unwrap()),
        "[u8" => Value::from(serde_json::from_value::<Vec<u8>>(value.clone()).unwrap()),
        other => panic!("{other}"),
    };
    KeyValue::new(entry[0].as_str().unwrap(), value)
}

fn of<'a>(key_values: &'a [KeyValue], name: &str) -> &'a Value {
    let key = format!("tokenizer.ggml.{name}");
    &key_values.iter().find(|there| there.key == key).unwrap_or_else(|| panic!("no {key}")).value
}

fn texts(key_values: &[KeyValue]) -> &[String] {
    let Value::Array(Array::String(texts)) = of(key_values, "tokens") else {
        panic!("tokens are strings")
    };
    texts
}
