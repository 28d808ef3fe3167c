//! `apr-qa`: the 100 points of the quality plan, judged of a model.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use apr_core::{Code, Error, IoCause};
use apr_io::{Interrupt, Threads, io_error};
use apr_qa::{Assessment, Category, Subject, assess, render};
use apr_registry::OpenOptions;
use apr_run::Facts;
use clap::{Parser, Subcommand};
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::flag;

/// Bytes of memory that a pass and a run may use by default.
const MEMORY: u64 = 1 << 30;

/// Exit codes, those of `apr`.
const GENERAL: u8 = 1;
const NOT_FOUND: u8 = 3;
const FORMAT: u8 = 4;
const BELOW: u8 = 5;
const INTERRUPTED: u8 = 130;

/// Judge a model by the 100 points of the quality plan
#[derive(Parser)]
#[command(version, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Judge a model by all points, or by those of a category
    ///
    /// The score is the number of points that pass; points that do not apply do not count. Exit
    /// code 5: fewer points passed than --min-score.
    Verify(Verify),
}

/// Arguments of `verify`.
#[derive(clap::Args)]
struct Verify {
    /// File, folder, or shard index
    model: PathBuf,
    /// Print the score alone, without the points
    #[arg(long)]
    score: bool,
    /// Judge the 25 points of a category
    #[arg(long, value_name = "NAME")]
    category: Option<Category>,
    /// Minimum number of points that pass
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=100))]
    min_score: Option<u8>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let Command::Verify(args) = Cli::parse().command;
    let done = judged(&args).and_then(|report| {
        print(&report, &args).map_err(|error| io_error(&error, Path::new("output")))?;
        Ok(report.is_enough())
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(BELOW),
        Err(error) => {
            let code = exit_code(&error);
            if code != 0 {
                // The exit code says it too, if standard error can't be written to.
                let _ = writeln!(io::stderr(), "error: {error}");
            }
            ExitCode::from(code)
        }
    }
}

fn judged(args: &Verify) -> Result<Assessment, Error> {
    let model = apr::Model::open_with(&args.model, &OpenOptions::default())?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let interrupt = Interrupt::default();
    // The first signal ends the work, and the temporary folder with it; the second the process.
    for signal in TERM_SIGNALS {
        let registered = flag::register_conditional_default(*signal, Arc::clone(&interrupt.0))
            .and_then(|_| flag::register(*signal, Arc::clone(&interrupt.0)));
        registered.map_err(|error| io_error(&error, Path::new("signals")))?;
    }
    let pipeline = Threads::new(threads, MEMORY, interrupt.clone())?;
    let (source, facts) = (model.source(), Facts::of(model.reader())?);
    let subject = Subject {
        source: &source,
        facts: &facts,
        threads,
        max_memory: MEMORY,
        interrupt,
        apr: beside(),
    };
    let report = assess(&subject, args.category, &pipeline, &())?;
    Ok(report.with_minimum(args.min_score.map(usize::from)))
}

/// The program `apr` in this program's folder.
fn beside() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.with_file_name(format!("apr{}", std::env::consts::EXE_SUFFIX));
    program.exists().then_some(program)
}

fn print(report: &Assessment, args: &Verify) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        apr_ops::document::write_json(&mut out, report)?;
        return writeln!(out);
    }
    if !args.score {
        render::points(&mut out, report)?;
    }
    render::headings(&mut out, report)
}

fn exit_code(error: &Error) -> u8 {
    match (error.code(), error.cause()) {
        (_, Some(IoCause::NotFound)) => NOT_FOUND,
        (_, Some(IoCause::Interrupted)) => INTERRUPTED,
        (_, Some(IoCause::BrokenPipe)) => 0,
        (Code::Io, _) => GENERAL,
        (Code::Memory, _) if error.file().is_none() => GENERAL,
        (Code::Checksum | Code::Signature, _) => BELOW,
        _ => FORMAT,
    }
}
