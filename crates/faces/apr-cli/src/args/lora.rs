use std::num::NonZeroU64;
use std::path::PathBuf;

use apr_lora::{CombineMethod, MajoritySign};
use apr_lowrank::Amount;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};

use super::lowrank::{amount, parse_energy};
use super::merge::parse_adapter;
use super::write::Precision;

/// What to do with adapters.
#[derive(Debug, Subcommand)]
pub(crate) enum LoraAction {
    /// Extract an adapter from a tuned model and its base, by truncated SVD of the differences of
    /// their linear layers; written as a PEFT folder
    Extract(ExtractArgs),
    /// Convert an adapter of PEFT to a GGUF file for llama.cpp, or back
    Convert(ConvertAdapterArgs),
    /// Merge adapters of one model into one adapter; exact unless a method or a rank is given
    Merge(MergeAdaptersArgs),
    /// Lower the rank of an adapter, by truncated SVD of what its matrices add to weights
    Resize(ResizeAdapterArgs),
}

/// Arguments of `lora merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeAdaptersArgs {
    /// Adapters, each multiplied by X [default: 1]: PEFT folders, or files of image models
    #[arg(value_name = "ADAPTER[:X]", required = true, value_parser = parse_adapter)]
    pub(crate) adapters: Vec<(PathBuf, f64)>,
    #[command(flatten)]
    pub(crate) write: WriteAdapterArgs,
    /// Method of PEFT [default: cat]: cat puts matrices side by side, which is exact; the others
    /// combine them element by element, or with --rank or --energy their products
    #[arg(short, long, value_name = "METHOD", value_parser = parse_method())]
    pub(crate) method: Option<CombineMethod>,
    /// Rank of the result, by truncated SVD [default for cat: the sum of the ranks]
    #[arg(long, value_name = "R", conflicts_with = "energy")]
    pub(crate) rank: Option<NonZeroU64>,
    /// Smallest rank per module that keeps this share of the sum of squared singular values
    #[arg(long, value_name = "E", value_parser = parse_energy)]
    pub(crate) energy: Option<f64>,
    /// Share of the elements that ties, dare_linear, dare_ties and magnitude_prune keep
    #[arg(long, value_name = "D", value_parser = parse_energy)]
    pub(crate) density: Option<f64>,
    /// How ties and dare_ties elect the sign of an element [default: total]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) majority_sign: Option<Majority>,
    /// Random seed of dare_linear and dare_ties [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

impl MergeAdaptersArgs {
    /// Returns how much of each change is kept, or `None` for all of it.
    pub(crate) fn amount(&self) -> Option<Amount> {
        amount(self.rank, self.energy)
    }
}

/// How the sign of an element is elected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Majority {
    /// The sign of the sum
    Total,
    /// The sign that most adapters have
    Frequency,
}

impl From<Majority> for MajoritySign {
    fn from(majority: Majority) -> Self {
        match majority {
            Majority::Total => Self::Total,
            Majority::Frequency => Self::Frequency,
        }
    }
}

fn parse_method() -> impl TypedValueParser<Value = CombineMethod> {
    PossibleValuesParser::new(CombineMethod::ALL.map(CombineMethod::name)).map(|name| {
        let method = CombineMethod::ALL.into_iter().find(|method| method.name() == name);
        method.unwrap_or_default()
    })
}

/// Arguments of `lora resize`.
#[derive(Debug, Args)]
pub(crate) struct ResizeAdapterArgs {
    /// Adapter: PEFT folder, or file of image models
    #[arg(value_name = "ADAPTER")]
    pub(crate) adapter: PathBuf,
    #[command(flatten)]
    pub(crate) write: WriteAdapterArgs,
    /// Rank of the result
    #[arg(long, value_name = "R", required_unless_present = "energy", conflicts_with = "energy")]
    pub(crate) rank: Option<NonZeroU64>,
    /// Smallest rank per module that keeps this share of the sum of squared singular values
    #[arg(long, value_name = "E", value_parser = parse_energy)]
    pub(crate) energy: Option<f64>,
}

impl ResizeAdapterArgs {
    /// Returns how much of each change is kept.
    pub(crate) fn amount(&self) -> Option<Amount> {
        amount(self.rank, self.energy)
    }
}

/// Arguments about the adapter that a command writes.
#[derive(Debug, Args)]
pub(crate) struct WriteAdapterArgs {
    /// Output: a folder for PEFT, a .safetensors file for image models
    #[arg(short, long, value_name = "PATH", required_unless_present = "dry_run")]
    pub(crate) output: Option<PathBuf>,
    /// Precision of the adapter's matrices: fp32, fp16 or bf16 [default: the first adapter's]
    #[arg(long, value_enum, ignore_case = true, value_name = "DTYPE", hide_possible_values = true)]
    pub(crate) precision: Option<Precision>,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Show the size of every tensor without writing
    #[arg(long)]
    pub(crate) dry_run: bool,
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
