//! Texts and tokens that a language model goes on with.

use std::io::{self, Write};
use std::path::Path;

use apr::CheckpointReader;
use apr_infer::{LanguageModel, Memory, Sampler, Sampling, Session};
use apr_io::{Crew, io_error};
use apr_tokenizer::Merging;
use apr_tokenizer::gguf::{Options, tokenizer_key_values};
use serde::Serialize;
use serde_json::Value as Json;

use super::UntilInterrupted;
use crate::args::RunArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// What was added.
#[derive(Debug, Serialize)]
struct Continued {
    /// The tokens that were given, or that the prompt is.
    given: Vec<i64>,
    /// Those that were added.
    added: Vec<i64>,
    /// The text that they are, where the model's tokenizer is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Why no more were added: `end` for a token that ends a text, `stop` for what --stop says, `max_tokens`.
    ended: &'static str,
}

pub(super) fn run(
    args: &RunArgs,
    context: &Context,
    reader: &dyn CheckpointReader,
    session: &Session<'_>,
    workers: Crew,
) -> Outcome {
    let language = LanguageModel::new(session)?;
    let tokenizer = if args.prompt.is_some() { Some(tokenizer(reader)?) } else { None };
    let given = match (&args.prompt, &tokenizer) {
        (Some(prompt), Some(tokenizer)) => tokenizer.encode(prompt)?,
        _ => args.tokens.clone(),
    };
    let mut ends = ends(reader);
    ends.extend(tokenizer.iter().flat_map(Merging::ends));
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed };
    let (mut sampler, mut memory) = (Sampler::new(sampling), Memory::default());
    let mut tap = UntilInterrupted(context.interrupt.clone());
    let mut writing =
        Writing { tokenizer: tokenizer.as_ref(), stops: &args.stop, quiet: context.json, bytes: Vec::new(), shown: 0 };
    let (mut added, mut next, mut ended) = (Vec::new(), given.clone(), "max_tokens");
    while added.len() < args.max_tokens {
        let logits = language.next(&mut memory, &next, &workers, &mut tap)?;
        let token = sampler.choose(&logits).ok_or_else(|| Failure::General("no logit is a number".to_owned()))?;
        let token = i64::try_from(token).unwrap_or(i64::MAX);
        if ends.contains(&token) {
            ended = "end";
            break;
        }
        added.push(token);
        if writing.add(token)? {
            ended = "stop";
            break;
        }
        next = vec![token];
    }
    writing.show(true)?;
    let text = tokenizer.as_ref().map(|_| String::from_utf8_lossy(&writing.bytes).into_owned());
    let report = Continued { given, added, text, ended };
    context.printer.report(&report, |out, _| writeln!(out))
}

/// The text as it grows, shown as far as it is whole characters.
struct Writing<'a> {
    tokenizer: Option<&'a Merging>,
    stops: &'a [String],
    quiet: bool,
    bytes: Vec<u8>,
    shown: usize,
}

impl Writing<'_> {
    /// Adds a token; true where the text has come to what it stops at.
    fn add(&mut self, token: i64) -> Outcome<bool> {
        match self.tokenizer {
            Some(tokenizer) => self.bytes.extend(tokenizer.bytes(token)),
            None => {
                let space = if self.bytes.is_empty() { "" } else { " " };
                self.bytes.extend(format!("{space}{token}").into_bytes());
            }
        }
        let text = String::from_utf8_lossy(&self.bytes);
        let stop = match self.tokenizer {
            Some(_) => self.stops.iter().filter_map(|stop| text.find(stop.as_str())).min(),
            None => self.stops.iter().any(|stop| *stop == token.to_string()).then_some(text.len()),
        };
        if let Some(at) = stop {
            self.bytes.truncate(at);
        }
        self.show(false)?;
        Ok(stop.is_some())
    }

    /// Writes what is new; what may be a part of a character, or of what the text stops at, only at the end.
    fn show(&mut self, all: bool) -> Outcome {
        if self.quiet {
            return Ok(());
        }
        let held = if all { 0 } else { self.stops.iter().map(|stop| stop.len().saturating_sub(1)).max().unwrap_or(0) };
        let whole = match std::str::from_utf8(&self.bytes) {
            Ok(text) => text.len(),
            Err(error) if all || error.error_len().is_some() => self.bytes.len(),
            Err(error) => error.valid_up_to(),
        };
        let end = whole.min(self.bytes.len().saturating_sub(held)).max(self.shown.min(self.bytes.len()));
        let new = String::from_utf8_lossy(&self.bytes[self.shown.min(end)..end]).into_owned();
        self.shown = end;
        let shown: String = new.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        let mut out = io::stdout().lock();
        let written = out.write_all(shown.as_bytes()).and_then(|()| out.flush());
        Ok(written.map_err(|error| io_error(&error, Path::new("standard output")))?)
    }
}

/// The tokenizer that came with a model.
fn tokenizer(reader: &dyn CheckpointReader) -> Outcome<Merging> {
    if let Some(keys) = reader.metadata().key_values()?
        && keys.find("tokenizer.ggml.model").is_some()
    {
        return Ok(Merging::from_key_values(&keys)?);
    }
    let mut files = Vec::new();
    for (position, companion) in reader.companions().iter().enumerate() {
        files.push((companion.name.clone(), reader.read_companion(position)?));
    }
    let found = tokenizer_key_values("llama", &files, None, &Options::default())?;
    let mut keys = apr_core::KeyValues::new();
    found.key_values.iter().try_for_each(|pair| keys.push(pair))?;
    Ok(Merging::from_key_values(&keys)?)
}

/// Tokens that end a text, as the configuration says.
fn ends(reader: &dyn CheckpointReader) -> Vec<i64> {
    let configuration = |name: &str| -> Option<Json> {
        let position = reader.companions().iter().position(|companion| companion.name == name)?;
        serde_json::from_slice(&reader.read_companion(position).ok()?).ok()
    };
    let found = ["generation_config.json", "config.json"].into_iter().filter_map(configuration);
    found
        .filter_map(|json| json.get("eos_token_id").cloned())
        .flat_map(|ids| match ids {
            Json::Array(list) => list,
            id => vec![id],
        })
        .filter_map(|id| id.as_i64())
        .collect()
}
