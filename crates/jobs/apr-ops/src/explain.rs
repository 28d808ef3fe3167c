//! Error codes, models and tensors in plain words.

mod model;
mod stored;

use apr_registry::Code;
use serde::Serialize;

pub use model::{KnownTensor, ModelExplanation, TensorExplanation, known_tensor};
pub(crate) use model::{explain_model, explain_tensor};
pub use stored::{StoredKind, StoredQuantization};

/// An error code, explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorExplanation {
    /// `E001` to `E008`.
    pub code: &'static str,
    /// Title of the error, in a few words.
    pub title: &'static str,
    /// Meaning of the error, in one sentence.
    pub meaning: &'static str,
    /// Usual causes of the error.
    pub causes: &'static [&'static str],
    /// Steps to take, in order.
    pub steps: &'static [&'static str],
}

/// Explains an error code, in any case; `None` for one that does not exist.
///
/// ```
/// assert_eq!(apr_ops::explain::error_code("e002").map(|code| code.title), Some("Corrupted Data"));
/// assert_eq!(apr_ops::explain::error_code("E999"), None);
/// ```
#[must_use]
pub fn error_code(id: &str) -> Option<ErrorExplanation> {
    Code::ALL.into_iter().find(|code| code.id().eq_ignore_ascii_case(id)).and_then(explanation)
}

fn explanation(code: Code) -> Option<ErrorExplanation> {
    let (title, meaning, causes, steps): (_, _, &[_], &[_]) = match code {
        Code::Format => (
            "Invalid Format",
            "The bytes are not a valid file of the format, or of any supported format.",
            &[
                "a wrong extension",
                "a writer that broke the format's rules",
                "the text of a failed download under the name of the model",
            ],
            &[
                "If the first bytes are text, download the file again: it may be a web page, an \
                 error message or a Git LFS pointer.",
                "Ask the file's author which program wrote it.",
            ],
        ),
        Code::Corrupt => (
            "Corrupted Data",
            "The payload does not match the header: bytes are missing, or sizes and offsets \
             contradict each other. (If all bytes are there and only a checksum differs, the \
             error is E004.)",
            &[
                "an interrupted download",
                "bit rot, a disk error",
                "a full disk while it was written",
            ],
            &[
                "Check the integrity of the file against its source: its size, its SHA-256.",
                "Download the file again.",
            ],
        ),
        Code::Version => (
            "Unsupported Version or Model",
            "The file was written by a newer version, uses an unsupported feature, or contains a \
             model of an unknown family.",
            &[
                "a newer apr wrote it",
                "compression, encryption or a dtype that this version lacks",
                "an unknown model_type, a task without a head, an option that the graph can't \
                 express",
            ],
            &[
                "Update apr.",
                "Write the file again without the feature that the message names.",
                "Set a family of the same architecture with `architecture` NAME.",
                "Define the family in a table for `family_table` FILE (docs/families.md).",
            ],
        ),
        Code::Checksum => (
            "Checksum Mismatch",
            "The file is complete, but some bytes do not match their checksum or digest. (If \
             bytes are missing, the error is E002.)",
            &["bit rot, a disk or memory error", "an edit by another program"],
            &["Replace the file; damaged weights can't be repaired from a checksum."],
        ),
        Code::Decrypt => (
            "Decryption Failed",
            "The key or password is wrong, or the encrypted bytes were changed.",
            &["a mistyped password", "another recipient's key", "a file damaged or tampered with"],
            &["Try the key again.", "Download the file again."],
        ),
        Code::Signature => (
            "Invalid Signature",
            "A required signature is missing, or no trusted key made it over these bytes.",
            &[
                "the model was changed after it was signed",
                "it was signed by someone else",
                "it was never signed",
            ],
            &[
                "Get the model and the public key from the author again.",
                "Do not use the model until the signature is valid.",
            ],
        ),
        Code::Io => (
            "Input/Output Error",
            "Reading or writing failed in the operating system.",
            &[
                "a missing file or folder",
                "missing permission",
                "a full disk",
                "a file that changed while it was read",
            ],
            &[
                "Check the path and its permissions.",
                "Check the free space: `df -h`.",
                "Try again.",
            ],
        ),
        Code::Memory => (
            "Out of Memory",
            "The job needs more memory or work than the limit, or a file claims sizes that its \
             length does not justify.",
            &[
                "a low `max_memory` or APR_RAM_LIMIT",
                "very large metadata",
                "a model with an infinite loop",
                "a low `max_work`",
                "a malicious file",
            ],
            &[
                "Raise the limit that the message names.",
                "Do not raise it for files that you do not trust.",
            ],
        ),
        _ => return None,
    };

    Some(ErrorExplanation { code: code.id(), title, meaning, causes, steps })
}
