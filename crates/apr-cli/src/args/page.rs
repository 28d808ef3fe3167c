//! Arguments of `page`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `page`.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// File, folder, or location on a hub or a server that is opened at once
    pub(crate) model: Option<PathBuf>,
    /// Port on 127.0.0.1 [default: any that is free]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Folder of the page's files [default: the one beside this program]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) site: Option<PathBuf>,
}
