use std::path::PathBuf;

use apr_registry::{DType, Format};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::human::parse_size;

pub(super) fn parse_shard_size(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|size| {
        if size == 0 { Err("the shard size must be 1 byte or more".to_owned()) } else { Ok(size) }
    })
}

/// The formats that options name, of those that are given.
pub(super) fn parse_format(
    formats: impl Iterator<Item = &'static Format>,
) -> impl TypedValueParser<Value = &'static Format> {
    let mut formats: Vec<_> = formats.filter_map(|format| Some((format.option?, format))).collect();
    formats.sort_by_key(|(option, _)| *option);
    let values =
        formats.iter().map(|(option, format)| PossibleValue::new(option).help(format.about));
    PossibleValuesParser::new(values.collect::<Vec<_>>()).map(move |name| {
        let known = formats.iter().find(|(option, _)| *option == name);
        // The parser lets nothing else through.
        known.map_or(&apr_registry::apr2::FORMAT, |(_, format)| format)
    })
}

/// A format to write.
pub(super) fn parse_target() -> impl TypedValueParser<Value = &'static Format> {
    parse_format(apr_registry::targets())
}

/// Arguments of every command that writes a model.
#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    /// Output path; - for standard output
    #[arg(short, long, value_name = "PATH", required_unless_present = "look")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Write tensors that fail validation, and record the failures
    #[arg(long)]
    pub(crate) relaxed: bool,
    /// Write the output even if validation or a quality gate fails (does not overwrite; see -f)
    #[arg(long, hide_short_help = true)]
    pub(crate) force: bool,
    /// Cast floats of 8 to 64 bits to fp32, fp16, bf16, f8_e4m3 (to 448) or f8_e5m2 (to 57,344)
    #[arg(long, value_enum, ignore_case = true, hide_possible_values = true, value_name = "DTYPE")]
    pub(crate) precision: Option<Precision>,
    /// Quality gate: canary file that the output must pass before it appears
    #[arg(long, value_name = "FILE", hide_short_help = true, conflicts_with = "look")]
    pub(crate) canary: Option<PathBuf>,
    /// Show the size of every tensor without writing
    #[arg(long, group = "look")]
    pub(crate) dry_run: bool,
}

/// Which tensors of a model are taken, and their names.
#[derive(Debug, Default, Args)]
pub(crate) struct TensorNames {
    /// Rename tensors, and values of an ONNX graph, by name or by regular expression (groups: \1)
    #[arg(long, value_name = "OLD=NEW")]
    pub(crate) rename: Vec<String>,
    /// Drop tensors whose names match
    #[arg(long, value_name = "GLOB")]
    pub(crate) drop: Vec<String>,
    /// Keep only tensors whose names match
    #[arg(long, value_name = "GLOB")]
    pub(crate) keep: Vec<String>,
}

impl TensorNames {
    /// Whether all tensors are taken under their own names.
    pub(crate) fn is_empty(&self) -> bool {
        [&self.rename, &self.drop, &self.keep].iter().all(|list| list.is_empty())
    }
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
