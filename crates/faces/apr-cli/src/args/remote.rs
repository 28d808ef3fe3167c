use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Arguments of `download`.
#[derive(Debug, Args)]
pub(crate) struct DownloadArgs {
    /// Locations that start with hf://, https:// or s3://
    #[arg(required = true, value_name = "LOCATION")]
    pub(crate) models: Vec<PathBuf>,
    /// All files of the repository, not only the files of one model; --include and --exclude choose
    /// among all of them
    #[arg(long)]
    pub(crate) all: bool,
    /// Copy the files into this folder under their own names
    #[arg(long, value_name = "DIR")]
    pub(crate) local_dir: Option<PathBuf>,
    /// Overwrite other files of these names in --local-dir
    #[arg(short = 'f', long, requires = "local_dir")]
    pub(crate) overwrite: bool,
}

/// Arguments of `upload`.
#[derive(Debug, Args)]
pub(crate) struct UploadArgs {
    /// File or folder
    pub(crate) path: PathBuf,
    /// Repository of a hub, or a folder in it: hf://ORG/NAME[@REVISION][/FOLDER]
    pub(crate) location: PathBuf,
    /// First line of the commit's message [default: Upload PATH with apr]
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// Create the repository if it does not exist: private or public
    #[arg(long, value_enum, value_name = "VISIBILITY")]
    pub(crate) create: Option<CreatedAs>,
    /// Open a pull request, and leave the revision as it is
    #[arg(long)]
    pub(crate) pull_request: bool,
    /// Show what would be uploaded without uploading
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Visibility of a repository that is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CreatedAs {
    /// For its owner, or the members of its organization
    Private,
    /// For everyone
    Public,
}

/// How models on hubs and servers are read: options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Models on hubs and servers")]
pub(crate) struct RemoteArgs {
    /// Use only the cache, not the network
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) offline: bool,
    /// Do not cache data from the network
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_cache: bool,
    /// Weights file of a repository with several models
    #[arg(long = "file", global = true, hide_short_help = true, value_name = "NAME")]
    pub(crate) hub_file: Option<String>,
    /// Only weights files whose names match a glob, such as '*Q8_0*'
    #[arg(long, global = true, hide_short_help = true, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// Exclude files whose names match a glob
    #[arg(long, global = true, hide_short_help = true, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Allow unencrypted http to other machines
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) insecure: bool,
    /// Seconds without data before a connection is aborted; connections below 1 KiB/s are also
    /// aborted [default: 30]
    #[arg(
        long, global = true, hide_short_help = true, value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400),
    )]
    pub(crate) timeout: Option<u64>,
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
