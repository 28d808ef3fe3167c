use clap::Args;

/// How models on hubs and servers are read: options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Models on hubs and servers")]
pub(crate) struct RemoteArgs {
    /// Use what is in the cache, and no network
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) offline: bool,
    /// Allow http, which is not encrypted, beyond this machine
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) insecure: bool,
}
