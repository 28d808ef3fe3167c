//! Where options have a use. Elsewhere they are refused: an option that changes nothing would pass
//! for one that did.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use apr_io::is_remote;
use clap::builder::Resettable;
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
const WITHOUT_MODELS: [(&str, &[&str]); 7] = [
    ("cache", &[]),
    ("completions", &[]),
    ("download", &[]),
    ("keygen", &[]),
    ("man", &[]),
    ("upload", &[]),
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

/// Refuses an option that the command has no use for, or that lacks another one. `arguments` are
/// all that it was called with.
pub(crate) fn check_use(
    command: &Command,
    matches: &ArgMatches,
    arguments: &[impl AsRef<OsStr>],
) -> Result<(), clap::Error> {
    let mut deepest = matches;
    while let Some((_, below)) = deepest.subcommand() {
        deepest = below;
    }
    let is_given = |id: &str| {
        let source = deepest.try_contains_id(id).ok().and_then(|_| deepest.value_source(id));
        source == Some(ValueSource::CommandLine)
    };
    check_required(command, matches, deepest, arguments)?;
    let mut texts = arguments.iter().filter_map(|argument| argument.as_ref().to_str());
    let first = matches.subcommand_name().unwrap_or_default();
    let without = WITHOUT_MODELS.iter().find(|(name, _)| *name == first);
    let has_remote = NAMED_ELSEWHERE.contains(&first)
        || texts.any(|argument| {
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

/// Checks that the options which another one requires are given.
///
/// The library does not ask for an option that excludes another given one: `--min-score` requires
/// `--quality`, which excludes `--strict`, so that `--min-score 90 --strict` would pass, and
/// nothing would be scored. Without exclusions, it asks.
fn check_required(
    command: &Command,
    matches: &ArgMatches,
    deepest: &ArgMatches,
    arguments: &[impl AsRef<OsStr>],
) -> Result<(), clap::Error> {
    let is_typed =
        |id: &&clap::Id| deepest.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let Some(name) =
        matches.subcommand_name().filter(|_| deepest.ids().filter(is_typed).count() > 1)
    else {
        return Ok(());
    };
    let relaxed = command.clone().mut_subcommand(name, without_exclusions);
    let arguments = arguments.iter().map(|argument| OsString::from(argument.as_ref()));
    match relaxed.try_get_matches_from(arguments) {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => Err(error),
        _ => Ok(()),
    }
}

fn without_exclusions(command: Command) -> Command {
    let groups: Vec<_> = command.get_groups().map(|group| group.get_id().clone()).collect();
    let below: Vec<_> =
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = command.mut_args(|arg| arg.conflicts_with(Resettable::Reset));
    let command = groups
        .iter()
        .fold(command, |command, id| command.mut_group(id, |group| group.multiple(true)));
    below.iter().fold(command, |command, name| command.mut_subcommand(name, without_exclusions))
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
                let check = check_use(&command, &matches, &line);
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

    /// Returns each option of a command by its name, as it is passed.
    fn words_of(command: &mut Command, base: &[String]) -> Vec<(String, String)> {
        let own =
            command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_required_set());
        let mut words = Vec::new();
        for arg in own.cloned().collect::<Vec<_>>() {
            let mut values: Vec<String> =
                arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            values.extend(["5", "0.5", "1/2", "2:4", "a=b", "a"].map(str::to_owned));
            let passed = |value: &String| match arg.get_long() {
                Some(long) if arg.get_action().takes_values() => format!("--{long}={value}"),
                Some(long) => format!("--{long}"),
                None => value.clone(),
            };
            let is_read = |word: &String| {
                let line = base.iter().chain([word]);
                let kind = command.try_get_matches_from_mut(line).map_err(|error| error.kind());
                !matches!(kind, Err(ErrorKind::ValueValidation | ErrorKind::InvalidValue))
            };
            let name = arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned();
            words.extend(values.iter().map(passed).find(is_read).map(|word| (name, word)));
        }
        words
    }

    /// Returns the arguments that a command line lacks.
    fn missing(read: Result<(), clap::Error>) -> Vec<String> {
        let error = read.err().filter(|error| error.kind() == ErrorKind::MissingRequiredArgument);
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        let listed = text.lines().skip(1).take_while(|line| !line.is_empty());
        listed.map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn what_an_option_requires_is_required_beside_every_other_option() {
        let mut apr = Cli::command();
        apr.build();
        let mut all = Vec::new();
        lines(&apr, &[], &mut all);
        let (mut faults, mut tried) = (Vec::new(), 0);
        for line in all {
            // The command alone, under a name that makes it the only one.
            let mut below = apr.clone();
            let depth = line.iter().take_while(|word| {
                let found = below.find_subcommand(word).cloned();
                found.map(|found| below = found).is_some()
            });
            let (title, base) =
                (line[..depth.count()].join(" "), [&["apr".to_owned()], &line[..]].concat());
            let last = title.split(' ').count();
            let words = words_of(&mut below, &base[last..]);
            let mut read = |more: &[&str]| {
                let line = base[last..].iter().map(String::as_str).chain(more.iter().copied());
                below.try_get_matches_from_mut(line).map(drop)
            };
            let always = missing(read(&[]));
            let sound: Vec<_> = words.iter().filter(|(_, word)| read(&[word]).is_ok()).collect();
            for (name, word) in &words {
                let lacking = missing(read(&[word]));
                let lacking: Vec<_> =
                    lacking.iter().filter(|line| !always.contains(line)).cloned().collect();
                if lacking.is_empty() {
                    continue;
                }
                tried += 1;
                for (other, second) in sound.iter().filter(|(other, _)| other != name) {
                    let is_it = lacking.iter().any(|line| {
                        let words = line.split(['<', '>', '|', '[', ']', ' ']);
                        let mut words = words.map(|word| word.trim_start_matches("--"));
                        words.any(|word| word.eq_ignore_ascii_case(other))
                    });
                    if is_it || read(&[second, word]).is_err() {
                        continue;
                    }
                    let line: Vec<String> = [&base[..], &[second.clone(), word.clone()]].concat();
                    let matches = apr.clone().try_get_matches_from(&line).expect("a line");
                    if check_use(&apr, &matches, &line).is_ok() {
                        faults.push(format!("{title}: --{name} beside --{other}: {lacking:?}"));
                    }
                }
            }
        }
        assert!(tried > 40, "only {tried} options require another");
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn options_of_remote_models_are_for_commands_that_name_one() {
        let refused = |line: &str| {
            let words: Vec<&str> = ["apr"].into_iter().chain(line.split(' ')).collect();
            let matches = Cli::command().try_get_matches_from(&words).expect(line);
            check_use(&Cli::command(), &matches, &words).err().map(|error| error.to_string())
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
