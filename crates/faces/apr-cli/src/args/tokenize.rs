//! Arguments of `tokenize`.

use std::path::PathBuf;

use clap::Args;

use super::run::parse_token;

/// Arguments of `tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// File or folder with a tokenizer; a vocabulary-only GGUF file is enough
    pub(crate) model: PathBuf,
    /// Text to tokenize; also read from a pipe
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Vec<String>,
    /// Text file to tokenize
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// Token ids, comma-separated
    #[arg(
        long, value_name = "IDS", value_delimiter = ',', allow_hyphen_values = true,
        value_parser = parse_token, conflicts_with_all = ["prompt", "input"]
    )]
    pub(crate) tokens: Vec<i64>,
    /// Print the decoded text
    #[arg(long)]
    pub(crate) decode: bool,
    /// Without special tokens at the beginning and end; with --decode, without special tokens in
    /// the text
    #[arg(long)]
    pub(crate) no_special_tokens: bool,
}
