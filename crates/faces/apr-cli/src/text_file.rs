//! Texts that options name: prompts, templates, data, lists, families.

use std::io::Read;
use std::path::Path;

use apr_io::io_error;
use apr_registry::Error;

use crate::failure::Outcome;

/// Maximum length of a text in bytes.
const MAX_TEXT: usize = 16 << 20;

#[cfg(feature = "infer")]
const _: () = assert!(MAX_TEXT == apr_inputs::text::MAX_TEXT, "a text that is read is tokenized");

/// Reads a text.
///
/// # Errors
/// E001 if it is not UTF-8, E007 if it can't be read, E008 beyond [`MAX_TEXT`].
pub(crate) fn read_text(path: &Path) -> Outcome<String> {
    let file = std::fs::File::open(path).map_err(|error| io_error(&error, path))?;
    bounded_text(file, path)
}

/// Reads a text to its end.
pub(crate) fn bounded_text(from: impl Read, path: &Path) -> Outcome<String> {
    let mut bytes = Vec::new();

    // One byte more tells a text that is too long.
    let read = from.take(MAX_TEXT as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| io_error(&error, path))?;
    if bytes.len() > MAX_TEXT {
        let message = format!("the text is longer than {MAX_TEXT} bytes");
        return Err(Error::memory(message).in_file(path.display()).into());
    }
    utf8(bytes, path)
}

/// Returns the text of bytes, without the mark that editors of Windows write at its beginning.
pub(crate) fn utf8(bytes: Vec<u8>, path: &Path) -> Outcome<String> {
    let wrong = |error: std::string::FromUtf8Error| {
        let at = error.utf8_error().valid_up_to() as u64;
        Error::format("the text is not UTF-8").at(at).in_file(path.display())
    };
    let text = String::from_utf8(bytes).map_err(wrong)?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
