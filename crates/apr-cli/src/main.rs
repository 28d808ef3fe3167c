//! `apr`: opens, checks, explains and converts model files.

mod args;
mod commands;
mod config;
mod context;
mod failure;
mod human;
mod model;
mod printer;
mod progress;
mod revise;
mod secrets;
mod signals;

use std::process::ExitCode;

use crate::args::Cli;
use crate::context::Context;
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return failure::report_arguments(&error),
    };
    let context = match Context::new(&cli.global) {
        Ok(context) => context,
        Err(failure) => return failure.report(cli.global.json),
    };
    let json = context.json;
    match commands::run(cli.command, &context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

type Outcome<T = ()> = Result<T, Failure>;
