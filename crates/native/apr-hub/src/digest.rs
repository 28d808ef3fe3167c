//! The two digests that a hub has of its files.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use apr_core::{Error, Progress, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::hub::is_hex;
use crate::lock::disk;
use crate::retry::check_interrupt;

/// Compares bytes with the digest that a hub has of them.
pub(crate) struct Check {
    expected: String,
    hasher: Hasher,
}

enum Hasher {
    Sha256(Box<Sha256>),
    /// SHA-1 of a git blob: of a header with the length, then the bytes.
    Sha1(Box<Sha1>),
    /// SHA-256 for information only, because the server provides no digest.
    Noted(Box<Sha256>),
}

/// Result of a check.
pub(crate) struct Checked {
    /// `true` if the bytes match the server's digest, or the server provides none.
    pub(crate) agrees: bool,
    /// SHA-256 of the bytes, if it was computed.
    pub(crate) sha256: Option<String>,
}

impl Check {
    pub(crate) fn new(expected: &str, len: u64) -> Self {
        let hasher = if is_hex(expected, 64) {
            Hasher::Sha256(Box::default())
        } else if is_hex(expected, 40) {
            let mut hasher = Sha1::new();
            hasher.update(format!("blob {len}\0"));
            Hasher::Sha1(Box::new(hasher))
        } else {
            Hasher::Noted(Box::default())
        };
        Self { expected: expected.to_owned(), hasher }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match &mut self.hasher {
            Hasher::Sha256(hasher) | Hasher::Noted(hasher) => hasher.update(bytes),
            Hasher::Sha1(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Checked {
        match self.hasher {
            Hasher::Sha256(hasher) => {
                let found = hex(&hasher.finalize());
                Checked { agrees: found == self.expected, sha256: Some(found) }
            }
            Hasher::Sha1(hasher) => {
                Checked { agrees: hex(&hasher.finalize()) == self.expected, sha256: None }
            }
            Hasher::Noted(hasher) => {
                Checked { agrees: true, sha256: Some(hex(&hasher.finalize())) }
            }
        }
    }
}

/// Returns `true` for digests that [`Check`] supports: a SHA-256, or git's SHA-1 of a blob.
pub(crate) fn is_digest(text: &str) -> bool {
    is_hex(text, 40) || is_hex(text, 64)
}

/// Returns `true` if a file has this digest. Reads the whole file.
///
/// # Errors
/// E007 for a file that can't be read, and when the user interrupts.
pub(crate) fn file_agrees(
    path: &Path,
    digest: &str,
    progress: &dyn Progress,
    interrupt: &AtomicBool,
) -> Result<bool> {
    Ok(checked_file(path, digest, progress, interrupt)?.agrees)
}

/// Returns the SHA-256 of a file in hexadecimal digits. Reads the whole file.
///
/// # Errors
/// Those of [`file_agrees`].
pub(crate) fn sha256_of(
    path: &Path,
    progress: &dyn Progress,
    interrupt: &AtomicBool,
) -> Result<String> {
    let checked = checked_file(path, "", progress, interrupt)?;
    Ok(checked.sha256.unwrap_or_default())
}

fn checked_file(
    path: &Path,
    digest: &str,
    progress: &dyn Progress,
    interrupt: &AtomicBool,
) -> Result<Checked> {
    let failed = |error: std::io::Error| disk(&error, path);
    let mut file = File::open(path).map_err(failed)?;
    let mut check = Check::new(digest, file.metadata().map_err(failed)?.len());
    let mut piece = vec![0; 1 << 20];
    loop {
        check_interrupt(interrupt)?;
        match file.read(&mut piece).map_err(failed)? {
            0 => return Ok(check.finish()),
            read => {
                check.update(&piece[..read]);
                progress.advance(read as u64);
            }
        }
    }
}

/// A file of the cache is not the one that its server has.
pub(crate) fn damaged(path: &Path, digest: &str) -> Error {
    let message = format!(
        "damaged file in the cache: its digest is not {digest}; remove it to download it again \
         (`apr cache verify` finds all damaged files)"
    );
    Error::checksum(message).in_file(path.display())
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_digests_match_git_and_sha256sum() {
        // `printf 'what is up, doc?' | git hash-object --stdin`, from the book on git, and
        // `sha256sum`.
        let text = b"what is up, doc?";
        let sha1 = "bd9dbf5aae1a3862dd1526723246b20206e5fc37";
        let sha256 = "af4e812d13b4eae6da91024f15f7679dae49d40aee3fb4c7216b56d04193f46c";
        let (no_sha1, no_sha256) = (sha1.replace('b', "c"), sha256.replace('a', "b"));
        for (expected, agrees) in
            [(sha1, true), (sha256, true), (&no_sha1, false), (&no_sha256, false), ("\"x\"", true)]
        {
            let mut check = Check::new(expected, text.len() as u64);
            check.update(text);
            let checked = check.finish();
            assert_eq!(checked.agrees, agrees, "{expected}");
            assert!(checked.sha256.is_none_or(|found| found == sha256));
        }
    }
}
