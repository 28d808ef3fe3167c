use std::num::NonZeroU64;
use std::path::PathBuf;

use apr_lowrank::Amount;
use clap::{Args, Subcommand};

use super::lowrank::{amount, parse_energy};
use super::write::Precision;

/// What to do with adapters.
#[derive(Debug, Subcommand)]
pub(crate) enum LoraAction {
    /// Extract an adapter from a tuned model and its base, by truncated SVD of the differences of
    /// their linear layers; written as a PEFT folder
    Extract(ExtractArgs),
    /// Convert an adapter of PEFT to a GGUF file for llama.cpp, or back
    Convert(ConvertAdapterArgs),
}

/// Arguments of `lora convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertAdapterArgs {
    /// Adapter: PEFT folder or GGUF file
    #[arg(value_name = "ADAPTER")]
    pub(crate) adapter: PathBuf,
    /// Base model of the adapter, in any format
    #[arg(long, value_name = "MODEL")]
    pub(crate) base: PathBuf,
    /// Output: a .gguf file, or a folder for PEFT
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// Arguments of `lora extract`.
#[derive(Debug, Args)]
pub(crate) struct ExtractArgs {
    /// Tuned model: file, folder, shard index or hf:// location
    #[arg(value_name = "TUNED")]
    pub(crate) model: PathBuf,
    /// Base model of the tuned model
    #[arg(long, value_name = "MODEL")]
    pub(crate) base: PathBuf,
    /// Output folder
    #[arg(short, long, value_name = "DIR", required_unless_present = "dry_run")]
    pub(crate) output: Option<PathBuf>,
    /// Rank of the adapter's matrices
    #[arg(long, value_name = "R", required_unless_present = "energy", conflicts_with = "energy")]
    pub(crate) rank: Option<NonZeroU64>,
    /// Smallest rank per layer that keeps this share of the sum of squared singular values
    #[arg(long, value_name = "E", value_parser = parse_energy)]
    pub(crate) energy: Option<f64>,
    /// Linear layers to extract, by name of their weights [default: all but the output projection]
    #[arg(long, value_name = "GLOB")]
    pub(crate) target: Option<String>,
    /// Save whole copies of other modules that differ: norms, embeddings, the output projection
    #[arg(long)]
    pub(crate) save_others: bool,
    /// Name of the base model in the adapter's configuration [default: the value of --base]
    #[arg(long, value_name = "NAME")]
    pub(crate) base_name: Option<String>,
    /// Precision of the adapter's matrices: fp32, fp16 or bf16 [default: the tuned model's]
    #[arg(long, value_enum, ignore_case = true, value_name = "DTYPE", hide_possible_values = true)]
    pub(crate) precision: Option<Precision>,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Show the size of every tensor without writing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl ExtractArgs {
    /// How much is kept of a difference; the parser sees to it that one is given.
    pub(crate) fn amount(&self) -> Amount {
        amount(self.rank, self.energy).unwrap_or(Amount::Energy(1.0))
    }
}
