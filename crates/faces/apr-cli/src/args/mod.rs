//! What can be typed.

mod belongs;
mod bench;
mod canary;
mod completion;
mod container;
mod convert;
mod distill;
pub(crate) mod examples;
pub(crate) mod groups;
mod hints;
mod hyphens;
mod imatrix;
mod look;
mod lora;
mod lowrank;
mod merge;
mod models;
mod onnx;
mod page;
mod parts;
mod prune;
mod quantize;
mod remote;
mod run;
mod sampling;
pub(crate) mod settings;
mod shard;
mod tokenize;
mod trace;
mod upgrade;
mod watermark;
mod write;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCandidates;

pub(crate) use belongs::check_use;
pub(crate) use bench::BenchArgs;
pub(crate) use canary::{CanaryAction, CanaryCheckArgs, CanaryCreateArgs};
pub(crate) use container::{
    Compress, ContainerArgs, DecryptArgs, EditArgs, EncryptArgs, IssueArgs, KeyPurpose, KeygenArgs,
    LicenseAction, SignArgs, VerifyArgs,
};
pub(crate) use convert::{ConvertArgs, ExportArgs, ImportArgs, Sha256};
pub(crate) use distill::{DistillArgs, StudentBy, StudentLayers};
pub(crate) use imatrix::{ImatrixArgs, ImatrixForm, TextShare};
pub(crate) use look::{
    DebugArgs, DiffArgs, ExplainArgs, GraphArgs, GraphFormat, InspectArgs, LintArgs, MarkdownArgs,
    SbomFormat, ScanArgs, Sort, TensorsArgs, TuiArgs, ValidateArgs,
};
pub(crate) use lora::{
    ConvertAdapterArgs, ExtractArgs, LoraAction, MergeAdaptersArgs, ResizeAdapterArgs,
    WriteAdapterArgs,
};
pub(crate) use lowrank::LowRankArgs;
pub(crate) use merge::MergeArgs;
pub(crate) use models::names_model;
pub(crate) use onnx::OnnxArgs;
pub(crate) use page::PageArgs;
pub(crate) use parts::{FinishArgs, PlanArgs, RunPartArgs};
pub(crate) use prune::{PruneArgs, PruneMethod, PruneScope};
pub(crate) use quantize::{Dequantized, QuantizeArgs, QuantizeOptions, RequantizeArgs, SearchArgs};
#[cfg(feature = "hub")]
pub(crate) use remote::CreatedAs;
pub(crate) use remote::{DownloadArgs, RemoteArgs, UploadArgs};
pub(crate) use run::{PoolingWay, RunArgs, SubtitleFormat};
pub(crate) use sampling::{BiasedToken, SamplingArgs};
pub(crate) use shard::{JoinArgs, ShardArgs};
pub(crate) use tokenize::TokenizeArgs;
pub(crate) use trace::TraceArgs;
pub(crate) use upgrade::UpgradeArgs;
pub(crate) use watermark::{DetectArgs, EmbedArgs, WatermarkAction};
pub(crate) use write::{Precision, TensorNames, WriteArgs};

use crate::human::parse_size;

/// One binary for every model file: inspect, validate, convert, run.
#[derive(Debug, Parser)]
#[command(name = "apr", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 ok, 1 general, 2 arguments, 3 not found, 4 format, 5 validation \
        failed."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The words of a command: `lora extract`.
fn words(matches: &clap::ArgMatches) -> String {
    match matches.subcommand() {
        Some((word, matches)) => [word, &words(matches)].join(" ").trim_end().to_owned(),
        None => String::new(),
    }
}

impl Cli {
    /// Parses the command line. Errors have the hint for the word that was typed, if there is one.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let mut arguments: Vec<OsString> = crate::arguments().collect();
        if arguments.get(1).is_some_and(|word| word == "help") {
            // Help is the same with any option.
            arguments.retain(|word| !word.as_encoded_bytes().starts_with(b"-"));
        }
        let is_help = |typed: &[OsString]| typed == ["help", "all"] || typed == ["--help", "all"];
        let mut command = with_name(hyphens::with_hyphens(Self::command()));
        let matches = if arguments.get(1..).is_some_and(is_help) {
            Self::command_for_help(true).try_get_matches_from(["apr", "--help"])
        } else {
            // What help consists of is put together for those who ask for it, or are refused.
            let matches = command.try_get_matches_from_mut(&arguments);
            matches.or_else(|_| Self::command_with_help().try_get_matches_from(&arguments))
        };
        let parsed = matches.and_then(|matches| {
            crate::printer::set_command(words(&matches));
            check_use(&command, &matches, &arguments)?;
            let mut cli = Self::from_arg_matches(&matches)?;
            if let Command::Plan(plan) = &mut cli.command {
                cli.global.json |= plan.take_json();
            }
            Ok(cli)
        });
        if parsed.is_err() {
            // The command as far as its words were understood.
            let command = hyphens::with_hyphens(Self::command()).ignore_errors(true);
            let matches = command.try_get_matches_from(&arguments);
            matches.iter().for_each(|matches| crate::printer::set_command(words(matches)));
        }
        parsed.map_err(hints::advised)
    }

    /// The command with everything that its help contains.
    pub(crate) fn command_with_help() -> clap::Command {
        Self::command_for_help(false)
    }

    /// The command as shells complete it, with the topics of `apr help`.
    pub(crate) fn command_to_complete() -> clap::Command {
        let names = groups::GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        let topics = names.chain(["all"]).map(clap::Command::new);
        let help = clap::Command::new("help")
            .about("Print the help of a command, or of all")
            .subcommands(topics.collect::<Vec<_>>());
        Self::command().disable_help_subcommand(true).subcommand(help)
    }

    fn command_for_help(lists_all: bool) -> clap::Command {
        let command = Self::command();
        // The help of convert leaves out what these three are for, and theirs has just that.
        let own: [(&str, &[&str]); 3] = [
            (
                "prune",
                &[&["prune"], &prune::IN_PRUNE[..], &[prune::TARGET, "calibration"]].concat(),
            ),
            ("factorize", &[&lowrank::IN_FACTORIZE[..], &[prune::TARGET]].concat()),
            ("distill", &distill::IN_DISTILL),
        ];
        let command = own.iter().fold(command, |command, (name, own)| {
            command.mut_subcommand(name, |command| with_own_options(command, own))
        });
        let elsewhere =
            [&prune::IN_PRUNE[..], &[prune::TARGET], &lowrank::IN_FACTORIZE, &distill::IN_DISTILL];
        let command = command.mut_subcommand("convert", |command| {
            command.mut_args(|arg| {
                let is_elsewhere = elsewhere.concat().contains(&arg.get_id().as_str());
                if is_elsewhere { arg.hide(true) } else { arg }
            })
        });
        let command = groups::with_groups(command);
        with_name(hyphens::with_hyphens(examples::with_examples(command, lists_all)))
    }
}

/// A command whose inner commands print the version under the name of the binary.
fn with_name(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|inner| with_name(inner.display_name("apr")))
}

/// A command that takes the options of `convert`: its help has its own options first, those that
/// write, and a line about the others.
fn with_own_options(command: clap::Command, own: &[&str]) -> clap::Command {
    const WRITE: [&str; 6] = ["model", "output", "overwrite", "format", "precision", "dry_run"];
    const OTHERS: &str = "All options of convert, such as --quantize, --compress and --encrypt: \
        `apr convert --help`";
    let shown = [own, &WRITE].concat();
    let command = command.mut_args(|arg| {
        let place = shown.iter().position(|shown| *shown == arg.get_id().as_str());
        let Some(place) = place else { return arg.hide(true) };
        let arg = arg.display_order(place);
        if place < own.len() { arg.help_heading(None).hide_short_help(false) } else { arg }
    });
    command.after_help(OTHERS)
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct GlobalArgs {
    /// Print the report as one JSON document
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) json: bool,
    /// Print only errors and the output of `run`
    #[arg(short, long, global = true, hide_short_help = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print more detail
    #[arg(short, long, global = true, hide_short_help = true)]
    pub(crate) verbose: bool,
    /// Colour the output: auto, always or never [default: auto]
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        value_name = "WHEN",
        env = "APR_COLOR",
        hide_env = true
    )]
    pub(crate) color: Option<ColorWhen>,
    /// Number of threads [default: all cores]
    #[arg(long, global = true, hide_short_help = true, value_name = "N", env = "APR_THREADS")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Memory limit, such as 512M [default: 1GiB]
    #[arg(
        long, global = true, hide_short_help = true, value_name = "SIZE", env = "APR_RAM_LIMIT",
        value_parser = parse_size
    )]
    pub(crate) max_memory: Option<u64>,
    /// Maximum size of metadata or a header [default: 100MiB]
    #[arg(
        long, global = true, hide_short_help = true, value_name = "SIZE", value_parser = parse_size
    )]
    pub(crate) max_metadata: Option<u64>,
    /// Run models without comparing tensors with their digests and checksums; the report contains
    /// `unverified`
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_verify: bool,
    /// Private key in PEM, to decrypt, sign or watermark a model
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// File or pipe whose first line is the password of an encrypted model; - for standard input
    /// [default: APR_PASSWORD, else a prompt]
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Read the parameters of pickled objects of this class, such as __main__.Net, without running
    /// its code
    #[arg(long, global = true, hide_short_help = true, value_name = "CLASS")]
    pub(crate) pickle_class: Vec<String>,
    /// Model family, if detection fails or is wrong [default: auto]
    #[arg(
        long, global = true, hide_short_help = true, value_name = "NAME", value_parser = parse_arch,
        add = ArgValueCandidates::new(completion::families)
    )]
    pub(crate) arch: Option<Arch>,
    /// TOML file that defines a model family; may be given several times
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) arch_file: Vec<PathBuf>,
    /// Configuration for a model without one: a config.json file
    #[arg(long = "config", global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) model_config: Option<PathBuf>,
}

/// What `--arch` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Arch {
    /// Whatever the model says.
    Auto,
    /// The family of this name.
    Named(String),
}

fn parse_arch(name: &str) -> Result<Arch, std::convert::Infallible> {
    Ok(if name == "auto" { Arch::Auto } else { Arch::Named(name.to_owned()) })
}

/// When to colour the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show family, size, dtypes and metadata
    ///
    /// Reads headers only, never the weights.
    #[command(alias = "info")]
    Inspect(InspectArgs),
    /// List tensors, statistics, histograms or values
    Tensors(TensorsArgs),
    /// List files of a hub repository, or tensors
    Ls(TensorsArgs),
    /// Check structure, checksums, shapes and values
    ///
    /// Reads the file once.
    Validate(ValidateArgs),
    /// Record answers and check another model against them
    Canary {
        #[command(subcommand)]
        action: CanaryAction,
    },
    /// Find code that loading a file would run
    ///
    /// The verdict of a file is clean, not run, not examined, suspicious, unreadable or dangerous.
    Scan(ScanArgs),
    /// Compare the tensors and metadata of two models
    ///
    /// The models can have different formats. Also compares vocabularies and graphs.
    Diff(DiffArgs),
    /// Dump bytes, strings or structure of any file
    ///
    /// Works on files that do not open as a model.
    Debug(DebugArgs),
    /// Check licence, model card, names, alignment
    Lint(LintArgs),
    /// Explain a model, a tensor or an error code
    Explain(ExplainArgs),
    /// Show the computation graph as a tree or an image
    ///
    /// Shows blocks and operators with their shapes, without reading weights.
    Graph(GraphArgs),
    /// Browse a model in the terminal
    Tui(TuiArgs),
    /// Browse a model in the browser
    ///
    /// Serves the page on this machine only.
    Page(PageArgs),
    /// Run a model on text, audio, images or arrays
    Run(RunArgs),
    /// Measure speed, in the format of llama-bench
    ///
    /// Measures tokens per second, or runs per second for models that do not generate text.
    Bench(BenchArgs),
    /// Profile a run step by step, or compare two models
    ///
    /// Shows time, memory, activations, attention and predictions of every step.
    Trace(TraceArgs),
    /// Encode or decode text with a model's tokenizer
    ///
    /// Does not read weights.
    Tokenize(TokenizeArgs),
    /// Pack a model folder into one .apr file
    ///
    /// Packs the configuration and the tokenizer with the weights, and validates every tensor.
    Import(ImportArgs),
    /// Convert between formats and dtypes
    Convert(ConvertArgs),
    /// Merge models, or adapters into a model
    ///
    /// Supports mergekit's methods and configurations: average, slerp, TIES and others.
    Merge(MergeArgs),
    /// Remove weights, heads, neurons or layers
    ///
    /// Accepts all options of `apr convert`.
    Prune(ConvertArgs),
    /// Store weights as low-rank factors (SVD)
    ///
    /// Accepts all options of `apr convert`. Files in .apr store each matrix as two factors.
    Factorize(ConvertArgs),
    /// Train a smaller model on the outputs of this one
    ///
    /// Accepts all options of `apr convert`.
    Distill(ConvertArgs),
    /// Extract or convert LoRA adapters
    ///
    /// Extracts adapters from tuned models, and converts them for llama.cpp or PEFT.
    Lora {
        #[command(subcommand)]
        action: LoraAction,
    },
    /// Measure an importance matrix for quantize
    ///
    /// Measures what llama-imatrix measures.
    Imatrix(ImatrixArgs),
    /// Quantize to GGML types, identical to llama-quantize
    ///
    /// Reports the quantization error of each tensor.
    Quantize(QuantizeArgs),
    /// Write a model folder or another format
    Export(ExportArgs),
    /// Create a key pair
    ///
    /// Signing and decryption use separate keys.
    Keygen(KeygenArgs),
    /// Sign a model in place
    Sign(SignArgs),
    /// Verify signatures with trusted keys
    Verify(VerifyArgs),
    /// Encrypt for a password or for public keys
    Encrypt(EncryptArgs),
    /// Decrypt a model
    Decrypt(DecryptArgs),
    /// Issue, show or verify a licence
    License {
        #[command(subcommand)]
        action: LicenseAction,
    },
    /// Change metadata, names or the chat template
    ///
    /// Edits in place if possible.
    Edit(EditArgs),
    /// Convert an older .apr file to the current version
    Upgrade(UpgradeArgs),
    /// Split a model into shards
    ///
    /// Writes .apr shards with a manifest, or GGUF splits.
    Shard(ShardArgs),
    /// Join shards into one file
    ///
    /// Joins .apr shards by their manifest, or GGUF splits.
    Join(JoinArgs),
    /// Split a job into parts for several machines
    Plan(PlanArgs),
    /// Run one part of a plan
    ///
    /// A part that is finished is skipped.
    RunPart(RunPartArgs),
    /// Check the parts and assemble the output
    Finish(FinishArgs),
    /// Embed or detect an id in the weights
    Watermark {
        #[command(subcommand)]
        action: WatermarkAction,
    },
    /// Download a model into the cache
    Download(DownloadArgs),
    /// Upload a file or folder to a hub, in one commit
    Upload(UploadArgs),
    /// Show, clear or verify the download cache
    Cache {
        #[command(subcommand)]
        action: CacheAction,
    },
    /// Print a shell completion script
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages
    Man {
        /// Output folder; created if missing
        dir: PathBuf,
    },
    /// Show version, features and formats
    Version,
}

impl Command {
    /// Whether the tensors are those below a prefix, so that all entries have to be read.
    pub(crate) fn selects_entries(&self) -> bool {
        match self {
            Self::Import(args) => args.prefix.is_some(),
            Self::Convert(args)
            | Self::Prune(args)
            | Self::Factorize(args)
            | Self::Distill(args) => args.prefix.is_some(),
            Self::Quantize(args) => args.prefix.is_some(),
            _ => false,
        }
    }
}

/// What to do with the cache.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheAction {
    /// Show location and contents
    Info,
    /// Remove files that apr downloaded
    Clear {
        /// Only this model: hf://ORG/REPO, or the URL of a file
        #[arg(value_name = "MODEL")]
        model: Option<String>,
        /// Only files not used for this long, such as 30d
        #[arg(long, value_name = "DAYS", value_parser = parse_days)]
        older: Option<u64>,
        /// Show what would be removed without removing it
        #[arg(long)]
        dry_run: bool,
        /// Also remove files of other programs from the Hugging Face cache, after a question
        #[arg(long)]
        all_hub: bool,
        /// Answer the question of --all-hub with yes
        #[arg(long, short, requires = "all_hub")]
        yes: bool,
    },
    /// Verify cached files against their server's digests
    Verify {
        /// Only this model
        #[arg(value_name = "MODEL")]
        model: Option<String>,
    },
}

/// Days, as `30d`, `4w` or `30`.
fn parse_days(text: &str) -> Result<u64, String> {
    let (digits, days) = match (text.strip_suffix('d'), text.strip_suffix('w')) {
        (Some(digits), _) => (digits, 1),
        (None, Some(digits)) => (digits, 7),
        (None, None) => (text, 1),
    };
    let count: Option<u64> = digits.parse().ok();
    count
        .and_then(|count| count.checked_mul(days))
        .ok_or_else(|| "expected days, such as 30d or 4w".to_owned())
}
