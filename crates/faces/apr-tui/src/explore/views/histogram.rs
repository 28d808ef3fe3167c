//! The distribution of one tensor.

use apr_core::grouped;
use apr_core::human::bytes;
use apr_ops::physics::Level;
use apr_ops::session::Judged;
use apr_ops::tensors::{HistogramReport, TensorRow};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};

use crate::chart::Chart;
use crate::explore::background::request::Request;
use crate::explore::{Explorer, Loaded, View};
use crate::palette::Palette;
use crate::screen::Key;
use crate::text::{clean, fit, shown};

pub(crate) const HELP: [Key; 4] = [
    ("← →  p n  k j", "previous, next tensor of the list"),
    ("Enter", "values of the tensor"),
    ("u", "its path through the graph"),
    ("Esc", "back to the list"),
];

/// Usual causes of values that are impossible for a kind of tensor (seed 001 §4.13.4).
const CAUSES: [&str; 3] = [
    "tensor scaled wrongly during conversion",
    "wrong tensor mapped to this name",
    "source model corrupt",
];

impl Explorer<'_> {
    pub(crate) fn ask_histogram(&mut self) {
        let Some(tensor) = self.tensor() else { return };
        let name = &self.job.model.reader.tensors()[tensor].name;
        let is_there = |found: &Judged<HistogramReport>| found.report.tensor.name == *name;
        if !self.histogram.ready().is_some_and(is_there) {
            self.ask(Request::Histogram(tensor));
        }
    }

    /// Moves to the next or the previous tensor of the list; returns `true` if there is one.
    pub(crate) fn step(&mut self, is_forward: bool) -> bool {
        let before = self.cursor.at;
        let last = self.order.len().saturating_sub(1);
        self.cursor.at = match is_forward {
            true => (before + 1).min(last),
            false => before.saturating_sub(1),
        };
        self.cursor.at != before
    }

    pub(crate) fn key_of_histogram(&mut self, key: KeyEvent) {
        let is_forward = match key.code {
            KeyCode::Right | KeyCode::Down | KeyCode::Char('n' | 'j' | 'l') => true,
            KeyCode::Left | KeyCode::Up | KeyCode::Char('p' | 'k') => false,
            KeyCode::Enter => return self.open(View::Values),
            KeyCode::Char('u') => return self.show_path(),
            KeyCode::Esc => return self.open(self.origin),
            _ => return,
        };
        if self.step(is_forward) {
            self.ask_histogram();
        }
    }

    pub(crate) fn draw_histogram(&self, frame: &mut Frame<'_>, area: Rect) {
        let columns = usize::from(area.width);
        let [name, rest] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let info = self.tensor().map(|tensor| &self.job.model.reader.tensors()[tensor]);
        let text = info.map_or_else(|| "no tensor".to_owned(), |info| clean(&info.name));
        let text = format!(" Tensor: {}", fit(&text, columns.saturating_sub(10)));
        frame.render_widget(Line::styled(text, self.palette.heading()), name);
        match &self.histogram {
            Loaded::Ready(found) => draw(frame, rest, found, self.palette),
            waiting => self.draw_waiting(frame, rest, waiting),
        }
    }
}

/// The facts of a tensor on two lines.
fn facts(row: &TensorRow) -> [Line<'static>; 2] {
    let first = format!(" Shape: {}  dtype: {}  Size: {}", row.shape, row.dtype, bytes(row.bytes));
    let Some(stats) = &row.stats else { return [Line::from(first), Line::default()] };
    let [mean, std, min, max] = [stats.mean, stats.std, stats.min, stats.max].map(shown);
    let second = format!(" Mean: {mean}  Std: {std}  Min: {min}  Max: {max}");
    [Line::from(first), Line::from(second)]
}

fn draw(frame: &mut Frame<'_>, area: Rect, found: &Judged<HistogramReport>, palette: Palette) {
    let notes = notes(found, palette);
    let width = usize::from(area.width).max(1);
    let rows: usize = notes.iter().map(|line| line.width().div_ceil(width).max(1)).sum();
    let most = usize::from(area.height).saturating_sub(9);
    let notes_height = u16::try_from(rows.min(most)).unwrap_or_default();
    let [facts_area, _, chart, below] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(notes_height),
    ])
    .areas(area);
    let report = &found.report;
    frame.render_widget(Paragraph::new(facts(&report.tensor).to_vec()), facts_area);
    distribution(frame, chart, report, palette);
    frame.render_widget(Paragraph::new(notes).wrap(Wrap { trim: false }), below);
}

/// Bars beside an axis of counts.
fn distribution(frame: &mut Frame<'_>, area: Rect, report: &HistogramReport, palette: Palette) {
    if report.counts.is_empty() {
        frame.render_widget(Line::styled(" no finite values", palette.bad()), area);
        return;
    }
    let most = report.counts.iter().copied().max().unwrap_or_default();
    let label = grouped(most);
    let margin = u16::try_from(label.len().max(5) + 3).unwrap_or(10);
    let [axis, bars] =
        Layout::horizontal([Constraint::Length(margin), Constraint::Min(0)]).areas(area);
    let height = usize::from(axis.height);
    let lines: Vec<Line<'_>> = (0..height)
        .map(|row| {
            let text = match row {
                0 => label.clone(),
                row if row + 2 == height => "0".to_owned(),
                _ => String::new(),
            };
            let rule = if row + 1 < height { "│" } else { " " };
            Line::styled(
                format!("{text:>width$} {rule}", width = usize::from(margin) - 2),
                palette.faint(),
            )
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), axis);
    let end = report.start + report.width * report.counts.len() as f64;
    let chart = Chart { counts: &report.counts, range: (report.start, end), style: palette.bar() };
    chart.draw(frame.buffer_mut(), bars);
}

/// Returns the warnings about the values, or a note that there are none.
fn notes(found: &Judged<HistogramReport>, palette: Palette) -> Vec<Line<'static>> {
    let stats = found.report.tensor.stats.as_ref();
    let mut lines = Vec::new();
    if let Some(stats) = stats.filter(|stats| stats.nan + stats.inf > 0) {
        let text = format!(" {} NaN, {} infinite", grouped(stats.nan), grouped(stats.inf));
        lines.push(Line::styled(text, palette.bad()));
    }
    if found.violations.is_empty() {
        let kind = found.kind.map_or_else(String::new, |kind| format!(" ({})", kind.name()));
        lines.push(Line::styled(format!(" ✓ nothing unusual{kind}"), palette.good()));
        return lines;
    }
    lines.push(Line::styled(" ⚠ ANOMALY DETECTED:", palette.bad()));
    for violation in &found.violations {
        let is_bad = violation.level() == Level::Error;
        let style = if is_bad { palette.bad() } else { palette.odd() };
        lines.push(Line::styled(format!("   {}", clean(&violation.to_string())), style));
    }
    lines.push(Line::from(" Possible causes:"));
    lines.extend(CAUSES.map(|cause| Line::from(format!("   • {cause}"))));
    lines
}
