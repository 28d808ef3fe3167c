//! A report as Markdown, for comments on pull requests and summaries of jobs.

use std::io::{self, Write};

/// Lines that are shown without a click.
const OPEN: usize = 40;

/// Writes the text of a report below a heading with the command and its verdict.
///
/// The text is in a fence that is longer than any fence in it, so that a model's texts cannot
/// become a link, an image or HTML.
pub(crate) fn write(
    out: &mut dyn Write,
    command: &str,
    passes: Option<bool>,
    text: &str,
) -> io::Result<()> {
    let verdict = match passes {
        Some(true) => ": passed",
        Some(false) => ": FAILED",
        None => "",
    };
    writeln!(out, "### apr {command}{verdict}\n")?;
    let text = text.trim_matches('\n');
    let lines = text.lines().count();
    let fence = "`".repeat(longest_fence(text).max(2) + 1);
    if lines <= OPEN {
        return writeln!(out, "{fence}text\n{text}\n{fence}");
    }
    writeln!(out, "<details><summary>{lines} lines</summary>\n")?;
    writeln!(out, "{fence}text\n{text}\n{fence}\n\n</details>")
}

/// The longest run of backticks.
fn longest_fence(text: &str) -> usize {
    text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(passes: Option<bool>, text: &str) -> String {
        let mut out = Vec::new();
        write(&mut out, "scan", passes, text).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_report_is_a_heading_and_a_block_of_text() {
        assert_eq!(
            written(Some(false), "\na.pkl  dangerous\n"),
            "### apr scan: FAILED\n\n```text\na.pkl  dangerous\n```\n"
        );
        assert!(written(None, "a").starts_with("### apr scan\n"));
    }

    #[test]
    fn a_text_does_not_end_its_block() {
        let found = written(Some(true), "```\n<img src=x>\n`````");
        assert!(found.contains("``````text\n```\n<img src=x>\n`````\n``````\n"), "{found}");
    }

    #[test]
    fn a_long_report_is_folded() {
        let found = written(Some(true), &"line\n".repeat(41));
        assert!(found.contains("<summary>41 lines</summary>\n\n```text"), "{found}");
        assert!(found.ends_with("```\n\n</details>\n"));
    }
}
