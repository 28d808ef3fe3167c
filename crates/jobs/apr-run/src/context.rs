//! How many tokens a model takes.

use apr_registry::TensorInfo;
use serde_json::Value as Json;

use super::Facts;

/// Keys in configurations for the length of the longest text that a model was made for.
const KEYS: [&str; 7] = [
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
];

/// Suffixes of the names of tables with a row for each position, from Hugging Face and from GGUF.
const TABLES: [&str; 5] = [
    "position_embeddings.weight",
    "position_embedding.weight",
    "embed_positions.weight",
    "wpe.weight",
    "position_embd.weight",
];

/// Returns the number of rows in the table of positions, if the model has one for its texts.
pub(super) fn position_rows(tensors: &[TensorInfo]) -> Option<usize> {
    // Towers for pictures, and encoders beside a decoder, have tables of their own.
    let is_other = |name: &str| {
        name.contains("vision") || name.contains("visual") || name.contains("encoder.embed_pos")
    };
    let rows = |info: &TensorInfo| match info.shape.dims() {
        [rows, _] if TABLES.iter().any(|end| info.name.ends_with(end)) && !is_other(&info.name) => {
            usize::try_from(*rows).ok()
        }
        _ => None,
    };
    tensors.iter().filter_map(rows).min()
}

fn size(json: &Json) -> Option<usize> {
    usize::try_from(json.as_u64()?).ok()
}

impl Facts {
    /// Returns the maximum number of tokens of a text.
    #[must_use]
    pub fn context(&self) -> Option<usize> {
        let sentence =
            self.sentence().and_then(|sentence| usize::try_from(sentence.max_tokens?).ok());
        [self.positions(), sentence].into_iter().flatten().filter(|size| *size > 0).min()
    }

    /// Returns the number of tokens that the model has positions for, whatever the length that its
    /// texts are cut to. Returns `None` if it is not known.
    #[must_use]
    pub(crate) fn positions(&self) -> Option<usize> {
        let own = self.configured(&KEYS).map(|own| self.without_padding(own.max(self.stretched())));
        let known = [own, self.stated_context, self.position_rows];
        known.into_iter().flatten().filter(|size| *size > 0).min()
    }

    /// Returns the maximum number of tokens that a decoder after an encoder writes, including the
    /// first one. Returns `None` for models with relative positions.
    #[must_use]
    pub fn decoder_context(&self) -> Option<usize> {
        let kind = self.config("model_type").and_then(Json::as_str).unwrap_or_default();
        let by_distance = kind.contains("t5") || kind == "switch_transformers";
        let own = ["max_target_positions", "max_decoder_position_embeddings"];
        let all = ["max_position_embeddings"];
        let found =
            self.configured(&own).or_else(|| self.configured(&all)).filter(|_| !by_distance);
        found.or(self.position_rows).filter(|size| *size > 0)
    }

    /// Returns the number of tokens in the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        self.configured(&["vocab_size"]).filter(|size| *size > 0)
    }

    /// The first of these that the configuration has, for the model or its texts; of a model
    /// without `config.json`, what its metadata say.
    fn configured(&self, keys: &[&str]) -> Option<usize> {
        let file = self.file("config.json");
        let places = [
            file,
            file.and_then(|file| file.get("text_config")),
            self.get("architecture").filter(|_| file.is_none()),
        ];
        let found = |place: &Json| keys.iter().find_map(|key| size(place.get(*key)?));
        places.into_iter().flatten().find_map(found)
    }

    /// Returns the length to which YaRN extends the context. Configurations may state only the
    /// original length.
    fn stretched(&self) -> usize {
        let file = self.file("config.json");
        let text = file.and_then(|file| file.get("text_config"));
        let rope = ["rope_scaling", "rope_parameters"];
        let stretched = |place: &Json| {
            let rope =
                rope.iter().find_map(|key| place.get(*key).filter(|rope| rope.is_object()))?;
            let kind = rope.get("rope_type").or_else(|| rope.get("type"))?.as_str()?;
            let original = size(rope.get("original_max_position_embeddings")?)?;
            let factor = rope.get("factor")?.as_f64().filter(|factor| *factor >= 1.0)?;
            (kind == "yarn").then(|| multiplied(original, factor))
        };
        [file, text].into_iter().flatten().find_map(stretched).unwrap_or(0)
    }

    /// The length of texts beyond which LongRoPE turns all of their tokens otherwise; `None` for
    /// models with other positions.
    #[must_use]
    pub fn switch(&self) -> Option<usize> {
        const TRAINED: &str = "original_max_position_embeddings";
        let file = self.file("config.json").or_else(|| self.get("architecture"));
        let text = file.and_then(|file| file.get("text_config"));
        let of = |place: &Json| {
            let rope = ["rope_scaling", "rope_parameters"]
                .iter()
                .find_map(|key| place.get(*key).filter(|rope| rope.is_object()))?;
            let kind = rope.get("rope_type").or_else(|| rope.get("type"))?.as_str()?;
            // Phi-3 has this length at the top of its configuration.
            let trained = || place.get(TRAINED).or_else(|| rope.get(TRAINED)).and_then(size);
            let all = || place.get("max_position_embeddings").and_then(size);
            matches!(kind, "longrope" | "su").then(|| trained().or_else(all))?
        };
        self.stated_switch.or_else(|| [file, text].into_iter().flatten().find_map(of))
    }

    /// Subtracts the first rows of RoBERTa's and MPNet's positions, which represent padding.
    fn without_padding(&self, own: usize) -> usize {
        let kind = self.config("model_type").and_then(Json::as_str).unwrap_or_default();
        let shifted = ["roberta", "camembert", "mpnet", "longformer", "data2vec-text", "luke"];
        if !shifted.iter().any(|name| kind.contains(name)) {
            return own;
        }
        let padding = self.config("pad_token_id").and_then(size).unwrap_or(1);
        own.saturating_sub(padding.saturating_add(1))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float becomes the nearest size"
)]
fn multiplied(size: usize, factor: f64) -> usize {
    (size as f64 * factor) as usize
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn context(config: Json) -> Option<usize> {
        Facts::of_file("config.json", config).context()
    }

    #[test]
    fn context_lengths_are_read_from_many_configuration_keys() {
        assert_eq!(context(json!({ "max_position_embeddings": 512 })), Some(512));
        assert_eq!(context(json!({ "n_positions": 1024 })), Some(1024));
        assert_eq!(context(json!({ "text_config": { "max_position_embeddings": 77 } })), Some(77));
        let roberta = json!({ "model_type": "xlm-roberta", "max_position_embeddings": 514 });
        assert_eq!(context(roberta), Some(512));
        let yarn = json!({
            "max_position_embeddings": 32_768,
            "rope_scaling": {
                "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768
            }
        });
        assert_eq!(context(yarn), Some(131_072));
        assert_eq!(context(json!({ "hidden_size": 8 })), None);
    }

    #[test]
    fn decoders_have_a_context_of_their_own() {
        let of = |config: Json| Facts::of_file("config.json", config).decoder_context();
        let whisper = json!({ "max_source_positions": 1500, "max_target_positions": 448 });
        assert_eq!(of(whisper), Some(448));
        assert_eq!(of(json!({ "model_type": "t5", "n_positions": 512 })), None);
        assert_eq!(of(json!({ "model_type": "bart", "max_position_embeddings": 64 })), Some(64));
    }

    #[test]
    fn tables_of_positions_bound_the_context() {
        use apr_registry::{DType, Shape};
        let info = |name: &str, dims: &[u64]| TensorInfo {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: Shape::from(dims.to_vec()),
        };
        let tensors = [
            info("transformer.wpe.weight", &[64, 8]),
            info("vision_model.embeddings.position_embedding.weight", &[17, 8]),
            info("model.encoder.embed_positions.weight", &[30, 8]),
        ];
        assert_eq!(position_rows(&tensors), Some(64));
        assert_eq!(position_rows(&tensors[1..]), None);
    }
}
