//! The companions by name, and the JSON objects among them.

use std::collections::BTreeMap;

use apr_core::grouped;
use apr_core::json::from_python;
use serde_json::{Map, Value};

use super::learnt::Learnt;

/// Maximum length of a configuration file in bytes; real ones have at most one million. A list of
/// digits takes 72 times its text in memory, so this limits a hostile file to 300 MB.
const MAX_JSON: usize = 4 << 20;

/// Configurations that are read as a whole.
const OBJECTS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
];

pub(super) struct Files<'a> {
    pub(super) list: &'a [(String, Vec<u8>)],
    objects: BTreeMap<&'static str, Map<String, Value>>,
}

impl<'a> Files<'a> {
    pub(super) fn parse(list: &'a [(String, Vec<u8>)], learnt: &mut Learnt) -> Self {
        let mut files = Self { list, objects: BTreeMap::new() };
        for name in OBJECTS {
            let Some(bytes) = files.bytes(name) else { continue };
            match parse_object(bytes) {
                Ok(object) => drop(files.objects.insert(name, object)),
                Err(why) => learnt.warn_unreadable(name, &why),
            }
        }
        files
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        self.list.iter().find(|(there, _)| there == name).map(|(_, bytes)| bytes.as_slice())
    }

    /// Returns the object in a file, if the file exists and is valid.
    pub(super) fn object(&self, name: &str) -> Option<&Map<String, Value>> {
        self.objects.get(name)
    }

    /// The value under a key of a file; null counts as none.
    pub(super) fn value(&self, name: &str, key: &str) -> Option<&Value> {
        self.object(name)?.get(key).filter(|value| !value.is_null())
    }

    /// The value under a key of `config.json`, or of the text model's part in it.
    pub(super) fn config(&self, key: &str) -> Option<&Value> {
        let nested =
            || self.value("config.json", "text_config")?.get(key).filter(|value| !value.is_null());
        self.value("config.json", key).or_else(nested)
    }
}

fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    if bytes.len() > MAX_JSON {
        return Err(format!(
            "it has {} bytes, too many for a configuration",
            grouped(bytes.len() as u64)
        ));
    }
    match from_python(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("JSON, but not an object".to_owned()),
        Err(error) => Err(format!("not valid JSON: {}", apr_core::foreign(&error))),
    }
}
