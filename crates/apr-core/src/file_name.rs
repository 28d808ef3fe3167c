//! Names of files beside each other.

use alloc::format;

use crate::{Error, Escaped, Result};

/// Accepts a name that stays in the model's folder on every platform: a `:` would name a drive or a
/// stream.
///
/// ```
/// use apr_core::check_file_name;
///
/// assert!(check_file_name("model-00001-of-00002.safetensors").is_ok());
/// assert!(check_file_name("../model.safetensors").is_err());
/// ```
///
/// # Errors
/// E001 for a name that is empty, leads elsewhere, or has control characters.
pub fn check_file_name(name: &str) -> Result<()> {
    let plain = !matches!(name, "" | "." | "..")
        && !name.contains(['/', '\\', ':'])
        && !name.contains(char::is_control);
    if !plain {
        return Err(Error::format(format!("'{}' is not a plain file name", Escaped::short(name))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
