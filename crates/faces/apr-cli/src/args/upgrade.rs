use std::path::PathBuf;

use clap::Args;

/// Arguments of `upgrade`.
#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// A file of an older APR format
    pub(crate) old: PathBuf,
    /// Output path; - for standard output
    pub(crate) new: PathBuf,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}
