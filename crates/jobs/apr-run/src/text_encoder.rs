//! Text that a model reads as a whole: embeddings, labels, and tokens for masks.

use std::cell::OnceCell;

use apr_core::Escaped;
use apr_graph::{Meaning, ValueId, ValueOrigin};
use apr_infer::Tensor;
use apr_ops::graph::SENTENCE_OUTPUT;
use apr_registry::Error;
use apr_source::sentence::{Module, PoolingMode, Sentence};
use serde::Serialize;
use serde_json::Value as Json;

use crate::error::{Remedy, RunError, RunResult};
use crate::late_interaction::{LateInteraction, Role};
use crate::runner::{Prepared, Runner, task_of};
use crate::scores::{largest, softmax};
use crate::sentence::SentenceHead;
use crate::tokens::Tokenizer;

/// Maximum number of tokens in texts that are run together. It is the length of a long text, for
/// which the memory of a run is planned.
const BATCH: usize = 512;

/// Result of a model for a text, by the model's head.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "task", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TextTask {
    /// One vector for the text.
    Embedding {
        /// Pooling of the token states: names as in [`Pooling::name`](crate::Pooling::name), joined
        /// by `+`, or `model` if the graph pools them.
        pooling: String,
        /// `true` if the vector was scaled to length 1. A vector that is cut to
        /// [`RunOptions::dimensions`](crate::RunOptions::dimensions) is scaled before the cut.
        normalized: bool,
        /// The prompt that was put before the text.
        #[serde(skip_serializing_if = "String::is_empty")]
        prompt: String,
        /// Function that compares two vectors, if the model names one: `cosine`, `dot`,
        /// `euclidean`, `manhattan`.
        #[serde(skip_serializing_if = "Option::is_none")]
        similarity: Option<String>,
        /// Vector of the text.
        vector: Vec<f32>,
    },
    /// A number for each word of the vocabulary, most of them 0 (SPLADE).
    SparseEmbedding {
        /// Pooling of the numbers of tokens: `max` or `sum`.
        pooling: String,
        /// The prompt that was put before the text.
        #[serde(skip_serializing_if = "String::is_empty")]
        prompt: String,
        /// Function that compares two vectors, if the model names one.
        #[serde(skip_serializing_if = "Option::is_none")]
        similarity: Option<String>,
        /// Number of elements of the whole vector.
        size: usize,
        /// Words with numbers above 0, the largest first.
        words: Vec<WordWeight>,
    },
    /// A vector for each token, for late interaction (ColBERT).
    TokenEmbeddings {
        /// The prompt that was put before the text.
        #[serde(skip_serializing_if = "String::is_empty")]
        prompt: String,
        /// Vectors of the tokens that are compared, in the order of the text.
        vectors: Vec<Vec<f32>>,
    },
    /// Labels of the whole text, the likeliest first.
    Classification {
        /// At most [`RunOptions::top`](crate::RunOptions::top).
        labels: Vec<Label>,
    },
    /// The likeliest label of each token.
    TokenLabels {
        /// Tokens in the order of the text.
        tokens: Vec<TokenLabel>,
    },
    /// Tokens for each mask, the likeliest first.
    FillMask {
        /// Candidates for each mask, in the order of the text.
        gaps: Vec<Vec<MaskToken>>,
    },
}

/// A label and its probability.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Label {
    /// Name in the configuration.
    pub label: String,
    /// Probability from 0 to 1, or the predicted value if `problem_type` is `regression`.
    pub score: f64,
}

/// A word of the vocabulary and its number in a sparse vector.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WordWeight {
    /// Index in the vector, which is the word's id.
    pub id: usize,
    /// Spelling in the vocabulary.
    pub token: String,
    /// Number in the vector.
    pub weight: f32,
}

/// The label of a token.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TokenLabel {
    /// Spelling in the vocabulary.
    pub token: String,
    /// Likeliest label of the token.
    #[serde(flatten)]
    pub label: Label,
}

/// A token for a mask.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MaskToken {
    /// Id in the vocabulary.
    pub id: i64,
    /// Text of the token, or its spelling if it has no text.
    pub token: String,
    /// Probability of the token.
    pub score: f64,
}

/// Reads texts with a model that reads them as a whole.
///
/// Its head decides what [`read`](Self::read) returns.
pub struct TextEncoder<'e> {
    part: Prepared<'e>,
    tokenizer: Tokenizer<'e>,
    /// Pooling of the vectors of tokens.
    head: OnceCell<SentenceHead>,
    /// Number of tokens of the prompt.
    prompt_len: OnceCell<usize>,
}

/// An output of the graph.
#[derive(Clone, Copy)]
struct Output<'o> {
    meaning: Meaning,
    name: &'o str,
}

impl<'e> TextEncoder<'e> {
    /// A reader of texts for a part that takes tokens.
    ///
    /// # Errors
    /// E003 where the model has no tokenizer, [`RunError::Request`] where the part takes no tokens.
    pub fn of_part(part: Prepared<'e>) -> RunResult<Self> {
        if !part.takes(Meaning::TokenIds) {
            return Err(RunError::request("the model has no text input"));
        }
        let tokenizer = Tokenizer::of(part.runner.reader, part.runner.host)?;
        Ok(Self { part, tokenizer, head: OnceCell::new(), prompt_len: OnceCell::new() })
    }

    /// Returns `true` if [`read`](Self::read) returns embeddings.
    #[must_use]
    pub fn embeds(&self) -> bool {
        let sentence = self.part.runner.facts.sentence();
        self.part.output(Meaning::Logits).is_none()
            || sentence.is_some_and(Sentence::is_sparse)
            || self.own_vectors().is_some()
    }

    /// Reads a text and returns the result of the model's task.
    ///
    /// # Errors
    /// [`RunError::Request`] for a text longer than the model's context ([`Remedy::Truncate`]) and
    /// one without a mask where the model fills masks; E003 where nothing is known of its outputs;
    /// those of [`Session::run`](apr_infer::Session::run).
    pub fn read(&self, text: &str) -> RunResult<TextTask> {
        if self.keeps_tokens() {
            return self.token_vectors(text);
        }
        let output = self.output()?;
        let ids = self.ids(output.meaning, text)?;
        self.task(output.meaning, &self.run(output, &ids)?, &ids)
    }

    /// Reads texts, and returns the result of [`read`](Self::read) for each. Texts with the same
    /// number of tokens are run together, so that none is padded and weights are read once for all
    /// of them.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read).
    pub fn read_all<T: AsRef<str>>(&self, texts: &[T]) -> RunResult<Vec<TextTask>> {
        if self.keeps_tokens() {
            return texts.iter().map(|text| self.token_vectors(text.as_ref())).collect();
        }
        let output = self.output()?;
        let ids = |text: &T| self.ids(output.meaning, text.as_ref());
        let ids = texts.iter().map(ids).collect::<RunResult<Vec<_>>>()?;
        let most = if self.takes_batches(output) { BATCH } else { 1 };
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|text| ids[*text].len());
        let mut made: Vec<Option<TextTask>> = vec![None; ids.len()];
        for alike in order.chunk_by(|one, other| ids[*one].len() == ids[*other].len()) {
            for batch in alike.chunks((most / ids[alike[0]].len().max(1)).max(1)) {
                let rows: Vec<&[i64]> = batch.iter().map(|text| &ids[*text][..]).collect();
                let values = self.run_batch(output, &rows)?;
                let tasks: Vec<TextTask> = match output.meaning {
                    Meaning::HiddenStates | Meaning::EncoderStates => self.embeddings(&values)?,
                    meaning => {
                        let tasks = values.iter().zip(&rows);
                        tasks
                            .map(|(value, ids)| self.task(meaning, value, ids))
                            .collect::<RunResult<_>>()?
                    }
                };
                for (text, task) in batch.iter().zip(tasks) {
                    made[*text] = Some(task);
                }
            }
        }
        Ok(made.into_iter().flatten().collect())
    }

    /// Returns `true` if the vectors of a text's tokens are not pooled.
    fn keeps_tokens(&self) -> bool {
        self.part.runner.facts.sentence().is_some_and(Sentence::keeps_tokens)
    }

    /// Returns the vectors of a text's tokens. The text is a document, unless the prompt of queries
    /// is requested.
    fn token_vectors(&self, text: &str) -> RunResult<TextTask> {
        let Runner { facts, options, .. } = self.part.runner;
        if options.pooling.is_some() || options.dimensions.is_some() {
            return Err(RunError::request(
                "the model returns a vector per token: pooling and dimensions apply to text \
                 embeddings only",
            ));
        }
        let sentence = facts.sentence().cloned().unwrap_or_default();
        let role = match options.prompt_name.as_deref() {
            Some("query") => Role::Query,
            _ => Role::Document,
        };
        let late = LateInteraction::of(&self.part.runner, &sentence, &self.tokenizer)?;
        let prompt = sentence.prompt_of_role(options.prompt_name.as_deref(), role.name());
        let prompt = prompt.map_or_else(|| self.prompt(), Ok)?;
        let (vectors, left_out) =
            late.vectors(&self.part, &self.tokenizer, (prompt, text), role)?;
        if left_out > 0 {
            self.part.runner.warn(&format!("truncated: the last {left_out} tokens of the text"));
        }
        Ok(TextTask::TokenEmbeddings { prompt: prompt.to_owned(), vectors })
    }

    /// Returns the tokens of a text. For embeddings, the tokens of the prompt precede them.
    fn ids(&self, meaning: Meaning, text: &str) -> RunResult<Vec<i64>> {
        let runner = &self.part.runner;
        if meaning == Meaning::Logits {
            return runner.text_ids(&self.tokenizer, text);
        }
        let mut text = format!("{}{text}", self.prompt()?);
        if runner.facts.sentence().is_some_and(|sentence| sentence.lowercases) {
            text = text.chars().flat_map(char::to_lowercase).collect();
        }
        runner.text_ids(&self.tokenizer, &text)
    }

    /// The prompt that is put before each text.
    fn prompt(&self) -> RunResult<&str> {
        let runner = &self.part.runner;
        runner.prompt_of(runner.facts.sentence())
    }

    /// Returns the number of tokens of each text that belong to the prompt, without tokens that end
    /// a text.
    fn prompt_len(&self) -> RunResult<usize> {
        if let Some(len) = self.prompt_len.get() {
            return Ok(*len);
        }
        let len = match self.prompt()? {
            "" => 0,
            prompt => {
                let vocabulary = self.tokenizer.vocabulary();
                let ids = self.part.runner.text_ids(&self.tokenizer, prompt)?;
                let last = ids.last().and_then(|id| vocabulary.token(*id));
                let special = self.part.runner.facts.special_tokens();
                let ends = special.iter().any(|(_, token)| Some(token) == last.as_ref());
                ids.len() - usize::from(ends)
            }
        };
        Ok(*self.prompt_len.get_or_init(|| len))
    }

    /// The output that the head's answer is made of.
    fn output(&self) -> RunResult<Output<'_>> {
        let found = |meaning| Some(Output { meaning, name: self.part.output(meaning)? });
        let Runner { facts, options, .. } = self.part.runner;
        let is_sparse = facts.sentence().is_some_and(Sentence::is_sparse);
        if let Some(Output { name, .. }) = found(Meaning::Logits).filter(|_| is_sparse) {
            return Ok(Output { meaning: Meaning::HiddenStates, name });
        }
        if let Some(own) = self.own_vectors() {
            return Ok(own);
        }
        if let Some(logits) = found(Meaning::Logits) {
            let is_of_vectors = options.pooling.is_some()
                || options.prompt_name.is_some()
                || options.dimensions.is_some();
            if is_of_vectors {
                return Err(RunError::request(
                    "the model returns labels or tokens: pooling, prompt names and dimensions \
                     apply to embeddings only",
                ));
            }
            return Ok(logits);
        }
        let order = [Meaning::HiddenStates, Meaning::EncoderStates, Meaning::Pooled];
        order.into_iter().find_map(found).ok_or_else(|| {
            RunError::with_remedy("unknown meaning of the model's outputs", Remedy::Arrays)
        })
    }

    /// Returns the output for text vectors that the graph computes itself. It is used only if no
    /// pooling is requested or defined.
    fn own_vectors(&self) -> Option<Output<'_>> {
        let Runner { facts, options, .. } = self.part.runner;
        let is_said = options.pooling.is_some() || facts.sentence().is_some();
        let values = self.part.body().outputs.iter().map(|id| self.part.body().value(*id));
        let mut own = values.filter(|value| value.name == SENTENCE_OUTPUT && !is_said);
        own.next().map(|value| Output { meaning: Meaning::Pooled, name: &value.name })
    }

    /// Returns `true` if the graph accepts several texts at a time, and the output for each is
    /// small. Logits of all tokens are not small.
    fn takes_batches(&self, output: Output<'_>) -> bool {
        let body = self.part.body();
        // Graphs of families state no shapes of outputs.
        let first = |id: &ValueId| body.value(*id).shape().and_then(<[_]>::first);
        let is_open = |id: &ValueId| first(id).is_some_and(|dim| dim.size().is_none());
        let inputs = body.inputs.iter();
        let mut given = inputs.filter(|id| body.value(**id).origin == ValueOrigin::Input);
        let of_output = body.outputs.iter().find(|id| body.value(**id).name == output.name);
        let rank = of_output.and_then(|id| Some(body.value(*id).shape()?.len()));
        let is_small = output.meaning != Meaning::Logits || rank == Some(2);
        is_small && self.part.runner.options.max_work.is_none() && given.all(is_open)
    }

    /// Returns the model's result from an output for one text.
    fn task(&self, meaning: Meaning, made: &Tensor, ids: &[i64]) -> RunResult<TextTask> {
        match meaning {
            Meaning::Logits if made.rank() == 2 => self.classes(made),
            Meaning::Logits if self.fills_masks(made) => self.masks(made, ids),
            Meaning::Logits => self.token_labels(made, ids),
            Meaning::Pooled => self.vector("model".to_owned(), false, made.floats()?.into_owned()),
            _ => {
                let made = self.embeddings(std::slice::from_ref(made))?.into_iter().next();
                made.ok_or_else(|| Error::format("the model does not return an embedding").into())
            }
        }
    }

    fn run(&self, output: Output<'_>, ids: &[i64]) -> RunResult<Tensor> {
        self.part.one(self.part.token_inputs(ids)?, output.name)
    }

    /// An output for texts of one number of tokens, text by text.
    fn run_batch(&self, output: Output<'_>, rows: &[&[i64]]) -> RunResult<Vec<Tensor>> {
        if let [ids] = rows {
            return Ok(vec![self.run(output, ids)?]);
        }
        let inputs = self.part.batch_inputs(rows)?;
        let made = self.part.one(inputs, output.name)?;
        let (shape, numbers) = (made.shape(), made.floats()?);
        if shape.first() != Some(&rows.len()) {
            // The graph does not keep texts apart.
            return rows.iter().map(|ids| self.run(output, ids)).collect();
        }
        let of_one: Vec<usize> = [1].iter().chain(&shape[1..]).copied().collect();
        let each = numbers.chunks_exact((numbers.len() / rows.len()).max(1));
        each.map(|row| Ok(Tensor::new(of_one.clone(), row.to_vec())?)).collect()
    }

    /// The vectors of texts of one number of tokens, by the vectors of their tokens.
    fn embeddings(&self, states: &[Tensor]) -> RunResult<Vec<TextTask>> {
        let head = self.head()?;
        let shapes = states.first().map(Tensor::shape).unwrap_or_default();
        let shape = [&[states.len()], shapes.get(1..).unwrap_or_default()].concat();
        let mut numbers = Vec::new();
        for of_one in states {
            numbers.extend_from_slice(&of_one.floats()?);
        }
        let states = Tensor::new(shape, numbers)?;
        // Prompts are cut with the texts they begin.
        let prompt = if head.sentence().includes_prompt() { 0 } else { self.prompt_len()? };
        let vectors = head.vectors(&self.part.runner, states, prompt)?;
        let pooling = head.sentence().pooling_name().unwrap_or_default();
        let normalized = head.sentence().normalizes();
        vectors.into_iter().map(|vector| self.vector(pooling.clone(), normalized, vector)).collect()
    }

    /// Returns the embedding, cut to the number of elements that is requested or that the model
    /// states. A number that the model states may exceed the width.
    fn vector(
        &self,
        pooling: String,
        normalized: bool,
        mut vector: Vec<f32>,
    ) -> RunResult<TextTask> {
        let Runner { facts, options, .. } = self.part.runner;
        let similarity = facts.sentence().and_then(|sentence| sentence.similarity.clone());
        let prompt = self.prompt()?.to_owned();
        if facts.sentence().is_some_and(Sentence::is_sparse) {
            if options.dimensions.is_some() {
                return Err(RunError::request(
                    "the model returns sparse vectors with a number per word: their dimensions \
                     can't be reduced",
                ));
            }
            let (size, mut words) = (vector.len(), self.words(&vector));
            let most = facts.sentence().and_then(|sentence| sentence.max_active);
            words.truncate(most.and_then(|most| usize::try_from(most).ok()).unwrap_or(size));
            return Ok(TextTask::SparseEmbedding { pooling, prompt, similarity, size, words });
        }
        if let Some(dimensions) = options.dimensions {
            if dimensions > vector.len() {
                return Err(RunError::request(format!(
                    "{dimensions} dimensions are more than the {} of the model's vectors",
                    vector.len()
                )));
            }
            vector.truncate(dimensions);
        } else if let Some(dimensions) = facts.sentence().and_then(|sentence| sentence.dimensions) {
            vector.truncate(usize::try_from(dimensions).unwrap_or(usize::MAX));
        }
        Ok(TextTask::Embedding { pooling, normalized, prompt, similarity, vector })
    }

    /// Returns the words of a sparse vector, those with the largest numbers first.
    fn words(&self, vector: &[f32]) -> Vec<WordWeight> {
        let vocabulary = self.tokenizer.vocabulary();
        let token = |id: usize| i64::try_from(id).ok().and_then(|id| vocabulary.token(id));
        let words = vector.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
        let mut words: Vec<WordWeight> = words
            .map(|(id, weight)| WordWeight {
                id,
                token: token(id).unwrap_or_default(),
                weight: *weight,
            })
            .collect();
        words.sort_by(|one, other| other.weight.total_cmp(&one.weight));
        words
    }

    fn head(&self) -> RunResult<&SentenceHead> {
        if let Some(head) = self.head.get() {
            return Ok(head);
        }
        let runner = &self.part.runner;
        // Modules that make no vectors of texts may have one that is not known.
        if let Some(modules) = runner.facts.modules() {
            modules.check()?;
        }
        let pools = |known: &Sentence| {
            known.modules.iter().any(|module| matches!(module, Module::Pooling { .. }))
        };
        let sentence = match (runner.options.pooling, runner.facts.sentence()) {
            (Some(_), Some(known)) if !pools(known) => {
                return Err(RunError::request(
                    "the model's modules compute text embeddings without pooling, so pooling \
                     can't be set",
                ));
            }
            (Some(mode), Some(known)) => known.clone().with_pooling(mode),
            (Some(mode), None) => Sentence::pooled_by(mode),
            (None, Some(known)) => known.clone(),
            (None, None) => {
                runner
                    .host
                    .warn("no pooling configuration found: mean pooling", Some(Remedy::Pooling));
                Sentence::pooled_by(PoolingMode::Mean)
            }
        };
        let head = SentenceHead::new(runner, sentence)?;
        Ok(self.head.get_or_init(|| head))
    }

    fn classes(&self, logits: &Tensor) -> RunResult<TextTask> {
        Ok(TextTask::Classification { labels: self.part.runner.labels(&logits.floats()?) })
    }

    /// Returns `true` if the logits are for tokens, `false` if they are for labels.
    fn fills_masks(&self, logits: &Tensor) -> bool {
        let Runner { facts, options, .. } = self.part.runner;
        let labels = facts.get("num_labels").and_then(Json::as_u64);
        let width = logits.shape().last().map(|width| *width as u64);
        task_of(facts, options).map_or(labels != width, |task| task != "TokenClassification")
    }

    fn masks(&self, logits: &Tensor, ids: &[i64]) -> RunResult<TextTask> {
        let vocabulary = self.tokenizer.vocabulary();
        let special = self.part.runner.facts.special_tokens();
        let mask =
            special.iter().find(|(role, _)| role == "mask_token").map(|(_, token)| token.as_str());
        let candidates = mask.into_iter().chain(["[MASK]", "<mask>"]);
        let mask = candidates.filter_map(|token| vocabulary.id(token).map(|id| (token, id))).next();
        let (spelled, mask) =
            mask.ok_or_else(|| Error::version("the tokenizer has no mask token"))?;
        let values = logits.floats()?;
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let rows = ids.iter().zip(values.chunks_exact(width)).filter(|(id, _)| **id == mask);
        let gaps: Vec<Vec<MaskToken>> = rows.map(|(_, row)| self.mask_tokens(row)).collect();
        if gaps.is_empty() {
            return Err(RunError::request(format!(
                "the text has no mask token: write {} for the missing word",
                Escaped(spelled)
            )));
        }

        Ok(TextTask::FillMask { gaps })
    }

    fn mask_tokens(&self, logits: &[f32]) -> Vec<MaskToken> {
        let vocabulary = self.tokenizer.vocabulary();
        let scores = softmax(logits);
        let token = |at: usize| {
            let id = at as i64;
            // The text of the token, or the name of one that has no text.
            let text = vocabulary.decode(&[id]).unwrap_or_default().trim().to_owned();
            let token =
                if text.is_empty() { vocabulary.token(id).unwrap_or_default() } else { text };
            MaskToken { id, token, score: scores[at] }
        };
        largest(&scores, self.part.runner.options.top).into_iter().map(token).collect()
    }

    fn token_labels(&self, logits: &Tensor, ids: &[i64]) -> RunResult<TextTask> {
        let values = logits.floats()?;
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let label = |(id, row): (&i64, &[f32])| {
            let scores = softmax(row);
            let best = largest(&scores, 1).first().copied().unwrap_or_default();
            let label = Label { label: self.part.runner.facts.label(best), score: scores[best] };
            TokenLabel { token: self.tokenizer.vocabulary().token(*id).unwrap_or_default(), label }
        };
        Ok(TextTask::TokenLabels {
            tokens: ids.iter().zip(values.chunks_exact(width)).map(label).collect(),
        })
    }
}
