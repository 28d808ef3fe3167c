//! What the native container can do to a model: compress, encrypt, sign, license, edit.

use std::path::PathBuf;

use apr_registry::codec::Choice;
use clap::{Args, Subcommand, ValueEnum};

use super::write::TensorNames;

/// Options of `.apr` output.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of .apr output")]
pub(crate) struct ContainerArgs {
    /// Lossless: auto (no value), lz4, zstd, zstd:LEVEL, best, none [default: as the source]
    #[arg(
        long, value_name = "CODEC", num_args = 0..=1, default_missing_value = "auto",
        value_parser = parse_compress
    )]
    pub(crate) compress: Option<Compress>,
    /// Encrypt with a password: --password-file, APR_PASSWORD or a prompt
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// Public key of a recipient; may be given several times
    #[arg(long, value_name = "PUB")]
    pub(crate) recipient: Vec<PathBuf>,
    /// Also encrypt the metadata, except the family and its dimensions
    #[arg(long, hide_short_help = true)]
    pub(crate) encrypt_metadata: bool,
    /// Private key to sign with; may be given several times
    #[arg(long, value_name = "KEY", hide_short_help = true)]
    pub(crate) sign: Vec<PathBuf>,
}

impl ContainerArgs {
    /// Whether nothing is asked.
    pub(crate) fn is_empty(&self) -> bool {
        self.compress.is_none() && !self.is_wanted()
    }

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
        ("zstd", None) => Some(Choice::Zstd(apr_registry::codec::DEFAULT_ZSTD_LEVEL)),
        ("zstd", Some(number)) => Some(Choice::Zstd(level(number)?)),
        _ => return Err("expected auto, lz4, zstd, zstd:LEVEL, best or none".to_owned()),
    }))
}

/// Arguments of `keygen`.
#[derive(Debug, Args)]
pub(crate) struct KeygenArgs {
    /// Output path of the private key; the public key gets the extension .pub
    #[arg(short, long, value_name = "KEY")]
    pub(crate) output: PathBuf,
    /// Purpose of the keys
    #[arg(long = "for", value_enum, default_value = "signing")]
    pub(crate) purpose: KeyPurpose,
    /// Overwrite an existing output
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
    /// Write a signed copy; a manifest must stay in the folder of its shards
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The .apr file, or the manifest of shards
    pub(crate) model: PathBuf,
    /// Trusted public key; may be given several times
    #[arg(long, value_name = "PUB", required = true)]
    pub(crate) trusted: Vec<PathBuf>,
    /// Skip the tensors: readers compare them with their signed digests on loading
    #[arg(long)]
    pub(crate) front: bool,
}

/// Arguments of `encrypt`.
#[derive(Debug, Args)]
pub(crate) struct EncryptArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Output path; - for standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Encrypt with a password: --password-file, APR_PASSWORD or a prompt [default: if
    /// --password-file is given or there is no recipient]
    #[arg(long)]
    pub(crate) password: bool,
    /// Public key of a recipient; may be given several times
    #[arg(long, value_name = "PUB")]
    pub(crate) recipient: Vec<PathBuf>,
    /// Also encrypt the metadata, except the family and its dimensions
    #[arg(long)]
    pub(crate) encrypt_metadata: bool,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// Arguments of `decrypt`.
#[derive(Debug, Args)]
pub(crate) struct DecryptArgs {
    /// The encrypted .apr file
    pub(crate) model: PathBuf,
    /// Output path; - for standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
}

/// What to do with a licence.
#[derive(Debug, Subcommand)]
pub(crate) enum LicenseAction {
    /// Issue a licence within a model; --key signs both
    Issue(IssueArgs),
    /// Show a model's licence without verifying it
    Show {
        /// The .apr file
        model: PathBuf,
    },
    /// Verify a licence: signature, expiry and use
    Check {
        /// The .apr file
        model: PathBuf,
        /// Public key of a trusted issuer; may be given several times
        #[arg(long, value_name = "PUB", required = true)]
        trusted: Vec<PathBuf>,
        /// User of the model
        #[arg(long)]
        licensee: Option<String>,
        /// Number of users
        #[arg(long, value_name = "N")]
        seats: Option<u64>,
    },
}

/// Arguments of `license issue`.
#[derive(Debug, Args)]
pub(crate) struct IssueArgs {
    /// The .apr file
    pub(crate) model: PathBuf,
    /// Licensee; only a hash is stored
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) licensee: String,
    /// Expiry, as 2027-01-31T00:00:00Z or 2027-01-31
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<String>,
    /// Maximum number of concurrent users
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seats: Option<u64>,
    /// Permitted uses
    #[arg(long, value_name = "TEXT")]
    pub(crate) terms: Option<String>,
    /// Write a licensed copy
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Drop signatures by other keys, which become invalid
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `edit`.
#[derive(Debug, Args)]
#[command(mut_arg("rename", |arg| arg.help(
    "Rename tensors by name or by regular expression (groups: \\1); for ONNX files, `apr convert \
     --rename`"
)))]
pub(crate) struct EditArgs {
    /// The .apr, GGUF, safetensors, ONNX or PyTorch file, or a folder of safetensors
    pub(crate) model: PathBuf,
    /// Set metadata: a key, or a path such as architecture.n_layer; the value is JSON, or else
    /// text. A GGUF key keeps its type, unless it is removed and set in the same command
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Remove metadata
    #[arg(long, value_name = "KEY")]
    pub(crate) unset: Vec<String>,
    #[command(flatten)]
    pub(crate) names: TensorNames,
    /// Add the array of a .npy file as a tensor
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) add: Vec<String>,
    /// File with the new chat template
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Write an edited copy
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing output
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Drop tensors (--drop, --keep) from the file itself, without --output
    #[arg(long, conflicts_with = "output")]
    pub(crate) force: bool,
}
