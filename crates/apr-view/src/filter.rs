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
        .map_err(|error| Error::format(format!("the filter is not a pattern: {error}")))
}

/// A filter that only this name passes.
///
/// # Errors
/// E001 when the name is longer than a pattern may be.
pub fn named(name: &str) -> Result<GlobMatcher> {
    parse_filter(&globset::escape(name))
}
