//! What `apr validate`, `apr scan` and `apr lint` find.

use apr_ops::lint::{LintReport, Severity};
use apr_ops::physics::Level;
use apr_ops::validate::{Status, ValidateReport};
use apr_scan::{FileVerdict, ScanReport, ScanSummary, Verdict};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge, Paragraph};

use crate::explore::background::request::Request;
use crate::explore::{Explorer, Loaded};
use crate::palette::Palette;
use crate::screen::Key;
use crate::text::{cell, clean, fit, left_out, more, width, wrapped};

pub(crate) const HELP: [Key; 3] =
    [("↑ ↓  k j", "scroll"), ("r", "check again"), ("Esc", "stop the checks")];

/// Findings that are shown.
const SHOWN: usize = 1000;

impl Explorer<'_> {
    /// Scans the files and validates the model.
    pub(crate) fn check(&mut self) {
        if self.job.scan.is_some() {
            self.ask(Request::Scan);
        }
        self.ask(Request::Checks);
    }

    pub(crate) fn key_of_checks(&mut self, key: KeyEvent) {
        let len = self.check_lines().len();
        if self.checks_at.key(key, len, self.rows) {
            return;
        }
        match key.code {
            KeyCode::Esc => self.cancel(),
            KeyCode::Char('r') => self.check(),
            _ => {}
        }
    }

    pub(crate) fn draw_checks(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let runs = self.checks.is_waiting() || self.scan.is_waiting();
        let bar = u16::from(runs) * 3;
        let [gauge, area] =
            Layout::vertical([Constraint::Length(bar), Constraint::Min(0)]).areas(area);
        if runs {
            self.draw_gauge(frame, gauge);
        }
        self.rows = usize::from(area.height);
        self.columns = usize::from(area.width);
        let lines = self.check_lines();
        let is_cut = lines.len() > self.rows;
        self.rows -= usize::from(is_cut && self.rows > 1);
        let window = self.checks_at.window(lines.len(), self.rows);
        let (above, below) = (window.start, lines.len() - window.end);
        let mut shown = lines[window].to_vec();
        if is_cut {
            let (above, below) = (more(above), more(below));
            let note = match (above.as_str(), below.as_str()) {
                (above, "") => format!("{above} above"),
                ("", below) => below.to_owned(),
                (above, below) => format!("{above} above, {below} below"),
            };
            shown.push(Line::styled(format!(" {note}"), self.palette.faint()));
        }
        frame.render_widget(Paragraph::new(shown), area);
    }

    /// Draws the progress of the running check.
    fn draw_gauge(&self, frame: &mut Frame<'_>, area: Rect) {
        let [bar, text, _] = Layout::vertical([Constraint::Length(1); 3]).areas(area);
        let (done, total) = self.desk.meter(true).bytes();
        let ratio = (done as f64 / total.max(1) as f64).clamp(0.0, 1.0);
        let bar = Rect { x: bar.x + 2, width: bar.width.saturating_sub(4), ..bar };
        let gauge = Gauge::default().ratio(ratio).gauge_style(self.palette.bar());
        frame.render_widget(gauge, bar);
        let line = format!("  {}", self.progress_of_pass());
        frame.render_widget(Line::styled(line, self.palette.faint()), text);
    }

    fn check_lines(&self) -> Vec<Line<'static>> {
        let mut lines = Lines { lines: Vec::new(), columns: self.columns, palette: self.palette };
        let wording = |text: &str| clean(&self.worded(text));
        match &self.checks {
            Loaded::Ready(checks) => lines.validation(&checks.validation, &wording),
            other => lines.pending("Validate", other, "r checks the model"),
        }
        lines.lines.push(Line::default());
        match &self.scan {
            Loaded::Ready(scan) => lines.scan(scan, &wording),
            Loaded::Nothing if self.job.scan.is_none() => {
                lines.pending("Scan", &self.scan, "no file is known to be scanned");
            }
            other => lines.pending("Scan", other, "r scans the model's files"),
        }
        if let Loaded::Ready(checks) = &self.checks {
            lines.lines.push(Line::default());
            lines.lint(&checks.lint, &wording);
        }
        lines.lines
    }
}

/// Lines that are written one after the other.
struct Lines {
    lines: Vec<Line<'static>>,
    columns: usize,
    palette: Palette,
}

impl Lines {
    /// A missing report, and the reason.
    fn pending<T>(&mut self, title: &str, loaded: &Loaded<T>, advice: &str) {
        self.lines.push(Line::styled(format!(" {title}"), self.palette.heading()));
        match loaded {
            Loaded::Failed(error) => {
                let style = self.palette.bad();
                push_wrapped(&mut self.lines, ("  ✗ ", style), &clean(error), self.columns);
            }
            Loaded::Waiting => self.faint("  ...".to_owned()),
            _ => self.faint(format!("  {advice}")),
        }
    }

    fn faint(&mut self, text: String) {
        self.lines.push(Line::styled(text, self.palette.faint()));
    }

    /// Adds a text after a mark; long texts continue in the next line.
    fn marked(&mut self, mark: &str, style: Style, text: &str) {
        push_wrapped(&mut self.lines, (mark, style), text, self.columns);
    }

    fn validation(&mut self, report: &ValidateReport, wording: &dyn Fn(&str) -> String) {
        let palette = self.palette;
        let (verdict, style) = match report.valid {
            true => ("VALID", palette.good()),
            false => ("INVALID", palette.bad()),
        };
        self.lines.push(Line::from(vec![
            Span::styled(" Validate  ", palette.heading()),
            Span::styled(verdict, style),
        ]));
        for outcome in &report.checks {
            let (mark, style) = match outcome.status {
                Status::Pass => ("✓ pass", palette.good()),
                Status::Warn => ("⚠ warn", palette.odd()),
                Status::Fail => ("✗ FAIL", palette.bad()),
                Status::Skipped => ("- skip", palette.faint()),
            };
            let head = format!("  {mark}  {} ", cell(outcome.check.title(), 17));
            self.marked(&head, style, &wording(&outcome.detail));
        }

        for finding in report.findings.iter().take(SHOWN) {
            let (mark, style) = match finding.level {
                Level::Error => (finding.code.unwrap_or("error"), palette.bad()),
                Level::Warning => ("warning", palette.odd()),
            };
            let tensor = finding
                .tensor
                .as_deref()
                .map_or_else(String::new, |name| format!("'{}': ", fit(&clean(name), 60)));
            self.marked(&format!("  {mark}: "), style, &(tensor + &wording(&finding.message)));
        }
        self.more(report.findings.len());
        for line in left_out(&report.left_out) {
            self.marked("  - ", palette.faint(), &line);
        }
    }

    fn more(&mut self, count: usize) {
        let more = count.saturating_sub(SHOWN);
        if more > 0 {
            self.faint(format!("  and {more} more; e writes all"));
        }
    }

    /// Adds the code that loading the files would run.
    fn scan(&mut self, summary: &ScanSummary, wording: &dyn Fn(&str) -> String) {
        self.lines.push(Line::from(vec![
            Span::styled(" Scan  ", self.palette.heading()),
            Span::styled(
                summary.verdict.word().to_uppercase(),
                self.verdict_style(summary.verdict),
            ),
        ]));
        for file in summary.files.iter().take(SHOWN) {
            let style = self.verdict_style(file.verdict);
            let mark = match file.verdict {
                FileVerdict::Clean | FileVerdict::NotRun => "✓",
                FileVerdict::Dangerous => "✗",
                _ => "⚠",
            };
            let head = format!("  {mark} {} ", cell(file.verdict.word(), 12));
            self.marked(&head, style, &format!("{} ({})", clean(&file.path), clean(&file.kind)));
            self.scan_of_file(file, wording);
        }
        self.more(summary.files.len());
    }

    fn verdict_style(&self, verdict: FileVerdict) -> Style {
        match verdict {
            FileVerdict::Clean | FileVerdict::NotRun => self.palette.good(),
            FileVerdict::Dangerous => self.palette.bad(),
            _ => self.palette.odd(),
        }
    }

    fn scan_of_file(&mut self, file: &ScanReport, wording: &dyn Fn(&str) -> String) {
        const INDENT: &str = "      ";
        let (odd, bad) = (self.palette.odd(), self.palette.bad());
        let names = file.findings().filter(|found| found.verdict != Verdict::Allowed);
        for found in names.take(SHOWN) {
            let is_bad = found.verdict == Verdict::Dangerous;
            let (mark, style) = if is_bad { ("DANGEROUS", bad) } else { ("unknown", odd) };
            let argument = found.argument.as_deref().unwrap_or_default();
            let name = format!("{}.{}{argument}", found.module, found.name);
            self.marked(&format!("{INDENT}{mark}: "), style, &clean(&name));
        }
        for remark in file.remarks.iter().take(SHOWN) {
            let style = self.verdict_style(remark.verdict);
            let text = match remark.entry.as_str() {
                "" => wording(&remark.message),
                entry => format!("'{}': {}", clean(entry), wording(&remark.message)),
            };
            self.marked(&format!("{INDENT}{}: ", remark.verdict.word()), style, &text);
        }
        let broken = file.pickles.iter().filter_map(|pickle| pickle.problem.as_ref());
        let texts =
            [("warning", &file.warnings), ("note", &file.notes), ("unread", &file.problems)];
        let texts =
            texts.into_iter().flat_map(|(mark, texts)| texts.iter().map(move |it| (mark, it)));
        let texts = texts.chain(broken.map(|problem| ("unread", problem)));
        for (mark, text) in texts.take(SHOWN) {
            self.marked(&format!("{INDENT}{mark}: "), odd, &wording(text));
        }
    }

    fn lint(&mut self, report: &LintReport, wording: &dyn Fn(&str) -> String) {
        self.lines.push(Line::styled(" Lint", self.palette.heading()));
        if report.remarks.is_empty() {
            self.lines.push(Line::styled("  ✓ no notes", self.palette.good()));
        }
        for remark in report.remarks.iter().take(SHOWN) {
            let (mark, style) = match remark.severity {
                Severity::Warn => ("[WARN]", self.palette.odd()),
                Severity::Info => ("[INFO]", self.palette.faint()),
            };
            let text = format!("{}: {}", remark.topic.title(), wording(&remark.message));
            self.marked(&format!("  {mark} "), style, &text);
        }
        self.more(report.remarks.len());
    }
}

/// Adds a mark and a wrapped text beside it.
fn push_wrapped(
    lines: &mut Vec<Line<'static>>,
    (mark, style): (&str, Style),
    text: &str,
    columns: usize,
) {
    let indent = width(mark);
    let pieces = wrapped(text, columns.saturating_sub(indent + 1).max(8));
    for (at, piece) in pieces.into_iter().enumerate() {
        let head = if at == 0 { mark.to_owned() } else { " ".repeat(indent) };
        lines.push(Line::from(vec![Span::styled(head, style), Span::raw(piece)]));
    }
}
