//! Names of files beside each other.

use alloc::format;

use crate::{Error, Escaped, Result};

/// Accepts a name that stays in the model's folder on every platform.
///
/// A `:` is rejected because it would denote a drive or a stream.
///
/// ```
/// use apr_core::check_file_name;
///
/// assert!(check_file_name("model-00001-of-00002.safetensors").is_ok());
/// assert!(check_file_name("../model.safetensors").is_err());
/// ```
///
/// # Errors
/// E001 for a name that is empty, leads to another folder, or has control characters.
pub fn check_file_name(name: &str) -> Result<()> {
    let plain = !matches!(name, "" | "." | "..")
        && !name.contains(['/', '\\', ':'])
        && !name.contains(char::is_control);
    if !plain {
        return Err(Error::format(format!("'{}' is not a plain file name", Escaped::short(name))));
    }
    Ok(())
}

/// Returns a path, as a file of a model states it of another one, without `./` before it.
///
/// ```
/// use apr_core::relative_path;
///
/// assert_eq!(relative_path("./weights/w.bin").expect("a path"), "weights/w.bin");
/// assert!(relative_path("weights/../../w.bin").is_err());
/// ```
///
/// # Errors
/// E001 for a path that is empty, absolute or may lead out of the model's folder.
pub fn relative_path(path: &str) -> Result<&str> {
    let mut inner = path;
    while let Some(rest) = inner.strip_prefix("./") {
        inner = rest;
    }
    if inner.split('/').any(|part| check_file_name(part).is_err()) {
        let shown = Escaped::short(path);
        return Err(Error::format(format!("'{shown}' is not a path inside the model's folder")));
    }
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_folder() {
        for (path, expected) in [("w.bin", "w.bin"), ("./a/b", "a/b"), ("././a", "a")] {
            assert_eq!(relative_path(path).unwrap(), expected);
        }
        for path in ["", "./", "/w", "a//b", "a/./b", "../w", "a/..", "a\\b", "C:w", "a/\u{1b}"] {
            assert!(relative_path(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn file_names_stay_in_the_folder() {
        for name in ["model.safetensors", "pytorch_model.bin", "a..b", "..a", "größe.safetensors"]
        {
            assert_eq!(check_file_name(name), Ok(()), "{name}");
        }
        for name in
            ["", ".", "..", "../a", "/a", "a/b", "a\\b", "C:a", "C:\\a", "a:stream", "a\0", "a\n"]
        {
            assert!(check_file_name(name).is_err(), "{name:?}");
        }
    }
}
