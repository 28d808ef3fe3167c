//! What can be typed.

mod bench;
mod canary;
mod completion;
mod container;
mod convert;
mod distill;
pub(crate) mod examples;
mod hints;
mod hyphens;
mod imatrix;
mod look;
mod lora;
mod lowrank;
mod merge;
mod onnx;
mod page;
mod parts;
mod prune;
mod quantize;
mod remote;
mod run;
pub(crate) mod settings;
mod shard;
mod tokenize;
mod trace;
mod upgrade;
mod watermark;
mod write;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCandidates;

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
    DebugArgs, DiffArgs, ExplainArgs, GraphArgs, GraphFormat, InspectArgs, LintArgs, ScanArgs,
    Sort, TensorsArgs, TuiArgs, ValidateArgs,
};
pub(crate) use lora::{ConvertAdapterArgs, ExtractArgs, LoraAction};
pub(crate) use lowrank::LowRankArgs;
pub(crate) use merge::MergeArgs;
pub(crate) use onnx::OnnxArgs;
pub(crate) use page::PageArgs;
pub(crate) use parts::{FinishArgs, PlanArgs, RunPartArgs};
pub(crate) use prune::{PruneArgs, PruneMethod, PruneScope};
pub(crate) use quantize::{Dequantized, QuantizeArgs, QuantizeOptions, RequantizeArgs, SearchArgs};
pub(crate) use remote::{DownloadArgs, RemoteArgs};
pub(crate) use run::{PoolingWay, RunArgs, SubtitleFormat};
pub(crate) use shard::{JoinArgs, ShardArgs};
pub(crate) use tokenize::TokenizeArgs;
pub(crate) use trace::TraceArgs;
pub(crate) use upgrade::UpgradeArgs;
pub(crate) use watermark::{DetectArgs, EmbedArgs, WatermarkAction};
pub(crate) use write::{Precision, WriteArgs};

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

impl Cli {
    /// What was typed; the error says what was meant, where that is known.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let matches = Self::command_with_help()
            .try_get_matches_from(crate::arguments())
            .and_then(|matches| Self::from_arg_matches(&matches));
        matches.map_err(hints::advised)
    }

    /// The command with all that its help has.
    pub(crate) fn command_with_help() -> clap::Command {
        // Whoever converts need not read past what prunes, factorizes and distils.
        let in_prune = [&prune::IN_PRUNE[..], &[prune::TARGET]].concat();
        let in_factorize = lowrank::IN_FACTORIZE.to_vec();
        let pruning = [&prune::IN_PRUNE[..], &["prune"]].concat();
        let in_distill = distill::IN_DISTILL.to_vec();
        let hidden = [
            ("convert", [&in_prune[..], &in_factorize, &in_distill].concat()),
            ("distill", [&in_prune[..], &["prune"], &in_factorize].concat()),
            ("prune", [&in_factorize[..], &in_distill].concat()),
            ("factorize", [&pruning[..], &in_distill].concat()),
        ];
        let command = hidden.into_iter().fold(Self::command(), |command, (name, hidden)| {
            command.mut_subcommand(name, |command| {
                command.mut_args(|arg| {
                    let hides = hidden.contains(&arg.get_id().as_str());
                    if hides { arg.hide(true) } else { arg }
                })
            })
        });
        let command = command.mut_subcommand("factorize", |command| {
            command.mut_arg(prune::TARGET, |arg| arg.help_heading("Low-rank factorization"))
        });
        hyphens::with_hyphens(examples::with_examples(command))
    }
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct GlobalArgs {
    /// Print the report as one JSON document
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) json: bool,
    /// Print errors only
    #[arg(short, long, global = true, hide_short_help = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print more detail
    #[arg(short, long, global = true, hide_short_help = true)]
    pub(crate) verbose: bool,
    /// When to colour the output [default: auto]
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
    /// Run models without comparing tensors with their digests and checksums; the report says
    /// `unverified`
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_verify: bool,
    /// Private key in PEM: decrypts an encrypted model; signs or watermarks in commands that do so
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// File or pipe whose first line is the password of an encrypted model; - for standard input
    /// [default: APR_PASSWORD, else a prompt]
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Read pickled objects of this class, such as __main__.Net, for their parameters; nothing of
    /// it is run
    #[arg(long, global = true, hide_short_help = true, value_name = "CLASS")]
    pub(crate) pickle_class: Vec<String>,
    /// Model family, where detection fails or is wrong [default: auto]
    #[arg(
        long, global = true, hide_short_help = true, value_name = "NAME", value_parser = parse_arch,
        add = ArgValueCandidates::new(completion::families)
    )]
    pub(crate) arch: Option<Arch>,
    /// TOML file that defines a model family; may be given several times
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) arch_file: Vec<PathBuf>,
    /// Configuration of a model that has none of its own, as its config.json
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
    /// Show a model's family, size, dtypes and metadata without reading its weights
    #[command(visible_alias = "info")]
    Inspect(InspectArgs),
    /// List tensors, with statistics, a histogram or values
    Tensors(TensorsArgs),
    /// List the files of a repository on a hub; for other models, the tensors
    Ls(TensorsArgs),
    /// Validate structure, checksums, shapes and values in one read
    Validate(ValidateArgs),
    /// Record a model's answers to inputs, or check another model's answers against them
    Canary {
        #[command(subcommand)]
        action: CanaryAction,
    },
    /// Scan files for code that loading them would execute: clean, suspicious, dangerous,
    /// unreadable or not examined
    Scan(ScanArgs),
    /// Compare two models: tensors, vocabulary, metadata
    Diff(DiffArgs),
    /// Dump a file's bytes, strings or structure, even if it does not open
    Debug(DebugArgs),
    /// Check best practices: licence, model card, names, alignment
    Lint(LintArgs),
    /// Explain a model, one of its tensors, or an error code
    Explain(ExplainArgs),
    /// Show a model's graph, blocks and operators with shapes, as a tree or an image; reads no
    /// weights
    Graph(GraphArgs),
    /// Explore a model on a screen: tensors, statistics, histograms, values, graph, checks
    Tui(TuiArgs),
    /// Serve the page that opens models in the browser, on this machine
    Page(PageArgs),
    /// Run a model on text, audio, images or arrays
    Run(RunArgs),
    /// Measure tokens a second, as llama-bench does, or runs a second
    Bench(BenchArgs),
    /// Trace a run: time and memory of every step, activations, attention, predictions
    Trace(TraceArgs),
    /// Tokenize text with a model's tokenizer, or decode token ids; needs no weights
    Tokenize(TokenizeArgs),
    /// Pack a model with its configuration and tokenizer into one .apr file
    Import(ImportArgs),
    /// Convert between formats and precisions
    Convert(ConvertArgs),
    /// Merge models by mergekit's methods (average, slerp, TIES, ...), or adapters into a model
    Merge(MergeArgs),
    /// Prune a model: weights become zero, layers, heads or neurons go, zeros are not stored; as
    /// convert, with its options
    Prune(ConvertArgs),
    /// Factorize weights by truncated SVD: .apr files store matrices as two factors of low rank; as
    /// convert, with its options
    Factorize(ConvertArgs),
    /// Distil a model into a smaller one, which is trained to compute what this one does; as
    /// convert, with its options
    Distill(ConvertArgs),
    /// Extract LoRA adapters from tuned models, and convert them for llama.cpp or PEFT
    Lora {
        #[command(subcommand)]
        action: LoraAction,
    },
    /// Measure an importance matrix, as llama-imatrix does, for quantize --imatrix
    Imatrix(ImatrixArgs),
    /// Quantize to GGML block types, with output identical to llama-quantize and a report of the
    /// error
    Quantize(QuantizeArgs),
    /// Write a model in another format, as a file or as a folder with its configuration
    Export(ExportArgs),
    /// Generate a key pair for signing or for decryption
    Keygen(KeygenArgs),
    /// Sign a model, in place
    Sign(SignArgs),
    /// Verify signatures against trusted keys
    Verify(VerifyArgs),
    /// Encrypt a model for a password, for recipients, or both
    Encrypt(EncryptArgs),
    /// Decrypt a model
    Decrypt(DecryptArgs),
    /// Issue, show or check a licence within a model
    License {
        #[command(subcommand)]
        action: LicenseAction,
    },
    /// Edit metadata, tensor names or the chat template, in place where possible
    Edit(EditArgs),
    /// Upgrade a file of an older APR format to the current one
    Upgrade(UpgradeArgs),
    /// Split a model into .apr shards with a manifest, or into GGUF splits
    Shard(ShardArgs),
    /// Join the shards of a manifest, or GGUF splits, into one file
    Join(JoinArgs),
    /// Plan a job in parts for several processes or machines
    Plan(PlanArgs),
    /// Run one part of a plan; a finished part is skipped
    RunPart(RunPartArgs),
    /// Check that all parts of a plan are finished, and assemble their output
    Finish(FinishArgs),
    /// Embed an id in the weights, or detect it
    Watermark {
        #[command(subcommand)]
        action: WatermarkAction,
    },
    /// Download a model's files into the cache
    Download(DownloadArgs),
    /// Show, clear or verify the cache of downloads
    Cache {
        #[command(subcommand)]
        action: CacheAction,
    },
    /// Print a shell completion script
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages into a folder
    Man {
        /// Output folder; created if missing
        dir: PathBuf,
    },
    /// Show the version, the platform, the features and the formats of this binary
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
        /// Remove files that other programs put in the Hugging Face cache, too, after a question
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
