//! The data of a training: rows as a model's tokenizer reads them, and what its encoder makes of
//! them.

use std::path::Path;

use apr_arch::FamilyModel;
use apr_core::counted;
use apr_distill::{Pairs, Row, RowsRead, Tokenize, read_pairs, read_rows};
use apr_io::io_error;
use apr_registry::Error;
use apr_run::{Facts, InputKind, Message, RunError, Runner, TemplateOptions, Tokenizer, chat_text};
use serde_json::Value as Json;

use crate::commands::lowrank::FactorFile;
use crate::commands::running::{Opened, generating};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;

/// The model's tokenizer, as rows are read by it.
struct Texts<'t> {
    runner: &'t Runner<'t>,
    tokenizer: Option<Tokenizer<'t>>,
}

impl Texts<'_> {
    fn tokenizer(&self) -> apr_core::Result<&Tokenizer<'_>> {
        let missing = "the model has no tokenizer: give rows of \"tokens\"";
        self.tokenizer.as_ref().ok_or_else(|| Error::version(missing))
    }
}

impl Tokenize for Texts<'_> {
    fn text(&self, text: &str, special: bool) -> apr_core::Result<Vec<i64>> {
        self.tokenizer()?.encode(text, special)
    }

    fn pair(&self, [first, second]: [&str; 2]) -> apr_core::Result<(Vec<i64>, Option<usize>)> {
        let (ids, types) = self.tokenizer()?.encode_pair(first, second)?;
        Ok((ids, types.iter().position(|kind| *kind == 1)))
    }

    fn chat(&self, messages: &[(String, String)]) -> apr_core::Result<Vec<i64>> {
        let messages: Vec<Message> =
            messages.iter().map(|(role, content)| Message::new(role, content)).collect();
        let none = TemplateOptions::default();
        let text = chat_text(self.runner, &messages, &none).map_err(|error| match error {
            RunError::Model(error) | RunError::Lacking { error, .. } => error,
            RunError::Request { message, .. } => Error::format(message),
            other => Error::format(other.to_string()),
        })?;
        self.tokenizer()?.encode(&text, false)
    }

    fn end(&self) -> Option<i64> {
        self.runner.facts().ends().first().copied()
    }
}

/// Returns the tokenized rows of a file, and the number of rows that were cut.
pub(in crate::commands) fn rows(
    text: &str,
    path: &Path,
    teacher: &Runner<'_>,
) -> Outcome<(Vec<Row>, usize)> {
    if teacher.parts().len() > 1 {
        return Err(Failure::Usage(
            "gradients and effects can't be measured for a model with a separate encoder and \
             decoder"
                .to_owned(),
        ));
    }
    if !InputKind::Text.fits(&teacher.part()?.graph.body) {
        return Err(Failure::Usage("rows are text, but the model does not accept text".to_owned()));
    }
    let is_json = is_json(path);
    let texts = Texts { runner: teacher, tokenizer: teacher.tokenizer()? };
    let facts = teacher.facts();
    let most = facts.context().unwrap_or(usize::MAX);
    let read = read_rows(text, is_json, &texts, facts.vocabulary(), most);
    let RowsRead { rows, cut, empty } = read.map_err(|error| error.in_file(path.display()))?;
    if empty > 0 {
        let empty = counted(empty as u64, "row");
        teacher.host().warn(&format!("{empty} without a text to learn from: left out"), None);
    }
    Ok((rows, cut))
}

/// Returns `true` if each line of a file is a JSON object, judged by the extension.
fn is_json(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    ["jsonl", "json", "ndjson"].iter().any(|end| extension.eq_ignore_ascii_case(end))
}

/// Returns the rows of an encoder-decoder model with the outputs of its encoder.
///
/// Returns `None` for other models. Paths of audio files are relative to the folder of the data.
pub(super) fn pairs(
    opened: &Opened,
    data: &Path,
    text: &str,
    context: &Context,
) -> Outcome<Option<Pairs>> {
    let source = context.source(&*opened.model().reader, opened.name())?;
    if !source.family()?.is_some_and(FamilyModel::has_encoder_and_decoder) {
        return Ok(None);
    }
    drop(source);
    let folder = data.parent().unwrap_or(Path::new(""));
    let open = |path: &str| {
        let path = folder.join(path);
        std::fs::read(&path).map_err(|error| io_error(&error, &path))
    };
    opened.with_runner(context, &generating(context), |teacher| {
        let texts = Texts { runner: teacher, tokenizer: teacher.tokenizer()? };
        let mut bar = None;
        let mut done = |rows: usize, of: usize| {
            let bar = bar.get_or_insert_with(|| Bar::counting(&context.printer, of as u64));
            bar.reached(rows as u64);
        };
        let store = Box::new(FactorFile::create()?);
        let read = read_pairs(teacher, (text, is_json(data)), &texts, store, &open, &mut done);
        let located = |error| match error {
            RunError::Model(error) if error.file().is_none() => {
                RunError::Model(error.in_file(data.display()))
            }
            other => other,
        };
        Ok(Some(read.map_err(located)?))
    })
}

/// The token that fills up rows.
pub(in crate::commands) fn padding(facts: &Facts) -> i64 {
    facts.config("pad_token_id").and_then(Json::as_i64).filter(|id| *id >= 0).unwrap_or(0)
}
