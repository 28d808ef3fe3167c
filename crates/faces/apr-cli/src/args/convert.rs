use std::path::PathBuf;

use apr_registry::Format;
use clap::Args;

use super::write::{TensorNames, WriteArgs, parse_format, parse_shard_size, parse_target};
use super::{ContainerArgs, DistillArgs, LowRankArgs, OnnxArgs, PruneArgs, RequantizeArgs};

fn parse_alignment(text: &str) -> Result<u32, String> {
    let alignment = text
        .parse()
        .ok()
        .filter(|alignment: &u32| alignment.is_power_of_two() && (8..=65536).contains(alignment));
    alignment.ok_or_else(|| "expected a power of two from 8 to 65536".to_owned())
}

/// A SHA-256 digest.
pub(crate) type Sha256 = [u8; 32];

pub(super) fn parse_sha256(text: &str) -> Result<Sha256, String> {
    let bytes = base16ct::mixed::decode_vec(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "a SHA-256 has 64 hexadecimal digits".to_owned())
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Weights file (packed with the companion files in its folder), Hugging Face folder, shard
    /// index, or - for standard input
    pub(crate) source: PathBuf,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    /// Required format of the source
    #[arg(
        long, value_name = "FORMAT", value_parser = parse_format(apr_registry::formats()),
        hide_short_help = true
    )]
    pub(crate) from: Option<&'static Format>,
    /// Licence of the model, instead of the licence in its files
    #[arg(long, value_name = "ID")]
    pub(crate) license: Option<String>,
    /// Required SHA-256 of the weights file
    #[arg(long, value_name = "HEX", value_parser = parse_sha256, hide_short_help = true)]
    pub(crate) sha256: Option<Sha256>,
    /// Only tensors whose names start with this prefix, such as `state_dict.`
    #[arg(long, value_name = "P", hide_short_help = true)]
    pub(crate) prefix: Option<String>,
    /// Tensor alignment: 32 bytes, as in GGUF, or 64 [default: 64]
    #[arg(long, value_name = "BYTES", value_parser = parse_alignment, hide_short_help = true)]
    pub(crate) align: Option<u32>,
    // What has a heading of its own comes last: what follows it would stand under it.
    #[command(flatten)]
    pub(crate) requantize: RequantizeArgs,
    #[command(flatten)]
    pub(crate) container: ContainerArgs,
}

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    /// Only tensors whose names start with this prefix, such as `state_dict.`
    #[arg(long, value_name = "P", hide_short_help = true)]
    pub(crate) prefix: Option<String>,
    /// Only the vision tower and projector (mmproj), for llama.cpp's `--mmproj`
    #[arg(long, hide_short_help = true)]
    pub(crate) mmproj: bool,
    #[command(flatten)]
    pub(crate) names: TensorNames,
    /// Target format [default: by the output's extension]
    #[arg(long, value_name = "FORMAT", value_parser = parse_target())]
    pub(crate) format: Option<&'static Format>,
    /// Maximum tensor bytes per shard of .apr, safetensors or GGUF output, such as 5GB
    #[arg(long, value_name = "SIZE", value_parser = parse_shard_size)]
    pub(crate) shard_size: Option<u64>,
    /// Tensor alignment: .apr 32 or 64, GGUF a power of two [default: 64; GGUF: as the source]
    #[arg(long, value_name = "BYTES", value_parser = parse_alignment, hide_short_help = true)]
    pub(crate) align: Option<u32>,
    /// Order the tensors of .apr output as the model uses them, for streaming
    #[arg(long, hide_short_help = true)]
    pub(crate) streaming: bool,
    /// Validate every tensor of the source without writing
    #[arg(long, group = "look", hide_short_help = true)]
    pub(crate) analyze_source: bool,
    // What has a heading of its own comes last: what follows it would stand under it.
    #[command(flatten)]
    pub(crate) prune: PruneArgs,
    #[command(flatten)]
    pub(crate) lowrank: LowRankArgs,
    #[command(flatten)]
    pub(crate) distill: DistillArgs,
    #[command(flatten)]
    pub(crate) requantize: RequantizeArgs,
    #[command(flatten)]
    pub(crate) graph: OnnxArgs,
    #[command(flatten)]
    pub(crate) container: ContainerArgs,
}

impl ConvertArgs {
    /// Whether another model is written than the one that is read.
    pub(crate) fn changes_model(&self) -> bool {
        self.changes_weights()
            || self.prune.has_less()
            || self.prune.sparse.is_some()
            || self.distill.is_asked()
            || self.distill.data.is_some()
            || self.prune.target.is_some()
            || self.prune.prune_method.is_some()
            || self.lowrank.dense
    }

    /// Whether the types of the weights are all that is asked for.
    pub(crate) fn asks_types_alone(&self) -> bool {
        !self.changes_model()
            && self.names.is_empty()
            && self.prefix.is_none()
            && !self.mmproj
            && self.shard_size.is_none()
            && self.align.is_none()
            && !self.streaming
            && self.container.is_empty()
    }

    /// Whether what is written is another model, which calibration data may be for.
    pub(crate) fn changes_weights(&self) -> bool {
        let chooses = self.prune.has_less() && self.requantize.options.calibration.is_some();
        self.prune.has_zeros() || self.lowrank.is_asked() || chooses
    }
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    /// Target format [default: by the output's extension; without one, a safetensors folder]
    #[arg(long, value_name = "FORMAT", value_parser = parse_target())]
    pub(crate) format: Option<&'static Format>,
    /// Maximum tensor bytes per shard, such as 5GB
    #[arg(long, value_name = "SIZE", value_parser = parse_shard_size)]
    pub(crate) shard_size: Option<u64>,
    // What has a heading of its own comes last: what follows it would stand under it.
    #[command(flatten)]
    pub(crate) requantize: RequantizeArgs,
    #[command(flatten)]
    pub(crate) graph: OnnxArgs,
    #[command(flatten)]
    pub(crate) container: ContainerArgs,
}
