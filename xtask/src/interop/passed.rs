//! The last pass of each part: when, at which commit, and the seconds that it took.
//!
//! The gate runs no live peer, so a part that stops working is noticed only by those who run it.
//! The record shows which parts have not been run for long.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::process::{output, program, say, workspace};
use crate::steps::{Outcome, Stop};

/// The record: part, date, commit and seconds in a line for each part, sorted.
const RECORD: &str = "xtask/interop/passed.tsv";

/// The first line of the record.
const HEADING: &str = "part\tdate\tcommit\tseconds";

/// A part that passed more commits ago than this is due again.
const DUE: usize = 150;

/// Marks a commit that was checked out with changes on top of it.
const CHANGED: char = '+';

/// Commit of a pass in a folder that is not a clone.
const UNKNOWN: &str = "unknown";

/// The last pass of a part.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pass {
    /// Year, month and day in UTC, as ISO 8601 writes them.
    date: String,
    /// Abbreviated commit, possibly followed by [`CHANGED`]; [`UNKNOWN`] if Git has none.
    commit: String,
    /// Includes what the part had to install or build.
    seconds: u64,
}

impl Pass {
    /// The pass as usage texts have it.
    pub(super) fn shown(&self) -> String {
        format!("{:>6} s, {} at {}", self.seconds, self.date, self.commit)
    }
}

/// Passes by the name of their part.
pub(super) type Passes = BTreeMap<String, Pass>;

/// Reads the record; without one, no part has passed.
pub(super) fn read() -> Outcome<Passes> {
    let path = workspace().join(RECORD);
    if !path.exists() {
        return Ok(Passes::new());
    }
    parse(&fs::read_to_string(path).map_err(Stop::failed)?)
}

fn parse(record: &str) -> Outcome<Passes> {
    let mut lines = record.lines();
    if lines.next() != Some(HEADING) {
        return Err(Stop::failed(format!("{RECORD} does not begin with its heading")));
    }
    lines
        .map(|line| {
            pass(line).ok_or_else(|| Stop::failed(format!("{RECORD} has this line: {line}")))
        })
        .collect()
}

fn pass(line: &str) -> Option<(String, Pass)> {
    let cells: Vec<&str> = line.split('\t').collect();
    let [part, date, commit, seconds] = cells[..] else { return None };
    let (date, commit) = (date.to_owned(), commit.to_owned());
    Some((part.to_owned(), Pass { date, commit, seconds: seconds.parse().ok()? }))
}

fn written(passes: &Passes) -> String {
    let lines = passes.iter().map(|(part, Pass { date, commit, seconds })| {
        format!("{part}\t{date}\t{commit}\t{seconds}\n")
    });
    std::iter::once(format!("{HEADING}\n")).chain(lines).collect()
}

/// Returns the commit that is checked out.
///
/// A run changes files itself, so call this before the run. Changes in the record of earlier runs
/// are ignored.
pub(super) fn commit() -> String {
    let named = output(program("git").args(["rev-parse", "--short=12", "HEAD"]));
    let mut compare = program("git");
    compare.args(["diff", "--quiet", "HEAD", "--", ".", &format!(":(exclude){RECORD}")]);
    match (named, output(&mut compare)) {
        (Some(commit), Some(_)) => commit,
        (Some(commit), None) => format!("{commit}{CHANGED}"),
        (None, _) => UNKNOWN.to_owned(),
    }
}

/// Records that a part passed today.
pub(super) fn record(part: &str, commit: &str, took: Duration) -> Outcome {
    let today = output(program("date").args(["-u", "+%F"]))
        .ok_or_else(|| Stop::skipped("there is no `date`", "install coreutils"))?;
    let pass = Pass { date: today, commit: commit.to_owned(), seconds: took.as_secs() };
    let mut passes = read()?;
    passes.insert(part.to_owned(), pass);
    fs::write(workspace().join(RECORD), written(&passes)).map_err(Stop::failed)
}

/// Lists the parts that are due. To run them takes hours and the network, so none of them is a
/// failure.
pub(super) fn list_due(parts: &[&str]) -> Outcome {
    let passes = read()?;
    for part in parts {
        let last = passes.get(*part);
        let commits = last.and_then(|pass| commits_since(&pass.commit));
        if let Some(why) = why_due(last, commits) {
            say(format_args!("    {part}: {why}; run `cargo xtask interop {part}`"));
        }
    }
    Ok(())
}

/// Returns the reason why a part is due, if it is.
///
/// This depends on its last pass and on the number of commits since then, if it is known.
fn why_due(last: Option<&Pass>, commits: Option<usize>) -> Option<String> {
    match (last, commits) {
        (None, _) => Some("no pass is recorded".to_owned()),
        (Some(_), Some(commits)) if commits <= DUE => None,
        (Some(Pass { date, .. }), Some(commits)) => {
            Some(format!("last passed {commits} commits ago, {date}"))
        }
        (Some(Pass { date, .. }), None) => {
            Some(format!("last passed an unknown number of commits ago, {date}"))
        }
    }
}

/// Returns the number of commits from that one to the one that is checked out.
///
/// Returns `None` if Git cannot count them: there is no clone, the clone is shallow, or it does not
/// contain the commit.
fn commits_since(commit: &str) -> Option<usize> {
    let git = |arguments: &[&str]| output(program("git").args(arguments));
    if git(&["rev-parse", "--is-shallow-repository"])? != "false" {
        return None;
    }
    let range = format!("{}..HEAD", commit.trim_end_matches(CHANGED));
    git(&["rev-list", "--count", &range])?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "part\tdate\tcommit\tseconds\n\
                           codes\t2026-11-28\t5baaae651ee6\t32\n\
                           hub\t2026-10-01\tunknown\t7\n\
                           torch\t2026-10-02\t0123456789ab+\t105\n";

    #[test]
    fn a_record_is_written_sorted_as_it_was_read() {
        let passes = parse(EXAMPLE).expect("a record");
        assert_eq!(passes["codes"].seconds, 32);
        assert_eq!(passes["torch"].shown(), "   105 s, 2026-10-02 at 0123456789ab+");
        assert_eq!(written(&passes), EXAMPLE);
    }

    #[test]
    fn a_damaged_record_is_an_error_that_quotes_the_line() {
        for damaged in ["codes\t2026-11-28\t5baaae651ee6", "codes\t2026-11-28\tx\tfast"] {
            let error = parse(&format!("{HEADING}\n{damaged}\n")).expect_err("no pass");
            assert!(matches!(error, Stop::Failed(why) if why.contains(damaged)));
        }
        assert!(parse("codes\t2026-11-28\t5baaae651ee6\t32\n").is_err(), "without a heading");
    }

    #[test]
    fn a_part_is_due_after_150_commits_or_an_unknown_number() {
        let passes = parse(EXAMPLE).expect("a record");
        let codes = passes.get("codes");
        assert_eq!(why_due(codes, Some(150)), None);
        let due = |commits| why_due(codes, commits).expect("it is due");
        assert_eq!(due(Some(151)), "last passed 151 commits ago, 2026-11-28");
        assert_eq!(due(None), "last passed an unknown number of commits ago, 2026-11-28");
        assert_eq!(why_due(None, None).as_deref(), Some("no pass is recorded"));
    }

    #[test]
    fn commits_are_counted_from_the_recorded_one_if_git_has_it() {
        assert_eq!(commits_since(UNKNOWN), None);
        assert_eq!(commits_since("0000000000000000000000000000000000000000+"), None);
        let here = output(program("git").args(["rev-parse", "--is-shallow-repository"]));
        if here.as_deref() == Some("false") {
            assert_eq!(commits_since(&commit()), Some(0));
        }
    }
}
