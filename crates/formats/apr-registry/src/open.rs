//! Bytes decide which reader opens a file; the extension only chooses whose error is shown.

use apr_core::{
    ByteSource, CheckpointReader, Error, Format, HEAD_LEN, Limits, Metadata, Result, SourceSet,
    read_vec,
};
use apr_format::apr2;

use crate::formats::{FORMATS, Registration};
use crate::incomplete::Incomplete;
use crate::options::OpenOptions;
use crate::unread;

/// Returns the format that the first bytes of a file match. [`HEAD_LEN`] bytes are enough; fewer
/// may not be.
///
/// ```
/// let format = |head: &[u8]| apr_registry::recognise(head).map(|format| format.id);
///
/// assert_eq!(format(b"\x08\0\0\0\0\0\0\0{}      "), Some("safetensors"));
/// assert_eq!(format(b"GGUF\x03\0\0\0"), Some("gguf"));
/// assert_eq!(format(b"just some text"), None);
/// ```
#[must_use]
pub fn recognise(head: &[u8]) -> Option<&'static Format> {
    entry_of(head).map(|entry| entry.format)
}

/// The format that the first bytes speak for, or else the extension.
#[must_use]
pub fn recognise_file(head: &[u8], extension: Option<&str>) -> Option<&'static Format> {
    let entry = entry_of(head)
        .or_else(|| entry_by_extension(extension.filter(|extension| *extension != "bin")?));
    entry.map(|entry| entry.format)
}

fn entry_of(head: &[u8]) -> Option<&'static Registration> {
    FORMATS.iter().find(|entry| (entry.format.recognises)(head))
}

/// The format whose files have this extension.
fn entry_by_extension(extension: &str) -> Option<&'static Registration> {
    FORMATS.iter().find(|entry| entry.format.extensions.contains(&extension))
}

/// Opens one file of any readable format.
///
/// # Errors
/// E001 for an unknown format or one this version does not read, otherwise what the format's reader
/// says.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    options: impl Into<OpenOptions>,
) -> Result<Box<dyn CheckpointReader>> {
    let head =
        read_vec(&source, 0, source.len().min(HEAD_LEN)).map_err(|error| error.in_file(name))?;
    check_mistaken(&head, name)?;
    if is_manifest(name, &head) {
        let message = "this is the manifest of a sharded model: open it in the folder of its \
                       shards";
        return Err(Error::format(message).in_file(name));
    }

    // Programs of all kinds call their files .bin: the name speaks for no format.
    let by_extension = || entry_by_extension(extension(name)).filter(|_| extension(name) != "bin");
    let Some(entry) = entry_of(&head).or_else(by_extension) else {
        if extension(name) == "bin" {
            let message = format!(
                "{UNKNOWN_FORMAT}: a .bin file that is not PyTorch, GGML, CTranslate2 or word \
                 vectors"
            );
            return Err(Error::format(message).in_file(name).at(0));
        }
        return Err(Error::format(UNKNOWN_FORMAT).in_file(name).at(0));
    };

    let Some(open) = entry.open else {
        return Err(Error::format(unread::refusal(entry.format, &head)).in_file(name));
    };
    let options = options.into();
    fitting(open(Box::new(source), name, &options)?, &options.limits, name)
}

/// Returns an opened model, if its number of tensors is within the memory limit.
fn fitting(
    reader: Box<dyn CheckpointReader>,
    limits: &Limits,
    name: &str,
) -> Result<Box<dyn CheckpointReader>> {
    let count = reader.tensors().len() as u64;
    limits.check_tensors(count).map_err(|error| error.in_file(name))?;
    Ok(reader)
}

/// Returns `true` if a file is the manifest of a sharded APR2 model, by its name and first bytes.
#[must_use]
pub fn is_manifest(name: &str, head: &[u8]) -> bool {
    extension(name) == "apr" && apr2::is_manifest(head) && mistaken_for_a_model(head).is_none()
}

/// Opens the file `name` of a folder: a model file, a part of a split GGUF model with all others,
/// an index of shards, or a manifest of them.
///
/// # Errors
/// Those of [`open`]; E007 when a shard is missing.
pub fn open_in(
    set: &dyn SourceSet,
    name: &str,
    options: impl Into<OpenOptions>,
) -> Result<Box<dyn CheckpointReader>> {
    let options = options.into();
    fitting(open_any_in(set, name, &options)?, &options.limits, name)
}

fn open_any_in(
    set: &dyn SourceSet,
    name: &str,
    options: &OpenOptions,
) -> Result<Box<dyn CheckpointReader>> {
    let limits = &options.limits;
    let source = set.open(name).map_err(|error| error.in_file(name))?;
    if extension(name) != "json" {
        let head = read_vec(&source, 0, source.len().min(HEAD_LEN))
            .map_err(|error| error.in_file(name))?;
        let by_extension = || entry_by_extension(extension(name)).filter(|entry| entry.spans_files);
        if let Some(open_set) =
            entry_of(&head).or_else(by_extension).and_then(|entry| entry.open_set)
        {
            return open_set(set, name, options)
                .or_else(|error| part_set(set, name, options, error));
        }
        if is_manifest(name, &head) {
            let json = read_json(&source, limits).map_err(|error| error.in_file(name))?;
            return Ok(Box::new(apr2::open_manifest(&json, name, set, limits, &options.keys)?));
        }
        return open(source, name, options);
    }

    let json = read_json(&source, limits).map_err(|error| error.in_file(name))?;
    check_mistaken(&json, name)?;
    #[cfg(feature = "tensorflow")]
    if apr_tensorflow::is_js(&json) {
        return Ok(Box::new(apr_tensorflow::open_js(&json, name, set, limits)?));
    }
    #[cfg(feature = "coreml")]
    if apr_coreml::is_package(&json) {
        return Ok(Box::new(apr_coreml::open_package(&json, name, set, limits)?));
    }
    #[cfg(feature = "trees")]
    if apr_runtimes::trees::xgboost::is_model(&json) {
        return Ok(Box::new(apr_runtimes::trees::xgboost::open(json, name, limits)?));
    }
    let open_index =
        shard_extension(&json).and_then(|extension| entry_by_extension(&extension)?.open_index);
    let opened = match open_index {
        Some(open_index) => open_index(&json, name, set, options),
        // The reader of the format that most of them have reports what is wrong.
        None => return Ok(Box::new(apr_safetensors::open_index(&json, name, set, limits)?)),
    };
    opened.or_else(|error| {
        let extension = shard_extension(&json).unwrap_or_default();
        let open = entry_by_extension(&extension).and_then(|entry| entry.open);
        let Some(open) = open.filter(|_| options.absent_shards) else { return Err(error) };
        let open = |source, shard: &str| open(source, shard, options);
        Ok(Box::new(Incomplete::of_index((&json, name), set, limits, error, open)?) as Box<_>)
    })
}

/// Opens the parts of a split model that are there, if the options ask for it. `error` is the error
/// of opening all of them.
#[cfg(feature = "gguf")]
fn part_set(
    set: &dyn SourceSet,
    name: &str,
    options: &OpenOptions,
    error: Error,
) -> Result<Box<dyn CheckpointReader>> {
    if !options.absent_shards {
        return Err(error);
    }
    Ok(Box::new(Incomplete::of_parts(name, set, &options.limits, error)?))
}

#[cfg(not(feature = "gguf"))]
fn part_set(
    _: &dyn SourceSet,
    _: &str,
    _: &OpenOptions,
    error: Error,
) -> Result<Box<dyn CheckpointReader>> {
    Err(error)
}

fn read_json(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<u8>> {
    limits.check_metadata(source.len())?;
    read_vec(source, 0, source.len())
}

/// The extension of the shards that an index names.
fn shard_extension(index_json: &[u8]) -> Option<String> {
    let index = Metadata::parse(index_json).ok()?;
    let shard = index.object("weight_map")?.values().next()?.as_str()?;
    Some(extension(shard).to_owned())
}

/// Error message for a file of an unknown format.
pub const UNKNOWN_FORMAT: &str = "unknown model format";

/// Refuses what downloads leave behind in place of a model.
fn check_mistaken(head: &[u8], name: &str) -> Result<()> {
    match mistaken_for_a_model(head) {
        Some(mistake) => Err(Error::format(mistake).in_file(name).at(0)),
        None => Ok(()),
    }
}

/// Responses of hubs and object stores for missing or restricted files, in plain text, JSON or XML.
const ANSWERS: [&str; 12] = [
    "Entry not found",
    "Repository not found",
    "Revision not found",
    "Invalid username or password",
    "Invalid credentials",
    "Access to model",
    "Access to dataset",
    "Access denied",
    "Unauthorized",
    "Forbidden",
    "Not Found",
    "404: Not Found",
];

fn mistaken_for_a_model(head: &[u8]) -> Option<String> {
    /// Characters of an answer that are shown.
    const SHOWN: usize = 120;

    let text = head.trim_ascii_start();
    let starts_with = |start: &str| {
        text.get(..start.len()).is_some_and(|text| text.eq_ignore_ascii_case(start.as_bytes()))
    };
    if head.is_empty() {
        return Some("the file is empty".to_owned());
    }

    if starts_with("version https://git-lfs") {
        return Some(
            "this is a Git LFS pointer, not the model; `git lfs pull` downloads it".to_owned(),
        );
    }

    if starts_with("<!doctype html") || starts_with("<html") {
        return Some(
            "this is a web page, not a model; it was saved in place of the download".to_owned(),
        );
    }

    let is_xml = starts_with("<?xml") && text.windows(7).any(|piece| piece == b"<Error>");
    let is_answer =
        is_xml || is_error_json(text) || ANSWERS.iter().any(|answer| starts_with(answer));
    is_answer.then(|| {
        let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line: String = String::from_utf8_lossy(line).chars().take(SHOWN).collect();
        let line = line.trim_end();
        format!(
            "this is a server's response, not a model: '{line}'; check the name and your access, \
             and download it again"
        )
    })
}

/// Returns `true` if the bytes start with a JSON object whose first key is `error`.
fn is_error_json(text: &[u8]) -> bool {
    let inner = text.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    inner
        .and_then(|inner| inner.strip_prefix(b"\"error\""))
        .is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"))
}

fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_left_by_failed_downloads_are_rejected_with_their_cause() {
        let cases = [
            ("", "empty"),
            (
                "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
                "Git LFS pointer",
            ),
            ("\n<!DOCTYPE HTML><title>404</title>", "web page"),
            ("Entry not found", "a server's response, not a model: 'Entry not found'"),
            ("Invalid username or password.\n", "'Invalid username or password.'"),
            ("{\"error\": \"Access to model x is \u{1b}restricted\"}", "x is \u{1b}restricted"),
            (
                "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>",
                "a server's response",
            ),
            ("{ \"error\" : 1}", "a server's response"),
            ("{\"errors\": 1}", "unknown model format"),
            ("some text", "unknown model format"),
        ];
        for (content, expected) in cases {
            let error = open(content.as_bytes().to_vec(), "model", &Limits::default())
                .map(drop)
                .expect_err(content);
            assert!(error.message().contains(expected), "{error}");
        }
    }
}
