//! Names of files.

use apr_core::{Error, Escaped, Result};

/// Accepts a name that stays in the model's folder on every platform: a `:` would name a drive or a stream.
pub(crate) fn check_file_name(name: &str) -> Result<()> {
    let plain =
        !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':']) && !name.contains(char::is_control);
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
        for name in ["pytorch_model.bin", "a..b", "größe.pt"] {
            assert_eq!(check_file_name(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "../a", "/a", "a/b", "a\\b", "C:a", "a:stream", "a\0", "a\n"] {
            assert!(check_file_name(name).is_err(), "{name:?}");
        }
    }
}
