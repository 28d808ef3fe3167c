//! `apr`: opens, checks, explains and converts model files.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(apr_cli::main(std::env::args_os()))
}
