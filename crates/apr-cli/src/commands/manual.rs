//! `apr completions` and `apr man`.

use std::io::Write;
use std::path::Path;

use apr::Sink;
use apr_io::{AtomicOutput, Target};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::context::Context;
use crate::{Outcome, signals};

/// Prints a completion script.
pub(super) fn completions(shell: Shell) -> Outcome {
    // It panics where writing fails, as it does when the reader has gone.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "apr", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

/// Writes a page for `apr` and one for each command. Those of an older version are replaced, all or none.
pub(super) fn write_pages(dir: &Path, context: &Context) -> Outcome {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    signals::stop_cleanly(&context.interrupt)?;
    let mut output = AtomicOutput::create(Target::Folder(dir.into()), true, [])?;
    write_page(command, &mut output)?;
    Ok(output.commit()?)
}

fn write_page(command: Command, output: &mut AtomicOutput) -> Outcome {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.cloned().try_for_each(|command| write_page(command, output))?;
    let page = Man::new(command);
    let mut text = Vec::new();
    page.render(&mut text)?;
    output.next_file(&page.get_filename())?;
    Ok(output.write_all(&text)?)
}
