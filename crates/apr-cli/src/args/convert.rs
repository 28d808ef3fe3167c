use std::path::PathBuf;

use apr::{DType, Format};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::{ContainerArgs, OnnxArgs, RequantizeArgs};
use crate::human::parse_size;

pub(super) fn parse_shard_size(text: &str) -> Result<u64, String> {
    parse_size(text)
        .and_then(|size| if size == 0 { Err("a shard of 0 bytes holds no tensor".to_owned()) } else { Ok(size) })
}

fn parse_alignment(text: &str) -> Result<u32, String> {
    let alignment =
        text.parse().ok().filter(|alignment: &u32| alignment.is_power_of_two() && (8..=65536).contains(alignment));
    alignment.ok_or_else(|| "expected a power of two from 8 to 65536".to_owned())
}

/// The formats that options name, of those that are given.
fn parse_format(formats: impl Iterator<Item = &'static Format>) -> impl TypedValueParser<Value = &'static Format> {
    let mut formats: Vec<_> = formats.filter_map(|format| Some((format.option?, format))).collect();
    formats.sort_by_key(|(option, _)| *option);
    let values = formats.iter().map(|(option, format)| PossibleValue::new(option).help(format.about));
    PossibleValuesParser::new(values.collect::<Vec<_>>()).map(move |name| {
        let known = formats.iter().find(|(option, _)| *option == name);
        // The parser lets nothing else through.
        known.map_or(&apr::apr2::FORMAT, |(_, format)| format)
    })
}

/// A format to write.
pub(super) fn parse_target() -> impl TypedValueParser<Value = &'static Format> {
    parse_format(apr::targets())
}

/// A SHA-256 digest.
pub(crate) type Sha256 = [u8; 32];

pub(super) fn parse_sha256(text: &str) -> Result<Sha256, String> {
    let bytes = base16ct::mixed::decode_vec(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "a SHA-256 has 64 hexadecimal digits".to_owned())
}

/// Arguments of every command that writes a model.
#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    /// Where to write; - is standard output
    #[arg(short, long, value_name = "PATH", required_unless_present = "look")]
    pub(crate) output: Option<PathBuf>,
    /// Replace what is there; it changes nothing else
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Write tensors that fail validation, and record what is wrong with them
    #[arg(long)]
    pub(crate) relaxed: bool,
    /// Do what --relaxed does, and pass a quality gate that fails; it replaces no file
    #[arg(long, hide_short_help = true)]
    pub(crate) force: bool,
    /// Cast floating-point tensors of 16 to 64 bits
    #[arg(long, value_enum, ignore_case = true, value_name = "DTYPE")]
    pub(crate) precision: Option<Precision>,
    /// Show the size of every tensor and write nothing
    #[arg(long, group = "look")]
    pub(crate) dry_run: bool,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Weights file (its neighbours are packed too), Hugging Face folder, shard index, or - for standard input
    pub(crate) source: PathBuf,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    /// Refuse a source of another format
    #[arg(long, value_name = "FORMAT", value_parser = parse_format(apr::formats()), hide_short_help = true)]
    pub(crate) from: Option<&'static Format>,
    /// Licence of the model, where its files state none or a wrong one
    #[arg(long, value_name = "ID")]
    pub(crate) license: Option<String>,
    /// Refuse a weights file with another SHA-256
    #[arg(long, value_name = "HEX", value_parser = parse_sha256, hide_short_help = true)]
    pub(crate) sha256: Option<Sha256>,
    /// Only the entries of a checkpoint below this prefix, such as state_dict. or model.
    #[arg(long, value_name = "P", hide_short_help = true)]
    pub(crate) prefix: Option<String>,
    /// Align tensors to 32 bytes, as GGUF does, or 64 [default: 64]
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
    /// Only the entries of a checkpoint below this prefix, such as state_dict. or model.
    #[arg(long, value_name = "P", hide_short_help = true)]
    pub(crate) prefix: Option<String>,
    /// Target format [default: by the output's extension]
    #[arg(long, value_name = "FORMAT", value_parser = parse_target())]
    pub(crate) format: Option<&'static Format>,
    /// Cut .apr, safetensors or GGUF output into files of at most this many bytes of tensors, such as 5GB
    #[arg(long, value_name = "SIZE", value_parser = parse_shard_size)]
    pub(crate) shard_size: Option<u64>,
    /// Align tensors: .apr output to 32 or 64 bytes [default: 64], GGUF to any power of two [default: the source's, or 32]
    #[arg(long, value_name = "BYTES", value_parser = parse_alignment, hide_short_help = true)]
    pub(crate) align: Option<u32>,
    /// Store the tensors of .apr output in the order in which the model uses them, and flag the file as made for streaming
    #[arg(long, hide_short_help = true)]
    pub(crate) streaming: bool,
    /// Judge every tensor of the source and write nothing
    #[arg(long, group = "look", hide_short_help = true)]
    pub(crate) analyze_source: bool,
    // What has a heading of its own comes last: what follows it would stand under it.
    #[command(flatten)]
    pub(crate) requantize: RequantizeArgs,
    #[command(flatten)]
    pub(crate) graph: OnnxArgs,
    #[command(flatten)]
    pub(crate) container: ContainerArgs,
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
    /// Cut the output into files of at most this many bytes of tensors, such as 5GB
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

/// Precision of a cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    /// 32 bits
    #[value(aliases = ["f32", "float32", "float"])]
    Fp32,
    /// 16 bits, 5 of exponent
    #[value(aliases = ["f16", "float16", "half"])]
    Fp16,
    /// 16 bits, 8 of exponent
    #[value(alias = "bfloat16")]
    Bf16,
    /// 8 bits, 4 of exponent, up to 448
    #[value(name = "f8_e4m3", aliases = ["float8_e4m3fn", "float8_e4m3"])]
    F8E4m3,
    /// 8 bits, 5 of exponent, up to 57,344
    #[value(name = "f8_e5m2", alias = "float8_e5m2")]
    F8E5m2,
}

impl Precision {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::F32,
            Self::Fp16 => DType::F16,
            Self::Bf16 => DType::BF16,
            Self::F8E4m3 => DType::F8_E4M3,
            Self::F8E5m2 => DType::F8_E5M2,
        }
    }
}
