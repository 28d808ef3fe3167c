//! Bytes decide which reader opens a file; the extension only chooses whose error is shown.

use apr_core::{
    ByteSource, CheckpointReader, Error, FormatId, HEAD_LEN, Limits, Metadata, Result, SourceSet, read_vec, recognise,
};
use apr_format::apr2::{self, Keys};

use crate::folder::shard_number;

/// Extensions that PyTorch checkpoints have.
const PICKLED: [&str; 6] = ["pt", "pth", "bin", "ckpt", "pkl", "tar"];

/// How to open: within which limits, and what to take on trust.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// How much of a file's claims are believed.
    pub limits: Limits,
    /// The family of a legacy GGML file, which does not say it, where detection fails.
    pub family: Option<String>,
    /// Full names of classes, as `__main__.Net`, whose pickled instances are read for their parameters. Nothing of the
    /// class runs.
    pub pickle_classes: Vec<String>,
    /// What opens an encrypted model.
    pub keys: Keys,
}

impl From<&Limits> for OpenOptions {
    fn from(limits: &Limits) -> Self {
        Self { limits: *limits, ..Self::default() }
    }
}

impl From<&Self> for OpenOptions {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}

impl OpenOptions {
    /// The keys as typed models take them: one password, one private key.
    #[cfg(all(feature = "typed", feature = "encryption"))]
    fn aprn(&self) -> apr_format::aprn::LoadOptions {
        use apr_format::crypto::Unlock;
        let mut options = apr_format::aprn::LoadOptions::default();
        for key in &self.keys.unlock {
            match key {
                Unlock::Password(password) => options.password = Some(password.as_slice().into()),
                Unlock::Identity(key) => options.identity = Some((*key.secret_bytes()).into()),
            }
        }
        options
    }

    #[cfg(all(feature = "typed", not(feature = "encryption")))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    fn aprn(&self) -> apr_format::aprn::LoadOptions {
        apr_format::aprn::LoadOptions::default()
    }

    fn pytorch(&self) -> apr_pytorch::OpenOptions {
        apr_pytorch::OpenOptions { classes: self.pickle_classes.clone(), ..apr_pytorch::OpenOptions::default() }
    }
}

/// Opens one file of any readable format.
///
/// # Errors
/// E001 for an unknown format or one this version does not read, otherwise what the format's reader says.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    options: impl Into<OpenOptions>,
) -> Result<Box<dyn CheckpointReader>> {
    let options = options.into();
    let limits = &options.limits;
    let head = read_vec(&source, 0, source.len().min(HEAD_LEN)).map_err(|error| error.in_file(name))?;
    let hint = || match extension(name) {
        "apr" => Some(FormatId::Apr2),
        "safetensors" => Some(FormatId::Safetensors),
        "gguf" => Some(FormatId::Gguf),
        // The oldest pickles start with no mark of their own.
        extension if PICKLED.contains(&extension) => Some(FormatId::Pytorch),
        _ => None,
    };
    if let Some(mistake) = mistaken_for_a_model(&head) {
        return Err(Error::format(mistake).in_file(name).at(0));
    }
    match recognise(&head).or_else(hint) {
        Some(FormatId::Apr2) if is_manifest(name, &head) => {
            let message = "this is the manifest of a sharded model, which is opened where its shards are: in a folder";
            Err(Error::format(message).in_file(name))
        }
        Some(FormatId::Apr2) => Ok(Box::new(open_apr2(source, name, limits, &options.keys)?)),
        Some(FormatId::Apr1) => Ok(Box::new(apr_format::apr1::open(source, name, limits)?)),
        Some(FormatId::AprDialect) => Ok(Box::new(apr_format::dialect::open(source, name, limits)?)),
        Some(FormatId::Safetensors) => Ok(Box::new(apr_safetensors::open(source, name, limits)?)),
        Some(FormatId::Gguf) => Ok(Box::new(apr_gguf::open(source, name, limits)?)),
        Some(FormatId::Ggml) => Ok(Box::new(apr_gguf::ggml::open(source, name, limits, options.family.as_deref())?)),
        Some(FormatId::Pytorch | FormatId::Zip | FormatId::Pickle | FormatId::Tar) => {
            Ok(Box::new(apr_pytorch::open_with(source, name, limits, &options.pytorch())?))
        }
        #[cfg(feature = "typed")]
        Some(FormatId::Aprn) => Ok(Box::new(apr_format::aprn::open(source, name, limits, &options.aprn())?)),
        Some(other) => {
            let message = format!("this is {}, which this version of apr does not read", other.name());
            Err(Error::format(message).in_file(name))
        }
        None => Err(Error::format("this is no model format that apr knows").in_file(name).at(0)),
    }
}

fn open_apr2<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits, keys: &Keys) -> Result<apr2::Apr2Reader> {
    let mut reader = apr2::open_with_keys(source, name, limits, keys)?;
    if reader.header().flags.contains(apr2::Flags::SHARDED) {
        let which = match shard_number(name) {
            Some((number, count)) => format!("shard {number} of {count}"),
            None => "one of several shards".to_owned(),
        };
        reader.warn(format!("this is {which} alone; the manifest names the whole model"));
    }
    Ok(reader)
}

/// Whether a file is the manifest of a sharded APR2 model, by its name and its first bytes.
#[must_use]
pub fn is_manifest(name: &str, head: &[u8]) -> bool {
    extension(name) == "apr" && apr2::is_manifest(head)
}

/// Opens the file `name` of a folder: a model file, a part of a split GGUF model with all others, an index of shards, or
/// a manifest of them.
///
/// # Errors
/// Those of [`open`]; E007 when a shard is missing.
pub fn open_in(set: &dyn SourceSet, name: &str, options: impl Into<OpenOptions>) -> Result<Box<dyn CheckpointReader>> {
    let options = options.into();
    let limits = &options.limits;
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    if extension(name) != "json" {
        let head = read_vec(&source, 0, source.len().min(HEAD_LEN)).map_err(|error| error.in_file(name))?;
        if recognise(&head) == Some(FormatId::Gguf) {
            return Ok(Box::new(apr_gguf::open_split(set, name, limits)?));
        }
        if is_manifest(name, &head) {
            let json = read_json(&source, limits).map_err(|error| error.in_file(name))?;
            return Ok(Box::new(apr2::open_manifest(&json, name, set, limits, &options.keys)?));
        }
        return open(source, name, options);
    }
    let json = read_json(&source, limits).map_err(|error| error.in_file(name))?;
    if names_pickles(&json) {
        return Ok(Box::new(apr_pytorch::open_index_with(&json, name, set, limits, &options.pytorch())?));
    }
    Ok(Box::new(apr_safetensors::open_index(&json, name, set, limits)?))
}

fn read_json(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<u8>> {
    limits.check_metadata(source.len())?;
    read_vec(source, 0, source.len())
}

/// Whether the shards of an index are pickles; of anything else, the reader of safetensors tells what is wrong with it.
fn names_pickles(index_json: &[u8]) -> bool {
    let Ok(index) = Metadata::parse(index_json) else { return false };
    let first = index.object("weight_map").and_then(|map| map.values().next()).and_then(|shard| shard.as_str());
    first.is_some_and(|shard| PICKLED.contains(&extension(shard)))
}

/// What downloads leave behind in place of a model.
fn mistaken_for_a_model(head: &[u8]) -> Option<&'static str> {
    let text = head.trim_ascii_start();
    let starts_with =
        |start: &str| text.get(..start.len()).is_some_and(|text| text.eq_ignore_ascii_case(start.as_bytes()));
    if head.is_empty() {
        Some("the file is empty")
    } else if starts_with("version https://git-lfs") {
        Some("this is a Git LFS pointer, not the model itself; `git lfs pull` fetches it")
    } else if starts_with("<!doctype html") || starts_with("<html") {
        Some("this is a web page, not a model; it was saved in place of the download")
    } else {
        None
    }
}

fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_downloads_leave_behind_is_named() {
        let cases = [
            ("", "empty"),
            ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
            ("\n<!DOCTYPE HTML><title>404</title>", "web page"),
            ("some text", "no model format"),
        ];
        for (content, expected) in cases {
            let error = open(content.as_bytes().to_vec(), "model", &Limits::default()).map(drop).expect_err(content);
            assert!(error.message().contains(expected), "{error}");
        }
    }
}
