//! Texts that a model reads as a whole: vectors, labels, and words for gaps.

use std::io::{self, Write};

use apr::Escaped;
use apr_graph::{Body, Meaning, Origin, ValueId};
use apr_infer::{Session, Tensor, Value};
use apr_ops::run::{Pooling, Runnable, largest, normalize, pool, sigmoid, softmax};
use serde::Serialize;
use serde_json::Value as Json;

use super::job::{Job, meaning};
use super::output::Output;
use super::tokens::Tokens;
use crate::args::PoolingWay;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};

/// Numbers of a vector that fit the terminal.
const SHOWN: usize = 8;

/// What the model made of all texts.
#[derive(Debug, Serialize)]
struct TextsReport {
    /// The model.
    file: String,
    /// One for each text.
    results: Vec<Made>,
}

/// What the model made of a text.
#[derive(Debug, Serialize)]
#[serde(tag = "task", rename_all = "snake_case")]
enum Made {
    /// One vector for the text.
    Embedding {
        /// How the vectors of tokens became one: `mean`, `cls`, `max`, `last`, `model` where the
        /// model does it.
        pooling: &'static str,
        /// Whether it was brought to length 1.
        normalized: bool,
        /// The vector.
        vector: Vec<f32>,
    },
    /// Labels of the whole text, the likeliest first.
    Classification { labels: Vec<Label> },
    /// The likeliest label of each token.
    TokenLabels { tokens: Vec<TokenLabel> },
    /// Words for each gap, the likeliest first.
    FillMask { gaps: Vec<Vec<Word>> },
}

/// A label and its probability.
#[derive(Debug, Serialize)]
pub(super) struct Label {
    pub(super) label: String,
    pub(super) score: f64,
}

#[derive(Debug, Serialize)]
struct TokenLabel {
    token: String,
    #[serde(flatten)]
    label: Label,
}

/// A token for a gap.
#[derive(Debug, Serialize)]
struct Word {
    id: i64,
    token: String,
    score: f64,
}

pub(super) fn run(
    job: &Job<'_>,
    texts: &[String],
    part: &Runnable,
    session: &Session<'_>,
) -> Outcome {
    let output = Output::of(job.args, &job.context.printer)?;
    let reading = Reading {
        job,
        body: &part.graph.body,
        session,
        tokens: Tokens::of(job.reader, job.context)?,
    };

    let results = texts.iter().map(|text| reading.read(text)).collect::<Outcome<Vec<_>>>()?;
    if let Some(output) = output {
        output.write(&[("embeddings".to_owned(), vectors(&results)?)])?;
    }

    let report = TextsReport { file: job.name.to_owned(), results };
    job.context.printer.report(&report, |out, report| {
        report.results.iter().zip(texts).try_for_each(|(made, text)| {
            if texts.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped::short(text))?;
            }
            render(out, made)
        })
    })
}

/// All vectors as one array.
fn vectors(results: &[Made]) -> Outcome<Tensor> {
    let vector = |made: &Made| match made {
        Made::Embedding { vector, .. } => Ok(vector.clone()),
        _ => Err(Failure::Usage(
            "--output writes vectors, and this model makes labels or words: use --json".to_owned(),
        )),
    };
    let rows = results.iter().map(vector).collect::<Outcome<Vec<_>>>()?;
    let width = rows.first().map_or(0, Vec::len);
    Ok(Tensor::new(vec![rows.len(), width], rows.concat())?)
}

struct Reading<'r> {
    job: &'r Job<'r>,
    body: &'r Body,
    session: &'r Session<'r>,
    tokens: Tokens,
}

impl Reading<'_> {
    fn read(&self, text: &str) -> Outcome<Made> {
        let ids = ids(self.job, &self.tokens, text)?;
        let output = |what| meaning(self.body, &self.body.outputs, what);
        if let Some(name) = output(Meaning::Logits) {
            let logits = self.run(name, &ids)?;
            return match logits.rank() {
                2 => self.classes(&logits),
                _ if self.is_filled(&logits) => self.gaps(&logits, &ids),
                _ => self.token_labels(&logits, &ids),
            };
        }

        if let Some(name) = output(Meaning::HiddenStates).or_else(|| output(Meaning::EncoderStates))
        {
            return self.embedding(&self.run(name, &ids)?);
        }
        let pooled = output(Meaning::Pooled).ok_or_else(|| {
            let message = "what the model makes of a text is not known: give it arrays, --input \
                input_ids=FILE";
            Failure::Model(apr::Error::version(message))
        })?;
        let vector = self.run(pooled, &ids)?.floats()?.into_owned();
        Ok(Made::Embedding { pooling: "model", normalized: false, vector })
    }

    fn run(&self, wanted: &str, ids: &[i64]) -> Outcome<Tensor> {
        let outcome = self.job.run(self.session, inputs(self.body, ids)?, &[wanted])?;
        Ok(outcome.outputs.first().ok_or_else(nothing)?.tensor()?.clone())
    }

    fn embedding(&self, states: &Tensor) -> Outcome<Made> {
        let known = self.job.facts.pooling();
        let (pooling, normalized) = match (self.job.args.pooling, known) {
            (Some(way), known) => (way.into(), known.is_some_and(|(_, normalized)| normalized)),
            (None, Some(known)) => known,
            (None, None) => {
                self.job.warn(
                    "the model does not say how vectors of tokens become one: the mean \
                    is taken; --pooling",
                );
                (Pooling::Mean, false)
            }
        };

        let width = states.shape().last().copied().unwrap_or_default();
        let mut vector = pool(&states.floats()?, width, pooling);
        if normalized {
            normalize(&mut vector);
        }

        Ok(Made::Embedding { pooling: pooling.name(), normalized, vector })
    }

    fn classes(&self, logits: &Tensor) -> Outcome<Made> {
        Ok(Made::Classification { labels: labels(self.job, &logits.floats()?) })
    }

    /// Whether the logits are those of tokens, and not of labels.
    fn is_filled(&self, logits: &Tensor) -> bool {
        let labels = self.job.facts.get("num_labels").and_then(Json::as_u64);
        let width = logits.shape().last().map(|width| *width as u64);
        let own = self.job.facts.task();
        let asked = self.job.args.task.as_deref();
        let asked = asked.map(|task| apr_blocks::class_for(task, own.as_deref()).into_owned());
        let task = asked.or(own);
        task.map_or(labels != width, |task| task != "TokenClassification")
    }

    fn gaps(&self, logits: &Tensor, ids: &[i64]) -> Outcome<Made> {
        let tokens = &self.tokens.0;
        let special = self.job.facts.special_tokens();
        let mask =
            special.iter().find(|(role, _)| role == "mask_token").map(|(_, token)| token.as_str());
        let candidates = mask.into_iter().chain(["[MASK]", "<mask>"]);
        let mask = candidates.filter_map(|token| tokens.id(token).map(|id| (token, id))).next();
        let (spelled, mask) =
            mask.ok_or_else(|| apr::Error::version("the tokenizer has no token for a gap"))?;
        let values = logits.floats()?;
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let rows = ids.iter().zip(values.chunks_exact(width)).filter(|(id, _)| **id == mask);
        let gaps: Vec<Vec<Word>> = rows.map(|(_, row)| self.words(row)).collect();
        if gaps.is_empty() {
            return Err(Failure::Usage(format!(
                "the text has no gap: write {} where a word is missing",
                Escaped(spelled)
            )));
        }

        Ok(Made::FillMask { gaps })
    }

    fn words(&self, logits: &[f32]) -> Vec<Word> {
        let scores = softmax(logits);
        let word = |at: usize| {
            let id = at as i64;
            // The text of the token, or the name of one that has no text.
            let text = self.tokens.0.decode(&[id]).unwrap_or_default().trim().to_owned();
            let token =
                if text.is_empty() { self.tokens.0.token(id).unwrap_or_default() } else { text };
            Word { id, token, score: scores[at] }
        };
        largest(&scores, self.job.args.top).into_iter().map(word).collect()
    }

    fn token_labels(&self, logits: &Tensor, ids: &[i64]) -> Outcome<Made> {
        let values = logits.floats()?;
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let label = |(id, row): (&i64, &[f32])| {
            let scores = softmax(row);
            let best = largest(&scores, 1).first().copied().unwrap_or_default();
            let label = Label { label: self.job.facts.label(best), score: scores[best] };
            TokenLabel { token: self.tokens.0.token(*id).unwrap_or_default(), label }
        };
        Ok(Made::TokenLabels {
            tokens: ids.iter().zip(values.chunks_exact(width)).map(label).collect(),
        })
    }
}

/// The likeliest labels. Where a model may give several, or has one alone, each has a probability
/// of its own.
pub(super) fn labels(job: &Job<'_>, logits: &[f32]) -> Vec<Label> {
    let several = job.facts.config("problem_type").and_then(Json::as_str)
        == Some("multi_label_classification");
    let scores = if several || logits.len() == 1 { sigmoid(logits) } else { softmax(logits) };
    let label = |at: usize| Label { label: job.facts.label(at), score: scores[at] };
    largest(&scores, job.args.top).into_iter().map(label).collect()
}

fn nothing() -> apr::Error {
    apr::Error::format("the model made nothing")
}

impl From<PoolingWay> for Pooling {
    fn from(way: PoolingWay) -> Self {
        match way {
            PoolingWay::Mean => Self::Mean,
            PoolingWay::Cls => Self::First,
            PoolingWay::Max => Self::Max,
            PoolingWay::Last => Self::Last,
        }
    }
}

pub(super) fn render_labels(out: &mut dyn Write, labels: &[Label]) -> io::Result<()> {
    labels.iter().try_for_each(|label| {
        writeln!(out, "{:>6.2} %  {}", 100.0 * label.score, Escaped(&label.label))
    })
}

fn render(out: &mut dyn Write, made: &Made) -> io::Result<()> {
    match made {
        Made::Embedding { pooling, normalized, vector } => {
            let length = if *normalized { ", of length 1" } else { "" };
            writeln!(out, "{DIM}{} numbers, pooling {pooling}{length}{DIM:#}", vector.len())?;
            let shown: Vec<String> = vector.iter().take(SHOWN).map(ToString::to_string).collect();
            let more = vector.len() - shown.len();
            let more =
                if more > 0 { format!(" {DIM}and {more} more{DIM:#}") } else { String::new() };
            writeln!(out, "  {}{more}", shown.join(" "))
        }
        Made::Classification { labels } => render_labels(out, labels),
        Made::TokenLabels { tokens } => tokens.iter().try_for_each(|token| {
            let (name, label) = (Escaped(&token.token), Escaped(&token.label.label));
            writeln!(out, "{:>6.2} %  {label}  {name}", 100.0 * token.label.score)
        }),
        Made::FillMask { gaps } => gaps.iter().enumerate().try_for_each(|(number, words)| {
            if gaps.len() > 1 {
                writeln!(out, "{BOLD}gap {}{BOLD:#}", number + 1)?;
            }
            let mut words = words.iter();
            words.try_for_each(|word| {
                writeln!(out, "{:>6.2} %  {}", 100.0 * word.score, Escaped(&word.token))
            })
        }),
    }
}

/// The tokens of a text, as many as the model takes.
pub(super) fn ids(job: &Job<'_>, tokens: &Tokens, text: &str) -> Outcome<Vec<i64>> {
    let most = job.facts.context().unwrap_or(usize::MAX);
    let (ids, left_out) = tokens.encode_at_most(text, most, job.context)?;

    // Sentence encoders are meant to be given the beginning of longer texts.
    let expected = job.args.truncate || job.facts.file("sentence_bert_config.json").is_some();
    match left_out {
        0 => Ok(ids),
        _ if expected => {
            job.warn(&format!(
                "the model takes {most} tokens: the last {left_out} of the text are left out"
            ));
            Ok(ids)
        }
        _ => Err(Failure::Usage(format!(
            "the text is {} tokens long, and the model takes {most}; --truncate leaves out the end",
            most + left_out
        ))),
    }
}

/// Tokens that the user gave, as many as the model takes.
pub(super) fn within(job: &Job<'_>, mut ids: Vec<i64>) -> Outcome<Vec<i64>> {
    let count = ids.len();
    let Some(most) = job.facts.context().filter(|most| count > *most) else { return Ok(ids) };
    if !job.args.truncate {
        return Err(Failure::Usage(format!(
            "--tokens is {count} tokens long, and the model takes {most}; --truncate leaves out \
             the end"
        )));
    }
    job.warn(&format!("the model takes {most} tokens: the last {} are left out", count - most));
    ids.truncate(most);
    Ok(ids)
}

/// A text as the inputs of a graph.
pub(super) fn inputs(body: &Body, ids: &[i64]) -> Outcome<Vec<(String, Value)>> {
    let needed = |id: &&ValueId| body.value(**id).origin == Origin::Input;
    let input = |id: &ValueId| {
        let value = body.value(*id);
        let row = match value.meaning {
            Meaning::TokenIds => ids.to_vec(),
            Meaning::AttentionMask => vec![1; ids.len()],
            Meaning::TokenTypes => vec![0; ids.len()],
            Meaning::PositionIds => (0..).take(ids.len()).collect(),
            _ => {
                let message =
                    format!("the model needs '{}', which a text is not", Escaped(&value.name));
                return Err(Failure::Usage(message));
            }
        };
        let row = Tensor::new(vec![1, row.len()], row)?;
        let row = row.cast(value.element().unwrap_or(row.element()))?;
        Ok((value.name.clone(), Value::Tensor(row)))
    };

    body.inputs.iter().filter(needed).map(input).collect()
}
