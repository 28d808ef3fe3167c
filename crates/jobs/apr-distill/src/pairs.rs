//! Rows of models of two parts: what the encoder reads, and what the decoder writes behind it.

use apr_core::{Error, Result};
use apr_graph::Meaning;
use apr_infer::Tensor;
use apr_lowrank::FactorStore;
use apr_run::{
    GenerateOptions, Generator, Prepared, Prompt, RunError, RunResult, Runner, Transcriber,
    TranscriptionOptions,
};
use serde_json::{Map, Value as Json};

use crate::encoded::Encoded;
use crate::rows::{Row, Tokenize, check_tokens};

/// The part that reads, in models of two.
pub const ENCODER: &str = "encoder_model";
/// The part that writes, which students have less of.
pub const DECODER: &str = "decoder_model";

/// Rows of a sequence-to-sequence model, with the encoder's outputs for them.
pub struct Pairs {
    /// Decoder rows, one for each line.
    pub rows: Vec<Row>,
    /// Encoder states of each row.
    pub encoded: Encoded,
    /// Number of rows that were cut to the maximum length of the encoder or the decoder.
    pub cut: usize,
    /// Number of rows without a text in the data, for which the teacher generated one.
    pub written: usize,
}

/// A line of the data.
#[derive(Debug, PartialEq)]
struct Line {
    given: Given,
    written: Written,
    /// The code of a sound's language.
    language: Option<String>,
}

/// Input of the encoder.
#[derive(Debug, PartialEq)]
enum Given {
    Text(String),
    Tokens(Vec<i64>),
    Sound(String),
}

/// Decoder target.
#[derive(Debug, PartialEq)]
enum Written {
    Text(String),
    Tokens(Vec<i64>),
    /// Text that the teacher generates (Kim and Rush 2016, arXiv:1606.07947).
    ByTeacher,
}

/// Reads rows and runs the encoder on each. JSON lines have `prompt` or `tokens`, or the path of a
/// sound in `audio` and perhaps its `language`; and what is to be written, in `completion`,
/// `labels` or, for sounds, `text`. Where that is absent, the teacher writes it. A file that is no
/// JSON has a prompt, or the path of a sound, in each line. `open` reads a sound; `done` is told
/// how many rows of how many are encoded.
///
/// # Errors
/// With the number of the line: E001 for what is no JSON object, has none of these fields, or has
/// tokens that are not below the vocabulary, and a sound that is longer than the model's window;
/// those of `open` and of running the model. E001 for no rows.
pub fn read_pairs(
    teacher: &Runner<'_>,
    (text, is_json): (&str, bool),
    tokenize: &dyn Tokenize,
    store: Box<dyn FactorStore>,
    open: &dyn Fn(&str) -> Result<Vec<u8>>,
    done: &mut dyn FnMut(usize, usize),
) -> RunResult<Pairs> {
    let lines = || text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let count = lines().count();
    if count == 0 {
        return Err(Error::format("it does not contain rows to learn from").into());
    }
    let mut model = Reading::of(teacher, tokenize)?;
    let encoded = Encoded::new(store);
    let mut pairs = Pairs { rows: Vec::new(), encoded, cut: 0, written: 0 };
    for (place, (number, line)) in lines().enumerate() {
        let mut read = || -> RunResult<()> {
            let line = match (is_json, &model.encoder) {
                (true, _) => parsed(line, model.reads_sound())?,
                (false, encoder) => Line::alone(encoder.given(line)),
            };
            let (states, row, is_cut) = model.row(line, open)?;
            pairs.written += usize::from(row.1);
            pairs.cut += usize::from(is_cut);
            pairs.encoded.push(&states)?;
            pairs.rows.push(row.0);
            Ok(())
        };
        read().map_err(|error| at_line(error, number + 1))?;
        done(place + 1, count);
    }
    Ok(pairs)
}

fn at_line(error: RunError, number: usize) -> RunError {
    let located = |error: &Error| {
        let message = match error.file() {
            Some(_) => format!("{} (line {number} of the data)", error.message()),
            None => format!("line {number}: {}", error.message()),
        };
        let located = match error.cause() {
            Some(cause) => Error::io(cause, message),
            None => Error::new(error.code(), message),
        };
        match error.file() {
            Some(file) => located.in_file(file),
            None => located,
        }
    };
    match error {
        RunError::Model(error) => located(&error).into(),
        RunError::Lacking { error, remedy } => RunError::Lacking { error: located(&error), remedy },
        RunError::Request { message, remedy } => {
            RunError::Request { message: format!("line {number}: {message}"), remedy }
        }
        other => other,
    }
}

impl Line {
    fn alone(given: Given) -> Self {
        Self { given, written: Written::ByTeacher, language: None }
    }
}

fn parsed(line: &str, reads_sound: bool) -> Result<Line> {
    let json: Map<String, Json> = serde_json::from_str(line).map_err(|error| {
        Error::format(format!("not a JSON object: {}", apr_core::foreign(&error)))
    })?;
    let text = |name: &str| {
        let wrong = || Error::format(format!("\"{name}\" must be a string"));
        let value = json.get(name).filter(|value| !value.is_null());
        value.map(|value| value.as_str().map(str::to_owned).ok_or_else(wrong)).transpose()
    };
    let tokens = |name: &str| {
        let wrong = || Error::format(format!("\"{name}\" must be integers"));
        let value = json.get(name).filter(|value| !value.is_null());
        let ids = |value: &Json| -> Option<Vec<i64>> {
            value.as_array()?.iter().map(Json::as_i64).collect()
        };
        value.map(|value| ids(value).ok_or_else(wrong)).transpose()
    };
    if reads_sound {
        let expected = "expected \"audio\", and perhaps \"text\" and \"language\"";
        let given = Given::Sound(text("audio")?.ok_or_else(|| Error::format(expected))?);
        let written = text("text")?.map_or(Written::ByTeacher, Written::Text);
        return Ok(Line { given, written, language: text("language")? });
    }
    let ids = tokens("tokens")?.map_or_else(|| tokens("input_ids"), |ids| Ok(Some(ids)))?;
    let given = match (text("prompt")?, ids) {
        (Some(prompt), _) => Given::Text(prompt),
        (None, Some(ids)) => Given::Tokens(ids),
        (None, None) => {
            return Err(Error::format(
                "expected \"prompt\" or \"tokens\", and perhaps \"completion\" or \"labels\"",
            ));
        }
    };
    let written = match (text("completion")?, tokens("labels")?) {
        (Some(text), _) => Written::Text(text),
        (None, Some(tokens)) => Written::Tokens(tokens),
        (None, None) => Written::ByTeacher,
    };
    Ok(Line { given, written, language: None })
}

/// The teacher, as it reads and writes.
struct Reading<'r, 't> {
    runner: Runner<'r>,
    tokenize: &'t dyn Tokenize,
    encoder: Encoder<'r>,
}

enum Encoder<'r> {
    Text { part: Box<Prepared<'r>>, generator: Box<Generator<'r>> },
    Sound(Box<Transcriber<'r>>),
}

impl Encoder<'_> {
    fn given(&self, line: &str) -> Given {
        match self {
            Self::Text { .. } => Given::Text(line.to_owned()),
            Self::Sound(_) => Given::Sound(line.to_owned()),
        }
    }
}

impl<'r, 't> Reading<'r, 't> {
    fn of(runner: &Runner<'r>, tokenize: &'t dyn Tokenize) -> RunResult<Self> {
        if Transcriber::fits(runner) {
            let transcriber = Transcriber::of(runner, TranscriptionOptions::default())?;
            let encoder = Encoder::Sound(Box::new(transcriber));
            return Ok(Self { runner: *runner, tokenize, encoder });
        }
        let part = runner.parts().iter().find(|part| part.name == ENCODER);
        let part = part.ok_or_else(|| {
            RunError::request("the model has no encoder and decoder that generate text")
        })?;
        let part = Box::new(runner.prepared(part)?);
        let generator = Box::new(Generator::of(runner, GenerateOptions::default())?);
        Ok(Self { runner: *runner, tokenize, encoder: Encoder::Text { part, generator } })
    }

    fn reads_sound(&self) -> bool {
        matches!(self.encoder, Encoder::Sound(_))
    }

    /// The encoder's states, the row with whether the teacher wrote it, and whether it was cut.
    fn row(
        &mut self,
        line: Line,
        open: &dyn Fn(&str) -> Result<Vec<u8>>,
    ) -> RunResult<(Tensor, (Row, bool), bool)> {
        let facts = self.runner.facts();
        let vocabulary = facts.vocabulary();
        let is_by_teacher = line.written == Written::ByTeacher;
        let (states, begin, (mut tokens, has_end), mut is_cut) =
            match (&mut self.encoder, line.given) {
                (Encoder::Sound(transcriber), Given::Sound(path)) => {
                    let states = transcriber.window_states(&path, open(&path)?)?;
                    let most = facts.decoder_context().unwrap_or(usize::MAX);
                    let (begin, written) = match line.written {
                        Written::ByTeacher => {
                            transcriber.window_tokens(&states, line.language.as_deref(), most)?
                        }
                        _ => transcriber.window_tokens(&states, line.language.as_deref(), 0)?,
                    };
                    // What the teacher did not bring to its end has none.
                    let has_end = begin.len() + written.len() < most;
                    let tokens = match line.written {
                        Written::Text(text) => {
                            (self.tokenize.text(&of_speech(&text), false)?, true)
                        }
                        _ => (written, has_end),
                    };
                    (states.tensor()?.clone(), begin, tokens, false)
                }
                (Encoder::Text { part, generator }, given) => {
                    let mut ids = match given {
                        Given::Text(text) => self.tokenize.text(&text, true)?,
                        Given::Tokens(ids) => ids,
                        Given::Sound(_) => Vec::new(),
                    };
                    check_tokens(&ids, vocabulary)?;
                    let most = facts.context().unwrap_or(usize::MAX);
                    let is_cut = ids.len() > most;
                    ids.truncate(most);
                    if ids.is_empty() {
                        return Err(Error::format("the prompt is empty").into());
                    }
                    let states = encode(part, &ids)?;
                    let begin = begin(&self.runner)?;
                    let tokens = match line.written {
                        Written::Tokens(tokens) => (tokens, true),
                        Written::Text(text) => {
                            // What some models put before a text is in the beginning already.
                            let special = begin.len() == 1 && !writes_language(&self.runner);
                            (self.tokenize.text(&text, special)?, true)
                        }
                        Written::ByTeacher => {
                            let made = generator.generate(Prompt::Tokens(&ids), &mut |_| Ok(()))?;
                            // A token that the settings force to be the first is in the beginning.
                            let written = made.added.get(begin.len() - 1..).unwrap_or_default();
                            (written.to_vec(), made.ended == "end")
                        }
                    };
                    (states, begin, tokens, is_cut)
                }
                (Encoder::Sound(_), _) => {
                    return Err(Error::format("the model reads audio").into());
                }
            };
        let first_label = begin.len();
        let most = facts.decoder_context().unwrap_or(usize::MAX);
        let end = self.tokenize.end().filter(|end| has_end && tokens.last() != Some(end));
        tokens.extend(end);
        check_tokens(&tokens, vocabulary)?;
        let mut all = [begin, tokens].concat();
        is_cut |= all.len() > most;
        all.truncate(most);
        let row = Row { first_label, ..Row::new(all) };
        Ok((states, (row, is_by_teacher), is_cut))
    }
}

/// A text as Whisper writes it: with a space before it.
fn of_speech(text: &str) -> String {
    format!(" {}", text.trim())
}

/// The tokens that a decoder's texts begin with.
fn begin(runner: &Runner<'_>) -> RunResult<Vec<i64>> {
    let facts = runner.facts();
    let start = facts.decoder_start().ok_or_else(|| {
        Error::version("the configuration does not state the decoder's start token")
    })?;
    let forced = ["generation_config.json", "config.json"]
        .iter()
        .find_map(|file| facts.file(file)?.get("forced_bos_token_id")?.as_i64());
    Ok([start].into_iter().chain(forced).collect())
}

/// Returns `true` if the tokenizer adds the source language to a text, which differs from the
/// target language.
fn writes_language(runner: &Runner<'_>) -> bool {
    runner.facts().config("model_type").and_then(Json::as_str) == Some("mbart")
}

fn encode(part: &Prepared<'_>, ids: &[i64]) -> RunResult<Tensor> {
    let states = part.output(Meaning::EncoderStates).or_else(|| part.output(Meaning::HiddenStates));
    let states = states.ok_or_else(|| Error::version("the encoder has no output of states"))?;
    let outcome = part.run(part.token_inputs(ids)?, &[states])?;
    Ok(outcome.outputs[0].tensor()?.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_encoder_inputs_and_decoder_targets() {
        let line = |given, written| Line { given, written, language: None };
        for (text, expected) in [
            (
                "{\"prompt\": \"a\", \"completion\": \"b\"}",
                line(Given::Text("a".into()), Written::Text("b".into())),
            ),
            ("{\"prompt\": \"a\"}", line(Given::Text("a".into()), Written::ByTeacher)),
            (
                "{\"input_ids\": [1, 2], \"labels\": [3]}",
                line(Given::Tokens(vec![1, 2]), Written::Tokens(vec![3])),
            ),
        ] {
            assert_eq!(parsed(text, false).expect("a row"), expected);
        }
        let sound = parsed("{\"audio\": \"a.wav\", \"text\": \"b\", \"language\": \"en\"}", true);
        let mut expected = line(Given::Sound("a.wav".into()), Written::Text("b".into()));
        expected.language = Some("en".into());
        assert_eq!(sound.expect("a row"), expected);
    }

    #[test]
    fn invalid_rows_are_rejected() {
        for (text, reads_sound, message) in [
            ("[]", false, "not a JSON object"),
            ("{\"text\": \"a\"}", false, "expected \"prompt\" or \"tokens\""),
            ("{\"prompt\": 1}", false, "\"prompt\" must be a string"),
            ("{\"tokens\": [1], \"labels\": \"b\"}", false, "\"labels\" must be integers"),
            ("{\"text\": \"a\"}", true, "expected \"audio\""),
        ] {
            let error = parsed(text, reads_sound).expect_err("no row");
            assert!(error.message().contains(message), "{error}");
        }
    }
}
