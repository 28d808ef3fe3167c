//! The report as text.

use std::io::{self, Write};

use apr_core::counted;
use apr_registry::Escaped;

use crate::assessment::{Assessment, Critical, PointReport, Verdict};

/// Writes the model's score below the worst that makes it unfit.
///
/// # Errors
/// What writing ends with.
pub fn score(out: &mut dyn Write, report: &Assessment) -> io::Result<()> {
    if let Some((Critical { number, name, seen, .. }, others)) = report.critical.split_first() {
        writeln!(out, "UNFIT: {name} ({number}): {}", Escaped(seen))?;
        if !others.is_empty() {
            let others = counted(others.len() as u64, "other critical point");
            writeln!(out, "{others} also failed")?;
        }
    }
    match (report.score, report.rating) {
        (Some(score), Some(rating)) => writeln!(out, "SCORE: {score}/100 ({rating})")?,
        _ => writeln!(out, "SCORE: none (no point about the model was judged)")?,
    }
    match report.min_score.filter(|_| !report.is_enough()) {
        Some(least) => writeln!(out, "below the minimum of {least}"),
        None => Ok(()),
    }
}

/// Writes the headings, the total and the attainable maximum, in the layout of seed 001 §4.4.
///
/// # Errors
/// Returns the errors of writing.
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
    let Assessment { passed, failed, not_applicable, .. } = report;
    writeln!(out, "TOTAL: {passed}/{points} points passed, {failed} failed, {not_applicable} n/a")?;
    if report.attainable < points {
        let rest = counted((points - report.attainable) as u64, "point");
        writeln!(out, "this program cannot judge {rest}")?;
    }
    match report.min_points.filter(|_| !report.is_enough()) {
        Some(least) => writeln!(out, "below the minimum of {least}"),
        None => Ok(()),
    }
}

/// Writes what the model learnt, or that it was not tested.
///
/// # Errors
/// What writing ends with.
pub fn learnt(out: &mut dyn Write, report: &Assessment) -> io::Result<()> {
    let told: Vec<&PointReport> =
        report.learnt.iter().filter(|point| point.verdict != Verdict::NotApplicable).collect();
    match (told.is_empty(), report.learnt.first()) {
        (true, Some(_)) => writeln!(out, "What the model learnt was not tested"),
        _ => told.into_iter().try_for_each(|it| self::point(out, it)),
    }
}

/// Writes the points that failed, and the number of points that do not apply.
///
/// # Errors
/// Returns the errors of writing.
pub fn failures(out: &mut dyn Write, report: &Assessment) -> io::Result<()> {
    let points = report.points.iter().chain(&report.learnt);
    let failed = points.filter(|point| point.verdict == Verdict::Failed);
    for (at, point) in failed.enumerate() {
        if at == 0 {
            writeln!(out, "\nFailed:")?;
        }
        writeln!(out, "{:>3}  {}: {}", point.number, point.name, Escaped(&point.seen))?;
    }
    Ok(())
}

/// Writes a point with its observation.
///
/// # Errors
/// Returns the errors of writing.
pub fn point(out: &mut dyn Write, point: &PointReport) -> io::Result<()> {
    let mark = match point.verdict {
        Verdict::Passed => "pass",
        Verdict::Failed => "FAIL",
        Verdict::NotApplicable => "n/a ",
    };
    writeln!(out, "{mark} {:>3}  {}: {}", point.number, point.name, Escaped(&point.seen))
}
