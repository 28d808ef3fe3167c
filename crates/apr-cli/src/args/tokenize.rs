//! Arguments of `tokenize`.

use std::path::PathBuf;

use clap::Args;

use super::run::parse_token;

/// Arguments of `tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// File or folder with a tokenizer, a GGUF file of a vocabulary alone among them
    pub(crate) model: PathBuf,
    /// A text; a pipe gives one as well
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Vec<String>,
    /// A text file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// Ids of tokens, with commas between them
    #[arg(
        long, value_name = "IDS", value_delimiter = ',', allow_hyphen_values = true,
        value_parser = parse_token, conflicts_with_all = ["prompt", "input"]
    )]
    pub(crate) tokens: Vec<i64>,
    /// Print the text that the tokens decode to
    #[arg(long)]
    pub(crate) decode: bool,
    /// Leave out the tokens that the model wants at the beginning and end of a text; with --decode,
    /// leave special tokens out of the text
    #[arg(long)]
    pub(crate) no_special_tokens: bool,
}
