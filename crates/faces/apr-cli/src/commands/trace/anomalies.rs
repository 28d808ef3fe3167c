//! Anomalies of a run (§4.8.5).

use std::io::{self, Write};

use apr_registry::Escaped;
use apr_trace::{Anomaly, AnomalyKind, AnomalyReport, Trace, anomalies};

use super::render::RULE;
use crate::documents::Document;
use crate::failure::Outcome;
use crate::human::number;
use crate::printer::{BAD, BOLD, DIM, GOOD, Printer};

/// Tokens that are generated to find repetitions.
pub(super) const TOKENS: usize = 64;

impl Document for AnomalyReport {
    const SCHEMA: &'static str = "trace.anomalies";
}

/// Prints what is unlike a healthy model.
pub(super) fn report(trace: &Trace, printer: &Printer) -> Outcome {
    let found = anomalies(trace);
    printer.judge(&found, render, found.anomalies.is_empty())
}

fn render(out: &mut dyn Write, report: &AnomalyReport) -> io::Result<()> {
    writeln!(out, "{BOLD}Anomaly Report:{BOLD:#} {}\n{RULE}", Escaped(&report.path))?;
    for anomaly in &report.anomalies {
        let step = anomaly.step.map_or_else(String::new, |step| format!(" (step {step})"));
        writeln!(out, "{BAD}⚠ ANOMALY at {}{step}{BAD:#}", Escaped(&anomaly.path))?;
        writeln!(out, "  - {}", described(anomaly))?;
        writeln!(out, "  - Possible cause: {}", anomaly.kind.cause())?;
        if let Some((from, to)) = anomaly.positions {
            writeln!(out, "  - Affected tokens: positions {from}-{to}")?;
        }
    }

    let mut steps: Vec<usize> = report.anomalies.iter().filter_map(|it| it.step).collect();
    steps.dedup();
    let is_cut = report
        .anomalies
        .iter()
        .any(|anomaly| matches!(anomaly.kind, AnomalyKind::NotFinite { .. }));
    let rest = report.steps.saturating_sub(steps.len());
    match (report.anomalies.is_empty(), is_cut) {
        (true, _) => writeln!(out, "{GOOD}✓ No anomalies in {rest} steps{GOOD:#}")?,
        (false, true) => {
            writeln!(out, "{DIM}Steps after the first NaN are not checked.{DIM:#}")?;
        }
        (false, false) => writeln!(out, "{GOOD}✓ No anomalies in remaining {rest} steps{GOOD:#}")?,
    }
    for limit in &report.not_judged {
        writeln!(out, "{DIM}not checked: {limit}{DIM:#}")?;
    }
    Ok(())
}

fn described(anomaly: &Anomaly) -> String {
    match &anomaly.kind {
        AnomalyKind::NotFinite { operator, count } => {
            format!("NaN or infinity: {count} elements, first made by {}", Escaped(operator))
        }
        AnomalyKind::Explosion { magnitude, usual, max } => format!(
            "Activation explosion: max={} (root mean square {}, usually {})",
            number(*max),
            number(*magnitude),
            number(*usual)
        ),
        AnomalyKind::DeadNeurons { dead, of, inputs } => format!(
            "Dead neurons: {:.0}% of outputs are exactly 0 ({dead} of {of}, at all of {inputs} \
             positions)",
            100.0 * *dead as f64 / (*of).max(1) as f64
        ),
        AnomalyKind::OneKey { peak } => {
            format!("Attention collapse: all heads attend to one position ({peak:.3})")
        }
        AnomalyKind::EveryKey => {
            "Attention collapse: all heads attend to every position alike".to_owned()
        }
        AnomalyKind::Unnormalized => "Attention: rows do not sum to 1".to_owned(),
        AnomalyKind::Repetition { phrase, times } => {
            let ids: Vec<String> = phrase.iter().map(ToString::to_string).collect();
            format!("Repetition: tokens {} occur {times} times in a row", ids.join(", "))
        }
        AnomalyKind::WordsInSilence { text } => {
            format!("Words in silence: \"{}\"", Escaped::short(text))
        }
        AnomalyKind::ConfidentOnNoise { class, probability } => {
            format!("Confident answer to noise: {} ({probability:.3})", Escaped(class))
        }
        _ => "unlike a healthy model".to_owned(),
    }
}
