use std::path::PathBuf;

use apr_registry::Format;
use clap::{Args, Subcommand};

/// What to do with a watermark.
#[derive(Debug, Subcommand)]
pub(crate) enum WatermarkAction {
    /// Embed an id in the weights, detectable with the secret of --key: 16 random bytes or more, or
    /// a private key
    Embed(EmbedArgs),
    /// Detect the id with the secret of --key; exit with 5 if none is found
    Detect(DetectArgs),
}

/// Arguments of `watermark embed`.
#[derive(Debug, Args)]
pub(crate) struct EmbedArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Output path; - for standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Id: up to 60 bytes of text; up to 12 or 28 bytes need fewer weights
    #[arg(long, value_name = "TEXT", value_parser = parse_id)]
    pub(crate) id: String,
    /// Strength: change of weights relative to their standard deviation [default: by the number of
    /// weights]
    #[arg(long, value_name = "X", value_parser = parse_strength)]
    pub(crate) strength: Option<f64>,
    /// Target format [default: by the output's extension]
    #[arg(long, value_name = "FORMAT", value_parser = super::write::parse_target())]
    pub(crate) format: Option<&'static Format>,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// Arguments of `watermark detect`.
#[derive(Debug, Args)]
pub(crate) struct DetectArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Test for this id; works even if too few marked weights are left to read the id
    #[arg(long, value_name = "TEXT", value_parser = parse_id)]
    pub(crate) id: Option<String>,
}

fn parse_id(text: &str) -> Result<String, String> {
    apr_watermark::check_id(text).map_err(|error| error.message().to_owned())?;
    Ok(text.to_owned())
}

/// A share above 0 and at most 1.
fn parse_strength(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(strength) if strength > 0.0 && strength <= 1.0 => Ok(strength),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}
