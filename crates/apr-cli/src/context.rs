//! What every command gets: settings, limits, threads, a printer.

use std::num::NonZeroUsize;

use apr::Limits;
use apr_io::{Interrupt, Threads};

use crate::Outcome;
use crate::args::{ColorWhen, GlobalArgs};
use crate::config::{Config, OutputFormat};
use crate::failure::Failure;
use crate::printer::{Level, Printer};

/// Bytes of memory a pass may use unless told otherwise.
const DEFAULT_MEMORY: u64 = 1 << 30;

/// Settings after options, environment and configuration file were put together.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) json: bool,
    pub(crate) limits: Limits,
    pub(crate) printer: Printer,
    pub(crate) interrupt: Interrupt,
    threads: NonZeroUsize,
    max_memory: u64,
}

impl Context {
    pub(crate) fn new(args: &GlobalArgs) -> Outcome<Self> {
        let config = Config::load()?;
        choose_color(args.color, config.defaults.color);
        let mut limits = Limits::default();
        limits.max_metadata = args.max_metadata.unwrap_or(limits.max_metadata);
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let json = args.json || config.defaults.output_format == OutputFormat::Json;
        Ok(Self {
            json,
            limits,
            printer: Printer::new(log_level(args)?, json),
            interrupt: Interrupt::default(),
            threads: args.threads.unwrap_or(cores),
            max_memory: args.max_memory.unwrap_or(DEFAULT_MEMORY),
            config,
        })
    }

    /// The pipeline that passes run on.
    pub(crate) fn pipeline(&self) -> Outcome<Threads> {
        Ok(Threads::new(self.threads, self.max_memory, self.interrupt.clone())?)
    }
}

fn choose_color(option: Option<ColorWhen>, config: Option<bool>) {
    let when = option.unwrap_or(if config == Some(false) { ColorWhen::Never } else { ColorWhen::Auto });
    match when {
        ColorWhen::Auto => anstream::ColorChoice::Auto,
        ColorWhen::Always => anstream::ColorChoice::Always,
        ColorWhen::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

fn log_level(args: &GlobalArgs) -> Outcome<Level> {
    if args.quiet {
        return Ok(Level::Error);
    }
    if args.verbose {
        return Ok(Level::Debug);
    }
    match std::env::var("APR_LOG_LEVEL").as_deref() {
        Err(_) | Ok("" | "info") => Ok(Level::Info),
        Ok("error") => Ok(Level::Error),
        Ok("warn") => Ok(Level::Warn),
        Ok("debug" | "trace") => Ok(Level::Debug),
        Ok(other) => Err(Failure::Usage(format!("APR_LOG_LEVEL is '{other}'; it takes error, warn, info or debug"))),
    }
}
