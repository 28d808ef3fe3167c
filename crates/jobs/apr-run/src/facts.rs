//! What a model says about itself that running it needs: labels, special tokens, lengths, how
//! vectors are pooled.

use std::collections::BTreeMap;

use apr_arch::text_task;
use apr_core::Value;
use apr_core::json::from_python;
use apr_registry::{CheckpointReader, Result};
use apr_source::Source;
use apr_source::companions::{Learnt, learn_from};
use apr_source::sentence::Sentence;
use apr_tokenizer::{GGUF_INPUT_NAMES, has_token_types, returns_token_types};
use serde_json::Value as Json;

/// Facts about a model, from its metadata and its companion files.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    known: BTreeMap<String, Json>,
    files: BTreeMap<String, Json>,
    ends: Vec<i64>,
    /// Context length in a GGUF file.
    pub(super) stated_context: Option<usize>,
    /// Rows of the table of positions.
    pub(super) position_rows: Option<usize>,
    sentence: Option<Sentence>,
    /// `true` for the facts of a GGUF file.
    is_gguf: bool,
    /// The length up to which a GGUF file with factors for longer texts has others.
    pub(super) stated_switch: Option<usize>,
    /// The token that a decoder behind an encoder begins with, in a GGUF file.
    stated_start: Option<i64>,
    /// `false` if a GGUF file states that the tokenizer returns no token types.
    stated_types: Option<bool>,
    /// Warnings about configurations and templates that can't be read.
    pub(super) unreadable: Vec<String>,
}

/// llama.cpp's name of the template that writes a query and a document.
const RERANK: &str = "rerank";

/// Key of that template in the facts of a GGUF file.
pub(crate) const PAIR_TEMPLATE: &str = "tokenizer.rerank_template";

/// Files that are read as JSON.
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
];

impl Facts {
    /// Reads the facts of a checkpoint.
    ///
    /// # Errors
    /// E007 and E008 when a companion can't be read, E001 where those of sentence-transformers are
    /// malformed.
    pub fn of(reader: &dyn CheckpointReader) -> Result<Self> {
        Self::with(reader, &learn_from(reader)?)
    }

    /// Reads the facts like [`of`](Self::of), but uses facts from the companion files that are
    /// already known. Large vocabularies are read only once.
    ///
    /// # Errors
    /// Returns the errors of [`of`](Self::of).
    pub fn of_source(source: &Source<'_>) -> Result<Self> {
        Self::with(source.reader(), source.learnt()?)
    }

    fn with(reader: &dyn CheckpointReader, learnt: &Learnt) -> Result<Self> {
        let mut facts = Self { unreadable: learnt.unreadable.clone(), ..Self::default() };
        facts.known.extend(learnt.metadata.iter().cloned());

        // The metadata come last, so that they win over what companions say.
        facts
            .known
            .extend(reader.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())));
        for (position, companion) in reader.companions().iter().enumerate() {
            if FILES.contains(&companion.name.as_str()) {
                let bytes = reader.read_companion(position)?;
                // `unreadable` names a file that is not JSON.
                let json = from_python(&bytes);
                facts.files.extend(json.ok().map(|json| (companion.name.clone(), json)));
            }
        }

        facts.position_rows = super::context::position_rows(reader.tensors());
        facts.read_keys(reader)?;
        facts.read_ends();
        if reader.metadata().key_values()?.is_none() {
            facts.sentence = Sentence::of(reader)?;
        }
        Ok(facts)
    }

    /// Creates the facts of one file alone.
    #[cfg(test)]
    pub(super) fn of_file(name: &str, json: Json) -> Self {
        let files = [(name.to_owned(), json)].into();
        let mut facts = Self { files, ..Self::default() };
        facts.read_ends();
        facts
    }

    /// Reads the keys of a GGUF file.
    fn read_keys(&mut self, reader: &dyn CheckpointReader) -> Result<()> {
        let Some(keys) = reader.metadata().key_values()? else { return Ok(()) };
        self.is_gguf = true;
        let number = |key: &str| keys.get(key).and_then(|value| value.as_i64());

        // In llama.cpp each of them ends a text.
        for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            self.ends.extend(number(&format!("tokenizer.ggml.{name}")));
        }

        let tokens = keys
            .find("tokenizer.ggml.tokens")
            .and_then(|pair| Some(pair.texts()?.collect::<Vec<_>>()));
        for (role, name) in [("bos", "bos"), ("eos", "eos"), ("mask", "mask"), ("unk", "unknown")] {
            let id = number(&format!("tokenizer.ggml.{name}_token_id"))
                .and_then(|id| usize::try_from(id).ok());
            if let Some(token) = id.and_then(|id| tokens.as_ref()?.get(id).copied()) {
                self.known.entry(format!("tokenizer.{role}_token")).or_insert_with(|| token.into());
            }
        }

        if let Some(template) = keys.text(&format!("tokenizer.chat_template.{RERANK}")) {
            self.known.insert(PAIR_TEMPLATE.to_owned(), template.into());
        }
        if let Some(template) = keys.text("tokenizer.chat_template") {
            self.known
                .entry("tokenizer.chat_template".to_owned())
                .or_insert_with(|| template.into());
        }

        let architecture = keys.text("general.architecture").unwrap_or_default();
        self.stated_context = number(&format!("{architecture}.context_length"))
            .and_then(|size| usize::try_from(size).ok());
        if reader.tensors().iter().any(|info| info.name.starts_with("rope_factors_long")) {
            let trained = number(&format!("{architecture}.rope.scaling.original_context_length"));
            self.stated_switch = trained.and_then(|trained| usize::try_from(trained).ok());
        }
        // A GGUF file says all of it itself, whatever lies beside it.
        self.sentence = number(&format!("{architecture}.pooling_type")).and_then(Sentence::of_gguf);
        if let Some(Value::Array(apr_core::Array::String(names))) = keys.get(GGUF_INPUT_NAMES) {
            self.stated_types = Some(has_token_types(names.iter().map(String::as_str)));
        }
        self.stated_start = number(&format!("{architecture}.decoder_start_token_id"));
        if let Some(Value::Array(apr_core::Array::String(labels))) =
            keys.get(&format!("{architecture}.classifier.output_labels"))
        {
            let labels: serde_json::Map<_, _> = labels
                .into_iter()
                .enumerate()
                .map(|(at, label)| (at.to_string(), Json::from(label)))
                .collect();
            self.known.entry("labels".to_owned()).or_insert(Json::Object(labels));
        }
        Ok(())
    }

    /// Reads the tokens that end a text from the generation settings. Other files count only if
    /// these settings have no such tokens.
    fn read_ends(&mut self) {
        let of = |file: &str| match self.file(file).and_then(|json| json.get("eos_token_id")) {
            Some(Json::Array(list)) => list.iter().filter_map(Json::as_i64).collect::<Vec<_>>(),
            id => id.and_then(Json::as_i64).into_iter().collect(),
        };
        let own = of("generation_config.json");
        if own.is_empty() {
            let stated = of("config.json");
            self.ends.extend(stated);
            self.ends.extend(self.known.get("tokenizer.eos_token_id").and_then(Json::as_i64));
            if let Some(Json::Array(list)) = self.known.get("tokenizer.eos_token_ids") {
                self.ends.extend(list.iter().filter_map(Json::as_i64));
            }
        } else {
            self.ends = own;
        }

        let mut seen = std::collections::BTreeSet::new();
        self.ends.retain(|id| seen.insert(*id));
    }

    /// A fact under its key of the metadata, such as `tokenizer.chat_template` or `labels`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.known.get(key)
    }

    /// Returns a companion file of the model as JSON.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&Json> {
        self.files.get(name)
    }

    /// An entry of `config.json`.
    #[must_use]
    pub fn config(&self, key: &str) -> Option<&Json> {
        self.file("config.json")?.get(key)
    }

    /// An entry of `config.json`, or of the configuration that the keys of a GGUF file describe.
    pub(crate) fn network(&self, key: &str) -> Option<&Json> {
        let of_gguf = || self.get("architecture").filter(|_| self.is_gguf)?.get(key);
        self.config(key).or_else(of_gguf)
    }

    /// Tokens that end a text, the one that is stated first before others.
    #[must_use]
    pub fn ends(&self) -> &[i64] {
        &self.ends
    }

    /// Returns the token with which a decoder after an encoder begins.
    ///
    /// It is read from the files. If they have none, it follows transformers: the class of the
    /// configuration decides, or else the token that begins a text.
    #[must_use]
    pub fn decoder_start(&self) -> Option<i64> {
        let id = |key: &str| {
            let of = |file: &str| self.file(file)?.get(key)?.as_i64();
            of("generation_config.json").or_else(|| of("config.json"))
        };
        let of_class = match self.config("model_type").and_then(Json::as_str) {
            Some("bart") => Some(2),
            Some("marian") => Some(58_100),
            _ => None,
        };
        let start = id("decoder_start_token_id").or(self.stated_start);
        start.or(of_class).or_else(|| id("bos_token_id"))
    }

    /// The special tokens by their roles: `bos_token`, `eos_token`.
    #[must_use]
    pub fn special_tokens(&self) -> Vec<(String, String)> {
        let role = |(key, token): (&String, &Json)| {
            let role = key.strip_prefix("tokenizer.").filter(|role| role.ends_with("_token"))?;
            Some((role.to_owned(), token.as_str()?.to_owned()))
        };
        self.known.iter().filter_map(role).collect()
    }

    /// The name of a class.
    #[must_use]
    pub fn label(&self, class: usize) -> String {
        let stored = match self.get("labels") {
            // A list that is too long for the metadata only names its file.
            Some(Json::Object(labels)) if labels.contains_key("file") => self.config("id2label"),
            labels => labels,
        };
        let named = stored.and_then(|labels| labels.get(class.to_string())?.as_str());
        named.map_or_else(|| format!("LABEL_{class}"), str::to_owned)
    }

    /// Returns the task of the model's head by the class in the configuration, such as `CausalLM`
    /// or `MaskedLM`.
    ///
    /// The text is empty if the model has no head. The result is `None` if the task is unknown.
    /// sentence-transformers omits the head, whatever that class is.
    #[must_use]
    pub fn task(&self) -> Option<String> {
        if let Some(task) = self.module_task() {
            return Some(task.to_owned());
        }
        let class = self.network("architectures")?.get(0)?.as_str()?;
        Some(match class.split_once("For") {
            // The language model of one with other parts.
            Some((_, task)) if self.config("text_config").is_some() => text_task(task).to_owned(),
            Some((_, task)) => task.to_owned(),
            // GPT-2's class is `GPT2LMHeadModel`.
            None if class.ends_with("LMHeadModel") => "CausalLM".to_owned(),
            // Marian's is `MarianMTModel`.
            None if class.ends_with("MTModel") => "ConditionalGeneration".to_owned(),
            None => String::new(),
        })
    }

    /// Returns `true` if the tokenizer returns types for the tokens of a pair.
    ///
    /// In a GGUF file, it does unless [`GGUF_INPUT_NAMES`] states otherwise.
    pub(crate) fn returns_token_types(&self) -> bool {
        let file = |name: &str| self.file(name).and_then(Json::as_object);
        match self.is_gguf {
            true => self.stated_types.unwrap_or(true),
            false => returns_token_types(file("tokenizer_config.json"), file("config.json")),
        }
    }

    /// Returns `true` for the facts of a GGUF file, which llama.cpp's defaults complete.
    pub(crate) fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    /// Returns the task of the head by the modules of sentence-transformers, whatever the
    /// configuration states.
    pub(crate) fn module_task(&self) -> Option<&'static str> {
        self.sentence.as_ref().and_then(Sentence::task)
    }

    /// Returns the modules of sentence-transformers, whatever they compute, including those of
    /// [`sentence`](Self::sentence).
    #[must_use]
    pub fn modules(&self) -> Option<&Sentence> {
        self.sentence.as_ref()
    }

    /// Returns `true` if modules of sentence-transformers pool the output of a model without a
    /// head.
    #[must_use]
    pub fn makes_embeddings(&self) -> bool {
        self.sentence.as_ref().is_some_and(Sentence::makes_embeddings)
    }

    /// Returns the pooling of token vectors to the vector of a text, or `None` if the model does
    /// not define it.
    #[must_use]
    pub fn sentence(&self) -> Option<&Sentence> {
        self.sentence.as_ref().filter(|sentence| sentence.makes_embeddings())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `BartConfig`, `MarianConfig` and `GenerationMixin` of transformers 5.23.
    #[test]
    fn decoder_start_tokens_match_transformers() {
        let start = |config: Json| Facts::of_file("config.json", config).decoder_start();
        assert_eq!(start(json!({ "model_type": "t5", "decoder_start_token_id": 0 })), Some(0));
        assert_eq!(start(json!({ "model_type": "bart", "bos_token_id": 0 })), Some(2));
        assert_eq!(start(json!({ "model_type": "marian" })), Some(58_100));
        assert_eq!(start(json!({ "model_type": "mbart", "bos_token_id": 5 })), Some(5));
        assert_eq!(start(json!({ "model_type": "t5" })), None);
    }
}
