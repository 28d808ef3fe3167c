//! The inputs that a tokenizer returns: whether the two texts of a pair get different types.

use serde_json::{Map, Value as Json};

/// Key of the inputs in a GGUF file.
///
/// The key is apr's own: llama.cpp gives every token the type 0. It is written only if the
/// tokenizer of a model with several types does not return them.
pub const GGUF_INPUT_NAMES: &str = "tokenizer.ggml.model_input_names";

/// The same key in `tokenizer_config.json`, and the end of [`GGUF_INPUT_NAMES`].
pub(crate) const INPUT_NAMES: &str = "model_input_names";

/// The input that has the types.
const TOKEN_TYPES: &str = "token_type_ids";

/// Tokenizer classes of transformers 5.24 that return token types, without `Tokenizer`.
///
/// All others, which include `TokenizersBackend`, return `input_ids` and `attention_mask` only. A
/// class that transformers does not have becomes `TokenizersBackend`.
const CLASSES: [&str; 16] = [
    "Bert",
    "Canine",
    "ConvBert",
    "DPRContextEncoder",
    "DPRQuestionEncoder",
    "Deberta",
    "DebertaV2",
    "Electra",
    "FNet",
    "LayoutLM",
    "LayoutLMv2",
    "Lxmert",
    "MarkupLM",
    "MobileBert",
    "SqueezeBert",
    "Tapas",
];

/// Model types to which `AutoTokenizer` of transformers 5.24 assigns such a class if no file names
/// a class.
const MODEL_TYPES: [&str; 36] = [
    "align",
    "bark",
    "bert",
    "blip",
    "bros",
    "canine",
    "chinese_clip",
    "convbert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "dpr",
    "electra",
    "ernie",
    "flava",
    "fnet",
    "git",
    "grounding-dino",
    "layoutlm",
    "layoutlmv2",
    "lxmert",
    "markuplm",
    "megatron-bert",
    "mm-grounding-dino",
    "mobilebert",
    "nezha",
    "nomic_bert",
    "qdqbert",
    "realm",
    "retribert",
    "squeezebert",
    "tapas",
    "tvp",
    "vilt",
    "visual_bert",
    "",
];

/// Returns `true` if `AutoTokenizer` of transformers returns token types for a model with these
/// files, `tokenizer_config.json` and `config.json`.
///
/// The first that is stated decides: `model_input_names`, the class of the tokenizer, the type of
/// the model. If nothing is stated, types are returned as the post-processor assigns them.
///
/// ```
/// use apr_tokenizer::returns_token_types;
/// use serde_json::json;
///
/// let settings = json!({ "tokenizer_class": "TokenizersBackend" });
/// let config = json!({ "model_type": "bert" });
/// assert!(!returns_token_types(settings.as_object(), config.as_object()));
/// assert!(returns_token_types(None, config.as_object()));
/// ```
#[must_use]
pub fn returns_token_types(
    settings: Option<&Map<String, Json>>,
    config: Option<&Map<String, Json>>,
) -> bool {
    if let Some(names) = settings.and_then(|settings| settings.get(INPUT_NAMES)?.as_array()) {
        return has_token_types(names.iter().filter_map(Json::as_str));
    }
    let class = text(settings, "tokenizer_class").or_else(|| text(config, "tokenizer_class"));
    match class {
        Some(class) => {
            let class = class.strip_suffix("Fast").unwrap_or(class);
            class.strip_suffix("Tokenizer").is_some_and(|name| CLASSES.contains(&name))
        }
        None => MODEL_TYPES.contains(&text(config, "model_type").unwrap_or_default()),
    }
}

fn text<'f>(file: Option<&'f Map<String, Json>>, key: &str) -> Option<&'f str> {
    file?.get(key)?.as_str()
}

/// Returns `true` if the names include the token types.
#[must_use]
pub fn has_token_types<'n>(mut names: impl Iterator<Item = &'n str>) -> bool {
    names.any(|name| name == TOKEN_TYPES)
}

/// Returns the inputs of a text model, in the order in which BERT's tokenizer lists them.
pub(crate) fn input_names(with_types: bool) -> Vec<String> {
    let names = ["input_ids", TOKEN_TYPES, "attention_mask"].into_iter();
    names.filter(|name| with_types || *name != TOKEN_TYPES).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use apr_testkit::locate;

    use super::*;

    /// `AutoTokenizer.from_pretrained(...).model_input_names` of transformers 5.24, which
    /// `fixtures/run/token_types.py` records.
    #[test]
    fn classes_and_model_types_match_transformers() {
        let path = locate::fixture("run/token_types.json");
        let all = std::fs::read_to_string(path).expect("the fixture");
        let all: Json = serde_json::from_str(&all).expect("JSON");
        let object = |name: &str| all[name].as_object().expect("an object");
        let as_map = |key: &str, value: &str| Map::from_iter([(key.to_owned(), value.into())]);
        let config = as_map("model_type", "bert");
        assert!(object("classes").len() > 100);
        for (class, expected) in object("classes") {
            let settings = as_map("tokenizer_class", class);
            let found = returns_token_types(Some(&settings), Some(&config));
            assert_eq!(Some(found), expected.as_bool(), "{class}");
        }
        assert!(object("model_types").len() > 100);
        for (model_type, expected) in object("model_types") {
            let config = as_map("model_type", model_type);
            let found = returns_token_types(None, Some(&config));
            assert_eq!(Some(found), expected.as_bool(), "{model_type}");
        }
        assert!(returns_token_types(None, None));
    }
}
