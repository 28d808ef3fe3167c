//! Arguments of `bench`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::run::CacheTypeName;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Prompt length in tokens (comma-separated list); 0 = none
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub(crate) prompt_tokens: Vec<usize>,
    /// Number of tokens to generate (comma-separated list); 0 = none
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "128")]
    pub(crate) generated_tokens: Vec<usize>,
    /// Context depth: tokens already in the KV cache before each test (comma-separated list)
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub(crate) depth: Vec<usize>,
    /// Thread counts to measure with (comma-separated list) [default: --threads]
    #[arg(short = 't', long, value_name = "N", value_delimiter = ',')]
    pub(crate) thread_counts: Vec<NonZeroUsize>,
    /// Repetitions per test, after one warm-up run
    #[arg(short = 'r', long, value_name = "N", default_value = "5")]
    pub(crate) repeat: NonZeroUsize,
    /// Part of a model that has several, such as encoder_model
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// Dtype of the KV cache
    #[arg(long, value_name = "TYPE")]
    pub(crate) cache_type: Option<CacheTypeName>,
    /// Multiply decoded weights in single precision, instead of 8-bit activations for weights that
    /// are quantized in blocks
    #[arg(long)]
    pub(crate) exact: bool,
}
