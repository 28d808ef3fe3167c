use std::path::PathBuf;

use clap::Args;

/// Arguments of `upgrade`.
#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// A file of an older APR format
    pub(crate) old: PathBuf,
    /// Where to write the .apr file of today; - is standard output
    pub(crate) new: PathBuf,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}
