//! What `apr validate` and `apr lint` find.

use apr_ops::lint::Severity;
use apr_ops::physics::Level;
use apr_ops::validate::Status;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge, Paragraph};

use crate::explore::background::reports::Checks;
use crate::explore::background::request::Request;
use crate::explore::{Explorer, Loaded};
use crate::screen::Key;
use crate::text::{cell, clean, width, wrapped};

pub(crate) const HELP: [Key; 3] =
    [("↑ ↓  k j", "scroll"), ("r", "check again"), ("Esc", "stop the checks")];

/// Findings that are shown.
const SHOWN: usize = 1000;

impl Explorer<'_> {
    pub(crate) fn key_of_checks(&mut self, key: KeyEvent) {
        let len = self.check_lines().len();
        if self.checks_at.key(key, len, self.rows) {
            return;
        }
        match key.code {
            KeyCode::Esc => self.cancel(),
            KeyCode::Char('r') => self.ask(Request::Checks),
            _ => {}
        }
    }

    pub(crate) fn draw_checks(&mut self, frame: &mut Frame<'_>, area: Rect) {
        if matches!(self.checks, Loaded::Waiting) {
            let [_, bar, text, _] = Layout::vertical([
                Constraint::Length(1),
                Constraint::Length(1),
                Constraint::Length(1),
                Constraint::Min(0),
            ])
            .areas(area);
            let (done, total) = self.desk.meter(true).bytes();
            let ratio = (done as f64 / total.max(1) as f64).clamp(0.0, 1.0);
            let bar = Rect { x: bar.x + 2, width: bar.width.saturating_sub(4), ..bar };
            frame.render_widget(Gauge::default().ratio(ratio).gauge_style(self.palette.bar()), bar);
            let line = format!("  checking: {}", self.progress());
            frame.render_widget(Line::styled(line, self.palette.faint()), text);
            return;
        }
        if matches!(self.checks, Loaded::Nothing) {
            let line = Line::styled(" not checked: r checks the model", self.palette.faint());
            frame.render_widget(line, area);
            return;
        }
        if self.checks.ready().is_none() {
            return self.draw_waiting(frame, area, &self.checks);
        }
        self.rows = usize::from(area.height);
        self.columns = usize::from(area.width);
        let lines = self.check_lines();
        let window = self.checks_at.window(lines.len(), self.rows);
        frame.render_widget(Paragraph::new(lines[window].to_vec()), area);
    }

    fn check_lines(&self) -> Vec<Line<'static>> {
        let Some(checks) = self.checks.ready() else { return Vec::new() };
        let Checks { validation, lint } = &**checks;
        let palette = self.palette;
        let (verdict, style) = match validation.valid {
            true => ("VALID", palette.good()),
            false => ("INVALID", palette.bad()),
        };
        let mut lines = vec![Line::styled(format!(" {verdict}"), style)];
        for outcome in &validation.checks {
            let (mark, style) = match outcome.status {
                Status::Pass => ("✓ pass", palette.good()),
                Status::Warn => ("⚠ warn", palette.odd()),
                Status::Fail => ("✗ FAIL", palette.bad()),
                Status::Skipped => ("- skip", palette.faint()),
            };
            let head = format!("  {mark}  {} ", cell(outcome.check.title(), 17));
            push_wrapped(&mut lines, (&head, style), &clean(&outcome.detail), self.columns);
        }

        for finding in validation.findings.iter().take(SHOWN) {
            let (mark, style) = match finding.level {
                Level::Error => (finding.code.unwrap_or("error"), palette.bad()),
                Level::Warning => ("warning", palette.odd()),
            };
            let tensor = finding.tensor.as_deref().map_or_else(String::new, |name| {
                format!("'{}': ", crate::text::fit(&clean(name), 60))
            });
            let text = format!("{tensor}{}", clean(&finding.message));
            push_wrapped(&mut lines, (&format!("  {mark}: "), style), &text, self.columns);
        }
        let more = validation.findings.len().saturating_sub(SHOWN);
        if more > 0 {
            lines.push(Line::styled(format!("  and {more} more; e writes all"), palette.faint()));
        }

        lines.push(Line::default());
        lines.push(Line::styled(" Lint", palette.heading()));
        if lint.remarks.is_empty() {
            lines.push(Line::styled("  ✓ no remarks", palette.good()));
        }
        for remark in lint.remarks.iter().take(SHOWN) {
            let (mark, style) = match remark.severity {
                Severity::Warn => ("[WARN]", palette.odd()),
                Severity::Info => ("[INFO]", palette.faint()),
            };
            let text = format!("{}: {}", remark.topic.title(), clean(&remark.message));
            push_wrapped(&mut lines, (&format!("  {mark} "), style), &text, self.columns);
        }
        lines
    }
}

/// A mark, and a text beside it that goes on below itself.
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
