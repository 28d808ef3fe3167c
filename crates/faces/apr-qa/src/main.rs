//! `apr-qa`: the 100 points of the quality plan, judged of a model.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use apr_core::Error;
use apr_io::{Interrupt, Threads, io_error};
use apr_ops::command::{VALIDATION, exit_code, parse_size};
use apr_ops::document::{Headed, write_json};
use apr_qa::{Assessment, Category, PointReport, Subject, assess, render};
use apr_registry::OpenOptions;
use apr_run::Facts;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Bytes of memory that a pass and a run may use by default.
const MEMORY: u64 = 1 << 30;
/// Points of a category.
const OF_CATEGORY: u8 = 25;

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
    /// Minimum number of points that pass: up to 100, or 25 of a category
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=100))]
    min_score: Option<u8>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Number of threads [default: all cores]
    #[arg(long, value_name = "N", env = "APR_THREADS", hide_env = true)]
    threads: Option<NonZeroUsize>,
    /// Memory limit, such as 512M [default: 1GiB]
    #[arg(
        long, value_name = "SIZE", env = "APR_RAM_LIMIT", hide_env = true,
        value_parser = parse_size
    )]
    max_memory: Option<u64>,
}

fn main() -> ExitCode {
    let Command::Verify(args) = Cli::parse().command;
    if args.category.is_some() && args.min_score > Some(OF_CATEGORY) {
        let message = "a category has 25 points, so its minimum is at most 25";
        Cli::command().error(ErrorKind::ArgumentConflict, message).exit();
    }
    match judged(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(VALIDATION),
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

/// The first signal ends the work, and the temporary folder with it; the second the process.
#[cfg(unix)]
fn watch_signals(interrupt: &Interrupt) -> io::Result<()> {
    use signal_hook::flag;
    use std::sync::Arc;
    for signal in signal_hook::consts::TERM_SIGNALS {
        flag::register_conditional_default(*signal, Arc::clone(&interrupt.0))?;
        flag::register(*signal, Arc::clone(&interrupt.0))?;
    }
    Ok(())
}

/// Judges a model and prints what is seen; whether it is enough.
fn judged(args: &Verify) -> Result<bool, Error> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let (threads, max_memory) = (args.threads.unwrap_or(cores), args.max_memory.unwrap_or(MEMORY));
    let mut options = OpenOptions::default();
    options.keys.max_memory = max_memory;
    let model = apr::Model::open_with(&args.model, &options)?;
    let interrupt = Interrupt::default();
    #[cfg(unix)]
    watch_signals(&interrupt).map_err(|error| io_error(&error, Path::new("signals")))?;
    let pipeline = Threads::new(threads, max_memory, interrupt.clone())?;
    let (source, facts) = (model.source(), Facts::of(model.reader())?);
    let reopen = || apr::Model::open_with(&args.model, &options).map(drop);
    let subject = Subject {
        source: &source,
        facts: &facts,
        threads,
        max_memory,
        interrupt,
        reopen: Some(&reopen),
        apr: beside(),
    };

    // Each point is shown when it is judged: running a large model takes a while.
    let mut out = io::stdout().lock();
    let mut shown = Ok(());
    let mut show = |point: &PointReport| {
        if !args.json && !args.score && shown.is_ok() {
            shown = render::point(&mut out, point).and_then(|()| out.flush());
        }
    };
    let report = assess(&subject, args.category, &pipeline, &(), &mut show)?;
    let report = report.with_minimum_of_points(args.min_score.map(usize::from));
    let is_enough = report.is_enough();
    let printed = shown.and_then(|()| print(&mut out, report, args));
    printed.map_err(|error| io_error(&error, Path::new("output")))?;
    Ok(is_enough)
}

/// The program `apr` in this program's folder.
fn beside() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.with_file_name(format!("apr{}", std::env::consts::EXE_SUFFIX));
    program.exists().then_some(program)
}

fn print(out: &mut dyn Write, report: Assessment, args: &Verify) -> io::Result<()> {
    if args.json {
        let report = if args.score { report.without_points() } else { report };
        // As `apr validate --quality --json` prints it.
        write_json(out, &Headed::new("points", 1, "verify", &report))?;
        return writeln!(out);
    }
    if !args.score {
        writeln!(out)?;
    }
    render::headings(out, &report)
}
