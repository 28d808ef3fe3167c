//! Patterns over tensor names.

use apr_core::{Error, Result};
use globset::{GlobBuilder, GlobMatcher};

/// Parses a `--filter` pattern.
///
/// # Errors
/// E001 when the pattern is malformed.
pub fn parse_filter(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(false).build();
    glob.map(|glob| glob.compile_matcher())
        .map_err(|error| Error::format(format!("invalid glob: {error}")))
}

/// Parses a pattern that is looked for: without a wildcard, names that contain it match too.
///
/// ```
/// let filter = apr_view::parse_search("q_proj")?;
/// assert!(filter.is_match("layers.0.attn.q_proj.weight"));
/// assert!(!apr_view::parse_search("q_proj*")?.is_match("layers.0.attn.q_proj.weight"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 when the pattern is malformed.
pub fn parse_search(pattern: &str) -> Result<GlobMatcher> {
    if pattern.contains(['*', '?', '[', ']', '{', '}', '\\']) {
        return parse_filter(pattern);
    }
    parse_filter(&format!("*{}*", globset::escape(pattern)))
}

/// A filter that only this name passes.
///
/// # Errors
/// E001 when the name is longer than a pattern may be.
pub fn named(name: &str) -> Result<GlobMatcher> {
    parse_filter(&globset::escape(name))
}
