//! `apr`: opens, checks, explains and converts model files.
//!
//! The command is a library, so that a package of another language can bring it without a second
//! copy of all that it stands on.

// Arguments are parsed by every build; what runs models and what seals them read most of them.
#![cfg_attr(not(all(feature = "infer", feature = "seals")), allow(dead_code, unused_imports))]

mod args;
mod commands;
mod config;
mod context;
mod documents;
#[cfg_attr(not(feature = "infer"), path = "engine_off.rs")]
mod engine;
mod failure;
mod human;
mod markdown;
#[cfg_attr(windows, path = "memory_windows.rs")]
mod memory;
mod model;
mod options;
mod printer;
mod progress;
mod reference;
mod refused;
#[cfg(feature = "hub")]
mod remote;
#[cfg(not(feature = "hub"))]
#[path = "remote_off.rs"]
mod remote;
mod revise;
mod secrets;
#[cfg_attr(windows, path = "signals_windows.rs")]
mod signals;
mod text_file;

use std::ffi::OsString;
use std::sync::OnceLock;

use clap_complete::CompleteEnv;

use crate::args::Cli;
use crate::context::Context;
pub use crate::reference::{Page, reference};

/// Arguments of the command, beginning with its own name.
static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Runs the command and returns its exit code.
///
/// `arguments` are the arguments of the process, beginning with the command's name. The function
/// takes over the process: signals, out-of-memory handling and the standard streams.
///
/// ```no_run
/// let code = apr_cli::main(["apr".into(), "inspect".into(), "model.gguf".into()]);
/// std::process::exit(code.into());
/// ```
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = ARGUMENTS.get_or_init(|| arguments.into_iter().collect());
    if let Err(code) = memory::prepare() {
        return code;
    }
    let complete = CompleteEnv::with_factory(Cli::command_to_complete).var(commands::COMPLETE);
    // A shell asks what a word may become.
    match complete.try_complete(arguments, std::env::current_dir().ok().as_deref()) {
        Ok(false) => {}
        Ok(true) => return 0,
        Err(error) => error.exit(),
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return refused::report(&error),
    };
    memory::tell_as_json(cli.global.json);
    let context = match Context::new(&cli) {
        Ok(context) => context,
        Err(failure) => return failure.report(cli.global.json),
    };
    let json = context.json;
    memory::tell_as_json(json);
    let outcome = commands::run(cli.command, &context);
    if outcome.is_err() {
        context.sources.note_kept();
    }

    context.tell_notes();
    match outcome {
        Ok(()) => 0,
        Err(failure) => failure.located(&context.sources).report(json),
    }
}

/// Returns the arguments of the command, beginning with its own name.
pub(crate) fn arguments() -> impl Iterator<Item = OsString> {
    ARGUMENTS.get().into_iter().flatten().cloned()
}
