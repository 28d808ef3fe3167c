//! Arguments of `canary`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do with a canary.
#[derive(Debug, Subcommand)]
pub(crate) enum CanaryAction {
    /// Record a model's answers to inputs as a canary file
    Create(CanaryCreateArgs),
    /// Check a model's answers against a canary file; exit with 5 if one differs
    Check(CanaryCheckArgs),
}

/// Arguments of `canary create`.
#[derive(Debug, Args)]
pub(crate) struct CanaryCreateArgs {
    /// File, folder or shard index
    pub(crate) model: PathBuf,
    /// Prompt, may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Vec<String>,
    /// Text file whose lines become prompts, chosen to cover the most distinct tokens
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Maximum number of prompts of --from
    #[arg(long, value_name = "N", default_value = "20", requires = "from")]
    pub(crate) count: NonZeroUsize,
    /// Expected answer to each prompt, in their order [default: the model's own]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, requires = "prompt")]
    pub(crate) expect: Vec<String>,
    /// Input file, may be given several times: text (.txt), audio, images, arrays (.npy, .npz,
    /// .safetensors, .json)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// Prompt as token ids, comma-separated
    #[arg(
        long, value_name = "IDS", value_delimiter = ',', allow_hyphen_values = true,
        value_parser = super::run::parse_token
    )]
    pub(crate) tokens: Vec<i64>,
    /// Apply the model's chat template to the prompts
    #[arg(long)]
    pub(crate) chat: bool,
    /// System prompt of the chat
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Maximum number of tokens to generate [default: the model's own, else 128]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Allow rounding differences only: for checks of the same model, not of a quantized copy
    #[arg(long)]
    pub(crate) strict: bool,
    /// Embed input files in the canary file, instead of naming them with their SHA-256
    #[arg(long, requires = "input")]
    pub(crate) embed: bool,
    /// Canary file to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing canary file
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// Arguments of `canary check`.
#[derive(Debug, Args)]
pub(crate) struct CanaryCheckArgs {
    /// File, folder or shard index
    pub(crate) model: PathBuf,
    /// Canary file, as written by canary create
    #[arg(long, value_name = "FILE")]
    pub(crate) canary: PathBuf,
    #[command(flatten)]
    pub(crate) markdown: super::look::MarkdownArgs,
}
