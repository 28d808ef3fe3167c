//! The settings that errors and warnings name.
//!
//! A library does not know what a front end calls its options. So a message that advises to change
//! a setting writes the setting's name between backquotes (``raise the limit with
//! `max_metadata` ``), and a front end rewords it: the command line as an option.

use alloc::string::{String, ToString};
use core::fmt::Display;

/// The names that messages have between backquotes: of options, fields and methods of the
/// libraries.
pub const SETTINGS: [&str; 50] = [
    // Limits.
    "max_memory",
    "max_metadata",
    "max_work",
    // Which model is read, and how.
    "architecture",
    "config",
    "family_table",
    "file",
    "mmproj",
    // The network.
    "insecure",
    "no_cache",
    "offline",
    "timeout",
    // Tensors that are chosen, and their types.
    "dequantize",
    "embedding_type",
    "output_type",
    "precision",
    "pure",
    "quantize",
    "requantize",
    "tensor_type",
    "tensors",
    // Graphs.
    "exclude_node",
    "exclude_op",
    "from",
    "keep_io",
    "latent_cache",
    "matmul_nbits",
    "merged",
    "opset",
    "rename",
    "shape",
    "simplify",
    "task",
    "to",
    "with_past",
    // Generated text.
    "ignore_eos",
    "min_tokens",
    // The output.
    "alignment",
    "compress",
    "encrypt",
    "external_data",
    "strength",
    "format",
    "output",
    "overwrite",
    "recipient",
    "relaxed",
    "shard_size",
    "sign",
    "streaming",
];

/// Returns the message of an error of another library, with single quotes for its backquotes.
///
/// A message of apr contains the messages of other libraries only in this form: a name that they
/// quote is a field of a file, even if a setting has the same name.
///
/// ```
/// assert_eq!(apr_core::foreign(&"missing field `format`"), "missing field 'format'");
/// ```
#[must_use]
pub fn foreign(error: &(impl Display + ?Sized)) -> String {
    error.to_string().replace('`', "'")
}

/// A message with each setting that it names as `word` calls it, without backquotes.
///
/// ```
/// use apr_core::setting::reword;
///
/// let option = |name: &str| format!("--{}", name.replace('_', "-"));
/// assert_eq!(
///     reword("raise the limit with `max_metadata`, not `elsewhere`", option),
///     "raise the limit with --max-metadata, not `elsewhere`"
/// );
/// ```
#[must_use]
pub fn reword(message: &str, word: impl Fn(&str) -> String) -> String {
    let mut reworded = String::with_capacity(message.len());
    let mut rest = message;
    while let Some((before, after)) = rest.split_once('`') {
        reworded.push_str(before);
        let named = after.split_once('`').filter(|(name, _)| SETTINGS.contains(name));
        rest = if let Some((name, behind)) = named {
            reworded.push_str(&word(name));
            behind
        } else {
            reworded.push('`');
            after
        };
    }
    reworded.push_str(rest);
    reworded
}
