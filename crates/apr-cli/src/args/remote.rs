use std::path::PathBuf;

use clap::Args;

/// Arguments of `download`.
#[derive(Debug, Args)]
pub(crate) struct DownloadArgs {
    /// Locations that start with hf://, https:// or s3://
    #[arg(required = true, value_name = "LOCATION")]
    pub(crate) models: Vec<PathBuf>,
    /// Every file of the repository, and not only those of one model
    #[arg(long)]
    pub(crate) all: bool,
}

/// How models on hubs and servers are read: options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Models on hubs and servers")]
pub(crate) struct RemoteArgs {
    /// Use what is in the cache, and no network
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) offline: bool,
    /// Keep no copy in the cache of what is read over the network
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_cache: bool,
    /// The weights to take of a repository with several models
    #[arg(long = "file", global = true, hide_short_help = true, value_name = "NAME")]
    pub(crate) hub_file: Option<String>,
    /// Of a repository's weights, only files whose names match, such as '*Q8_0*'
    #[arg(long, global = true, hide_short_help = true, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// No files of a repository whose names match
    #[arg(long, global = true, hide_short_help = true, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Allow http, which is not encrypted, beyond this machine
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) insecure: bool,
}

impl RemoteArgs {
    /// For a part of a job that was planned with other options: those say which files are chosen,
    /// and nothing is kept, since that would fetch files as a whole of which the part needs some
    /// ranges.
    pub(crate) fn of_part(&self, other: &Self) -> Self {
        let Self { hub_file, include, exclude, .. } = other.clone();
        Self { hub_file, include, exclude, no_cache: true, ..self.clone() }
    }

    /// Whether files of a repository are chosen.
    pub(crate) fn chooses(&self) -> bool {
        self.hub_file.is_some() || !self.include.is_empty() || !self.exclude.is_empty()
    }
}
