//! `apr tokenize`.

use std::io::{self, IsTerminal, Write};

use apr_inputs::text::Piece;
use apr_registry::Escaped;
use apr_run::Tokenizer;
use apr_tokenizer::{Spelling, vocabulary};
use serde::Serialize;

use super::given::piped_text;
use super::host;
use crate::args::TokenizeArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::model;
use crate::printer::DIM;
use crate::text_file::read_text;

#[derive(Debug, Serialize)]
struct TokenizeReport {
    /// Path of the model.
    path: String,
    /// Results, one for each text.
    results: Vec<Tokenized>,
}

impl Document for TokenizeReport {
    const SCHEMA: &'static str = "run.tokens";
}

#[derive(Debug, Serialize)]
struct Tokenized {
    /// Text; absent if ids were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Ids of the tokens.
    ids: Vec<i64>,
    /// Tokens, with their positions if a text was given.
    tokens: Vec<Shown>,
    /// The text that they decode to, by --decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    decoded: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Shown {
    Placed(Piece),
    Alone {
        /// Id of the token.
        id: i64,
        /// Token in the vocabulary's spelling.
        token: String,
    },
}

/// Cuts texts into tokens, or decodes ids.
pub(in crate::commands) fn run(args: &TokenizeArgs, context: &Context) -> Outcome {
    let model = model::look_with_companions(&args.model, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    let host = host(context);
    let tokens = Tokenizer::of(&*model.reader, &host)?;
    let results = if args.tokens.is_empty() {
        texts(args)?
            .into_iter()
            .map(|text| cut(&tokens, text, args))
            .collect::<Outcome<Vec<_>>>()?
    } else {
        vec![named(&tokens, args)?]
    };

    let spelling = vocabulary(&*model.reader, 0)?.map(|found| found.spelling).unwrap_or_default();
    let report = TokenizeReport { path: model.name, results };
    context.printer.report(&report, |out, report| {
        let several = report.results.len() > 1;
        report.results.iter().enumerate().try_for_each(|(number, result)| {
            if number > 0 {
                writeln!(out)?;
            }
            render(out, result, spelling, several)
        })
    })
}

fn texts(args: &TokenizeArgs) -> Outcome<Vec<String>> {
    let mut texts = args.prompt.clone();
    for path in &args.input {
        texts.push(read_text(path)?);
    }
    if texts.is_empty() && args.model.as_os_str() != "-" {
        texts.extend(piped_text()?);
    }
    if texts.is_empty() {
        let message = "missing text: pass --prompt TEXT, --input FILE or a pipe, or ids with \
                       --tokens 1,15,7";
        return Err(Failure::Usage(message.to_owned()));
    }
    Ok(texts)
}

fn cut(tokens: &Tokenizer<'_>, text: String, args: &TokenizeArgs) -> Outcome<Tokenized> {
    let pieces = tokens.pieces(&text, !args.no_special_tokens)?;
    let ids: Vec<i64> = pieces.iter().map(|piece| piece.id).collect();
    let decoded = decoded(tokens, &ids, args)?;
    let tokens = pieces.into_iter().map(Shown::Placed).collect();
    Ok(Tokenized { text: Some(text), ids, tokens, decoded })
}

/// Returns the tokens of the given ids.
fn named(tokens: &Tokenizer<'_>, args: &TokenizeArgs) -> Outcome<Tokenized> {
    if args.no_special_tokens && !args.decode {
        let message = "--no-special-tokens applies to --tokens with --decode only";
        return Err(Failure::Usage(message.to_owned()));
    }
    let name = |id: &i64| {
        let token = tokens.vocabulary().token(*id).ok_or_else(|| {
            Failure::Usage(format!("--tokens: {id} is not in the model's vocabulary"))
        })?;
        Ok(Shown::Alone { id: *id, token })
    };
    let shown = args.tokens.iter().map(name).collect::<Outcome<Vec<_>>>()?;
    let decoded = decoded(tokens, &args.tokens, args)?;
    Ok(Tokenized { text: None, ids: args.tokens.clone(), tokens: shown, decoded })
}

fn decoded(tokens: &Tokenizer<'_>, ids: &[i64], args: &TokenizeArgs) -> Outcome<Option<String>> {
    match args.decode {
        true => Ok(Some(tokens.decode(ids, !args.no_special_tokens)?)),
        false => Ok(None),
    }
}

/// Renders the decoded text byte for byte if it is written to a file or program, or one token per
/// line.
fn render(
    out: &mut dyn Write,
    result: &Tokenized,
    spelling: Spelling,
    several: bool,
) -> io::Result<()> {
    if let Some(text) = &result.decoded {
        if io::stdout().is_terminal() {
            return writeln!(out, "{}", Escaped(text));
        }
        return out.write_all(text.as_bytes());
    }
    if let Some(text) = result.text.as_ref().filter(|_| several) {
        writeln!(out, "{DIM}{}{DIM:#}", Escaped::short(text))?;
    }
    let width = result.ids.iter().map(|id| id.to_string().len()).max().unwrap_or(1);
    let shown = |token: &str| Escaped(&spelling.readable(token)).to_string();
    result.tokens.iter().try_for_each(|token| match token {
        Shown::Alone { id, token } => writeln!(out, "{id:>width$}  {}", shown(token)),
        Shown::Placed(piece) => {
            let place = match piece.start == piece.end {
                true => String::new(),
                false => format!("  {DIM}{}..{}{DIM:#}", piece.start, piece.end),
            };
            writeln!(out, "{:>width$}  {}{place}", piece.id, shown(&piece.token))
        }
    })
}
