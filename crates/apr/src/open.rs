//! Bytes decide which reader opens a file; the extension only chooses whose error is shown.

use apr_core::{ByteSource, CheckpointReader, Error, FormatId, Limits, Result, SourceSet, read_vec, recognise};

/// Bytes that [`recognise`] wants to see.
const HEAD_LEN: u64 = 64;

/// Opens one file of any readable format.
///
/// # Errors
/// E001 for an unknown format or one this version does not read, otherwise what the format's reader says.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Box<dyn CheckpointReader>> {
    let head = read_vec(&source, 0, source.len().min(HEAD_LEN)).map_err(|error| error.in_file(name))?;
    let hint = || match extension(name) {
        "apr" => Some(FormatId::Apr2),
        "safetensors" => Some(FormatId::Safetensors),
        _ => None,
    };
    match recognise(&head).or_else(hint) {
        _ if head.is_empty() => Err(Error::format("the file is empty").in_file(name)),
        Some(FormatId::Apr2) => Ok(Box::new(apr_format::apr2::open(source, name, limits)?)),
        Some(FormatId::Safetensors) => Ok(Box::new(apr_safetensors::open(source, name, limits)?)),
        Some(other) => {
            let message = format!("this is {}, which this version of apr does not read", other.name());
            Err(Error::format(message).in_file(name))
        }
        None => Err(Error::format("this is no model format that apr knows").in_file(name).at(0)),
    }
}

/// Opens the file `name` of a folder: a model file, or the index of its shards.
///
/// # Errors
/// Those of [`open`]; E007 when a shard is missing.
pub fn open_in(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Box<dyn CheckpointReader>> {
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    if extension(name) != "json" {
        return open(source, name, limits);
    }
    limits.check_metadata(source.len()).map_err(|error| error.in_file(name))?;
    let json = read_vec(&source, 0, source.len()).map_err(|error| error.in_file(name))?;
    Ok(Box::new(apr_safetensors::open_index(&json, name, set, limits)?))
}

fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}
