//! The ten numbers of the header, under the names that Hugging Face's configurations have.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use apr_core::{Error, Metadata, Result, keys};
use serde_json::{Map, Value, json};

use crate::older::Fields;

/// Metadata key of the facts that only the header of an APR1 file holds.
pub const METADATA_KEY: &str = "apr1";

/// The header's names in the order of its fields, and the name of each in a configuration.
const FIELDS: [(&str, &str); 10] = [
    ("n_vocab", "vocab_size"),
    ("n_audio_ctx", "max_source_positions"),
    ("n_audio_state", "d_model"),
    ("n_audio_head", "encoder_attention_heads"),
    ("n_audio_layer", "encoder_layers"),
    ("n_text_ctx", "max_target_positions"),
    ("n_text_state", "d_model"),
    ("n_text_head", "decoder_attention_heads"),
    ("n_text_layer", "decoder_layers"),
    ("n_mels", "num_mel_bins"),
];

/// Sizes by the header's number, as `docs/format/older.md`, C, lists them.
const SIZES: [&str; 12] = [
    "tiny",
    "tiny.en",
    "base",
    "base.en",
    "small",
    "small.en",
    "medium",
    "medium.en",
    "large",
    "large-v1",
    "large-v2",
    "large-v3",
];

/// Tokens of models that know English only.
const ENGLISH_VOCABULARY: u32 = 51_864;

/// Hyperparameters of the model, as the header states them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hyperparameters {
    /// The header's number for the size.
    pub(super) size: u8,
    /// Values in the order of [`FIELDS`].
    values: [u32; 10],
}

impl Hyperparameters {
    /// Reads the ten fields.
    pub(super) fn read(size: u8, fields: &mut Fields<'_>) -> Result<Self> {
        let mut values = [0; 10];
        for (value, (name, _)) in values.iter_mut().zip(FIELDS) {
            *value = fields.u32(name)?;
        }
        Ok(Self { size, values })
    }

    pub(super) fn encode(&self) -> impl Iterator<Item = u8> {
        self.values.iter().flat_map(|value| value.to_le_bytes())
    }

    /// Name of the size.
    pub(super) fn size_name(&self) -> Option<&'static str> {
        SIZES.get(usize::from(self.size)).copied()
    }

    /// Returns the values under the header's field names.
    pub(super) fn named(&self) -> Map<String, Value> {
        FIELDS
            .iter()
            .zip(self.values)
            .map(|((name, _), value)| ((*name).into(), value.into()))
            .collect()
    }

    /// Sets the metadata of a Whisper model.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        let mut architecture = Map::new();
        for ((_, name), value) in FIELDS.iter().zip(self.values) {
            // The first state is the encoder's; one that differs is left to the record of the
            // header.
            architecture.entry(*name).or_insert(value.into());
        }
        metadata.set(keys::MODEL_TYPE, "whisper");
        metadata.set(keys::ARCHITECTURE, architecture);
    }

    /// Returns the hyperparameters of a model to be written.
    ///
    /// # Errors
    /// E001 for a number that the metadata lack.
    pub(super) fn of(metadata: &Metadata) -> Result<Self> {
        let record = metadata.object(METADATA_KEY);
        let recorded = record.and_then(|record| record.get("hyperparameters")?.as_object());
        let architecture = metadata.object(keys::ARCHITECTURE);
        let mut values = Vec::new();
        for (name, config_name) in FIELDS {
            let told =
                || [config_name, name].iter().find_map(|name| architecture?.get(*name)?.as_u64());
            // The decoder's width is the encoder's in a configuration.
            let recorded = || recorded.and_then(|recorded| recorded.get(name)?.as_u64());
            let value = if name == "n_text_state" {
                recorded().or_else(told)
            } else {
                told().or_else(recorded)
            };
            let value = value
                .and_then(|value| u32::try_from(value).ok())
                .ok_or_else(|| missing(config_name))?;
            values.push(value);
        }

        let mut hyperparameters = Self { size: 0, values: [0; 10] };
        hyperparameters.values.copy_from_slice(&values);
        let recorded_size =
            record.and_then(|record| u8::try_from(record.get("model_type")?.as_u64()?).ok());
        hyperparameters.size = recorded_size.unwrap_or_else(|| hyperparameters.usual_size());
        Ok(hyperparameters)
    }

    /// Returns the size of OpenAI's model with these dimensions. For any other, returns 0 (tiny),
    /// as the published reader does.
    fn usual_size(&self) -> u8 {
        let [vocabulary, _, width, _, layers, .., mels] = self.values;
        let english = u8::from(vocabulary == ENGLISH_VOCABULARY);
        match (width, layers) {
            (512, 6) => 2 + english,
            (768, 12) => 4 + english,
            (1024, 24) => 6 + english,
            (1280, 32) if mels == 128 => 11,
            (1280, 32) => 8,
            _ => english * u8::from((width, layers) == (384, 4)),
        }
    }

    /// The record of the header under [`METADATA_KEY`].
    pub(super) fn record(&self, program: &str, version: u16) -> Value {
        json!({
            "program": program,
            "version": version,
            "model_type": self.size,
            "hyperparameters": self.named(),
        })
    }
}

fn missing(name: &str) -> Error {
    Error::format(format!(
        "the header of APR1 requires {name}, which is missing in the architecture of the metadata"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dimensions of OpenAI's checkpoints: vocabulary, width, encoder layers, mels; and the
    /// header's number.
    #[test]
    fn sizes_are_known_by_their_dimensions() {
        for (vocabulary, width, layers, mels, size) in [
            (51_865, 384, 4, 80, 0),
            (51_864, 384, 4, 80, 1),
            (51_865, 512, 6, 80, 2),
            (51_864, 768, 12, 80, 5),
            (51_865, 1024, 24, 80, 6),
            (51_865, 1280, 32, 80, 8),
            (51_866, 1280, 32, 128, 11),
            (51_864, 2, 1, 80, 0),
        ] {
            let values = [vocabulary, 1500, width, 6, layers, 448, width, 6, layers, mels];
            assert_eq!(Hyperparameters { size: 0, values }.usual_size(), size, "{width}");
        }
    }
}
