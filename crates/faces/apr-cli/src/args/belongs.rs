//! Where options of every command have a use. Elsewhere they are refused: an option that changes
//! nothing would pass for one that did.

use std::path::Path;

use apr_io::is_remote;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// What an option needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// A model on a hub or a server.
    Remote,
    /// A command that opens models.
    Model,
    /// A command that runs a model.
    Run,
}

/// The options of every command that some have no use for, by the ids of their arguments.
const NEEDS: [(&str, Need); 14] = [
    ("no_cache", Need::Remote),
    ("hub_file", Need::Remote),
    ("include", Need::Remote),
    ("exclude", Need::Remote),
    ("insecure", Need::Remote),
    ("timeout", Need::Remote),
    ("max_metadata", Need::Model),
    ("no_verify", Need::Run),
    ("key", Need::Model),
    ("password_file", Need::Model),
    ("pickle_class", Need::Model),
    ("arch", Need::Model),
    ("arch_file", Need::Model),
    ("model_config", Need::Model),
];

/// Commands that open no model, with the options that have another use there.
const WITHOUT_MODELS: [(&str, &[&str]); 6] = [
    ("cache", &[]),
    ("completions", &[]),
    ("download", &[]),
    ("keygen", &[]),
    ("man", &[]),
    ("version", &[]),
];

/// Commands that run a model in every case, or with some of their options.
const RUNS: [&str; 9] =
    ["bench", "canary", "distill", "imatrix", "page", "run", "trace", "tui", "validate"];

/// Commands whose models stand in a file, or are named later.
const NAMED_ELSEWHERE: [&str; 5] = ["finish", "merge", "page", "run-part", "tui"];

/// Options for remote models that a command also uses for files on this machine.
const LOCAL: [(&str, &[&str]); 1] = [("scan", &["exclude", "include"])];

/// What is said in a command that people look for something else in.
const INSTEAD: [(&str, &str, &str); 4] = [
    ("run", "hub_file", "; --input reads a file"),
    ("validate", "hub_file", "; name the file itself"),
    ("convert", "exclude", "; --drop leaves out tensors"),
    ("convert", "include", "; --keep chooses tensors"),
];

/// Refuses an option that the command has no use for. `arguments` are all that it was called with.
pub(crate) fn check_use<'a>(
    command: &Command,
    matches: &ArgMatches,
    mut arguments: impl Iterator<Item = &'a str>,
) -> Result<(), clap::Error> {
    let mut deepest = matches;
    while let Some((_, below)) = deepest.subcommand() {
        deepest = below;
    }
    let is_given = |id: &str| {
        let source = deepest.try_contains_id(id).ok().and_then(|_| deepest.value_source(id));
        source == Some(ValueSource::CommandLine)
    };
    let first = matches.subcommand_name().unwrap_or_default();
    let without = WITHOUT_MODELS.iter().find(|(name, _)| *name == first);
    let has_remote = NAMED_ELSEWHERE.contains(&first)
        || arguments.any(|argument| {
            let value = argument.split_once('=').map_or(argument, |(_, value)| value);
            is_remote(Path::new(argument)) || is_remote(Path::new(value))
        });
    let is_local = |id: &str| is_local(first, id);
    for (id, need) in NEEDS.iter().filter(|(id, _)| is_given(id) && !is_local(id)) {
        let why = match (need, without) {
            (Need::Remote, _) if !has_remote => {
                "applies to models on hubs and servers (hf://, https://, s3://), and none is given"
            }
            (Need::Model, Some((_, used))) if !used.contains(id) => {
                "is about how models are opened, and this command opens none"
            }
            (Need::Run, _) if !RUNS.contains(&first) => {
                "applies to commands that run a model: outputs are always compared"
            }
            _ => continue,
        };
        let option = command.get_arguments().find(|argument| argument.get_id() == *id);
        let option = option.and_then(clap::Arg::get_long).unwrap_or(id);
        let instead = INSTEAD.iter().find(|(name, of, _)| *name == first && of == id);
        let instead = instead.map_or("", |(_, _, text)| *text);
        let message = format!("--{option} {why}{instead}");
        // The usage is that of the command which was called.
        let (mut called, mut matched) = (command.clone(), matches);
        while let Some((name, below)) = matched.subcommand()
            && let Some(inner) = called.find_subcommand(name).cloned()
        {
            (called, matched) = (inner, below);
        }
        return Err(called.error(ErrorKind::ArgumentConflict, message));
    }
    Ok(())
}

/// Returns `true` if a command uses an option also for files on this machine.
fn is_local(command: &str, id: &str) -> bool {
    LOCAL.iter().any(|(name, ids)| *name == command && ids.contains(&id))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, CommandFactory};

    use super::*;
    use crate::args::Cli;

    /// The words of each command, its required arguments among them.
    fn lines(command: &Command, words: &[String], lines: &mut Vec<Vec<String>>) {
        let mut own = words.to_vec();
        // `scan` requires paths unless it scans the caches.
        let is_required = |arg: &&Arg| arg.is_required_set() || arg.get_id() == "paths";
        for arg in command.get_arguments().filter(is_required) {
            let possible = arg.get_possible_values();
            let value = possible.first().map_or("1", |value| value.get_name()).to_owned();
            own.extend(match arg.get_long() {
                Some(long) => vec![format!("--{long}={value}")],
                None => {
                    vec![value; arg.get_num_args().map_or(1, |range| range.min_values().max(1))]
                }
            });
        }
        let below = command.get_subcommands().filter(|below| below.get_name() != "help");
        let below: Vec<&Command> = below.collect();
        if below.is_empty() {
            lines.push(own);
        }
        for below in below {
            lines_of(below, words, lines);
        }
    }

    fn lines_of(command: &Command, words: &[String], all: &mut Vec<Vec<String>>) {
        lines(command, &[words, &[command.get_name().to_owned()]].concat(), all);
    }

    fn value(arg: &Arg) -> String {
        let long = arg.get_long().expect("a long name");
        match arg.get_action().takes_values() {
            true => format!("--{long}=5"),
            false => format!("--{long}"),
        }
    }

    #[test]
    fn every_command_refuses_the_options_that_it_has_no_use_for() {
        let mut command = Cli::command();
        command.build();
        let mut all = Vec::new();
        lines(&command, &[], &mut all);
        let mut tried = 0;
        for (words, (id, need)) in all.iter().flat_map(|words| NEEDS.map(|need| (words, need))) {
            let option = command.get_arguments().find(|arg| arg.get_id() == id).expect("an option");
            let checked = |more: &str| {
                let line: Vec<String> =
                    [&["apr".to_owned()], &words[..], &[value(option), more.to_owned()]]
                        .concat()
                        .into_iter()
                        .filter(|word| !word.is_empty())
                        .collect();
                let matches = command.clone().try_get_matches_from(&line).ok()?;
                let check = check_use(&command, &matches, line.iter().map(String::as_str));
                Some(check.is_err())
            };
            // What follows a job are the job's own options.
            if words[0] == "plan" {
                continue;
            }
            let Some(is_refused) = checked("") else { continue };
            tried += 1;
            let first = &*words[0];
            let opens = WITHOUT_MODELS.iter().all(|(name, _)| *name != first);
            let wanted = match need {
                Need::Remote => !NAMED_ELSEWHERE.contains(&first) && !is_local(first, id),
                Need::Model => !opens,
                Need::Run => !RUNS.contains(&first),
            };
            assert_eq!(is_refused, wanted, "{words:?} {id}");
        }
        assert!(tried > 40 * NEEDS.len(), "only {tried} lines could be read");
    }

    #[test]
    fn options_of_remote_models_are_for_commands_that_name_one() {
        let refused = |line: &str| {
            let words = || ["apr"].into_iter().chain(line.split(' '));
            let matches = Cli::command().try_get_matches_from(words()).expect(line);
            check_use(&Cli::command(), &matches, words()).err().map(|error| error.to_string())
        };
        assert_eq!(refused("convert hf://a/b --exclude x -o m.apr"), None);
        assert_eq!(refused("diff m.apr https://h/m.gguf --timeout 5"), None);
        assert_eq!(refused("download hf://a/b --file x"), None);
        assert_eq!(refused("inspect m.apr --offline"), None);
        let said = refused("run m.apr --file prompt.txt").expect("a refusal");
        assert!(said.contains("--file applies to models on hubs and servers"), "{said}");
        assert!(said.contains("--input reads a file"), "{said}");
        let said = refused("version --key k.pem").expect("a refusal");
        assert!(said.contains("--key is about how models are opened"), "{said}");
    }
}
