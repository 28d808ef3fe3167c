//! Answers to questions about a text, as spans of it: what transformers 4 calls the pipeline
//! `question-answering`, with its defaults.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use apr::Escaped;
use apr_graph::{Body, Meaning};
use apr_infer::{Session, Tensor, Value};
use apr_inputs::text::{PairWindow, Windows};
use apr_ops::run::{Runnable, largest, softmax};
use serde::Serialize;

use super::job::{Job, meaning};
use super::texts;
use super::tokens::{Tokens, apart};
use crate::failure::{Failure, Outcome};
use crate::printer::BOLD;

/// Tokens of a window at most, and how many of the text two windows share at most.
const WINDOW: Windows = Windows { most: 384, shared: 128 };
/// Tokens of an answer at most.
const LONGEST: usize = 15;
/// Score of a token that is none of the text.
const HIDDEN: f32 = -10_000.0;
/// What the outputs are called.
const ENDS: [&str; 2] = ["start_logits", "end_logits"];

/// The answers to all questions.
#[derive(Debug, Serialize)]
struct AnswersReport {
    /// The model.
    file: String,
    /// One for each question.
    results: Vec<Answers>,
}

/// The answers to a question, the likeliest first.
#[derive(Debug, Serialize)]
struct Answers {
    task: &'static str,
    question: String,
    answers: Vec<Answer>,
}

/// A span of the text.
#[derive(Debug, Serialize)]
struct Answer {
    /// Probability that the answer starts here, times that of its end. Spans of the same text add
    /// up.
    score: f64,
    /// First character of the text.
    start: usize,
    /// Character after the last one.
    end: usize,
    answer: String,
}

/// Whether the model says where an answer starts and ends.
pub(super) fn answers(body: &Body) -> bool {
    let names: Vec<&str> = body.outputs.iter().map(|id| body.value(*id).name.as_str()).collect();
    ENDS.iter().all(|end| names.contains(end))
}

/// Answers questions by the text of `--context`.
pub(super) fn run(
    job: &Job<'_>,
    questions: &[String],
    part: &Runnable,
    session: &Session<'_>,
) -> Outcome {
    let Some(text) = &job.args.context else {
        let message = "the model answers questions about a text: --prompt QUESTION --context TEXT";
        return Err(Failure::Usage(message.to_owned()));
    };
    if job.args.output.is_some() {
        let message = "--output writes vectors, and this model makes answers: use --json";
        return Err(Failure::Usage(message.to_owned()));
    }

    let tokens = Tokens::of(job.reader, job.context)?;
    let reading = Reading { job, body: &part.graph.body, session, tokens, text };
    let results = questions.iter().map(|question| reading.answer(question));
    let results = results.collect::<Outcome<Vec<_>>>()?;
    let report = AnswersReport { file: job.name.to_owned(), results };
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|found| {
            if report.results.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped::short(&found.question))?;
            }
            found.answers.iter().try_for_each(|answer| render(out, answer))
        })
    })
}

fn render(out: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    let Answer { score, start, end, answer } = answer;
    writeln!(out, "{:>6.2} %  {}  (characters {start} to {end})", 100.0 * score, Escaped(answer))
}

struct Reading<'r> {
    job: &'r Job<'r>,
    body: &'r Body,
    session: &'r Session<'r>,
    tokens: Tokens,
    text: &'r str,
}

impl Reading<'_> {
    fn answer(&self, question: &str) -> Outcome<Answers> {
        let top = self.job.args.top;
        let mut answers: Vec<Answer> = Vec::new();
        for window in self.windows(question)? {
            let ends = self.scores(&window)?;
            for (span, score) in spans(&ends, &window.words, 2 * top + 10) {
                self.add(&mut answers, span, score);
            }
        }

        answers.sort_by(|one, other| other.score.total_cmp(&one.score));
        answers.truncate(top);
        Ok(Answers { task: "question_answering", question: question.to_owned(), answers })
    }

    fn windows(&self, question: &str) -> Outcome<Vec<PairWindow>> {
        let most = self.job.facts.context().unwrap_or(WINDOW.most).min(WINDOW.most);
        let windows = Windows { most, shared: WINDOW.shared.min(most / 2) };
        let (tokens, question) = (Arc::clone(&self.tokens.0), question.to_owned());
        let text = self.text.to_owned();
        apart("the tokenizer", self.job.context, move || tokens.pair(&question, &text, windows))
    }

    /// Probabilities that an answer starts, and that it ends, at each token of a window.
    fn scores(&self, window: &PairWindow) -> Outcome<[Vec<f64>; 2]> {
        let mut inputs = texts::inputs(self.body, &window.ids)?;
        let types = meaning(self.body, &self.body.inputs, Meaning::TokenTypes);
        if let Some((_, value)) = inputs.iter_mut().find(|(name, _)| Some(name.as_str()) == types) {
            *value = Value::from(Tensor::new(vec![1, window.types.len()], window.types.clone())?);
        }

        let outputs = self.job.run(self.session, inputs, &ENDS)?.outputs;
        let [start, end] = outputs.as_slice() else {
            return Err(apr::Error::format("the model made no ends of an answer").into());
        };
        let first = self.class_token();
        let probabilities = |value: &Value| -> Outcome<Vec<f64>> {
            let logits = value.tensor()?.floats()?;
            let counts = |at: usize| window.words[at].is_some() || Some(window.ids[at]) == first;
            let hidden = |(at, logit): (usize, &f32)| if counts(at) { *logit } else { HIDDEN };
            let len = window.ids.len().min(window.words.len());
            let logits: Vec<f32> = logits.iter().take(len).enumerate().map(hidden).collect();
            let mut scores = softmax(&logits);

            // The first token stands for no answer.
            if let Some(first) = scores.first_mut() {
                *first = 0.0;
            }
            Ok(scores)
        };
        Ok([probabilities(start)?, probabilities(end)?])
    }

    /// Id of the token that stands in front of all, which takes the share of no answer.
    fn class_token(&self) -> Option<i64> {
        let special = self.job.facts.special_tokens();
        let (_, token) = special.iter().find(|(role, _)| role == "cls_token")?;
        self.tokens.0.id(token)
    }

    /// Adds a span of bytes, or its score to that of the same answer.
    fn add(&self, answers: &mut Vec<Answer>, span: Range<usize>, score: f64) {
        let answer = self.text.get(span.clone()).unwrap_or_default();
        let lower = answer.to_lowercase();
        if let Some(same) = answers.iter_mut().find(|known| known.answer.to_lowercase() == lower) {
            same.score += score;
            return;
        }
        let start = self.text.get(..span.start).map_or(0, |before| before.chars().count());
        let end = start + answer.chars().count();
        answers.push(Answer { score, start, end, answer: answer.to_owned() });
    }
}

/// The likeliest spans of words, as bytes of the text, and their scores. Of these many spans of
/// tokens, those count that start and end in the text.
fn spans(
    [start, end]: &[Vec<f64>; 2],
    words: &[Option<Range<usize>>],
    most: usize,
) -> Vec<(Range<usize>, f64)> {
    let mut pairs = Vec::new();
    let mut scores = Vec::new();
    for (first, from) in start.iter().enumerate() {
        for (last, to) in end.iter().enumerate().skip(first).take(LONGEST) {
            pairs.push((first, last));
            scores.push(from * to);
        }
    }
    let span = |at: usize| {
        let (first, last) = pairs[at];
        let (first, last) = (words[first].as_ref()?, words[last].as_ref()?);
        Some((first.start..last.end, scores[at]))
    };
    largest(&scores, most).into_iter().filter_map(span).collect()
}
