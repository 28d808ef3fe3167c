//! Arguments of `imatrix`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

/// Arguments of `imatrix`.
#[derive(Debug, Args)]
#[command(
    override_usage = "apr imatrix [OPTIONS] -o <FILE> <--text <FILE>|--input <FILE>> <MODEL>"
)]
#[command(group = ArgGroup::new("dataset").args(["text", "input"]).required(true).multiple(false))]
pub(crate) struct ImatrixArgs {
    /// File, folder or shard index
    pub(crate) model: PathBuf,
    /// Text, cut into windows as llama-imatrix does
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Input file, may be given several times: text (.txt), audio, images, arrays (.npy, .npz,
    /// .safetensors, .json)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// Window size of --text in tokens [default: 512, or the model's context if that is shorter]
    #[arg(long, value_name = "N", requires = "text")]
    pub(crate) context: Option<usize>,
    /// Maximum number of windows of --text [default: all]
    #[arg(long, value_name = "N", requires = "text")]
    pub(crate) chunks: Option<NonZeroUsize>,
    /// Measure part K of N equal parts of --text; --add puts the parts together
    #[arg(long, value_name = "K/N", requires = "text", value_parser = parse_part)]
    pub(crate) part: Option<TextShare>,
    /// Importance matrix to add to the measurement, may be given several times: of another part or
    /// another text, in the GGUF form
    #[arg(long, value_name = "FILE")]
    pub(crate) add: Vec<PathBuf>,
    /// Also measure the head of a language model (output.weight)
    #[arg(long)]
    pub(crate) process_output: bool,
    /// Importance matrix to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Format of the output [default: dat for a name that ends with .dat, else gguf]
    #[arg(long, value_name = "FORM", value_enum)]
    pub(crate) output_format: Option<ImatrixForm>,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// A form of importance matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImatrixForm {
    /// Sums of squares and counts
    Gguf,
    /// Means only, for older programs
    Dat,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextShare {
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) of: usize,
}

fn parse_part(text: &str) -> Result<TextShare, String> {
    let numbers = text.split_once('/').and_then(|(number, of)| {
        Some(TextShare { number: number.parse().ok()?, of: of.parse().ok()? })
    });
    numbers
        .filter(|part| (1..=part.of).contains(&part.number))
        .ok_or_else(|| "expected K/N with K from 1 to N, such as 2/4".to_owned())
}
