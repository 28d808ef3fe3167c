use std::path::PathBuf;

use clap::Args;

use super::write::parse_shard_size;

/// Arguments of `shard`.
#[derive(Debug, Args)]
pub(crate) struct ShardArgs {
    /// File, folder, shard index or manifest, or - for standard input
    pub(crate) model: PathBuf,
    /// Most bytes of tensors in a shard, such as 2GB; a larger tensor gets a shard of its own
    #[arg(long, value_name = "SIZE", value_parser = parse_shard_size)]
    pub(crate) size: u64,
    /// The manifest to write, OUT.apr, with the shards beside it as OUT-00001-of-00004.apr and so
    /// on; or OUT.gguf for parts as llama-gguf-split cuts them, OUT-00001-of-00004.gguf and so on
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Write tensors of a converted model that fail validation, too; --force is the same
    #[arg(long, alias = "force")]
    pub(crate) relaxed: bool,
    /// Show what would be written and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `join`.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The manifest, or any part of a split GGUF model; the others lie beside it
    pub(crate) manifest: PathBuf,
    /// Where to write; - is standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Replace what is there; it may be the manifest
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}
