use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use super::completion;
use super::convert::{Sha256, parse_sha256};
use super::onnx::parse_task;
use super::run::{CacheTypeName, parse_token};

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Files, folders, shard indexes, or - for standard input
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) models: Vec<PathBuf>,
    /// Show special tokens and the first entries of the vocabulary
    #[arg(long)]
    pub(crate) vocab: bool,
    /// Show audio and image preprocessing: mel filterbank, rates, sizes
    #[arg(long)]
    pub(crate) filters: bool,
    /// Show quantization by dtype
    #[arg(long)]
    pub(crate) quantization: bool,
    /// Show the fields of the file header
    #[arg(long)]
    pub(crate) header: bool,
    /// Show everything: header, vocabulary, all metadata, all companion files
    #[arg(long)]
    pub(crate) full: bool,
    /// Estimate the memory of a run: weights by dtype, KV cache, activations
    #[arg(long)]
    pub(crate) memory: bool,
    /// Number of tokens for --memory [default: the model's context, else 128]
    #[arg(long, value_name = "N", requires = "memory")]
    pub(crate) context: Option<NonZeroUsize>,
    /// Batch size for --memory [default: 1]
    #[arg(long, value_name = "N", requires = "memory")]
    pub(crate) batch: Option<NonZeroUsize>,
    /// Dtype of the KV cache for --memory [default: f32]
    #[arg(long, value_name = "TYPE", requires = "memory")]
    pub(crate) cache_type: Option<CacheTypeName>,
}

/// Arguments of `tui`.
#[derive(Debug, Args)]
pub(crate) struct TuiArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Second model of --compare
    #[arg(requires = "compare")]
    pub(crate) other: Option<PathBuf>,
    /// Compare two models
    #[arg(long, requires = "other")]
    pub(crate) compare: bool,
    /// Prompt for the trace view (can be changed in the view)
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Prompt of the trace view as token ids, comma-separated
    #[arg(
        long, value_name = "IDS", value_delimiter = ',', conflicts_with = "input",
        allow_hyphen_values = true, value_parser = parse_token
    )]
    pub(crate) tokens: Vec<i64>,
    /// Input file for the trace view, as in `apr trace`; may be given several times
    #[arg(short, long, value_name = "[NAME=]FILE", value_parser = parse_named_file)]
    pub(crate) input: Vec<(Option<String>, PathBuf)>,
    /// Do not capture the mouse, so that the terminal can select text
    #[arg(long)]
    pub(crate) no_mouse: bool,
}

/// Arguments of `tensors`.
#[derive(Debug, Args)]
pub(crate) struct TensorsArgs {
    /// Files, folders, shard indexes, or - for standard input
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) models: Vec<PathBuf>,
    /// Read tensors and show min, max, mean, std, L2 norm, NaN, infinities and zeros
    #[arg(long)]
    pub(crate) stats: bool,
    /// Histogram of one tensor
    #[arg(
        long, value_name = "NAME", conflicts_with_all = ["stats", "filter", "sort"],
        add = ArgValueCompleter::new(completion::tensors)
    )]
    pub(crate) hist: Option<String>,
    /// Show values of a tensor: NAME, or a slice, NAME[0:4, -1]
    #[arg(
        long, value_name = "NAME[RANGES]",
        conflicts_with_all = ["stats", "filter", "sort", "hist", "offset"],
        add = ArgValueCompleter::new(completion::tensors)
    )]
    pub(crate) values: Option<String>,
    /// Only tensors whose names match a glob, such as '*.weight', or contain a text without
    /// wildcards
    #[arg(long, value_name = "GLOB")]
    pub(crate) filter: Option<String>,
    /// Sort order
    #[arg(long, value_enum, value_name = "BY", default_value = "offset")]
    pub(crate) sort: Sort,
    /// Show offsets within the file
    #[arg(long)]
    pub(crate) offset: bool,
    /// Print the SHA-256 of each tensor as sha256sum does, for `apr validate --manifest`
    #[arg(
        long, conflicts_with_all = ["stats", "hist", "values", "offset", "output"]
    )]
    pub(crate) digest: bool,
    /// Write the tensors into this folder, one .npy file each; dtypes that NumPy lacks become f32
    #[arg(
        short, long, value_name = "FOLDER",
        conflicts_with_all = ["stats", "hist", "values", "offset", "sort"]
    )]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite existing files of --output
    #[arg(short = 'f', long, requires = "output")]
    pub(crate) overwrite: bool,
}

/// Order of a list of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// In the order of the file
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
    /// Second model, to compare its outputs with the first model's (--quality)
    #[arg(value_name = "MODEL_B", requires = "quality")]
    pub(crate) other: Option<PathBuf>,
    /// One model: score it (0-100). Two models: compare their outputs. With --text: perplexity, or
    /// KL divergence of two models
    #[arg(long, conflicts_with_all = [
        "checksum", "nan_check", "zero_check", "shapes", "physics", "signature", "trusted",
        "sha256", "manifest", "source", "sarif", "strict",
    ])]
    pub(crate) quality: bool,
    /// Exit with 5 if the score is below N
    #[arg(
        long, value_name = "N", requires = "quality", conflicts_with_all = ["other", "text"],
        value_parser = clap::value_parser!(u8).range(..=100)
    )]
    pub(crate) min_score: Option<u8>,
    /// Text for perplexity; with two models, also the KL divergence of their predictions
    #[arg(long, value_name = "FILE", requires = "quality", conflicts_with = "input")]
    pub(crate) text: Option<PathBuf>,
    /// Window size of --text in tokens, at least 4 [default: 512, or the models' context if that is
    /// shorter]
    #[arg(
        long, value_name = "N", requires = "text",
        value_parser = clap::value_parser!(u32).range(4..)
    )]
    pub(crate) context: Option<u32>,
    /// Maximum number of windows of --text, at least 1 [default: all]
    #[arg(
        long, value_name = "N", requires = "text",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) chunks: Option<u32>,
    /// Input file for both models, may be given several times: text (.txt), audio, images, arrays
    /// [default: ten built-in inputs that fit the model]
    #[arg(short, long, value_name = "FILE", requires = "other")]
    pub(crate) input: Vec<PathBuf>,
    /// Maximum mean relative L2 distance of outputs; five times as much for the largest [default:
    /// 0.1 for models of equal types, else by the narrower type]
    #[arg(
        long, value_name = "X", requires = "other", conflicts_with = "text",
        value_parser = super::quantize::parse_limit
    )]
    pub(crate) max_drift: Option<f64>,
    /// Check the file's checksum and the digests of tensors
    #[arg(long)]
    pub(crate) checksum: bool,
    /// Check for NaN and infinite values
    #[arg(long)]
    pub(crate) nan_check: bool,
    /// Check for tensors of all zeros
    #[arg(long)]
    pub(crate) zero_check: bool,
    /// Check names, shapes and GGUF hyperparameters against the model family
    #[arg(long)]
    pub(crate) shapes: bool,
    /// Check means and standard deviations against the model family
    #[arg(long)]
    pub(crate) physics: bool,
    /// Verify the signature against the keys of --trusted and of the configuration
    #[arg(long)]
    pub(crate) signature: bool,
    /// Trusted public key; may be given several times
    #[arg(long, value_name = "PUB")]
    pub(crate) trusted: Vec<PathBuf>,
    /// Expected SHA-256 of the file
    #[arg(long, value_name = "HEX", value_parser = parse_sha256)]
    pub(crate) sha256: Option<Sha256>,
    /// File with the SHA-256 of tensors, as `apr tensors --digest` and gguf-hash print it
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Compare recorded digests with the digests of the model's commit on its hub
    #[arg(long)]
    pub(crate) source: bool,
    /// Write findings, including code in pickles, as SARIF; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
    /// Exit with 5 on warnings
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) markdown: MarkdownArgs,
}

/// How a report that decides is printed.
#[derive(Debug, Args)]
pub(crate) struct MarkdownArgs {
    /// Print the report as Markdown, for pull requests and job summaries
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
}

/// Arguments of `scan`.
#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Files and folders, or - for standard input; folders are scanned recursively
    #[arg(required_unless_present = "cache", value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Scan the files in the Hugging Face cache and in the cache of apr
    #[arg(long)]
    pub(crate) cache: bool,
    /// Do not fail on files of unknown formats
    #[arg(long, conflicts_with = "strict")]
    pub(crate) allow_unexamined: bool,
    /// Exit with 5 on scripts and programs that loading a model does not run
    #[arg(long)]
    pub(crate) strict: bool,
    /// Accept files that a baseline lists by their SHA-256, unless the verdict is worse
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// Write a baseline that accepts all findings of this scan
    #[arg(long, value_name = "FILE", conflicts_with = "baseline")]
    pub(crate) write_baseline: Option<PathBuf>,
    /// Write findings as SARIF, for code scanning services; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
    /// Write a bill of materials: each file with its SHA-256 and verdict; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) sbom: Option<PathBuf>,
    /// Format of --sbom [default: spdx for names that end in .spdx.json, else cyclonedx]
    #[arg(long, value_name = "FORMAT", requires = "sbom")]
    pub(crate) sbom_format: Option<SbomFormat>,
    #[command(flatten)]
    pub(crate) markdown: MarkdownArgs,
}

/// Formats of bills of materials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SbomFormat {
    /// CycloneDX 1.6
    Cyclonedx,
    /// SPDX 3.0.1
    Spdx,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The left model: file, folder or shard index
    pub(crate) left: PathBuf,
    /// The right model
    pub(crate) right: PathBuf,
    /// JSON object that maps tensor names of the left model to names of the right model
    #[arg(long, value_name = "FILE")]
    pub(crate) tensor_mapping: Option<PathBuf>,
    /// Absolute tolerance for values
    #[arg(
        long, value_name = "X", default_value = "1e-6",
        value_parser = super::quantize::parse_limit
    )]
    pub(crate) tolerance: f64,
    /// Compare values even if both files have equal digests
    #[arg(long)]
    pub(crate) read: bool,
    /// Exit with 5 if the models differ
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// Exit with 5 if the L2 distance is larger, or a tensor can't be compared
    #[arg(long, value_name = "X", value_parser = super::quantize::parse_limit)]
    pub(crate) max_l2: Option<f64>,
    /// Only tensors whose names match a glob, or contain a text without wildcards; one line each
    #[arg(long, value_name = "GLOB")]
    pub(crate) tensors: Option<String>,
    #[command(flatten)]
    pub(crate) markdown: MarkdownArgs,
}

/// Arguments of `debug`.
#[derive(Debug, Args)]
pub(crate) struct DebugArgs {
    /// The file, or - for standard input
    pub(crate) file: PathBuf,
    /// Describe the file's structure as a drama
    #[arg(long)]
    pub(crate) drama: bool,
    /// Hex dump
    #[arg(long, conflicts_with = "drama")]
    pub(crate) hex: bool,
    /// Show printable strings
    #[arg(long, conflicts_with_all = ["drama", "hex"])]
    pub(crate) strings: bool,
    /// Maximum number of bytes or strings [default: 256 bytes, 100 strings]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Dump this tensor
    #[arg(
        long, value_name = "NAME", requires = "hex",
        add = ArgValueCompleter::new(completion::tensors)
    )]
    pub(crate) tensor: Option<String>,
}

impl DebugArgs {
    /// Returns the path as reports have it.
    pub(crate) fn path(&self) -> String {
        self.file.display().to_string()
    }
}

/// Arguments of `lint`.
#[derive(Debug, Args)]
pub(crate) struct LintArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Exit with 5 on warnings
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) markdown: MarkdownArgs,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
#[command(override_usage = "apr explain <MODEL|E00x>\n       apr explain [MODEL] --tensor <NAME>")]
pub(crate) struct ExplainArgs {
    /// A model, or an error code from E001 to E008
    #[arg(required_unless_present = "tensor", add = ArgValueCompleter::new(completion::subjects))]
    pub(crate) subject: Option<OsString>,
    /// Explain a tensor, of the model or of any family
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completion::tensors))]
    pub(crate) tensor: Option<String>,
    /// Show the importance of each tensor on texts: squared gradients of the loss
    #[arg(long, requires_all = ["subject", "data"], conflicts_with = "tensor")]
    pub(crate) importance: bool,
    /// Texts for --importance: JSON lines as for `apr distill`, or a text per line
    #[arg(long, value_name = "FILE", requires = "importance")]
    pub(crate) data: Option<PathBuf>,
}

/// Arguments of `graph`.
#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Output format [default: by the extension of --output, else tree]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<GraphFormat>,
    /// Output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing output
    #[arg(short = 'f', long, requires = "output")]
    pub(crate) overwrite: bool,
    /// Depth to which blocks are expanded [default: as far as legible]
    #[arg(long, value_name = "N")]
    pub(crate) depth: Option<usize>,
    /// Show repeated layers one by one
    #[arg(long)]
    pub(crate) unfold: bool,
    /// Show one node: inputs, outputs and attributes
    #[arg(
        long, value_name = "NAME",
        conflicts_with_all = ["depth", "unfold", "output", "format"]
    )]
    pub(crate) node: Option<String>,
    /// Part of a model that has several, such as encoder_model
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// Show the cost of each group and node: share of all operations, FLOPs, bytes read and written
    #[arg(long, conflicts_with = "node")]
    pub(crate) costs: bool,
    /// Size of a symbolic dimension for costs, such as sequence_length=512 [default: 1 for batches,
    /// 0 for the past, else 128]
    #[arg(long, value_name = "NAME=N", value_parser = parse_named_size)]
    pub(crate) size: Vec<(String, u64)>,
    /// With the key-value cache as inputs and outputs
    #[arg(long)]
    pub(crate) with_past: bool,
    /// ONNX opset version [default: the file's, else 17]
    #[arg(long, value_name = "N")]
    pub(crate) opset: Option<i64>,
    /// Task of the head, such as text-generation or CausalLM [default: by the configuration]
    #[arg(long, value_name = "TASK", value_parser = parse_task)]
    pub(crate) task: Option<String>,
}

impl GraphArgs {
    /// Returns the format of --format or of the output's extension; `None` for other extensions.
    ///
    /// Standard output and names without an extension get a tree.
    pub(crate) fn format(&self) -> Option<GraphFormat> {
        let extension = self.output.as_deref().and_then(|path| path.extension());
        let extension = extension.map(|end| end.to_string_lossy().to_ascii_lowercase());
        self.format.or(match extension.as_deref() {
            Some("svg") => Some(GraphFormat::Svg),
            Some("dot" | "gv") => Some(GraphFormat::Dot),
            Some("mmd") => Some(GraphFormat::Mermaid),
            Some("json") => Some(GraphFormat::Json),
            None | Some("txt") => Some(GraphFormat::Tree),
            Some(_) => None,
        })
    }
}

/// How a graph is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Rows with shapes and parameters
    Tree,
    /// An image with a light and a dark theme, by the reader's system
    Svg,
    /// Graphviz source
    Dot,
    /// Mermaid source, in Markdown
    Mermaid,
    /// The whole graph, for programs
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
