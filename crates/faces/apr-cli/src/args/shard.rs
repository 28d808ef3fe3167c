use std::path::PathBuf;

use clap::Args;

use super::write::parse_shard_size;

/// Arguments of `shard`.
#[derive(Debug, Args)]
#[command(override_usage = "apr shard [OPTIONS] --size <SIZE> -o <PATH> <MODEL>")]
pub(crate) struct ShardArgs {
    /// File, folder, shard index or manifest, or - for standard input
    pub(crate) model: PathBuf,
    /// Maximum tensor bytes per shard, such as 2GB; a larger tensor gets its own shard
    #[arg(long, value_name = "SIZE", value_parser = parse_shard_size)]
    pub(crate) size: u64,
    /// Manifest OUT.apr with shards OUT-00001-of-00004.apr, or OUT.gguf for splits
    /// OUT-00001-of-00004.gguf, as llama-gguf-split writes them
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Write tensors that fail validation, and record the failures; alias --force
    #[arg(long, alias = "force")]
    pub(crate) relaxed: bool,
    /// Show what would be written without writing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `join`.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// Manifest, or any split of a GGUF model; the other files must be in the same folder
    pub(crate) manifest: PathBuf,
    /// Output path; - for standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing output; it may be the manifest
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}
