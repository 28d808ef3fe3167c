//! What every command gets: settings, limits, threads, a printer.

use std::cell::OnceCell;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use apr_arch::{Families, Family, FamilyModel};
use apr_io::{Interrupt, Sources, Threads};
use apr_ops::session::Session;
use apr_registry::apr2::Encrypt;
use apr_registry::{CheckpointReader, Limits, OpenOptions};
use apr_source::Source;
use apr_source::{Architecture, family_of};
use apr_view::meant;
use zeroize::Zeroizing;

use crate::args::{Arch, Cli, ColorWhen, GlobalArgs, RemoteArgs};
use crate::config::{Config, OutputFormat};
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::printer::{self, Level, Printer};
use crate::text_file::read_text;
use crate::{remote, secrets};

/// Bytes of memory a pass may use by default.
const DEFAULT_MEMORY: u64 = 1 << 30;

/// Settings after options, environment and configuration file were put together.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) json: bool,
    pub(crate) options: OpenOptions,
    pub(crate) printer: Printer,
    pub(crate) interrupt: Interrupt,
    /// Every model file that was opened.
    pub(crate) sources: Sources,
    /// The file of `--key`.
    pub(crate) key: Option<PathBuf>,
    /// The password of `--password-file` or `APR_PASSWORD`, read once: a pipe gives it once.
    pub(crate) password: Option<Zeroizing<Vec<u8>>>,
    /// `true` if the password is from `--password-file`.
    pub(crate) has_password_file: bool,
    /// Encryption of all parts of a plan, if this run does one of its parts.
    pub(crate) encryption: Option<Encrypt>,
    threads: NonZeroUsize,
    max_memory: u64,
    has_own_metadata_limit: bool,
    /// `true` to compare tensors with their stored checksums before computing with them.
    verifies: bool,
    /// Options for reading models on hubs and servers.
    pub(crate) hub: RemoteArgs,
    arch: Option<Arch>,
    arch_files: Vec<PathBuf>,
    /// The file of `--config`.
    pub(crate) model_config: Option<PathBuf>,
    families: OnceCell<Families>,
}

impl Context {
    pub(crate) fn new(cli: &Cli) -> Outcome<Self> {
        let (args, hub) = (&cli.global, &cli.remote);
        let config = Config::load()?;
        choose_color(args.color, config.defaults.color);
        let mut options =
            OpenOptions { pickle_classes: args.pickle_class.clone(), ..OpenOptions::default() };
        options.family = ggml_family(args);
        options.all_entries = cli.command.selects_entries();
        let password = secrets::given_password(args.password_file.as_deref())?;
        secrets::add_keys(&mut options.keys, args.key.as_deref(), password.as_ref())?;
        let max_memory = args.max_memory.unwrap_or(DEFAULT_MEMORY);
        options.limits = limits(args);
        options = options.within(max_memory);
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        if args.no_verify {
            printer::note_unverified(log_level(args)?);
        }
        let json = args.json || config.defaults.output_format == OutputFormat::Json;
        let interrupt = Interrupt::default();
        Ok(Self {
            json,
            options,
            printer: Printer::new(log_level(args)?, json),
            sources: remote::sources(hub, &config, &interrupt),
            interrupt,
            key: args.key.clone(),
            password,
            has_password_file: args.password_file.is_some(),
            encryption: None,
            threads: args.threads.unwrap_or(cores),
            max_memory,
            has_own_metadata_limit: args.max_metadata.is_some(),
            verifies: !args.no_verify,
            hub: hub.clone(),
            arch: args.arch.clone(),
            arch_files: args.arch_file.clone(),
            model_config: args.model_config.clone(),
            families: OnceCell::new(),
            config,
        })
    }

    /// Returns a copy with a password to open models.
    pub(crate) fn with_password(&self, password: Zeroizing<Vec<u8>>) -> Self {
        let mut options = self.options.clone();
        secrets::add_password(&mut options.keys, password);
        Self { options, ..self.clone() }
    }

    /// Returns a copy that opens sharded models of which shards are absent, for reports.
    pub(crate) fn without_shards(&self) -> Self {
        let options = OpenOptions { absent_shards: true, ..self.options.clone() };
        Self { options, ..self.clone() }
    }

    /// Returns a copy without `--config`, for a `--config` that does not describe a model.
    pub(crate) fn without_config(&self) -> Self {
        Self { model_config: None, ..self.clone() }
    }

    /// Returns a copy for a job that was planned with these options.
    pub(crate) fn of_job(&self, cli: &Cli) -> Self {
        let (args, hub) = (&cli.global, &cli.remote);
        let mut options = self.options.clone();
        options.pickle_classes.clone_from(&args.pickle_class);
        options.family = ggml_family(args);
        options.limits = limits(args);
        options.all_entries = cli.command.selects_entries();
        Self {
            options: options.within(self.max_memory),
            arch: args.arch.clone(),
            arch_files: args.arch_file.clone(),
            model_config: args.model_config.clone(),
            families: OnceCell::new(),
            sources: remote::sources(&self.hub.of_part(hub), &self.config, &self.interrupt),
            ..self.clone()
        }
    }

    /// Returns a copy for `models` models open at the same time, which share the memory.
    pub(crate) fn sharing_memory(&self, models: u64) -> Self {
        let mut options = self.options.clone();
        options.limits = options.limits.within(self.max_memory / models);
        Self { options, ..self.clone() }
    }

    /// Returns `true` if options describe the model or how it is read; a plan stores them with its
    /// job.
    pub(crate) fn has_job_options(&self) -> bool {
        let opens = !self.options.pickle_classes.is_empty() || self.has_own_metadata_limit;
        let describes =
            self.arch.is_some() || !self.arch_files.is_empty() || self.model_config.is_some();
        describes || opens || self.hub.chooses()
    }

    /// Returns the known families, including those that the user added.
    pub(crate) fn families(&self) -> Outcome<&Families> {
        if let Some(families) = self.families.get() {
            return Ok(families);
        }
        let mut families = Families::builtin();
        for path in &self.arch_files {
            families.add(&read_text(path)?).map_err(|error| error.in_file(path.display()))?;
        }
        Ok(self.families.get_or_init(|| families))
    }

    /// Returns the family of `--arch`. If `--arch-file` adds only one family, it need not be named.
    pub(crate) fn architecture(&self) -> Outcome<Architecture> {
        let named = match (&self.arch, self.arch_files.is_empty()) {
            (Some(Arch::Named(name)), _) => name.clone(),
            (Some(Arch::Auto), _) | (None, true) => return Ok(Architecture::Auto),
            (None, false) => match self.families()?.brought().collect::<Vec<_>>()[..] {
                [only] => only.to_owned(),
                _ => return Ok(Architecture::Auto),
            },
        };

        match self.families()?.find(&named) {
            Some(_) => Ok(Architecture::Named(named)),
            // Some families of legacy files have no table of names.
            None if is_ggml_family(&named) => Ok(Architecture::Auto),
            None => {
                let known: Vec<&str> = self.families()?.iter().map(Family::name).collect();
                Err(Failure::Usage(format!("no family '{named}'; {}", meant(&named, &known))))
            }
        }
    }

    /// Returns the source of a model, with the family that `--arch` sets.
    pub(crate) fn source<'a>(
        &'a self,
        reader: &'a dyn CheckpointReader,
        name: &'a str,
    ) -> Outcome<Source<'a>> {
        let source = Source::new(reader, self.families()?).named(name);
        Ok(source.taken_for(&self.architecture()?).verifying(self.verifies))
    }

    /// Returns `true` if weights are compared with their checksums before they are used.
    pub(crate) fn verifies(&self) -> bool {
        self.verifies
    }

    /// Returns the session for reports on a model, with the family that `--arch` sets.
    pub(crate) fn session<'a>(&'a self, model: &'a Model) -> Outcome<Session<'a>> {
        Ok(Session::of(self.source(&*model.reader, &model.name)?))
    }

    /// The family of a model.
    pub(crate) fn family<'a>(
        &'a self,
        reader: &'a dyn CheckpointReader,
    ) -> Outcome<Option<FamilyModel<'a>>> {
        Ok(family_of(reader, self.families()?, &self.architecture()?)?)
    }

    /// Returns the maximum number of threads for a run.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// Bytes that values of a run may take.
    pub(crate) fn max_memory(&self) -> u64 {
        self.max_memory
    }

    /// Shows what the user should know of how files were fetched, each remark once, and returns it
    /// for the report.
    pub(crate) fn tell_notes(&self) -> Vec<String> {
        let notes = self.sources.notes();
        notes.iter().for_each(|note| self.printer.warn(note));
        notes
    }

    /// The pipeline that passes run on.
    pub(crate) fn pipeline(&self) -> Outcome<Threads> {
        Ok(Threads::new(self.threads, self.max_memory, self.interrupt.clone())?)
    }
}

/// Returns the limits on data read from files, independent of the memory limit.
fn limits(args: &GlobalArgs) -> Limits {
    let mut limits = Limits::default();
    limits.max_metadata = args.max_metadata.unwrap_or(limits.max_metadata);
    limits
}

/// Returns the family of `--arch` if legacy GGML files can have it.
fn ggml_family(args: &GlobalArgs) -> Option<String> {
    match &args.arch {
        Some(Arch::Named(name)) => Some(name.clone()).filter(|name| is_ggml_family(name)),
        _ => None,
    }
}

fn is_ggml_family(name: &str) -> bool {
    apr_registry::gguf::ggml::architectures().any(|known| known == name)
}

fn choose_color(option: Option<ColorWhen>, config: Option<bool>) {
    let when =
        option.unwrap_or(if config == Some(false) { ColorWhen::Never } else { ColorWhen::Auto });
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
        Ok(other) => Err(Failure::Usage(format!(
            "APR_LOG_LEVEL is '{other}': expected error, warn, info or debug"
        ))),
    }
}
