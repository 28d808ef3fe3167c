//! Rerankers in GGUF files: the classifier that llama.cpp makes of a language model that answers
//! yes or no, and what llama.cpp computes otherwise.
//!
//! GGUF has no key for the activation of scores, so they are logits, as in llama.cpp, except for
//! the softmax of Qwen3's `yes` and `no`.

use apr_gguf::{Array, KeyValue, Value as Typed};
use apr_registry::{Escaped, Loss};
use apr_source::sentence::{Module, QWEN3_RERANKER, Sentence, score_activation};
use apr_tokenizer::GGUF_INPUT_NAMES;

use super::hyperparameters::Facts;

/// llama.cpp's number of scores in place of vectors (`enum llama_pooling_type`).
pub(super) const RANK: u32 = 4;

/// The architecture whose classifiers llama.cpp reads behind the last token, as probabilities.
const ARCHITECTURE: &str = "qwen3";

/// Part of the repository names of models without modules.
const NAME: &str = "qwen3-reranker";

/// The tokens by whose logits a language model scores a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answers {
    pub(super) yes: u64,
    pub(super) no: u64,
}

impl Answers {
    /// Returns the answers of a model that llama.cpp runs as a reranker, by its modules or by its
    /// name.
    pub(super) fn of(facts: &Facts, architecture: &str, tokenizer: &[KeyValue]) -> Option<Self> {
        let class = facts.config.get("architectures").and_then(|all| all.get(0)?.as_str());
        if architecture != ARCHITECTURE || class != Some("Qwen3ForCausalLM") {
            return None;
        }
        let modules = facts.sentence.as_ref().filter(|modules| modules.scores_pairs());
        let score = modules.and_then(|modules| {
            modules.modules.iter().find_map(|module| match module {
                Module::LogitScore { yes, no } => Some((*yes, *no)),
                _ => None,
            })
        });
        if let Some((yes, no)) = score {
            return no.map(|no| Self { yes, no });
        }
        if !facts.is_called(NAME) {
            return None;
        }
        let tokens = tokenizer.iter().find(|pair| pair.key == "tokenizer.ggml.tokens")?;
        let Typed::Array(Array::String(tokens)) = &tokens.value else { return None };
        let id = |text: &str| tokens.iter().position(|token| token == text).map(|id| id as u64);
        Some(Self { yes: id("yes")?, no: id("no")? })
    }
}

/// Returns the keys that define how a pair is written.
pub(super) fn template_keys() -> [KeyValue; 2] {
    [
        KeyValue::new("tokenizer.chat_templates", vec!["rerank".to_owned()]),
        KeyValue::new("tokenizer.chat_template.rerank", QWEN3_RERANKER),
    ]
}

/// Returns the contents of a reranker that a file with a classifier does not store. `answers` is
/// `true` if the classifier is made of rows of a language model's head.
pub(super) fn not_held(facts: &Facts, keys: &[KeyValue], answers: bool) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut lose = |name: String, why: &str| {
        losses.push(Loss { name, what: "left out".to_owned(), why: why.to_owned() });
    };
    if let Some(class) = score_activation(facts.sentence.as_ref(), &facts.config)
        && !answers
    {
        let name = Escaped::short(class.rsplit('.').next().unwrap_or_default()).to_string();
        lose(
            format!("activation {name} of scores"),
            "llama.cpp returns what it is applied to, in the same order",
        );
    }
    let prompts = facts.sentence.as_ref().filter(|modules| modules.scores_pairs());
    let context = keys.iter().find(|pair| pair.key.ends_with(".context_length"));
    let context = context.and_then(|pair| pair.value.as_u64());
    let most = prompts.and_then(|modules| modules.max_tokens);
    if let Some(most) = most.filter(|most| context.is_none_or(|context| *most < context)) {
        lose(format!("max_seq_length {most}"), "llama.cpp takes texts as long as the context");
    }
    let default = prompts.and_then(|modules| modules.default_prompt.as_deref());
    if let Some(name) = default {
        let name = Escaped::short(name);
        lose(format!("prompt '{name}'"), "GGUF has no prompts: put it before each query");
    }
    losses
}

/// Returns warnings about a text classifier that llama.cpp computes differently.
pub(super) fn computed_otherwise(
    facts: &Facts,
    family: &str,
    keys: &[KeyValue],
    (classes, answers): (u64, bool),
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |text: &str| warnings.push(text.to_owned());
    let types = keys.iter().find(|pair| pair.key == "tokenizer.ggml.token_type_count");
    let types = types.and_then(|pair| pair.value.as_u64());
    let scores_pairs = facts.sentence.as_ref().is_some_and(Sentence::scores_pairs) || classes == 1;
    let returns_types = keys.iter().all(|pair| pair.key != GGUF_INPUT_NAMES);
    if family == "bert" && scores_pairs && returns_types && types.is_some_and(|types| types > 1) {
        warn(
            "llama.cpp gives both texts of a pair the token type 0, so its scores differ; apr \
             runs the file as the model was trained",
        );
    }
    if family == "distilbert" {
        warn(
            "llama.cpp's classifier applies tanh instead of DistilBERT's relu, so its scores \
             differ; apr runs the file as the model was trained",
        );
    }
    let activation = facts.config.get("classifier_activation").and_then(|name| name.as_str());
    if family == "modernbert" && activation.is_some_and(|name| !name.starts_with("gelu")) {
        warn("llama.cpp's classifier of ModernBERT applies gelu, so its scores differ");
    }
    if family == "modernbert" && facts.config.get("classifier_bias") == Some(&true.into()) {
        warn("llama.cpp does not load a classifier of ModernBERT with 'classifier_bias'");
    }
    if answers {
        warn(
            "llama.cpp writes pairs by the template of Qwen3-Reranker and ignores the model's \
             chat template",
        );
    } else if family == "qwen3" && classes == 1 {
        warn("llama.cpp returns the softmax of a classifier of Qwen3: 1 for each text");
    }
    warnings
}
