//! Arguments of `page`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `page`.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// File, folder or location that the page opens first
    pub(crate) model: Option<PathBuf>,
    /// Port on 127.0.0.1 [default: a free port]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Folder of the page's files [default: the folder `page` next to this program]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) site: Option<PathBuf>,
}
