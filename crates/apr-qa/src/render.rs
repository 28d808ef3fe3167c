//! The report as text.

use std::io::{self, Write};

use apr_core::counted;
use apr_registry::Escaped;

use crate::assessment::{Assessment, PointReport, Verdict};

/// Writes the headings and the total, as seed 001 §4.4 lays them out, and what the most is.
///
/// # Errors
/// What writing ends with.
pub fn headings(out: &mut dyn Write, report: &Assessment) -> io::Result<()> {
    let points = report.total;
    writeln!(out, "=== {points}-Point Quality Assessment ===")?;
    for score in &report.headings {
        let title = format!("{} ({} pts):", score.heading.title(), score.points);
        write!(out, "{title:<20}{}/{}", score.passed, score.points)?;
        let aside: Vec<String> = [("failed", score.failed), ("n/a", score.not_applicable)]
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        match aside.is_empty() {
            true => writeln!(out)?,
            false => writeln!(out, "  ({})", aside.join(", "))?,
        }
    }
    writeln!(out, "TOTAL: {}/{points} ({})", report.passed, report.rating)?;
    if report.attainable < points {
        let rest = counted((points - report.attainable) as u64, "point");
        writeln!(out, "at most {}: {rest} can't be judged by this program", report.attainable)?;
    }
    if let Some(least) = report.min_score.filter(|_| !report.is_enough()) {
        writeln!(out, "below the minimum of {least}")?;
    }
    Ok(())
}

/// Writes the points that failed, and how many do not apply.
///
/// # Errors
/// What writing ends with.
pub fn failures(out: &mut dyn Write, report: &Assessment) -> io::Result<()> {
    let failed = report.points.iter().filter(|point| point.verdict == Verdict::Failed);
    for (at, point) in failed.enumerate() {
        if at == 0 {
            writeln!(out, "\nFailed:")?;
        }
        writeln!(out, "{:>3}  {}: {}", point.number, point.name, Escaped(&point.seen))?;
    }
    Ok(())
}

/// Writes a point with what was done and seen.
///
/// # Errors
/// What writing ends with.
pub fn point(out: &mut dyn Write, point: &PointReport) -> io::Result<()> {
    let mark = match point.verdict {
        Verdict::Passed => "pass",
        Verdict::Failed => "FAIL",
        Verdict::NotApplicable => "n/a ",
    };
    writeln!(out, "{mark} {:>3}  {}: {}", point.number, point.name, Escaped(&point.seen))
}
