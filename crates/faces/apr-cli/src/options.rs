//! The settings that libraries name in messages, as options of the command line.

use apr_core::setting::reword;

/// Returns a message of a library with its names of settings replaced by options.
pub(crate) fn in_options(message: &str) -> String {
    reword(message, option)
}

/// The option that sets this.
pub(crate) fn option(setting: &str) -> String {
    let name = match setting {
        "alignment" => "align",
        "architecture" => "arch",
        "family_table" => "arch-file",
        same => return format!("--{}", same.replace('_', "-")),
    };
    format!("--{name}")
}
