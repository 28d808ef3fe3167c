use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use super::completion;
use super::convert::{Sha256, parse_sha256};

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Files, folders, shard indexes, or - for standard input
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) models: Vec<PathBuf>,
    /// Show the first tokens of the vocabulary and the special ones
    #[arg(long)]
    pub(crate) vocab: bool,
    /// Show the mel filterbank and how sound or images are prepared
    #[arg(long)]
    pub(crate) filters: bool,
    /// Show how the tensors are quantized
    #[arg(long)]
    pub(crate) quantization: bool,
    /// Show the fields of the format's header
    #[arg(long)]
    pub(crate) header: bool,
    /// Show everything: header, vocabulary, all metadata, all files
    #[arg(long)]
    pub(crate) full: bool,
}

/// Arguments of `tensors`.
#[derive(Debug, Args)]
pub(crate) struct TensorsArgs {
    /// Files, folders, shard indexes, or - for standard input
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) models: Vec<PathBuf>,
    /// Read the tensors and show min, max, mean, std, L2, NaN, infinities and zeros
    #[arg(long)]
    pub(crate) stats: bool,
    /// Show the distribution of one tensor
    #[arg(
        long, value_name = "NAME", conflicts_with_all = ["stats", "filter", "sort"],
        add = ArgValueCompleter::new(completion::tensors)
    )]
    pub(crate) hist: Option<String>,
    /// Show values of a tensor: NAME, or a part of it as NAME[0:4, -1]
    #[arg(
        long, value_name = "NAME[RANGES]",
        conflicts_with_all = ["stats", "filter", "sort", "hist", "offset"],
        add = ArgValueCompleter::new(completion::tensors)
    )]
    pub(crate) values: Option<String>,
    /// Only tensors whose name matches, such as '*.weight'; without a wildcard, whose name contains
    /// it
    #[arg(long, value_name = "GLOB")]
    pub(crate) filter: Option<String>,
    /// Order of the list
    #[arg(long, value_enum, value_name = "BY", default_value = "offset")]
    pub(crate) sort: Sort,
    /// Show where the tensors lie in the file
    #[arg(long)]
    pub(crate) offset: bool,
}

/// Order of a list of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// As stored
    Offset,
    /// By name
    Name,
    /// Largest first
    Size,
    /// By dtype
    Dtype,
}

/// Arguments of `validate`. Without one of the check options, all checks are made.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Check the file's checksum and the tensors' digests
    #[arg(long)]
    pub(crate) checksum: bool,
    /// Look for NaN and infinite values
    #[arg(long)]
    pub(crate) nan_check: bool,
    /// Look for tensors of zeros
    #[arg(long)]
    pub(crate) zero_check: bool,
    /// Check names and shapes against the model's family, and GGUF's hyperparameters
    #[arg(long)]
    pub(crate) shapes: bool,
    /// Check means and deviations of tensors against the model's family
    #[arg(long)]
    pub(crate) physics: bool,
    /// Verify that a trusted key signed the model; the keys are those of --trusted and of the
    /// configuration
    #[arg(long)]
    pub(crate) signature: bool,
    /// Public key that you trust; may be given several times
    #[arg(long, value_name = "PUB")]
    pub(crate) trusted: Vec<PathBuf>,
    /// Compare the file's SHA-256 with this one
    #[arg(long, value_name = "HEX", value_parser = parse_sha256)]
    pub(crate) sha256: Option<Sha256>,
    /// Ask the hub that the model came from whether its commit still has the files whose digests
    /// are written down
    #[arg(long)]
    pub(crate) source: bool,
    /// Write what was found, also what a pickle would run, as SARIF; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
    /// Fail on warnings too
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Arguments of `scan`.
#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Files and folders, or - for standard input; of a folder, all that is in it and below
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Exit with 0 where nothing was found, although files of unknown kinds were not examined
    #[arg(long)]
    pub(crate) allow_unexamined: bool,
    /// Write what was found as SARIF, for code scanning services; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The left model: file, folder or shard index
    pub(crate) left: PathBuf,
    /// The right model
    pub(crate) right: PathBuf,
    /// JSON object of tensors that are called differently: left name to right name
    #[arg(long, value_name = "FILE")]
    pub(crate) tensor_mapping: Option<PathBuf>,
    /// Largest difference between two values that still counts as a match
    #[arg(long, value_name = "X", default_value = "1e-6")]
    pub(crate) tolerance: f64,
    /// Read tensors whose files state equal digests, too: a file may be damaged
    #[arg(long)]
    pub(crate) read: bool,
    /// Exit with 5 when the models differ
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// Exit with 5 when the L2 distance is larger, or a tensor can't be compared
    #[arg(long, value_name = "X", value_parser = super::quantize::parse_limit)]
    pub(crate) max_l2: Option<f64>,
    /// Only tensors whose name matches, each with its own line; without a wildcard, whose name
    /// contains it
    #[arg(long, value_name = "GLOB")]
    pub(crate) tensors: Option<String>,
}

/// Arguments of `debug`.
#[derive(Debug, Args)]
pub(crate) struct DebugArgs {
    /// The file, or - for standard input
    pub(crate) file: PathBuf,
    /// Tell it as a drama
    #[arg(long)]
    pub(crate) drama: bool,
    /// Show bytes in hexadecimal
    #[arg(long, conflicts_with = "drama")]
    pub(crate) hex: bool,
    /// Show printable strings
    #[arg(long, conflicts_with_all = ["drama", "hex"])]
    pub(crate) strings: bool,
    /// Most bytes or strings to show [default: 256 bytes, 100 strings]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Show the bytes of this tensor
    #[arg(
        long, value_name = "NAME", requires = "hex",
        add = ArgValueCompleter::new(completion::tensors)
    )]
    pub(crate) tensor: Option<String>,
}

/// Arguments of `lint`.
#[derive(Debug, Args)]
pub(crate) struct LintArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Exit with 5 when there is a warning
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
#[command(override_usage = "apr explain <MODEL|E00x>\n       apr explain [MODEL] --tensor <NAME>")]
pub(crate) struct ExplainArgs {
    /// A model, or an error code from E001 to E008
    #[arg(required_unless_present = "tensor", value_hint = clap::ValueHint::AnyPath)]
    pub(crate) subject: Option<OsString>,
    /// Explain this tensor: of the model, or of any family where no model is given
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::tensors))]
    pub(crate) tensor: Option<String>,
}

/// Arguments of `graph`.
#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// What to write
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "tree")]
    pub(crate) format: GraphFormat,
    /// The file to write to, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace a file that exists
    #[arg(short = 'f', long, requires = "output")]
    pub(crate) overwrite: bool,
    /// How deep groups are opened [default: as deep as it stays legible]
    #[arg(long, value_name = "N")]
    pub(crate) depth: Option<usize>,
    /// Show repeated layers one by one
    #[arg(long)]
    pub(crate) unfold: bool,
    /// Show one node: what it reads and makes, and its attributes
    #[arg(long, value_name = "NAME", conflicts_with_all = ["depth", "unfold"])]
    pub(crate) node: Option<String>,
    /// The part of a model that has several, such as encoder_model
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// Size that costs are told for, such as sequence_length=512 [default: 1 for batches, 0 for the
    /// past, else 128]
    #[arg(long, value_name = "NAME=N", value_parser = parse_named_size)]
    pub(crate) size: Vec<(String, u64)>,
    /// With keys and values of earlier tokens going in and out
    #[arg(long)]
    pub(crate) with_past: bool,
    /// Version of ONNX's operators [default: the file's; else 17]
    #[arg(long, value_name = "N")]
    pub(crate) opset: Option<i64>,
    /// What the head is for, such as text-generation or CausalLM [default: what the configuration
    /// says]
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,
}

/// How a graph is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Rows with shapes and parameters
    Tree,
    /// A picture, light or dark as the reader's system is
    Svg,
    /// What Graphviz reads
    Dot,
    /// What Mermaid reads, in Markdown
    Mermaid,
    /// Everything, for programs
    Json,
}

/// `[NAME=]FILE`; what comes before the `=` is no name where it looks like a path.
pub(super) fn parse_named_file(text: &str) -> Result<(Option<String>, PathBuf), String> {
    match text.split_once('=').filter(|(name, _)| !name.starts_with(['.', '/'])) {
        Some((name, file)) => Ok((Some(name.to_owned()), file.into())),
        None => Ok((None, text.into())),
    }
}

fn parse_named_size(text: &str) -> Result<(String, u64), String> {
    let (name, size) = text.split_once('=').ok_or("write it as NAME=N")?;
    let size = size.parse().map_err(|_| format!("'{size}' is not a number"))?;
    Ok((name.to_owned(), size))
}
