//! What can be typed.

mod completion;
mod container;
mod convert;
pub(crate) mod examples;
mod hints;
mod look;
mod onnx;
mod parts;
mod quantize;
mod remote;
mod run;
pub(crate) mod settings;
mod shard;
mod tokenize;
mod upgrade;
mod watermark;
mod write;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCandidates;

pub(crate) use container::{
    Compress, ContainerArgs, DecryptArgs, EditArgs, EncryptArgs, IssueArgs, KeyPurpose, KeygenArgs,
    LicenseAction, SignArgs, VerifyArgs,
};
pub(crate) use convert::{ConvertArgs, ExportArgs, ImportArgs, Sha256};
pub(crate) use look::{
    DebugArgs, DiffArgs, ExplainArgs, GraphArgs, GraphFormat, InspectArgs, LintArgs, ScanArgs,
    Sort, TensorsArgs, ValidateArgs,
};
pub(crate) use onnx::OnnxArgs;
pub(crate) use parts::{FinishArgs, PlanArgs, RunPartArgs};
pub(crate) use quantize::{Dequantized, QuantizeArgs, QuantizeOptions, RequantizeArgs};
pub(crate) use remote::{DownloadArgs, RemoteArgs};
pub(crate) use run::{PoolingWay, RunArgs};
pub(crate) use shard::{JoinArgs, ShardArgs};
pub(crate) use tokenize::TokenizeArgs;
pub(crate) use upgrade::UpgradeArgs;
pub(crate) use watermark::{DetectArgs, EmbedArgs, WatermarkAction};
pub(crate) use write::{Precision, WriteArgs};

use crate::human::parse_size;

/// One binary for every model file: look inside, check, convert.
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
            .try_get_matches()
            .and_then(|matches| Self::from_arg_matches(&matches));
        matches.map_err(hints::advised)
    }

    /// The command with all that its help has.
    pub(crate) fn command_with_help() -> clap::Command {
        examples::with_examples(Self::command())
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
    /// Threads to work with [default: all cores]
    #[arg(long, global = true, hide_short_help = true, value_name = "N", env = "APR_THREADS")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Memory to stay within, such as 512M [default: 1GiB]
    #[arg(
        long, global = true, hide_short_help = true, value_name = "SIZE", env = "APR_RAM_LIMIT",
        value_parser = parse_size
    )]
    pub(crate) max_memory: Option<u64>,
    /// Largest metadata or header to accept [default: 100MiB]
    #[arg(
        long, global = true, hide_short_help = true, value_name = "SIZE", value_parser = parse_size
    )]
    pub(crate) max_metadata: Option<u64>,
    /// Private key that opens an encrypted model, as PEM; commands that sign or mark take theirs by
    /// it
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// File or pipe whose first line is the password of an encrypted model; - is standard input
    /// [default: APR_PASSWORD, or asked for]
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Read pickled objects of this class, such as __main__.Net, for their parameters; nothing of
    /// it is run
    #[arg(long, global = true, hide_short_help = true, value_name = "CLASS")]
    pub(crate) pickle_class: Vec<String>,
    /// Family of the model, where detection fails or is wrong; auto detects it [default: auto]
    #[arg(
        long, global = true, hide_short_help = true, value_name = "NAME", value_parser = parse_arch,
        add = ArgValueCandidates::new(completion::families)
    )]
    pub(crate) arch: Option<Arch>,
    /// A family of your own, as a TOML file
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub(crate) arch_file: Vec<PathBuf>,
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
    /// Show what a model is: family, size, dtypes, metadata; reads no tensor bytes
    #[command(visible_alias = "info")]
    Inspect(InspectArgs),
    /// List the tensors, with statistics, a histogram or values
    Tensors(TensorsArgs),
    /// List the files of a repository on a hub, with sizes and what they are; of other models, the
    /// tensors
    Ls(TensorsArgs),
    /// Check structure, checksums, shapes and values in one read
    Validate(ValidateArgs),
    /// List what loading files would run, and judge them: clean, suspicious, dangerous or
    /// unreadable; runs nothing
    Scan(ScanArgs),
    /// Compare two models: tensors, vocabulary, metadata
    Diff(DiffArgs),
    /// Show raw bytes, strings, or the drama of a file, even if it does not open
    Debug(DebugArgs),
    /// Check for best practices: licence, model card, names, alignment
    Lint(LintArgs),
    /// Explain a model, one of its tensors, or an error code
    Explain(ExplainArgs),
    /// Show what a model computes: its blocks and operators with shapes, as a tree or a picture;
    /// reads no weights
    Graph(GraphArgs),
    /// Run a model: texts, sounds, pictures or arrays in, and what it makes of them out
    Run(RunArgs),
    /// Cut texts into tokens by a model's own tokenizer, or decode ids of tokens; needs no weights
    Tokenize(TokenizeArgs),
    /// Pack a model with its configuration and tokenizer into one .apr file
    Import(ImportArgs),
    /// Convert between formats and precisions
    Convert(ConvertArgs),
    /// Make a model smaller: blocks of few bits, by llama.cpp's rules and with its bytes, and a
    /// report on what it costs
    Quantize(QuantizeArgs),
    /// Write a model in another format, as a file or as a folder with its configuration
    Export(ExportArgs),
    /// Make a key pair for signing, or for receiving encrypted models
    Keygen(KeygenArgs),
    /// Sign a model, in place
    Sign(SignArgs),
    /// Verify signatures against keys that you trust
    Verify(VerifyArgs),
    /// Encrypt a model for a password, for recipients, or both
    Encrypt(EncryptArgs),
    /// Write a model without its encryption
    Decrypt(DecryptArgs),
    /// Issue, show or check a model's licence
    License {
        #[command(subcommand)]
        action: LicenseAction,
    },
    /// Change metadata, names, or the chat template; in place where that fits
    Edit(EditArgs),
    /// Write a file of an older APR format as an .apr file of today
    Upgrade(UpgradeArgs),
    /// Cut a model into .apr files of a size, with a manifest that stands for all of them, or into
    /// parts of GGUF
    Shard(ShardArgs),
    /// Put the shards that a manifest names, or the parts of a GGUF model, together into one file
    Join(JoinArgs),
    /// Cut a job into parts that several processes or machines can do, and write down what each of
    /// them reads and writes
    Plan(PlanArgs),
    /// Do one part of a plan; one that is done already is left as it is
    RunPart(RunPartArgs),
    /// Check that all parts of a plan are done, and put them together
    Finish(FinishArgs),
    /// Hide an id in the weights, or read it: whose copy of a model is this
    Watermark {
        #[command(subcommand)]
        action: WatermarkAction,
    },
    /// Fetch the files of a model into the cache, and nothing more
    Download(DownloadArgs),
    /// Show, clear or verify what was downloaded
    Cache {
        #[command(subcommand)]
        action: CacheAction,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a folder
    Man {
        /// The folder; made if need be
        dir: PathBuf,
    },
}

/// What to do with the cache.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheAction {
    /// Show where it is and what it holds
    Info,
    /// Remove what it holds
    Clear {
        /// Only this model: hf://ORG/REPO, or the address of a file
        #[arg(value_name = "MODEL")]
        model: Option<String>,
        /// Only what was not used for so long, such as 30d
        #[arg(long, value_name = "DAYS", value_parser = parse_days)]
        older: Option<u64>,
        /// Show what would be removed, and remove nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Compare the files with the digests that their server gave
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
