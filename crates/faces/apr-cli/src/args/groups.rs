//! The list of commands in the help of `apr`: in groups by task, the most used ones first.

use clap::Command;

use crate::printer::columns;

/// Headings, and the commands below them.
pub(crate) const GROUPS: [(&str, &[&str]); 7] = [
    ("Look inside", &["inspect", "tensors", "graph", "explain", "tui", "page", "debug", "ls"]),
    ("Check", &["validate", "scan", "diff", "lint", "canary"]),
    ("Run", &["run", "tokenize", "bench", "trace"]),
    ("Convert", &["convert", "import", "export", "upgrade", "edit", "shard", "join"]),
    (
        "Shrink and combine",
        &["quantize", "imatrix", "prune", "factorize", "distill", "merge", "lora"],
    ),
    ("Protect", &["keygen", "sign", "verify", "encrypt", "decrypt", "license", "watermark"]),
    (
        "Set up and scale",
        &[
            "download",
            "upload",
            "cache",
            "plan",
            "run-part",
            "finish",
            "completions",
            "man",
            "version",
        ],
    ),
];

/// The command lines that most people need first, and what they are for.
const MOST_USED: [(&str, &str); 5] = [
    ("apr inspect MODEL", "what is in it"),
    ("apr validate MODEL", "is it intact"),
    ("apr convert MODEL -o OUT.gguf", "another format"),
    ("apr quantize MODEL --type q4_k_m -o OUT.gguf", "a smaller model"),
    ("apr run MODEL --prompt TEXT", "an answer"),
];

/// The help of `apr`, with groups in place of one list: `-h` has the most used commands and the
/// names of the others, `--help` a line for each command.
pub(super) fn with_groups(command: Command) -> Command {
    const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}";
    let long = long(&command);
    command.help_template(TEMPLATE).before_help(short()).before_long_help(long)
}

fn about(command: &Command, name: &str) -> String {
    let command = command.find_subcommand(name);
    command.and_then(Command::get_about).map(ToString::to_string).unwrap_or_default()
}

fn short() -> String {
    let width = columns().unwrap_or(usize::MAX);
    let mut text = "Most used:".to_owned();
    let rows = MOST_USED.map(|(line, purpose)| format!("  {line:<44}  # {purpose}"));
    let fits = rows.iter().all(|row| row.chars().count() <= width);
    for (row, (line, purpose)) in rows.iter().zip(MOST_USED) {
        text += &match fits {
            true => format!("\n{row}"),
            false => format!("\n  # {purpose}\n  {line}"),
        };
    }
    text += "\n\nAll commands:";
    for (heading, names) in GROUPS {
        let mut row = format!("  {heading:<18} ");
        for (at, name) in names.iter().enumerate() {
            let word = if at + 1 < names.len() { format!(" {name},") } else { format!(" {name}") };
            if row.chars().count() + word.chars().count() > width {
                text += &format!("\n{row}");
                row = " ".repeat(21);
            }
            row += &word;
        }
        text += &format!("\n{row}");
    }
    text
}

fn long(command: &Command) -> String {
    let groups = GROUPS.iter().map(|(heading, names)| {
        let lines = names.iter().map(|name| format!("  {name:<11}  {}", about(command, name)));
        format!("{heading}:\n{}", lines.collect::<Vec<_>>().join("\n"))
    });
    groups.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn usage_lines_fit_eighty_columns() {
        fn check(command: &mut Command) {
            let usage = command.render_usage().to_string();
            for line in usage.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut cli = Cli::command();
        cli.build();
        check(&mut cli);
    }

    #[test]
    fn every_command_is_in_one_group_with_a_summary_of_one_line() {
        const WIDEST: usize = 60;
        let cli = Cli::command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        for name in &grouped {
            let about = about(&cli, name);
            assert!(!about.is_empty() && about.len() <= WIDEST, "{name}: {about}");
        }
        grouped.sort_unstable();
        let mut names: Vec<&str> = cli.get_subcommands().map(Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(grouped, names);
    }
}
