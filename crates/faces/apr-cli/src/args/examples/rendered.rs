//! Examples, and the options of every command, in the help of a command.

use clap::builder::StyledStr;
use clap::{Arg, Command};

use super::{all, examples};

/// Every command with its examples at the end of its help, and without the options that all of them
/// have, which `apr help all` lists.
pub(in crate::args) fn with_examples(command: Command, lists_all: bool) -> Command {
    const MORE: &str = "More:\n  \
        apr help            A line for each command\n  \
        apr help COMMAND    Options of a command, with examples\n  \
        apr help all        Options of every command, such as --json and --threads\n  \
        apr version         Version, features and formats of this binary";
    let global: Vec<Arg> =
        command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    let command = global
        .iter()
        .fold(command, |command, arg| command.mut_arg(arg.get_id(), |arg| arg.hide(true)));
    let codes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let options = if lists_all { global_options(&global) } else { MORE.to_owned() };
    let list = |list: Option<&StyledStr>| list.map(ToString::to_string).unwrap_or_default();
    let short = [list(command.get_before_help()), MORE.to_owned()].join("\n\n");
    let long = [list(command.get_before_long_help()), options, codes].join("\n\n");
    with_examples_of(command, "").before_help(short).before_long_help(long)
}

fn with_examples_of(command: Command, words: &str) -> Command {
    const REST: &str =
        "Options of every command, such as --json, -q, --threads and --key: `apr help all`";
    let own = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let names: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let words = format!("{words} {name}").trim_start().to_owned();
        command.mut_subcommand(name, |command| with_examples_of(command, &words))
    });
    let mut after = vec![text(words), own, REST.to_owned()];
    after.retain(|text| !text.is_empty());
    command.after_help(after.join("\n\n"))
}

/// The options of every command, one a line or two.
fn global_options(options: &[Arg]) -> String {
    let mut text = "Options of every command:".to_owned();
    for option in options {
        let short =
            option.get_short().map_or_else(|| "    ".to_owned(), |short| format!("-{short}, "));
        let long = option.get_long().unwrap_or_default();
        let takes_value = option.get_action().takes_values();
        let value = option.get_value_names().unwrap_or_default().first().filter(|_| takes_value);
        let value = value.map_or_else(String::new, |value| format!(" <{value}>"));
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!("\n  {short}--{long}{value}\n          {help}"));
    }
    text
}

/// Columns of a line of help, without its indentation.
pub(super) const COLUMNS: usize = 76;

/// Returns each example below its purpose, because some are long. A command that has commands shows
/// the first example of each.
pub(super) fn text(words: &str) -> String {
    let mut shown = examples(words).to_vec();
    if shown.is_empty() && !words.is_empty() {
        let inner = all()
            .filter(|(of, _)| of.strip_prefix(words).is_some_and(|rest| rest.starts_with(' ')));
        shown.extend(inner.filter_map(|(_, examples)| examples.first()));
    }
    if shown.is_empty() {
        return String::new();
    }
    let lines: Vec<String> =
        shown.iter().map(|(line, what)| format!("  # {what}\n  {}", continued(line))).collect();
    format!("Examples:\n{}", lines.join("\n"))
}

/// Returns a command line in lines that a shell joins, each as long as a line of help.
pub(super) fn continued(line: &str) -> String {
    let (mut lines, mut rest) = (Vec::new(), line);
    // The mark at the end takes two columns.
    while rest.len() > COLUMNS {
        let Some(at) = rest[..COLUMNS - 1].rfind(" -") else { break };
        lines.push(&rest[..at]);
        rest = &rest[at + 1..];
    }
    lines.push(rest);
    lines.join(" \\\n    ")
}
