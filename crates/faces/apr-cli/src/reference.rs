//! The reference of the command as pages of Markdown, for the site of the documentation.

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;
use crate::args::examples::examples;
use crate::args::groups::GROUPS;
use crate::args::settings::{ENVIRONMENT, FILES, KEYS};

/// A page of the [reference](reference()).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The name of its file, such as `lora-extract.md`.
    pub file: String,
    /// The words of the command, such as `apr lora extract`.
    pub title: String,
    /// Text of the page in the Markdown of mdBook, with definition lists.
    pub text: String,
}

/// Returns an overview page with the commands and common options, and one page for each command.
///
/// Each page has usage, arguments, options and examples from the command-line parser. Links between
/// the pages are relative within a folder.
///
/// ```
/// let pages = apr_cli::reference();
/// let scan = pages.iter().find(|page| page.title == "apr scan").expect("a command");
/// assert_eq!(scan.file, "scan.md");
/// assert!(scan.text.contains("`--sarif <FILE>`"));
/// ```
pub fn reference() -> Vec<Page> {
    let mut apr = Cli::command().disable_help_subcommand(true);
    apr.build();
    let mut pages =
        vec![Page { file: "index.md".to_owned(), title: "apr".to_owned(), text: overview(&apr) }];
    commands_of(&apr).for_each(|command| add_pages(command, "", &mut pages));
    pages
}

fn commands_of(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

fn add_pages(command: &Command, words: &str, pages: &mut Vec<Page>) {
    let words = format!("{words} {}", command.get_name()).trim_start().to_owned();
    let title = format!("apr {words}");
    let text = page(command, &words);
    pages.push(Page { file: file_of(&words), title, text });
    commands_of(command).for_each(|command| add_pages(command, &words, pages));
}

fn file_of(words: &str) -> String {
    format!("{}.md", words.replace(' ', "-"))
}

fn overview(apr: &Command) -> String {
    let mut text = "# Reference of the commands\n\n\
        Generated from the parser of the command line. `apr COMMAND --help` prints the same; \
        `apr man DIR` writes manual pages.\n\n"
        .to_owned();
    for (heading, names) in GROUPS {
        let commands = names.iter().filter_map(|name| apr.find_subcommand(name));
        text += &format!("## {heading}\n\n{}\n", table_of(commands, ""));
    }
    text += "## Options of every command\n\n";
    for arg in apr.get_arguments().filter(|arg| arg.is_global_set()) {
        text += &definition(arg);
    }
    text += "\n## Exit codes\n\n| code | meaning |\n|---|---|\n";
    let codes = apr.get_after_help().map(ToString::to_string).unwrap_or_default();
    for code in codes.trim_start_matches("Exit codes: ").trim_end_matches('.').split(", ") {
        let (code, meaning) = code.split_once(' ').unwrap_or((code, ""));
        text += &format!("| {code} | {meaning} |\n");
    }

    text += "\n## Environment\n\n";
    for (name, what) in ENVIRONMENT {
        text += &format!("`{}`\n: {}\n\n", name.replace(", ", "`, `"), escaped(what));
    }
    text += "## Files\n\n";
    for (name, what) in FILES {
        text += &format!("`{name}`\n: {}\n\n", escaped(what));
    }
    text += "## Keys of the configuration\n\n";
    for (key, default, what) in KEYS {
        text += &format!("`{key} = {default}`\n: {}\n\n", escaped(what));
    }
    text
}

fn page(command: &Command, words: &str) -> String {
    let about = command.get_long_about().or_else(|| command.get_about());
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let mut text = format!("# apr {words}\n\n{}.\n\n", paragraph(about).trim_end_matches('.'));
    text += &format!("```text\n{usage}\n```\n\n");
    let aliases: Vec<String> =
        command.get_visible_aliases().map(|alias| format!("`apr {alias}`")).collect();
    if !aliases.is_empty() {
        text += &format!("Alias: {}.\n\n", aliases.join(", "));
    }
    if commands_of(command).next().is_some() {
        text += &format!("{}\n", table_of(commands_of(command), words));
    }

    for heading in headings(command) {
        text += &format!("## {heading}\n\n");
        for arg in shown(command).filter(|arg| heading_of(arg) == heading) {
            text += &definition(arg);
        }
    }
    let more = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if let Some((heading, lines)) = more.split_once(":\n") {
        text += &format!("## {heading}\n\n```text\n{}\n```\n\n", lines.trim_end());
    }

    let examples: Vec<String> =
        examples(words).iter().map(|(line, what)| format!("# {what}\n{line}\n")).collect();
    if !examples.is_empty() {
        text += &format!("## Examples\n\n```sh\n{}```\n\n", examples.join("\n"));
    }
    text += "See also: [options of every command](index.md#options-of-every-command), [exit \
             codes](index.md#exit-codes).\n";
    text
}

fn table_of<'c>(commands: impl Iterator<Item = &'c Command>, words: &str) -> String {
    let mut text = "| command | purpose |\n|---|---|\n".to_owned();
    for command in commands {
        let words = format!("{words} {}", command.get_name()).trim_start().to_owned();
        let what = paragraph(command.get_about());
        text += &format!("| [`apr {words}`]({}) | {what} |\n", file_of(&words));
    }
    text
}

/// Arguments of this command alone.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_own = |arg: &&Arg| {
        let is_builtin = ["help", "version"].contains(&arg.get_id().as_str());
        !arg.is_hide_set() && !arg.is_global_set() && !is_builtin
    };
    command.get_arguments().filter(is_own)
}

/// Returns the headings in the order of the help: arguments, options without a heading, the others.
fn headings(command: &Command) -> Vec<&str> {
    let all: Vec<&str> = shown(command).map(heading_of).collect();
    let first = ["Arguments", "Options"].into_iter().filter(|heading| all.contains(heading));
    let mut headings: Vec<&str> = first.collect();
    for heading in all {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    headings
}

fn heading_of(arg: &Arg) -> &str {
    let default = if arg.is_positional() { "Arguments" } else { "Options" };
    arg.get_help_heading().unwrap_or(default)
}

/// A row of a definition list, with the values that are possible.
fn definition(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    let mut text = format!("{short}`{arg}`\n: {}", paragraph(arg.get_help()));
    let takes_value = arg.is_positional() || arg.get_action().takes_values();
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        text += &format!(" \\[default: `{}`\\]", defaults.join("`, `"));
    }
    text.push('\n');
    let values = arg.get_possible_values();
    if takes_value && !arg.is_hide_possible_values_set() && !values.is_empty() {
        text.push('\n');
        for value in values.iter().filter(|value| !value.is_hide_set()) {
            let what = value.get_help().map(|help| format!(": {}", paragraph(Some(help))));
            text += &format!("  - `{}`{}\n", value.get_name(), what.unwrap_or_default());
        }
    }
    text.push('\n');
    text
}

fn paragraph(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    escaped(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns a help text as Markdown: text between backticks stays code, and the rest is escaped.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for (at, part) in text.split('`').enumerate() {
        let is_code = at % 2 == 1;
        if is_code {
            escaped += &format!("`{}`", part.replace('|', "\\|"));
            continue;
        }
        for character in part.chars() {
            if "\\*_<>[]|~&#".contains(character) {
                escaped.push('\\');
            }
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_all_of_its_options() {
        fn check(command: &Command, words: &str, pages: &[Page]) {
            let title = format!("apr {words}").trim_end().to_owned();
            let page = pages.iter().find(|page| page.title == title).expect("a page");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let id = arg.get_id().as_str();
                let elsewhere = !words.is_empty() && arg.is_global_set();
                let is_there = page.text.contains(&format!("`{arg}`\n: "));
                assert!(
                    is_there || elsewhere || ["help", "version"].contains(&id),
                    "{title} {arg}"
                );
            }
            for command in commands_of(command) {
                check(command, format!("{words} {}", command.get_name()).trim_start(), pages);
            }
        }
        let mut apr = Cli::command().disable_help_subcommand(true);
        apr.build();
        check(&apr, "", &reference());
    }

    #[test]
    fn links_of_a_page_lead_to_another() {
        let pages = reference();
        for page in &pages {
            for link in page.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = link.split('#').next().expect("a file");
                assert!(pages.iter().any(|page| page.file == file), "{}: {link}", page.title);
            }
        }
    }

    #[test]
    fn characters_of_markdown_are_escaped_outside_of_code() {
        assert_eq!(escaped("a * of `b_*` < [c]"), r"a \* of `b_*` \< \[c\]");
    }

    #[test]
    fn values_and_defaults_are_listed() {
        let pages = reference();
        let text = |title: &str| {
            let page = pages.iter().find(|page| page.title == title).expect("a page");
            page.text.clone()
        };
        let tensors = text("apr tensors");
        assert!(tensors.contains("`--sort <BY>`\n: Sort order \\[default: `offset`\\]"));
        assert!(tensors.contains("  - `size`: Largest first\n"));
        assert!(text("apr quantize").contains("## Types\n\n```text\n  q8_0"));
        assert!(text("apr lora").contains("[`apr lora extract`](lora-extract.md)"));
    }
}
