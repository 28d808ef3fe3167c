//! `_METADATA`: which leaves the tree has, and how they are stored.

use apr_core::{Error, Metadata, Result};
use serde_json::Value;

/// Description of a checkpoint.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) leaves: Vec<Leaf>,
    pub(crate) ocdbt: bool,
    pub(crate) zarr3: bool,
    /// `true` if chunks that have only the fill value are also written, so that every chunk must
    /// exist.
    pub(crate) complete: bool,
    /// Additional data of the program that saved the checkpoint.
    pub(crate) custom: Option<Value>,
}

/// A value of the tree.
#[derive(Debug)]
pub(crate) struct Leaf {
    /// Path of the value, with `/` between keys.
    pub(crate) name: String,
    /// Path of the value, with `.` between keys, which is its key in the store.
    pub(crate) key: String,
    /// `true` if the value is text, which is stored elsewhere.
    pub(crate) is_text: bool,
}

impl Tree {
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        let metadata = Metadata::parse(json)?;
        let damaged = |what: &str| Error::corrupt(format!("the tree of names {what}"));
        let tree = metadata.object("tree_metadata").ok_or_else(|| damaged("is missing"))?;
        let mut leaves = Vec::new();
        for described in tree.values() {
            let value = &described["value_metadata"];
            // Empty containers, and what is nothing.
            if value["skip_deserialize"].as_bool() == Some(true) {
                continue;
            }
            let keys = described["key_metadata"].as_array();
            let keys = keys.and_then(|keys| {
                let key = |key: &Value| match &key["key"] {
                    Value::String(text) => Some(text.clone()),
                    Value::Number(number) => Some(number.to_string()),
                    _ => None,
                };
                keys.iter().map(key).collect::<Option<Vec<String>>>()
            });
            let keys = keys.ok_or_else(|| damaged("has a leaf without a path"))?;
            leaves.push(Leaf {
                name: keys.join("/"),
                key: keys.join("."),
                is_text: value["value_type"].as_str() == Some("string"),
            });
        }
        let flag = |name: &str| metadata.get(name).and_then(Value::as_bool) == Some(true);
        Ok(Self {
            leaves,
            ocdbt: flag("use_ocdbt"),
            zarr3: flag("use_zarr3"),
            complete: flag("store_array_data_equal_to_fill_value"),
            custom: metadata.get("custom_metadata").filter(|custom| !custom.is_null()).cloned(),
        })
    }
}
