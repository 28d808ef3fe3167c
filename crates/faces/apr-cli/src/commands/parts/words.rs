//! A command line as the options of a plan, and back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use apr_io::is_remote;
use apr_ops::parts::JobWords;
use apr_registry::Error;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use serde_json::Value;

use super::options::{check, is_path};
use crate::args::{Cli, check_use};
use crate::failure::{Failure, Outcome};

/// The commands that are done in parts.
pub(crate) const COMMANDS: [&str; 9] =
    ["convert", "prune", "factorize", "merge", "import", "quantize", "encrypt", "validate", "diff"];

/// Parses the words after the options of `apr plan` as the options of a job; `path` rewrites paths.
pub(super) fn typed(
    words: &[String],
    path: &dyn Fn(&str) -> Outcome<String>,
) -> Outcome<(JobWords, Cli)> {
    let (matches, command) = parse(words.iter().map(String::as_str))?;
    let Some((name, chosen)) = matches.subcommand() else {
        return Err(Failure::Usage("missing job".to_owned()));
    };
    if !COMMANDS.contains(&name) {
        let message =
            format!("'{name}' can't be split into parts; supported: {}", COMMANDS.join(", "));
        return Err(Failure::Usage(message));
    }

    let mut options = BTreeMap::new();
    for arg in arguments(&command, name) {
        let id = arg.get_id().as_str();
        // `contains` is asked first: an id that the parser does not know would end the process.
        if chosen.try_contains_id(id).is_ok()
            && chosen.value_source(id) == Some(ValueSource::CommandLine)
        {
            let key = key_of(arg);
            check(name, &key)?;
            options.insert(key.clone(), value_of((name, arg), &key, chosen, path)?);
        }
    }

    let job = JobWords { command: name.to_owned(), options };

    // What a plan can't say is refused when it is made, and not by each part.
    let cli = parsed(&job, Path::new(""))?;
    Ok((job, cli))
}

/// Returns the command line for the options of a plan; relative paths are below `folder`.
///
/// # Errors
/// E001 for what no command line says.
pub(super) fn parsed(job: &JobWords, folder: &Path) -> Outcome<Cli> {
    let wrong = |message: String| Failure::Model(Error::format(message));
    if !COMMANDS.contains(&job.command.as_str()) {
        return Err(wrong(format!(
            "the plan's job '{}' can't be split into parts",
            apr_registry::Escaped::short(&job.command)
        )));
    }

    let mut command = Cli::command();
    command.build();
    let known: BTreeMap<String, bool> =
        arguments(&command, &job.command).map(|arg| (key_of(arg), arg.is_positional())).collect();
    let (mut words, mut positional) = (vec![job.command.clone()], Vec::new());
    for (key, value) in &job.options {
        let name = apr_registry::Escaped::short(key);
        let is_positional =
            known.get(key).ok_or_else(|| wrong(format!("unknown option '{name}'")))?;
        check(&job.command, key).map_err(|failure| wrong(failure.message()))?;
        let texts = texts_of(value)
            .ok_or_else(|| wrong(format!("unknown value of the option '{name}'")))?;
        let placed = |text: &str| {
            if is_path(&job.command, key, text) { placed(text, folder) } else { text.to_owned() }
        };
        match texts {
            None => words.push(format!("--{key}")),
            Some(texts) if *is_positional => positional.extend(texts.into_iter().map(placed)),
            Some(texts) => {
                // In one word, so that no value is taken for an option.
                words.extend(texts.into_iter().map(|text| format!("--{key}={}", placed(text))));
            }
        }
    }

    // A path that begins with a dash is no option either.
    words.push("--".to_owned());
    words.extend(positional);
    let (matches, _) =
        parse(words.iter().map(String::as_str)).map_err(|failure| wrong(failure.message()))?;
    Cli::from_arg_matches(&matches).map_err(|error| wrong(message_of(&error)))
}

/// Returns a path of a plan as seen by the process that runs a part.
pub(super) fn placed(path: &str, folder: &Path) -> String {
    if is_remote(Path::new(path)) {
        path.to_owned()
    } else {
        folder.join(path).display().to_string()
    }
}

/// The values of an option that has files, as the plan writes them.
pub(super) fn values<'a>(job: &'a JobWords, key: &str) -> Vec<&'a str> {
    job.options.get(key).and_then(texts_of).flatten().unwrap_or_default()
}

/// Returns the texts of an option's value: `Some(None)` for an option without values, `None` for a
/// wrong value.
fn texts_of(value: &Value) -> Option<Option<Vec<&str>>> {
    match value {
        Value::Bool(true) => Some(None),
        Value::String(text) => Some(Some(vec![text])),
        Value::Array(texts) => {
            texts.iter().map(Value::as_str).collect::<Option<Vec<_>>>().map(Some)
        }
        _ => None,
    }
}

fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Outcome<(ArgMatches, clap::Command)> {
    let mut command = Cli::command();
    command.build();
    let words: Vec<&str> = ["apr"].into_iter().chain(words).collect();
    let matches = command.clone().try_get_matches_from(&words).and_then(|matches| {
        check_use(&command, &matches, &words)?;
        Ok(matches)
    });
    let matches = matches.map_err(|error| {
        let message = message_of(&error);
        let is_own =
            ["'--parts'", "'--max-part'", "'--no-digests'"].iter().any(|own| message.contains(own));
        let advice = if is_own { "; write options of `apr plan` before the job" } else { "" };
        Failure::Usage(format!("the job: {message}{advice}"))
    })?;
    Ok((matches, command))
}

fn message_of(error: &clap::Error) -> String {
    let text = error.render().to_string();
    // What follows is about the whole line: its usage, where help is, a tip that quotes the option.
    let message = text.split("\n\n").next().unwrap_or(&text);
    message.trim_start_matches("error: ").trim_end().replace('\n', " ")
}

/// Returns the arguments of a command that describe a job.
pub(super) fn arguments<'a>(
    command: &'a clap::Command,
    name: &str,
) -> impl Iterator<Item = &'a Arg> {
    let own = command.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    own.filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
}

/// Returns the key of an argument in a plan.
pub(super) fn key_of(arg: &Arg) -> String {
    match arg.get_long() {
        Some(long) => long.to_owned(),
        // An import calls its model a source.
        None if arg.get_id() == "source" => "model".to_owned(),
        None => arg.get_id().as_str().to_owned(),
    }
}

fn value_of(
    (command, arg): (&str, &Arg),
    key: &str,
    matches: &ArgMatches,
    path: &dyn Fn(&str) -> Outcome<String>,
) -> Outcome<Value> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Ok(Value::Bool(true));
    }
    let raw = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    let mut texts = Vec::new();
    for value in raw {
        let text = value
            .to_str()
            .ok_or_else(|| Failure::Usage(format!("the value of {key} is not UTF-8")))?;
        texts.push(Value::String(
            match is_path(command, key, text) && !is_remote(Path::new(text)) {
                true if key == "lora" => scaled(text, path)?,
                true => path(text)?,
                false => text.to_owned(),
            },
        ));
    }
    Ok(if texts.len() == 1 { texts.remove(0) } else { Value::Array(texts) })
}

/// The path of an adapter, with the number after its last colon.
fn scaled(text: &str, path: &dyn Fn(&str) -> Outcome<String>) -> Outcome<String> {
    match text.rsplit_once(':').filter(|(_, end)| end.parse::<f64>().is_ok()) {
        Some((adapter, scale)) => Ok(format!("{}:{scale}", path(adapter)?)),
        None => path(text),
    }
}

/// Returns a path for a plan in `folder`: relative if the path is below that folder, and otherwise
/// absolute.
///
/// A relative path stays valid if the folder is moved to another machine. Both paths have their
/// links resolved.
pub(super) fn portable(path: &str, folder: &Path) -> Outcome<String> {
    if path == "-" || path.starts_with("/dev/") || apr_platform::is_stream(Path::new(path)) {
        return Err(Failure::Usage(
            "a job in parts reads and writes files, not streams".to_owned(),
        ));
    }
    let real = real(Path::new(path))?;
    let inside = real.strip_prefix(folder).ok().filter(|inside| !inside.as_os_str().is_empty());
    let text = apr_platform::portable(inside.unwrap_or(&real));
    text.ok_or_else(|| Failure::Usage(format!("'{path}' is not UTF-8")))
}

/// A path without links and dots, even if its end is not there yet.
pub(super) fn real(path: &Path) -> Outcome<PathBuf> {
    let path = std::path::absolute(path)?;
    let there = path
        .ancestors()
        .find_map(|ancestor| Some((ancestor, apr_platform::canonicalize(ancestor).ok()?)));
    let Some((ancestor, found)) = there else { return Ok(path) };
    Ok(path
        .strip_prefix(ancestor)
        .ok()
        .filter(|rest| !rest.as_os_str().is_empty())
        .map_or(found.clone(), |rest| found.join(rest)))
}
