//! Names of files that are made of other names.

/// A name that is a file's on every system.
pub(super) fn component(name: &str) -> String {
    /// Maximum length of a file name in bytes, without the extension.
    const LONGEST: usize = 240;
    let plain = |c: char| if c.is_control() || "\\/:*?\"<>|".contains(c) { '_' } else { c };
    let mut name: String = name.chars().map(plain).collect();
    if name.chars().all(|c| c == '.') {
        name = "_".repeat(name.len().max(1));
    }
    while name.len() > LONGEST {
        name.pop();
    }
    match apr_platform::check_name(&name) {
        Ok(()) => name,
        Err(_) => format!("_{name}_"),
    }
}
