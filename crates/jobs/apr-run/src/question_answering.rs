//! Extractive question answering: answers as spans of a text, by the defaults of the pipeline
//! `question-answering` of transformers 4.

use std::ops::Range;

use apr_infer::Value;
use apr_inputs::text::{PairWindow, Windows};
use apr_registry::Error;
use serde::Serialize;

use crate::error::{RunError, RunResult};
use crate::recognised::ENDS;
use crate::runner::Prepared;
use crate::scores::{largest, softmax};
use crate::tokens::Tokenizer;

/// Maximum number of tokens of a window, and of text tokens that two windows share.
const WINDOW: Windows = Windows { most: 384, shared: 128 };
/// Tokens of an answer at most.
const LONGEST: usize = 15;
/// Score of a token outside of the text.
const HIDDEN: f32 = -10_000.0;
/// The answers to a question, the likeliest first.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Answers {
    /// `question_answering`.
    pub task: &'static str,
    /// The question, unchanged.
    pub question: String,
    /// At most [`RunOptions::top`](crate::RunOptions::top).
    pub answers: Vec<Answer>,
}

/// A span of the text. An empty span means that the text has no answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Probability that the answer starts here, times the probability of its end. Spans of the same
    /// text are added up. The score of no answer is the smallest of all windows.
    pub score: f64,
    /// First character of the text.
    pub start: usize,
    /// Character after the last one.
    pub end: usize,
    /// Text of the span.
    pub answer: String,
}

/// Answers questions about a text.
pub struct QuestionAnswering<'q> {
    part: Prepared<'q>,
    tokenizer: Tokenizer<'q>,
    text: String,
}

impl<'q> QuestionAnswering<'q> {
    /// Questions about `text`, for a part that [answers
    /// questions](Prepared::answers_questions).
    ///
    /// # Errors
    /// [`RunError::Request`] where it does not, E003 where the model has no tokenizer.
    pub fn of_part(part: Prepared<'q>, text: impl Into<String>) -> RunResult<Self> {
        if !part.answers_questions() {
            return Err(RunError::request(
                "the model does not support extractive question answering",
            ));
        }
        let tokenizer = Tokenizer::of(part.runner.reader, part.runner.host)?;
        Ok(Self { part, tokenizer, text: text.into() })
    }

    /// Answers a question.
    ///
    /// # Errors
    /// E008 for a text that is too long; those of [`Session::run`](apr_infer::Session::run).
    pub fn answer(&self, question: &str) -> RunResult<Answers> {
        let top = self.part.runner.options.top;
        let mut answers: Vec<Answer> = Vec::new();
        let mut least_none = f64::INFINITY;
        for window in self.windows(question)? {
            let (ends, none) = self.scores(&window)?;
            least_none = least_none.min(none);
            for (span, score) in spans(&ends, &window.words, 2 * top + 10) {
                self.add(&mut answers, span, score);
            }
        }

        if self.part.runner.options.no_answer {
            answers.push(Answer { score: least_none, start: 0, end: 0, answer: String::new() });
        }
        answers.sort_by(|one, other| other.score.total_cmp(&one.score));
        answers.truncate(top);
        Ok(Answers { task: "question_answering", question: question.to_owned(), answers })
    }

    fn windows(&self, question: &str) -> RunResult<Vec<PairWindow>> {
        let most = self.part.runner.facts.context().unwrap_or(WINDOW.most).min(WINDOW.most);
        let windows = Windows { most, shared: WINDOW.shared.min(most / 2) };
        Ok(self.tokenizer.pair(question, &self.text, windows)?)
    }

    /// The graph's inputs for a question and the beginning of the text, as much as fits a window;
    /// and the number of windows.
    ///
    /// # Errors
    /// E008 for a text that is too long.
    pub fn inputs(&self, question: &str) -> RunResult<(Vec<(String, Value)>, usize)> {
        let windows = self.windows(question)?;
        let first = windows.first().ok_or_else(|| RunError::request("the text is empty"))?;
        Ok((self.window_inputs(first)?, windows.len()))
    }

    fn window_inputs(&self, window: &PairWindow) -> RunResult<Vec<(String, Value)>> {
        self.part.typed_inputs(&window.ids, &window.types)
    }

    /// Probabilities that an answer starts, and that it ends, at each token of a window, and that
    /// there is none.
    fn scores(&self, window: &PairWindow) -> RunResult<([Vec<f64>; 2], f64)> {
        let outputs = self.part.run(self.window_inputs(window)?, &ENDS)?.outputs;
        let [start, end] = outputs.as_slice() else {
            return Err(Error::format("the graph has no start and end logits").into());
        };
        let first = self.class_token();
        let probabilities = |value: &Value| -> RunResult<(Vec<f64>, f64)> {
            let logits = value.tensor()?.floats()?;
            let counts = |at: usize| window.words[at].is_some() || Some(window.ids[at]) == first;
            let hidden = |(at, logit): (usize, &f32)| if counts(at) { *logit } else { HIDDEN };
            let len = window.ids.len().min(window.words.len());
            let logits: Vec<f32> = logits.iter().take(len).enumerate().map(hidden).collect();
            let mut scores = softmax(&logits);

            // The first token stands for no answer.
            let none = scores.first_mut().map_or(0.0, std::mem::take);
            Ok((scores, none))
        };
        let ((starts, no_start), (ends, no_end)) = (probabilities(start)?, probabilities(end)?);
        Ok(([starts, ends], no_start * no_end))
    }

    /// Returns the id of the token before all others, which gets the score of no answer.
    fn class_token(&self) -> Option<i64> {
        let special = self.part.runner.facts.special_tokens();
        let (_, token) = special.iter().find(|(role, _)| role == "cls_token")?;
        self.tokenizer.vocabulary().id(token)
    }

    /// Adds a span of bytes, or adds its score to the same answer.
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
