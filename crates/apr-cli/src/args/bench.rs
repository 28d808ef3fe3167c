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
    /// Length of the prompt, may be several; 0 = none
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub(crate) prompt_tokens: Vec<usize>,
    /// Number of tokens to generate, may be several; 0 = none
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "128")]
    pub(crate) generated_tokens: Vec<usize>,
    /// Number of tokens before the prompt or the text, which do not count; may be several
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub(crate) depth: Vec<usize>,
    /// Numbers of threads to measure with, one after the other [default: that of --threads]
    #[arg(short = 't', long, value_name = "N", value_delimiter = ',')]
    pub(crate) thread_counts: Vec<NonZeroUsize>,
    /// How often each is measured, after a run that does not count
    #[arg(short = 'r', long, value_name = "N", default_value = "5")]
    pub(crate) repeat: NonZeroUsize,
    /// Part of a model that has several, such as encoder_model
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// Type of the keys and values that are kept of earlier tokens
    #[arg(long, value_name = "TYPE")]
    pub(crate) cache_type: Option<CacheTypeName>,
    /// Multiply decoded weights in single precision, instead of 8-bit activations for weights that
    /// are quantized in blocks
    #[arg(long)]
    pub(crate) exact: bool,
}
