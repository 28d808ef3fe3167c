//! Error codes, models and tensors in plain words.

mod model;

use apr_registry::Code;
use serde::Serialize;

pub use model::{
    KnownTensor, ModelExplanation, TensorExplanation, explain_model, explain_tensor, known_tensor,
};

/// An error code, explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorExplanation {
    /// `E001` to `E008`.
    pub code: &'static str,
    /// A few words.
    pub title: &'static str,
    /// One sentence.
    pub meaning: &'static str,
    /// What usually leads to it.
    pub causes: &'static [&'static str],
    /// What to do, in order.
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
            "The bytes are not a valid file of the format, or of any format that apr knows.",
            &[
                "a wrong extension",
                "a writer that broke the format's rules",
                "a failed download, saved as the model",
            ],
            &[
                "Look at the first bytes: `apr debug --hex FILE`.",
                "Where they are text, fetch the file again: a web page, an answer of the hub or a \
                 Git LFS pointer is no model.",
                "Ask the file's author which program wrote it.",
            ],
        ),
        Code::Corrupt => (
            "Corrupted Data",
            "The payload does not match what the header says of it: bytes are missing, or sizes \
             and offsets contradict each other. (Where all bytes are there and only a checksum \
             differs, it is E004.)",
            &[
                "an interrupted download",
                "bit rot, a disk error",
                "a full disk while it was written",
            ],
            &[
                "Run `apr validate --checksum FILE` to verify, and to see which tensors are whole.",
                "Check the integrity of the file against its source: its size, its SHA-256.",
                "Fetch the file again.",
            ],
        ),
        Code::Version => (
            "Unsupported Version or Model",
            "The file was written by a newer version, uses a feature that this one does not read, \
             or holds a model whose family or parts this one does not know.",
            &[
                "a newer apr wrote it",
                "compression, encryption or a dtype that this version lacks",
                "a model_type that no family has, a task without a head, an option without a block",
            ],
            &[
                "Update apr.",
                "Have the file written again without the feature that the message names.",
                "Take the model for one of a family that computes the same, by --arch NAME.",
                "Describe its family in a table, for --arch-file FILE (docs/families.md).",
            ],
        ),
        Code::Checksum => (
            "Checksum Mismatch",
            "The file is whole, but bytes of it do not match the checksum or digest that was \
             stored with them. (Where bytes are missing, it is E002.)",
            &[
                "bit rot, a disk or memory error",
                "an edit by a program that does not know the format",
            ],
            &[
                "Run `apr validate FILE` to see which tensors are damaged.",
                "Replace the file; damaged weights can't be repaired from a checksum.",
            ],
        ),
        Code::Decrypt => (
            "Decryption Failed",
            "The key or password is wrong, or the encrypted bytes were changed.",
            &["a mistyped password", "another recipient's key", "a file damaged or tampered with"],
            &[
                "Try the key again.",
                "Run `apr inspect --header` to see how the file is encrypted.",
                "Fetch it again.",
            ],
        ),
        Code::Signature => (
            "Invalid Signature",
            "A signature is missing where one is required, or was not made by a trusted key over \
             these bytes.",
            &[
                "the model was changed after it was signed",
                "it was signed by someone else",
                "it was never signed",
            ],
            &[
                "Get the model and the public key from their author.",
                "Do not use the model until they agree.",
            ],
        ),
        Code::Io => (
            "Input/Output Error",
            "The operating system refused to read or write.",
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
            "The job would take more memory or work than the limit allows, or a file asks for more \
             than it justifies.",
            &[
                "a low --max-memory or APR_RAM_LIMIT",
                "very large metadata",
                "a model with a loop that has no end",
                "a low --max-work",
                "a hostile file",
            ],
            &[
                "Raise the limit that the message names.",
                "Be wary of files that claim sizes they don't have.",
            ],
        ),
        _ => return None,
    };

    Some(ErrorExplanation { code: code.id(), title, meaning, causes, steps })
}
