//! Examples, and commands of the documentation, can be typed.

use clap::Command;

use super::*;
use crate::args::Cli;

/// Words as a shell takes them, where quotes keep spaces.
fn words_of(line: &str) -> Vec<String> {
    let quoted = line.split(['\'', '"']).enumerate();
    let words = quoted.flat_map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

/// Lines that begin with `apr` in the `sh` and `console` blocks of a page.
fn commands_of(page: &str) -> Vec<&str> {
    let mut is_shell = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            is_shell = ["```sh", "```console"].contains(&line);
        } else if is_shell {
            lines.push(line.strip_prefix("$ ").unwrap_or(line));
        }
    }
    lines.retain(|line| line.starts_with("apr "));
    lines
}

/// Commands between backticks in the tables of a page, below their headings.
fn commands_of_tables(page: &str) -> Vec<&str> {
    let rows = page.lines().zip(page.lines().skip(1));
    let rows = rows.filter(|(above, row)| above.starts_with('|') && row.starts_with('|'));
    let code = rows.flat_map(|(_, row)| row.split('`').skip(1).step_by(2));
    code.filter(|code| code.starts_with("apr ")).collect()
}

#[test]
fn every_command_is_in_the_table_of_tasks() {
    let page = include_str!("../../../../../../docs/commands.md");
    for command in Cli::command_with_help().get_subcommands() {
        let name = command.get_name();
        assert!(page.contains(&format!("`{name}`")), "docs/commands.md does not have {name}");
    }
}

#[test]
fn every_command_of_the_documentation_can_be_typed() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let pages = ["docs", "docs/coming-from", "docs/commands", "docs/start"]
        .into_iter()
        .flat_map(|folder| std::fs::read_dir(root.join(folder)).expect("a folder"));
    let pages = pages.map(|page| page.expect("a page").path());
    let pages = pages.filter(|page| page.extension().is_some_and(|name| name == "md"));
    for page in pages.chain([root.join("README.md")]) {
        let text = std::fs::read_to_string(&page).expect("a page");
        let mut lines = commands_of(&text);
        if page.parent().is_some_and(|folder| folder.ends_with("coming-from")) {
            let of_tables = commands_of_tables(&text);
            assert!(!of_tables.is_empty(), "{}", page.display());
            lines.extend(of_tables);
        }
        for line in lines {
            let line = line.split(" #").next().unwrap_or_default();
            let words = words_of(line.split(['>', '|']).next().unwrap_or_default());
            let parsed = Cli::command_with_help().try_get_matches_from(words);
            let is_known = parsed.as_ref().map_or_else(|error| !error.use_stderr(), |_| true);
            assert!(is_known, "{}: {line}: {}", page.display(), parsed.unwrap_err());
        }
    }
}

#[test]
fn options_beside_those_of_other_tools_are_options_of_their_command() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/coming-from");
    let apr = Cli::command_with_help();
    let mut checked = 0;
    for page in std::fs::read_dir(folder).expect("a folder") {
        let text = std::fs::read_to_string(page.expect("a page").path()).expect("a page");
        let mut command = None;
        let mut above = "";
        for row in text.lines() {
            let own = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
            let mut code = own.split('`').skip(1).step_by(2);
            // The heading of a table names the command.
            if row.starts_with('|') && !above.starts_with('|') {
                let words = code.next().and_then(|code| code.strip_prefix("apr "));
                command = words.and_then(|words| {
                    let mut words = words.split(' ').take_while(|word| !word.starts_with('-'));
                    words.try_fold(&apr, |command, word| command.find_subcommand(word))
                });
            } else if let Some(command) = command.filter(|_| row.starts_with('|')) {
                let options = code.filter_map(|code| code.strip_prefix("--"));
                for option in options.filter_map(|option| option.split(' ').next()) {
                    let mut known = command.get_arguments().chain(apr.get_arguments());
                    let is_known = known.any(|arg| arg.get_long() == Some(option));
                    assert!(is_known, "apr {} has no --{option}: {row}", command.get_name());
                    checked += 1;
                }
            }
            above = row;
        }
    }
    assert!(checked > 30, "{checked} options");
}

#[test]
fn every_command_has_examples_that_can_be_typed() {
    fn check(command: &Command, words: &str) {
        let own = examples(words);
        let has_subcommands = command.get_subcommands().next().is_some();
        assert!(
            !own.is_empty() || has_subcommands || words == "cache clear",
            "{words} has no example"
        );
        for (line, _) in own {
            assert!(
                line.starts_with(format!("apr {words}").trim_end()) || words.is_empty(),
                "{line}"
            );
            let args = words_of(line.split('>').next().unwrap_or_default());
            let parsed = Cli::command_with_help().try_get_matches_from(args);
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
        for command in command.get_subcommands() {
            check(command, format!("{words} {}", command.get_name()).trim_start());
        }
    }
    check(&Cli::command_with_help(), "");
}
