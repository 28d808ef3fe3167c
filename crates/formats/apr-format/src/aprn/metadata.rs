//! MessagePack metadata and the model card (`docs/format/older.md`, B).
//!
//! The keys, their order and which are required are those of published programs, so that these read
//! what we write; the card holds the fields of `docs/format/older.md`, B, and any other key that a
//! file has.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use apr_core::json::Sorted;
use apr_core::{Error, Escaped, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum nesting of maps and arrays; the same limit as for JSON in this workspace.
const MAX_DEPTH: usize = 128;

/// Metadata of a model. Empty and absent values are equivalent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ModelMetadata {
    /// Creation time of the model: seconds since 1970 as text, as published programs write it, or
    /// ISO 8601.
    pub created_at: String,
    /// The program that wrote it.
    pub aprender_version: String,
    /// Name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Purpose of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Training facts: `samples`, `duration_ms`, `source`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<Value>,
    /// Settings of the training.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hyperparameters: BTreeMap<String, Value>,
    /// Quality metrics of the model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Value>,
    /// Anything else.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<String, Value>,
    /// The model it was distilled from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distillation: Option<String>,
    /// Facts about the distillation of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distillation_info: Option<Value>,
    /// A commercial licence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<License>,
    /// The model card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_card: Option<ModelCard>,
}

/// A model card.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelCard {
    /// Name of the model.
    pub name: String,
    /// Version of the model.
    pub version: String,
    /// Author of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// SPDX identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Git commit of the training code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_code_hash: Option<String>,
    /// Hash of the training data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_data_hash: Option<String>,
    /// `NLP`, `Tabular`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Whom it is for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intended_users: Vec<String>,
    /// Uses that the model is not meant for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub out_of_scope: Vec<String>,
    /// Quality metrics: `{"accuracy": 0.95}`. Published files hold more than numbers here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Value>,
    /// Settings of the training.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hyperparameters: BTreeMap<String, Value>,
    /// Known biases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias_risks: Option<String>,
    /// Known limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limitations: Option<String>,
    /// Creation time of the model.
    pub created_at: String,
    /// Time of the last change to the card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// Other keys, including keys of published programs: `model_id`, `framework_version`,
    /// `architecture`.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// A commercial licence. Published programs store it in the metadata, not in a block of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct License {
    /// UUID of the licence.
    pub uuid: String,
    /// Hash that binds it to the buyer.
    pub hash: String,
    /// Last day, ISO 8601.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry: Option<String>,
    /// Maximum number of concurrent users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// The buyer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub licensee: Option<String>,
    /// Tier of the licence.
    pub tier: LicenseTier,
}

/// Use that a licence permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LicenseTier {
    /// One person.
    #[default]
    Personal,
    /// A small group.
    Team,
    /// A company.
    Enterprise,
    /// Teaching and research.
    Academic,
}

impl ModelMetadata {
    /// Encodes the map as MessagePack, with named fields in the order of published programs.
    ///
    /// # Errors
    /// E001 for values nested too deep.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut complete = self.clone();
        if let Some(card) = &mut complete.model_card {
            // Published readers refuse a card without these.
            card.extra.entry("model_id".into()).or_insert_with(|| card.name.as_str().into());
            card.extra
                .entry("framework_version".into())
                .or_insert_with(|| self.aprender_version.as_str().into());
        }
        encode_map(&complete)
    }
}

/// Metadata as a file holds them.
#[derive(Debug, Clone)]
pub(super) struct DecodedMetadata {
    pub(super) metadata: ModelMetadata,
    /// All of the metadata, known or not.
    pub(super) json: Map<String, Value>,
    /// The metadata as MessagePack.
    pub(super) bytes: Vec<u8>,
    pub(super) warnings: Vec<String>,
}

impl DecodedMetadata {
    /// Reads MessagePack. A part that is not as it should be is left out of the fields, with a
    /// warning.
    ///
    /// # Errors
    /// E001 when the bytes are not a MessagePack map.
    pub(super) fn decode(bytes: Vec<u8>) -> Result<Self> {
        let json = decode_map(&bytes)?;
        let mut known = json.clone();
        let mut warnings = Vec::new();
        drop_unreadable::<License>(&mut known, "license", &mut warnings);
        drop_unreadable::<ModelCard>(&mut known, "model_card", &mut warnings);
        for key in ["created_at", "aprender_version"] {
            if !known.get(key).is_some_and(Value::is_string) {
                warnings
                    .push(format!("the metadata lack '{key}', which published programs require"));
                known.remove(key);
            }
        }

        let metadata = ModelMetadata::deserialize(Value::Object(known)).unwrap_or_else(|error| {
            warnings.push(format!(
                "the metadata are not as published programs write them: {}",
                brief(&error)
            ));
            ModelMetadata::default()
        });

        Ok(Self { metadata, json, bytes, warnings })
    }
}

fn drop_unreadable<T: DeserializeOwned>(
    map: &mut Map<String, Value>,
    key: &str,
    warnings: &mut Vec<String>,
) {
    let Some(value) = map.get(key).filter(|value| !value.is_null()) else { return };
    if let Err(error) = T::deserialize(value) {
        warnings
            .push(format!("the '{key}' of the metadata is not as it should be: {}", brief(&error)));
        map.remove(key);
    }
}

fn brief(error: &serde_json::Error) -> String {
    Escaped::short(&apr_core::foreign(&error)).to_string()
}

fn encode_map(value: &impl Serialize) -> Result<Vec<u8>> {
    rmp_serde::to_vec_named(&Sorted(value)).map_err(|error| {
        Error::format(format!("the metadata can't be written: {}", apr_core::foreign(&error)))
    })
}

/// A MessagePack map as JSON.
///
/// # Errors
/// E001 for anything else, for bytes after it, and for what JSON has no place for: keys that are
/// not text, binary data.
pub(super) fn decode_map(bytes: &[u8]) -> Result<Map<String, Value>> {
    let mut deserializer = rmp_serde::Deserializer::new(bytes);
    deserializer.set_max_depth(MAX_DEPTH);
    let value = Value::deserialize(&mut deserializer).map_err(|error| {
        Error::format(format!(
            "the metadata are not valid MessagePack: {}",
            Escaped::short(&apr_core::foreign(&error))
        ))
    })?;
    let left = deserializer.get_ref().len();
    match value {
        Value::Object(map) if left == 0 => Ok(map),
        Value::Object(_) => Err(Error::format(format!("{left} bytes follow the metadata's map"))),
        _ => Err(Error::format("the metadata are MessagePack, but not a map")),
    }
}
