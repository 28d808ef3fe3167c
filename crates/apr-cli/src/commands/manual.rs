//! `apr completions` and `apr man`.

use std::io::Write;
use std::path::Path;

use apr_io::io_error;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::Outcome;
use crate::args::Cli;

/// Prints a completion script.
pub(super) fn completions(shell: Shell) -> Outcome {
    // It panics where writing fails, as it does when the reader has gone.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "apr", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

/// Writes a page for `apr` and one for each command.
pub(super) fn write_pages(dir: &Path) -> Outcome {
    let write = || {
        std::fs::create_dir_all(dir)?;
        clap_mangen::generate_to(Cli::command(), dir)
    };
    Ok(write().map_err(|error| io_error(&error, dir))?)
}
