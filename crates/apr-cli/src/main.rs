//! `apr`: opens, checks, explains and converts model files.

mod args;
mod commands;
mod config;
mod context;
mod failure;
mod human;
mod memory;
mod model;
mod options;
mod printer;
mod progress;
mod refused;
#[cfg(feature = "hub")]
mod remote;
#[cfg(not(feature = "hub"))]
#[path = "remote_off.rs"]
mod remote;
mod revise;
mod secrets;
mod signals;

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::CompleteEnv;

use crate::args::Cli;
use crate::context::Context;

fn main() -> ExitCode {
    if let Err(code) = memory::prepare() {
        return code;
    }
    // A shell asks what a word may become; the process ends here then.
    CompleteEnv::with_factory(Cli::command).var(commands::COMPLETE).complete();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return refused::report(&error),
    };
    memory::tell_as_json(cli.global.json);
    let context = match Context::new(&cli.global, &cli.remote) {
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
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}
