//! Rerankers: how well documents match a query, as `CrossEncoder` of sentence-transformers scores
//! them.
//!
//! Four kinds of models do it: classifiers of pairs of texts, classifiers of sentence-transformers'
//! modules, language models whose next token is yes or no (Qwen3-Reranker), and models of late
//! interaction (ColBERT).

use std::cmp::Ordering;

use apr_core::Escaped;
use apr_graph::Meaning;
use apr_infer::Memory;
use apr_inputs::chat::{Data, Message, TemplateOptions};
use apr_registry::Error;
use apr_source::sentence::{Module, QWEN3_RERANKER, Sentence, score_activation};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::completion::chat_text;
use crate::error::{RunError, RunResult};
use crate::facts::PAIR_TEMPLATE;
use crate::late_interaction::{LateInteraction, Role, most_alike};
use crate::runner::{Prepared, UntilCancelled};
use crate::scores::{sigmoid, softmax};
use crate::sentence::SentenceHead;
use crate::text_encoder::Label;
use crate::tokens::Tokenizer;

/// Texts that show whether a chat template writes both roles.
const PROBES: [(&str, &str); 3] = [("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot")];

/// Documents in the order of their scores.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Ranking {
    /// Name of the task, `reranking`.
    pub task: &'static str,
    /// The query, unchanged.
    pub query: String,
    /// Activation of the logits: `identity`, `sigmoid`, `softmax`, `tanh`, `relu`.
    pub activation: &'static str,
    /// The prompt that was put before the query.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prompt: String,
    /// Documents, the best first. If a pair has several labels, they are in the order in which they
    /// were given.
    pub documents: Vec<Ranked>,
}

/// A document and how well it matches.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Ranked {
    /// Index among the given documents, from 0.
    pub index: usize,
    /// Text of the document.
    pub document: String,
    /// Score; `None` if a pair has several labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
    /// Scores of labels in the model's order, if a pair has several labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Label>,
    /// Logits of the model, before the activation.
    pub logits: Vec<f32>,
    /// Number of tokens of query and document that were omitted because the model accepts no more.
    #[serde(rename = "left_out_tokens", skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Activation of the logits of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activation {
    Identity,
    Sigmoid,
    Softmax,
    Tanh,
    Relu,
}

impl Activation {
    /// Returns the activation for a PyTorch class in a configuration, or `None` for an unknown
    /// class.
    fn of_class(class: &str) -> Option<Self> {
        let name = class.strip_prefix("torch.nn.")?.rsplit('.').next()?;
        Some(match name {
            "Identity" => Self::Identity,
            "Sigmoid" => Self::Sigmoid,
            "Softmax" => Self::Softmax,
            "Tanh" => Self::Tanh,
            "ReLU" => Self::Relu,
            _ => return None,
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Sigmoid => "sigmoid",
            Self::Softmax => "softmax",
            Self::Tanh => "tanh",
            Self::Relu => "relu",
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "scores are of single precision")]
    fn apply(self, logits: &[f32]) -> Vec<f32> {
        let narrow = |scores: Vec<f64>| scores.into_iter().map(|score| score as f32).collect();
        match self {
            Self::Identity => logits.to_vec(),
            Self::Sigmoid => narrow(sigmoid(logits)),
            Self::Softmax => narrow(softmax(logits)),
            Self::Tanh => logits.iter().map(|logit| logit.tanh()).collect(),
            Self::Relu => logits.iter().map(|logit| logit.max(0.0)).collect(),
        }
    }
}

/// Source of the logits of a pair.
enum Scorer {
    /// The head of the model.
    Classifier,
    /// Modules behind a model without a head.
    Modules(Box<SentenceHead>),
    /// Logit of a token after the pair, minus the logit of another.
    NextToken(usize, Option<usize>),
    /// The vectors of tokens, compared one by one.
    LateInteraction(Box<LateInteraction>),
    /// A classifier of llama.cpp with these tokens as labels. Its probabilities compare the first
    /// token with the second.
    YesOrNo,
}

/// Form in which two texts become the input of the model.
enum Form {
    /// Pair encoding of the tokenizer.
    Pair,
    /// Chat template of the model, with messages of the roles `query` and `document`.
    Chat,
    /// A text with `{query}` and `{document}`.
    Text(String),
}

/// Scores documents by how well they match a query.
///
/// ```no_run
/// use apr_run::{Facts, NoHost, Reranker, RunOptions, with_runner};
///
/// # fn run(source: &apr_source::Source<'_>) -> apr_run::RunResult<()> {
/// let facts = Facts::of_source(source)?;
/// with_runner(source, &facts, &RunOptions::reading(), &NoHost, |runner| {
///     let reranker = Reranker::of_part(runner.prepare()?)?;
///     let documents = ["3.5 million", "a cat"];
///     let ranking = reranker.rank("how many people live in Berlin?", &documents, None)?;
///     println!("best: {}", ranking.documents[0].document);
///     Ok(())
/// })
/// # }
/// ```
pub struct Reranker<'r> {
    part: Prepared<'r>,
    tokenizer: Tokenizer<'r>,
    scorer: Scorer,
    form: Form,
    /// Activation of the logits; `None` if the number of labels decides.
    activation: Option<Activation>,
    /// Maximum number of tokens of a pair.
    most: usize,
    /// Inputs of a chat template besides the messages.
    template: TemplateOptions,
}

/// Returns the inputs of the chat template besides the messages. As in sentence-transformers, no
/// answer is begun unless the folder requests it.
fn template_options(part: &Prepared<'_>) -> TemplateOptions {
    const BEGIN: &str = "add_generation_prompt";
    let facts = part.runner.facts;
    let begins = facts.modules().is_none_or(|modules| modules.begins_answer);
    let asks = facts
        .get("tokenizer.chat_template")
        .is_some_and(|template| template.to_string().contains(BEGIN));
    let mut options = TemplateOptions::default();
    if asks && !begins {
        options.arguments.push((BEGIN.to_owned(), Data::Bool(false)));
    }
    options
}

impl<'r> Reranker<'r> {
    /// A reranker of a part that classifies texts, or continues them with yes or no.
    ///
    /// # Errors
    /// [`RunError::Request`] where the model does neither; E003 where it has no tokenizer, a module
    /// or an activation that is not known, or no tokens for yes and no.
    pub fn of_part(part: Prepared<'r>) -> RunResult<Self> {
        if !part.takes(Meaning::TokenIds) {
            return Err(RunError::request("the model has no text input"));
        }
        let tokenizer = Tokenizer::of(part.runner.reader, part.runner.host)?;
        if let Some(modules) = part.runner.facts.modules() {
            modules.check()?;
        }
        let scorer = Self::scorer(&part, &tokenizer)?;
        let activation = match scorer {
            Scorer::YesOrNo => Some(Activation::Softmax),
            Scorer::LateInteraction(_) => Some(Activation::Identity),
            // llama.cpp returns them as they are.
            Scorer::Classifier if part.runner.facts.is_gguf() => Some(Activation::Identity),
            _ => stated_activation(&part)?,
        };
        let most = most_tokens(&part);
        let template = template_options(&part);
        let mut reranker =
            Self { part, template, tokenizer, scorer, form: Form::Pair, activation, most };
        reranker.form = reranker.found_form()?;
        Ok(reranker)
    }

    fn scorer(part: &Prepared<'r>, tokenizer: &Tokenizer<'_>) -> RunResult<Scorer> {
        let facts = part.runner.facts;
        let modules = facts.modules().filter(|modules| modules.scores_pairs());
        let score = modules.and_then(|modules| {
            modules.modules.iter().find_map(|module| match module {
                Module::LogitScore { yes, no } => Some((*yes, *no)),
                _ => None,
            })
        });
        let index = |id: u64| usize::try_from(id).unwrap_or(usize::MAX);
        if let Some((yes, no)) = score {
            return Ok(Scorer::NextToken(index(yes), no.map(index)));
        }
        if let Some(modules) = modules.filter(|modules| modules.task() == Some("")) {
            let head = SentenceHead::new(&part.runner, modules.clone())?;
            return Ok(Scorer::Modules(Box::new(head)));
        }
        if let Some(modules) = facts.modules().filter(|modules| modules.keeps_tokens()) {
            let late = LateInteraction::of(&part.runner, modules, tokenizer)?;
            return Ok(Scorer::LateInteraction(Box::new(late)));
        }
        if part.generates() {
            let token = |text: &str| {
                tokenizer.vocabulary().id(text).and_then(|id| usize::try_from(id).ok()).ok_or_else(
                    || {
                        Error::version(format!(
                            "the tokenizer has no token '{text}', which a language model needs to \
                             score a document"
                        ))
                    },
                )
            };
            return Ok(Scorer::NextToken(token("yes")?, Some(token("no")?)));
        }
        let task = part.runner.task();
        let classifies = task.is_none_or(|task| task == "SequenceClassification");
        if part.output(Meaning::Logits).is_none() || !classifies {
            return Err(RunError::request(
                "the model is not a reranker: it neither classifies texts nor answers yes or no",
            ));
        }
        Ok(match facts.get(PAIR_TEMPLATE) {
            Some(_) => Scorer::YesOrNo,
            None => Scorer::Classifier,
        })
    }

    /// Returns the form in which pairs are written.
    fn found_form(&self) -> RunResult<Form> {
        let facts = self.part.runner.facts;
        let said = facts.modules().and_then(|modules| modules.takes_messages);
        let has_template = facts.get("tokenizer.chat_template").is_some();
        let generates = matches!(self.scorer, Scorer::NextToken(..) | Scorer::YesOrNo);
        if said == Some(false) || !has_template && !generates {
            return Ok(Form::Pair);
        }
        if has_template && self.writes_both_roles() {
            return Ok(Form::Chat);
        }
        if let Some(template) = facts.get(PAIR_TEMPLATE).and_then(Json::as_str) {
            return Ok(Form::Text(template.to_owned()));
        }
        let family = facts.config("model_type").and_then(Json::as_str);
        if generates && family == Some("qwen3") {
            self.part.runner.warn(
                "no chat template with the roles 'query' and 'document': Qwen3-Reranker's is used",
            );
            return Ok(Form::Text(QWEN3_RERANKER.to_owned()));
        }
        if generates || said == Some(true) {
            return Err(RunError::request(
                "the model's chat template omits messages of the roles 'query' and 'document': it \
                 is not a reranker",
            ));
        }
        Ok(Form::Pair)
    }

    /// Returns `true` if the chat template writes a query and a document, by the check of
    /// sentence-transformers.
    fn writes_both_roles(&self) -> bool {
        let written = PROBES.map(|(query, document)| self.chat(query, document).ok());
        let [Some(base), Some(query), Some(document)] = written else { return false };
        base != query && base != document
    }

    fn chat(&self, query: &str, document: &str) -> RunResult<String> {
        let prompt = self.prompt().unwrap_or_default();
        let system = (!prompt.is_empty()).then_some(("system", prompt));
        let messages = system.into_iter().chain([("query", query), ("document", document)]);
        let messages: Vec<Message> =
            messages.map(|(role, text)| Message::new(role, text)).collect();
        chat_text(&self.part.runner, &messages, &self.template)
    }

    /// The prompt that is put before each query.
    fn prompt(&self) -> RunResult<&str> {
        let runner = &self.part.runner;
        runner.prompt_of(runner.facts.modules())
    }

    /// Scores documents and returns at most `most` of them, the best first. If a pair has several
    /// labels, the documents keep their order, and `most` can't be given.
    ///
    /// # Errors
    /// [`RunError::Request`] for a prompt that the model does not have. E001 and E008 if the
    /// tokenizer fails. Otherwise, returns the errors of [`Session::run`](apr_infer::Session::run).
    pub fn rank<T: AsRef<str>>(
        &self,
        query: &str,
        documents: &[T],
        most: Option<usize>,
    ) -> RunResult<Ranking> {
        let prompt = match &self.scorer {
            Scorer::LateInteraction(_) => self.prompt_of(Role::Query)?,
            _ => self.prompt()?,
        };
        let prompt = prompt.to_owned();
        let query_vectors = match &self.scorer {
            Scorer::LateInteraction(late) => Some(self.token_vectors(late, query, Role::Query)?),
            _ => None,
        };
        let mut activation = self.activation.unwrap_or(Activation::Identity);
        let mut ranked = Vec::with_capacity(documents.len());
        for (index, document) in documents.iter().enumerate() {
            let (logits, left_out) = match (&self.scorer, &query_vectors) {
                (Scorer::LateInteraction(late), Some((query, left_out))) => {
                    let made = self.token_vectors(late, document.as_ref(), Role::Document)?;
                    (vec![most_alike(query, &made.0)], left_out + made.1)
                }
                _ => self.logits(query, document.as_ref())?,
            };
            activation = self.activation.unwrap_or(match logits.len() {
                1 => Activation::Sigmoid,
                _ => Activation::Identity,
            });
            let mut scores = activation.apply(&logits);
            if matches!(self.scorer, Scorer::YesOrNo) {
                scores.truncate(1);
            }
            let (score, labels) = match scores[..] {
                [score] => (Some(score), Vec::new()),
                _ => (None, self.labels(&scores)),
            };
            let document = document.as_ref().to_owned();
            ranked.push(Ranked { index, document, score, labels, logits, left_out });
        }
        if most.is_some() && ranked.iter().any(|ranked| ranked.score.is_none()) {
            return Err(RunError::request(
                "the model has several labels per pair, which do not order documents: request all \
                 of them",
            ));
        }
        // Equal ones stay in their order, and so do those without a score.
        ranked.sort_by(|one, other| match (one.score, other.score) {
            (Some(one), Some(other)) => other.total_cmp(&one),
            _ => Ordering::Equal,
        });
        ranked.truncate(most.unwrap_or(usize::MAX));
        let activation = activation.name();
        Ok(Ranking {
            task: "reranking",
            query: query.to_owned(),
            activation,
            prompt,
            documents: ranked,
        })
    }

    fn labels(&self, scores: &[f32]) -> Vec<Label> {
        let facts = self.part.runner.facts;
        let label =
            |(at, score): (usize, &f32)| Label { label: facts.label(at), score: f64::from(*score) };
        scores.iter().enumerate().map(label).collect()
    }

    /// The prompt of a query or a document.
    fn prompt_of(&self, role: Role) -> RunResult<&str> {
        let runner = &self.part.runner;
        let name = runner.options.prompt_name.as_deref().filter(|_| role == Role::Query);
        let of_role = |modules: &'r Sentence| modules.prompt_of_role(name, role.name());
        match runner.facts.modules().and_then(of_role) {
            Some(prompt) => Ok(prompt),
            None if role == Role::Query => self.prompt(),
            None => Ok(""),
        }
    }

    /// Returns the vectors of a text's tokens and the number of omitted tokens, with a warning if
    /// any are omitted.
    fn token_vectors(
        &self,
        late: &LateInteraction,
        text: &str,
        role: Role,
    ) -> RunResult<(Vec<Vec<f32>>, usize)> {
        let prompt = self.prompt_of(role)?;
        let made = late.vectors(&self.part, &self.tokenizer, (prompt, text), role)?;
        if made.1 > 0 {
            let name = role.name();
            let message = format!("truncated: the last {} tokens of the {name}", made.1);
            self.part.runner.warn(&message);
        }
        Ok(made)
    }

    /// Returns the logits of a pair, and the number of its tokens that are omitted.
    fn logits(&self, query: &str, document: &str) -> RunResult<(Vec<f32>, usize)> {
        let (ids, types, left_out) = self.tokens(query, document)?;
        if left_out > 0 {
            self.part.runner.warn(&format!(
                "truncated to {} tokens: {left_out} of the query and its document",
                self.most
            ));
        }
        let inputs = || match &types {
            Some(types) => self.part.typed_inputs(&ids, types),
            None => self.part.token_inputs(&ids),
        };
        let logits = match &self.scorer {
            Scorer::Classifier | Scorer::YesOrNo => {
                let output = self.part.output(Meaning::Logits).unwrap_or_default();
                let logits = self.part.one(inputs()?, output)?;
                if logits.rank() != 2 {
                    return Err(RunError::request(
                        "the model is not a reranker: it has logits for each token",
                    ));
                }
                logits.floats()?.into_owned()
            }
            Scorer::Modules(head) => {
                let output = self.part.output(Meaning::HiddenStates);
                let output = output.ok_or_else(|| {
                    Error::version("missing token vectors, which the model's modules need")
                })?;
                let states = self.part.one(inputs()?, output)?;
                head.vectors(&self.part.runner, states, 0)?.concat()
            }
            Scorer::LateInteraction(_) => Vec::new(),
            Scorer::NextToken(yes, no) => {
                let host = self.part.runner.host;
                let logits = self.part.language()?.next(
                    &mut Memory::default(),
                    &ids,
                    host.workers(),
                    &mut UntilCancelled(host),
                )?;
                let of = |token: usize| {
                    let missing =
                        || Error::format(format!("the model has no logit for the token {token}"));
                    logits.get(token).copied().ok_or_else(missing)
                };
                vec![of(*yes)? - no.map_or(Ok(0.0), of)?]
            }
        };
        Ok((logits, left_out))
    }

    /// Returns the tokens of a pair, their types if the tokenizer has types, and the number of
    /// omitted tokens.
    fn tokens(
        &self,
        query: &str,
        document: &str,
    ) -> RunResult<(Vec<i64>, Option<Vec<i64>>, usize)> {
        let text = match &self.form {
            Form::Pair => {
                let mut texts = [format!("{}{query}", self.prompt()?), document.to_owned()];
                if self.part.runner.facts.modules().is_some_and(|modules| modules.lowercases) {
                    texts = texts.map(|text| text.to_lowercase());
                }
                let [query, document] = &texts;
                let (pair, left_out) = self.tokenizer.pair_at_most(query, document, self.most)?;
                return Ok((pair.ids, Some(pair.types), left_out));
            }
            Form::Chat => self.chat(query, document)?,
            Form::Text(template) => filled(template, query, document),
        };
        let ids = self.tokenizer.encode(&text, false)?;
        if ids.len() <= self.most {
            return Ok((ids, None, 0));
        }
        // What is written behind the document stays: the answer stands there.
        let end = text.rfind(document.trim()).map_or(text.len(), |at| at + document.trim().len());
        let behind = self.tokenizer.encode(&text[end..], false)?;
        let kept = self.most.saturating_sub(behind.len());
        let left_out = ids.len() - kept - behind.len();
        Ok(([&ids[..kept], &behind].concat(), None, left_out))
    }
}

/// A template's text with a query and a document in it.
fn filled(template: &str, query: &str, document: &str) -> String {
    // A query may have the mark of the document in it.
    let parts: Vec<String> =
        template.split("{query}").map(|part| part.replace("{document}", document)).collect();
    parts.join(query)
}

/// The activation that the model's files name, the newest of their keys first.
fn stated_activation(part: &Prepared<'_>) -> RunResult<Option<Activation>> {
    let facts = part.runner.facts;
    let config = facts.file("config.json").and_then(Json::as_object);
    let class = score_activation(facts.modules(), config.unwrap_or(&Map::new()));
    let Some(class) = class else { return Ok(None) };
    // sentence-transformers takes no code of others for it, and neither does apr.
    if !class.starts_with("torch.") {
        let class = Escaped::short(&class);
        part.runner.warn(&format!("the activation '{class}' is not part of torch: not applied"));
        return Ok(None);
    }
    let known = Activation::of_class(&class);
    known.map(Some).ok_or_else(|| {
        let class = Escaped::short(&class);
        Error::version(format!("the activation '{class}' of scores is not supported")).into()
    })
}

/// Returns the maximum number of tokens of a pair, from the model and its tokenizer.
fn most_tokens(part: &Prepared<'_>) -> usize {
    let facts = part.runner.facts;
    let size = |json: Option<&Json>| usize::try_from(json?.as_u64()?).ok();
    let of_modules = facts.modules().and_then(|modules| usize::try_from(modules.max_tokens?).ok());
    let of_tokenizer =
        || size(facts.file("tokenizer_config.json").and_then(|file| file.get("model_max_length")));
    let stated = of_modules.or_else(of_tokenizer);
    [facts.context(), stated].into_iter().flatten().min().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_named_by_their_torch_class() {
        let of = Activation::of_class;
        assert_eq!(of("torch.nn.modules.activation.Sigmoid"), Some(Activation::Sigmoid));
        assert_eq!(of("torch.nn.modules.linear.Identity"), Some(Activation::Identity));
        assert_eq!(of("torch.nn.Identity"), Some(Activation::Identity));
        assert_eq!(of("torch.nn.modules.activation.Mish"), None);
        assert_eq!(of("mine.Sigmoid"), None);
    }

    #[test]
    fn marks_within_texts_stay() {
        assert_eq!(
            filled("a {query} b {document}", "{document}", "{query}"),
            "a {document} b {query}"
        );
    }
}
