use std::path::PathBuf;

use apr::Format;
use clap::{Args, Subcommand};

/// What to do with a watermark.
#[derive(Debug, Subcommand)]
pub(crate) enum WatermarkAction {
    /// Write a model with an id hidden in its weights, which the secret of --key finds again: a
    /// file of 16 random bytes or more, or a private key
    Embed(EmbedArgs),
    /// Read the id that the secret of --key finds in the weights; exit 5 where it finds none
    Detect(DetectArgs),
}

/// Arguments of `watermark embed`.
#[derive(Debug, Args)]
pub(crate) struct EmbedArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Where to write; - is standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// What the mark says: up to 60 bytes of text; up to 12 or 28 bytes it is read from fewer
    /// weights
    #[arg(long, value_name = "TEXT")]
    pub(crate) id: String,
    /// How far weights move, in parts of their standard deviation [default: by the number of
    /// weights]
    #[arg(long, value_name = "X")]
    pub(crate) strength: Option<f64>,
    /// Target format [default: by the output's extension]
    #[arg(long, value_name = "FORMAT", value_parser = super::write::parse_target())]
    pub(crate) format: Option<&'static Format>,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// Arguments of `watermark detect`.
#[derive(Debug, Args)]
pub(crate) struct DetectArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Look for this id, which is found where too little of it is left to be read
    #[arg(long, value_name = "TEXT")]
    pub(crate) id: Option<String>,
}
