//! What the native container can do to a model: compress, encrypt, sign, license, edit.

use std::path::PathBuf;

use apr::codec::Choice;
use clap::{Args, Subcommand, ValueEnum};

/// Options of `.apr` output.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of .apr output")]
pub(crate) struct ContainerArgs {
    /// Compress without loss: auto, lz4, zstd, zstd:LEVEL, best, or none, which also decompresses
    /// [default: as the source is; auto where no codec is named]
    #[arg(
        long, value_name = "CODEC", num_args = 0..=1, default_missing_value = "auto",
        value_parser = parse_compress
    )]
    pub(crate) compress: Option<Compress>,
    /// Encrypt with the password of --password-file, APR_PASSWORD, or the one that is asked for
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// Encrypt for the owner of this public key; may be given several times
    #[arg(long, value_name = "PUB")]
    pub(crate) recipient: Vec<PathBuf>,
    /// Encrypt the metadata too, all but the family and its dimensions
    #[arg(long, hide_short_help = true)]
    pub(crate) encrypt_metadata: bool,
    /// Sign with this private key; may be given several times
    #[arg(long, value_name = "KEY", hide_short_help = true)]
    pub(crate) sign: Vec<PathBuf>,
}

impl ContainerArgs {
    /// Whether anything is asked that only `.apr` files can do.
    pub(crate) fn is_wanted(&self) -> bool {
        let compressed = !matches!(self.compress, None | Some(Compress(None)));
        compressed
            || self.encrypt
            || self.encrypt_metadata
            || !self.recipient.is_empty()
            || !self.sign.is_empty()
    }
}

/// A codec as typed; `None` means no compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compress(pub(crate) Option<Choice>);

fn parse_compress(text: &str) -> Result<Compress, String> {
    let level = |level: &str| {
        let level = level.parse().ok().filter(|level| (1..=22).contains(level));
        level.ok_or_else(|| "Zstd has the levels 1 to 22".to_owned())
    };
    let (codec, stated) =
        text.split_once(':').map_or((text, None), |(codec, level)| (codec, Some(level)));
    Ok(Compress(match (codec, stated) {
        ("none", None) => None,
        ("auto", None) => Some(Choice::Auto),
        ("best", None) => Some(Choice::Best),
        ("lz4", None) => Some(Choice::Lz4),
        ("zstd", None) => Some(Choice::Zstd(apr::codec::DEFAULT_ZSTD_LEVEL)),
        ("zstd", Some(number)) => Some(Choice::Zstd(level(number)?)),
        _ => return Err("expected auto, lz4, zstd, zstd:LEVEL, best or none".to_owned()),
    }))
}

/// Arguments of `keygen`.
#[derive(Debug, Args)]
pub(crate) struct KeygenArgs {
    /// Where the private key goes; the public one goes beside it, with the extension .pub
    #[arg(short, long, value_name = "KEY")]
    pub(crate) output: PathBuf,
    /// What the keys are for
    #[arg(long = "for", value_enum, default_value = "signing")]
    pub(crate) purpose: KeyPurpose,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// What a key pair is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyPurpose {
    /// Signing models and licences: Ed25519
    Signing,
    /// Receiving encrypted models: X25519
    Encryption,
}

/// Arguments of `sign`.
#[derive(Debug, Args)]
pub(crate) struct SignArgs {
    /// The .apr file, or the manifest of shards; the key is the one of --key
    pub(crate) model: PathBuf,
    /// Write a signed copy instead; a manifest stays beside its shards
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The .apr file, or the manifest of shards
    pub(crate) model: PathBuf,
    /// Public key that you trust; may be given several times
    #[arg(long, value_name = "PUB", required = true)]
    pub(crate) trusted: Vec<PathBuf>,
    /// Leave the tensors unread, which readers compare with their signed digests when they load
    /// them
    #[arg(long)]
    pub(crate) front: bool,
}

/// Arguments of `encrypt`.
#[derive(Debug, Args)]
pub(crate) struct EncryptArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Where to write; - is standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Encrypt with the password of --password-file, APR_PASSWORD, or the one that is asked for
    /// [default: where --password-file is given, or no recipient]
    #[arg(long)]
    pub(crate) password: bool,
    /// Encrypt for the owner of this public key; may be given several times
    #[arg(long, value_name = "PUB")]
    pub(crate) recipient: Vec<PathBuf>,
    /// Encrypt the metadata too, all but the family and its dimensions
    #[arg(long)]
    pub(crate) encrypt_metadata: bool,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// Arguments of `decrypt`.
#[derive(Debug, Args)]
pub(crate) struct DecryptArgs {
    /// The encrypted .apr file
    pub(crate) model: PathBuf,
    /// Where to write; - is standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// What to do with a licence.
#[derive(Debug, Subcommand)]
pub(crate) enum LicenseAction {
    /// Put a licence into a model, signed with --key, which signs the model too
    Issue(IssueArgs),
    /// Show a model's licence, without saying whether it is genuine
    Show {
        /// The .apr file
        model: PathBuf,
    },
    /// Check that a licence is genuine, has not expired and covers this use
    Check {
        /// The .apr file
        model: PathBuf,
        /// Public key of who issues licences; may be given several times
        #[arg(long, value_name = "PUB", required = true)]
        trusted: Vec<PathBuf>,
        /// Who uses the model
        #[arg(long)]
        licensee: Option<String>,
        /// How many use it
        #[arg(long, value_name = "N")]
        seats: Option<u64>,
    },
}

/// Arguments of `license issue`.
#[derive(Debug, Args)]
pub(crate) struct IssueArgs {
    /// The .apr file
    pub(crate) model: PathBuf,
    /// Who may use the model; only a hash of it is stored
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) licensee: String,
    /// Until when, as 2027-01-31T00:00:00Z or 2027-01-31
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<String>,
    /// How many may use it at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seats: Option<u64>,
    /// What is allowed
    #[arg(long, value_name = "TEXT")]
    pub(crate) terms: Option<String>,
    /// Write a licensed copy instead
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Drop signatures by other keys, which would no longer hold
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `edit`.
#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    /// The .apr or GGUF file
    pub(crate) model: PathBuf,
    /// Set metadata: a key, or a path as architecture.n_layer; the value is JSON, or else text. A
    /// key of GGUF keeps its type, unless it is removed and set at once
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Remove metadata
    #[arg(long, value_name = "KEY")]
    pub(crate) unset: Vec<String>,
    /// Rename a tensor
    #[arg(long, value_name = "OLD=NEW")]
    pub(crate) rename: Vec<String>,
    /// Leave out the tensors that match; it wants --output or --force
    #[arg(long, value_name = "GLOB")]
    pub(crate) drop: Vec<String>,
    /// Replace the chat template with this file's text
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Write an edited copy instead
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Take the tensors of --drop out of the file itself, where no copy is written
    #[arg(long)]
    pub(crate) force: bool,
}
