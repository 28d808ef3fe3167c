//! The page that the figures are written to.

use std::fs;

use crate::process::workspace;
use crate::steps::{Outcome, Stop};

const PAGE: &str = "docs/quality.md";

/// Replaces the section of a measure in the page, which is between two comments.
pub(crate) fn write(measure: &str, figures: &str) -> Outcome {
    let path = workspace().join(PAGE);
    let page =
        fs::read_to_string(&path).map_err(|error| Stop::failed(format!("{PAGE}: {error}")))?;
    let (begin, end) = (format!("<!-- {measure} -->\n"), format!("<!-- end of {measure} -->"));
    let parts =
        page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) =
        parts.ok_or_else(|| Stop::failed(format!("{PAGE} has no place for {measure}")))?;
    println!("{figures}");
    fs::write(&path, format!("{before}{begin}\n{}\n\n{end}{after}", figures.trim()))
        .map_err(Stop::failed)
}

/// A percentage that is not rounded up, so that 95.0 means it.
pub(crate) fn percent(part: usize, whole: usize) -> f64 {
    let tenths = (part * 1000).checked_div(whole).unwrap_or(1000);
    tenths as f64 / 10.0
}
