//! `apr completions` and `apr man`.

use std::io::Write;
use std::path::Path;

use apr_core::counted;
use apr_io::{AtomicOutput, Target};
use apr_registry::{Escaped, FileInfo, Sink};
use clap::{Command, CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_complete::env::Shells;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use serde::Serialize;

use crate::args::Cli;
use crate::args::examples::examples;
use crate::args::settings::{ENVIRONMENT, FILES, KEYS};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::signals;

/// Environment variable with which the scripts of `apr completions` request completions.
pub(crate) const COMPLETE: &str = "APR_COMPLETE";

/// Prints a script with which a shell gets the completions of a word from `apr`.
pub(super) fn completions(shell: Shell, context: &Context) -> Outcome {
    let name =
        shell.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let shells = Shells::builtins();
    let unknown = || Failure::General(format!("no completion for {name}"));
    let completer = shells.completer(&name).ok_or_else(unknown)?;
    // In memory first: the reader may have gone.
    let mut script = Vec::new();
    completer.write_registration(COMPLETE, "apr", "apr", "apr", &mut script)?;
    if context.json {
        let script = String::from_utf8_lossy(&script).into_owned();
        return context.printer.report(&CompletionsReport { shell: name, script }, |_, _| Ok(()));
    }
    Ok(std::io::stdout().lock().write_all(&script)?)
}

/// Report of `apr completions`.
#[derive(Serialize)]
struct CompletionsReport {
    /// The shell: `bash`, `elvish`, `fish`, `powershell` or `zsh`.
    shell: String,
    /// The script that the shell reads.
    script: String,
}

impl Document for CompletionsReport {
    const SCHEMA: &'static str = "completions";
}

/// Report of `apr man`.
#[derive(Serialize)]
struct ManualReport {
    /// Folder of the pages.
    output: String,
    /// The written pages.
    files: Vec<FileInfo>,
}

impl Document for ManualReport {
    const SCHEMA: &'static str = "man";
}

/// Writes one page for `apr` and one for each command.
///
/// The pages of an older version are replaced, either all or none of them.
pub(super) fn write_pages(dir: &Path, context: &Context) -> Outcome {
    let mut command = all_explained(Cli::command().disable_help_subcommand(true));
    command.build();
    signals::stop_cleanly(&context.interrupt)?;
    let mut output = AtomicOutput::create(Target::Folder(dir.into()), true, [])?;
    let mut files = Vec::new();
    write_page(command, "", &mut output, &mut files)?;
    context.printer.committed(&output.commit()?);
    let report = ManualReport { output: dir.display().to_string(), files };
    context.printer.report(&report, |out, report| {
        let pages = counted(report.files.len() as u64, "manual page");
        writeln!(out, "{}: {pages}", Escaped(&report.output))
    })
}

/// Returns the command with its rare options shown; the pages would omit their help otherwise.
fn all_explained(command: Command) -> Command {
    let names: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, all_explained));
    command.mut_args(|arg| arg.hide_short_help(false))
}

fn write_page(
    command: Command,
    words: &str,
    output: &mut AtomicOutput,
    files: &mut Vec<FileInfo>,
) -> Outcome {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let words = format!("{words} {}", command.get_name());
        write_page(command.clone(), words.trim_start(), output, files)?;
    }

    let has_subcommands = command.get_subcommands().next().is_some();
    let has_more = command.get_after_help().is_some();
    let version = command.get_version().unwrap_or_default();
    let source = format!("apr {version}");
    let page = Man::new(command).source(&source);
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if has_subcommands {
        page.render_subcommands_section(&mut text)?;
    }
    if has_more {
        page.render_extra_section(&mut text)?;
    }

    sections(words).to_writer(&mut text)?;
    let mut version = Roff::default();
    version.control("SH", ["VERSION"]).text([roman(source)]);
    version.to_writer(&mut text)?;
    let name = page.get_filename();
    output.next_file(&name)?;
    output.write_all(&text)?;
    files.push(FileInfo { name, len: text.len() as u64 });
    Ok(())
}

/// Returns the sections that the options do not cover: examples, and the sources of settings.
fn sections(words: &str) -> Roff {
    let mut page = Roff::default();
    if !examples(words).is_empty() {
        page.control("SH", ["EXAMPLES"]);
    }

    for (line, what) in examples(words) {
        page.control("TP", []).text([bold(*line)]).text([roman(*what)]);
    }

    let (variables, files) = (ENVIRONMENT.iter(), FILES.iter());
    for (title, rows) in [("ENVIRONMENT", variables), ("FILES", files)] {
        page.control("SH", [title]);
        for (name, what) in rows {
            page.control("TP", []).text([bold(*name)]).text([roman(*what)]);
        }
    }

    if words.is_empty() {
        page.control("SH", ["CONFIGURATION"]);
        for (key, default, what) in KEYS {
            page.control("TP", [])
                .text([bold(key), roman(" = "), roman(default)])
                .text([roman(what)]);
        }
    }

    page
}
