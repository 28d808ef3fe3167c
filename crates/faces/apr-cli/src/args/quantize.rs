use std::num::NonZeroUsize;
use std::path::PathBuf;

use apr_ops::products::Calibration;
use apr_quantize::{Scheme, TensorType};
use apr_registry::{DType, Format};
use apr_view::{NamePattern, parse_filter};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCandidates;

use super::{ContainerArgs, WriteArgs, completion};

fn parse_scheme(name: &str) -> Result<Scheme, String> {
    Scheme::parse(name).map_err(|error| error.to_string())
}

fn parse_dtype(name: &str) -> Result<DType, String> {
    apr_quantize::parse_dtype(name).map_err(|error| error.to_string())
}

/// A pattern of tensor names and the type that they get.
fn parse_rule(rule: &str) -> Result<(String, TensorType), String> {
    let (pattern, wanted) =
        rule.rsplit_once('=').ok_or("expected PATTERN=TYPE, such as '*.ffn_down.weight=q6_k'")?;
    let wanted = TensorType::parse(wanted).map_err(|error| error.to_string())?;
    Ok((pattern.to_owned(), wanted))
}

/// A limit for an error.
pub(super) fn parse_limit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(drift) if drift >= 0.0 => Ok(drift),
        _ => Err("expected a number that is not negative, such as 0.05".to_owned()),
    }
}

/// Parses a pattern of names.
fn parse_pattern(text: &str) -> Result<NamePattern, String> {
    parse_filter(text).map_err(|error| error.message().to_owned())
}

/// How to quantize, and what it may cost.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Quantization")]
pub(crate) struct QuantizeOptions {
    /// Type of the token embeddings
    #[arg(
        long, value_name = "TYPE", value_parser = parse_dtype,
        add = ArgValueCandidates::new(completion::dtypes), hide_short_help = true
    )]
    pub(crate) embedding_type: Option<DType>,
    /// Type of the output projection
    #[arg(
        long, value_name = "TYPE", value_parser = parse_dtype,
        add = ArgValueCandidates::new(completion::dtypes), hide_short_help = true
    )]
    pub(crate) output_type: Option<DType>,
    /// Type of tensors whose names match; may be given several times, the first match counts
    #[arg(long, value_name = "GLOB=TYPE", value_parser = parse_rule, hide_short_help = true)]
    pub(crate) tensor_type: Vec<(String, TensorType)>,
    /// One type for all tensors, without the mix's exceptions
    #[arg(long, hide_short_help = true)]
    pub(crate) pure: bool,
    /// Requantize quantized tensors; errors add up
    #[arg(long, hide_short_help = true)]
    pub(crate) requantize: bool,
    /// llama.cpp importance matrix: GGUF, or the older .dat
    #[arg(long, value_name = "FILE", conflicts_with = "calibration", hide_short_help = true)]
    pub(crate) imatrix: Option<PathBuf>,
    /// Calibration data, file or folder: text, audio, images, arrays, or samples as CSV
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) calibration: Option<PathBuf>,
    /// Activation ranges for w8a8 in ONNX: minmax, entropy, percentile:99.9 [default: minmax]
    #[arg(
        long, value_name = "METHOD", value_parser = Calibration::parse, requires = "calibration",
        hide_short_help = true
    )]
    pub(crate) calibration_method: Option<Calibration>,
    /// Nodes of an ONNX file that compute in single precision, with w8a8 or --precision fp16
    #[arg(long, value_name = "GLOB", value_parser = parse_pattern, hide_short_help = true)]
    pub(crate) exclude_node: Vec<NamePattern>,
    /// Quality gate: maximum error 10 % of the weights' norm, 50 % in one tensor, 8 degrees
    #[arg(long)]
    pub(crate) quality_check: bool,
    /// Quality gate: maximum relative error norm; five times that in one tensor
    #[arg(long, value_name = "X", value_parser = parse_limit, hide_short_help = true)]
    pub(crate) max_drift: Option<f64>,
}

/// Arguments of `import`, `convert` and `export` about quantization.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Quantization")]
pub(crate) struct RequantizeArgs {
    /// Quantize: q8_0, q4_0, q4_k_m, int8 ...; `apr quantize --help` lists all
    #[arg(
        long, value_name = "TYPE", value_parser = parse_scheme,
        add = ArgValueCandidates::new(completion::schemes)
    )]
    pub(crate) quantize: Option<Scheme>,
    /// Dequantize to floats of 32 or 16 bits: f32, f16 or bf16
    #[arg(
        long, value_enum, ignore_case = true, value_name = "DTYPE", hide_possible_values = true,
        conflicts_with_all = ["quantize", "keep_quantization"]
    )]
    pub(crate) dequantize: Option<Dequantized>,
    /// Keep quantized tensors unchanged (the default); merge: quantize like the first model
    #[arg(long, conflicts_with = "quantize", hide_short_help = true)]
    pub(crate) keep_quantization: bool,
    #[command(flatten)]
    pub(crate) options: QuantizeOptions,
}

/// Arguments of `quantize`.
#[derive(Debug, Args)]
#[command(after_help = TYPES)]
pub(crate) struct QuantizeArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Type or mix of types
    #[arg(
        short = 't', short_alias = 's', long = "type", value_name = "TYPE",
        value_parser = parse_scheme, add = ArgValueCandidates::new(completion::schemes),
        required_unless_present = "search"
    )]
    pub(crate) scheme: Option<Scheme>,
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    /// Only tensors whose names start with this prefix, such as `state_dict.`
    #[arg(long, value_name = "P", hide_short_help = true)]
    pub(crate) prefix: Option<String>,
    /// Target format [default: by the output's extension]
    #[arg(long, value_name = "FORMAT", value_parser = super::write::parse_target())]
    pub(crate) format: Option<&'static Format>,
    /// Maximum tensor bytes per shard, such as 5GB
    #[arg(long, value_name = "SIZE", value_parser = super::write::parse_shard_size)]
    pub(crate) shard_size: Option<u64>,
    // What has a heading of its own comes last: what follows it would stand under it.
    #[command(flatten)]
    pub(crate) options: QuantizeOptions,
    #[command(flatten)]
    pub(crate) container: ContainerArgs,
}

/// Arguments about types that are chosen by their effect.
#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Choose the type of each tensor by its measured effect on the outputs: on --calibration, for
    /// --bits-per-weight or --max-size; in folders, --type names the smallest
    #[arg(
        long, requires = "calibration", conflicts_with_all = [
            "embedding_type", "output_type", "tensor_type", "pure", "imatrix", "prefix",
            "calibration_method", "exclude_node",
        ]
    )]
    pub(crate) search: bool,
    /// Maximum bits per weight over all tensors, for --search
    #[arg(
        long, value_name = "N", requires = "search", conflicts_with = "max_size",
        value_parser = parse_bits
    )]
    pub(crate) bits_per_weight: Option<f64>,
    /// Maximum size of the output, for --search
    #[arg(
        long, value_name = "SIZE", requires = "search",
        value_parser = crate::human::parse_size
    )]
    pub(crate) max_size: Option<u64>,
    /// Window size in tokens for --search [default: 512, or the model's context if that is shorter]
    #[arg(long, value_name = "N", requires = "search", hide_short_help = true)]
    pub(crate) context: Option<usize>,
    /// Number of windows for --search, or of lines for models that do not generate text [default:
    /// 40]
    #[arg(long, value_name = "N", requires = "search", hide_short_help = true)]
    pub(crate) chunks: Option<NonZeroUsize>,
}

fn parse_bits(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(bits) if (0.5..=64.0).contains(&bits) => Ok(bits),
        _ => Err("expected bits per weight, such as 4.25".to_owned()),
    }
}

const TYPES: &str = "\
Types:
  q8_0 q5_1 q5_0 q4_1 q4_0                 blocks of 32; output in q6_k as in llama.cpp
  q2_k q3_k_s q3_k_m q3_k_l                mixes of K-quants by llama.cpp's rules
  q2_k_s                                   mix of K-quants; requires --imatrix
  q4_k_s q4_k_m q5_k_s q5_k_m q6_k
  iq4_nl iq4_xs                            non-linear, 4.5 and 4.25 bits
  iq3_m iq3_s iq3_xs                       grid points, 3.3 to 3.7 bits
  iq3_xxs iq2_m iq2_s iq2_xs               grid points, 2.3 to 3.1 bits; require --imatrix
  iq2_xxs iq1_m iq1_s                      grid points, 1.6 to 2.1 bits; require --imatrix
  tq1_0 tq2_0 q1_0 q2_0 mxfp4 nvfp4        ternary weights; signs; 2 bits; 4-bit floats
  mxfp4_moe                                experts in mxfp4, the rest in q8_0
  int8 int4                                .apr: a scale per row, a scale per group of 32
  fp8 w8a8 w4a16 w4a16-asym gptq-4         folders that vLLM and transformers load; mxfp4, nvfp4
  mlx-4 mlx-6 mlx-8                        folders that mlx-lm loads
  f8_e4m3 f8_e5m2 fp16 bf16 fp32           floats";

/// Floats that quantized tensors become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dequantized {
    /// 32 bits
    #[value(aliases = ["fp32", "float32", "float"])]
    F32,
    /// 16 bits, 5 of exponent
    #[value(aliases = ["fp16", "float16", "half"])]
    F16,
    /// 16 bits, 8 of exponent
    #[value(alias = "bfloat16")]
    Bf16,
}

impl Dequantized {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }
}
