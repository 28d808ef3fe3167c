//! Names that Windows does not take, or takes for something else.

use std::borrow::Cow;
use std::path::Path;

/// Names of devices, with any extension and in any folder.
const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// Devices with a number from 0 to 9.
const NUMBERED: [&str; 2] = ["COM", "LPT"];

/// Checks that this system supports a file name, whose parts are separated by `/`. The name comes
/// from a model or a server, not from the user.
///
/// # Errors
/// A description of the problem. On Unix, every name is accepted.
pub fn check_name(name: &str) -> Result<(), Cow<'static, str>> {
    if cfg!(windows) { check_on_windows(name) } else { Ok(()) }
}

/// Returns a path in a form that other systems can also read: a relative path with slashes between
/// its parts, and any other unchanged. Returns `None` if it is not UTF-8.
///
/// ```
/// let path = std::path::Path::new("data").join("m.apr");
/// assert_eq!(apr_platform::portable(&path).as_deref(), Some("data/m.apr"));
/// ```
#[must_use]
pub fn portable(path: &Path) -> Option<String> {
    if path.has_root() || path.is_absolute() {
        return path.to_str().map(str::to_owned);
    }
    let parts: Option<Vec<&str>> = path.iter().map(|part| part.to_str()).collect();
    Some(parts?.join("/"))
}

fn check_on_windows(name: &str) -> Result<(), Cow<'static, str>> {
    let refused = |c: char| c < ' ' || "<>:\"|?*\\".contains(c);
    if let Some(found) = name.chars().find(|&c| refused(c)) {
        let found = found.escape_default();
        return Err(format!("Windows does not allow '{found}' in file names").into());
    }
    for part in name.split('/') {
        if is_device(part) {
            return Err(format!("'{part}' is the name of a device on Windows").into());
        }
        // The system would leave the end away, and another file may have that name.
        if part.ends_with(['.', ' ']) {
            return Err("Windows does not allow file names that end with a dot or a space".into());
        }
    }
    Ok(())
}

/// Returns `true` if any version of Windows treats the file name as a device. Versions before 11 do
/// so whatever the extension is.
pub(crate) fn is_device(name: &str) -> bool {
    let stem = name.split(['.', ':']).next().unwrap_or(name).trim_end();
    let is = |device: &&str| stem.eq_ignore_ascii_case(device);
    let is_numbered = |device: &&str| {
        let number = stem.get(device.len()..).unwrap_or("");
        stem.get(..device.len()).is_some_and(|start| start.eq_ignore_ascii_case(device))
            && matches!(number.as_bytes(), [b'0'..=b'9'])
    };
    DEVICES.iter().any(is) || NUMBERED.iter().any(is_numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_rejects_device_names_and_its_reserved_characters() {
        for bad in [
            "aux.txt",
            "a/CON",
            "nul",
            "Com1.safetensors",
            "lpt9",
            "conin$",
            "a:b",
            "C:/m",
            "a\\b",
            "what?",
            "a*",
            "tab\t",
            "end.",
            "end /a",
            "nul .txt",
        ] {
            assert!(check_on_windows(bad).is_err(), "{bad}");
        }
        for good in
            ["m.safetensors", "auxiliary", "console.json", "com", "com12", "1_P/config.json"]
        {
            assert_eq!(check_on_windows(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn names_are_checked_where_they_matter() {
        assert_eq!(check_name("aux.txt").is_err(), cfg!(windows));
    }
}
