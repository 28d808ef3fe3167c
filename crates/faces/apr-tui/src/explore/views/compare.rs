//! Two models beside each other.

use apr_core::grouped;
use apr_ops::diff::{DiffReport, TensorDiff, Verdict};
use apr_ops::tensors::HistogramReport;
use apr_ops::validate::{Status, ValidateReport};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::list::{Cursor, on_border};
use crate::explore::background::request::Request;
use crate::explore::{Asks, Explorer, Loaded, View};
use crate::palette::Palette;
use crate::screen::Key;
use crate::text::{cell, cells, clean, fit, more, paragraph, shown};
use crate::zones::Target;

pub(crate) const HELP: [Key; 6] = [
    ("↑ ↓  k j", "previous, next pair of tensors"),
    ("PgUp PgDn  G", "a page up, down; the last pair"),
    ("Enter", "histogram of the tensor; the second model"),
    ("o", "run both, compare the outputs"),
    ("r", "compare again"),
    ("Esc", "stop comparing"),
];

/// Rows from which on scores have a frame of their own.
const ROOMY_BODY: u16 = 19;
/// Rows below which distributions are left out.
const LOW_BODY: u16 = 15;
/// Rows of scores with a frame.
const FRAMED: u16 = 5;
/// Columns of the bar of a score.
const BAR: usize = 16;

/// Pairs of tensors, sorted by difference with the largest first.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    order: Vec<usize>,
    pub(crate) cursor: Cursor,
    rows: usize,
    /// Distributions of the selected pair, one for each model.
    pub(crate) distributions: [Loaded<HistogramReport>; 2],
}

impl Pairs {
    pub(crate) fn list(&mut self, report: &DiffReport) {
        self.order = (0..report.tensors.len()).collect();
        let rank = |verdict: Verdict| match verdict {
            Verdict::Drift | Verdict::Incomparable => 0,
            Verdict::Rounded | Verdict::Reshaped => 1,
            Verdict::Match => 2,
            Verdict::Identical => 3,
        };
        let far = |at: usize| report.tensors[at].max_delta.unwrap_or_default();
        self.order.sort_by(|&one, &two| {
            let ranks = [one, two].map(|at| rank(report.tensors[at].verdict));
            ranks[0].cmp(&ranks[1]).then(far(two).total_cmp(&far(one)))
        });
        self.cursor = Cursor::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
}

impl Explorer<'_> {
    fn pair(&self) -> Option<&TensorDiff> {
        let at = *self.compare.order.get(self.compare.cursor.at)?;
        self.diff.ready()?.tensors.get(at)
    }

    /// Requests the distributions of the values of the selected pair.
    pub(crate) fn ask_distributions(&mut self) {
        let Some(pair) = self.pair() else { return };
        let theirs = pair.other_name.as_ref().unwrap_or(&pair.name).clone();
        let names = [pair.name.clone(), theirs];
        self.compare.distributions = [Loaded::Waiting, Loaded::Waiting];
        for (name, is_other) in names.into_iter().zip([false, true]) {
            self.ask(Request::Distribution { name, is_other });
        }
    }

    pub(crate) fn key_of_compare(&mut self, key: KeyEvent) {
        let (len, rows) = (self.compare.len(), self.compare.rows);
        let before = self.compare.cursor.at;
        if self.compare.cursor.key(key, len, rows) {
            if self.compare.cursor.at != before {
                self.ask_distributions();
            }
            return;
        }
        match key.code {
            KeyCode::Esc => self.cancel(),
            KeyCode::Enter if self.job.other.is_none() => self.ask_other(),
            KeyCode::Enter => self.choose_of_pair(),
            KeyCode::Char('o') if self.job.other.is_some() => self.ask(Request::Outputs),
            KeyCode::Char('r') if self.job.other.is_some() => self.ask(Request::Compare),
            _ => {}
        }
    }

    /// Asks for the model to compare this one with.
    fn ask_other(&mut self) {
        self.ask_line(Asks::Other, "compare with", "");
    }

    pub(crate) fn draw_compare(&mut self, frame: &mut Frame<'_>, area: Rect) {
        if self.job.other.is_none() {
            let text = "Only one model is open. Press Enter to type the file, folder or location \
                        of a second one.";
            let lines = paragraph(text, area.width, self.palette.faint());
            frame.render_widget(Paragraph::new(lines), area);
            return;
        }
        let Loaded::Ready(report) = &self.diff else {
            return self.draw_waiting(frame, area, &self.diff);
        };
        let scores = if area.height < ROOMY_BODY { 2 } else { FRAMED };
        let distribution = if area.height < LOW_BODY { 0 } else { 5 };
        let [summary, table, distribution, scored] = Layout::vertical([
            Constraint::Length(4),
            Constraint::Min(3),
            Constraint::Length(distribution),
            Constraint::Length(scores),
        ])
        .areas(area);
        draw_summary(frame, summary, report);
        self.draw_pairs(frame, table);
        self.draw_distributions(frame, distribution);
        self.draw_scores(frame, scored);
    }

    fn draw_pairs(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let Loaded::Ready(report) = &self.diff else { return };
        let block = Block::bordered().title(" Tensor Comparison ");
        let inner = block.inner(area);
        self.compare.rows = usize::from(inner.height.saturating_sub(1));
        let window = self.compare.cursor.window(self.compare.order.len(), self.compare.rows);
        let rest = more(self.compare.order.len() - window.len());
        frame.render_widget(block.title_bottom(on_border(&rest, self.palette)), area);
        // Without room for names the angle is left out.
        let has_cosine = inner.width >= 76;
        let beside = if has_cosine { 46 } else { 35 };
        let room = usize::from(inner.width).saturating_sub(beside);
        let cosine = if has_cosine { format!(" {:>10}", "Cosine") } else { String::new() };
        let heading =
            format!(" {} {:>10} {:>10}{cosine}  Verdict", cell("Tensor", room), "Max Δ", "L2");
        frame.render_widget(Line::styled(heading, self.palette.heading()), inner);
        let pairs: Vec<_> =
            window.map(|at| (at, &report.tensors[self.compare.order[at]])).collect();
        let names = cells(pairs.iter().map(|(_, pair)| clean(&pair.name)), room);
        for (y, ((at, pair), name)) in (inner.y + 1..).zip(pairs.into_iter().zip(names)) {
            let is_here = at == self.compare.cursor.at;
            let style = if is_here { self.palette.selected() } else { Style::new() };
            let [delta, l2, cosine] = [pair.max_delta, pair.l2, pair.cosine].map(shown);
            let cosine = if has_cosine { format!(" {cosine:>10}") } else { String::new() };
            let text = format!(" {name} {delta:>10} {l2:>10}{cosine}  ");
            let (verdict, mark) = match pair.verdict {
                Verdict::Identical => ("identical", self.palette.faint()),
                Verdict::Match => ("match", self.palette.good()),
                Verdict::Reshaped => ("reshaped", self.palette.odd()),
                Verdict::Rounded => ("rounded", self.palette.odd()),
                Verdict::Drift => ("drift !!", self.palette.bad()),
                Verdict::Incomparable => ("differs", self.palette.bad()),
            };
            let line = Line::from(vec![Span::styled(text, style), Span::styled(verdict, mark)]);
            let row = Rect { y, height: 1, ..inner };
            frame.render_widget(line, row);
            self.zones.add(row, Target::Item(at));
        }
    }

    /// Shows the tensor of the pair in the first model.
    fn choose_of_pair(&mut self) {
        let Some(name) = self.pair().map(|pair| pair.name.clone()) else { return };
        let tensors = self.job.model.reader.tensors();
        match tensors.iter().position(|info| info.name == name) {
            Some(tensor) => {
                self.choose(tensor);
                self.open(View::Histogram);
            }
            None => self.message = Some(format!("v1 calls '{}' otherwise", clean(&name))),
        }
    }

    /// Draws the validation scores of both models, and the difference between their outputs.
    fn draw_scores(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut lines = match &self.scores {
            Loaded::Ready(reports) => {
                score_lines(reports, if area.height < FRAMED { 0 } else { BAR }, self.palette)
            }
            Loaded::Nothing => {
                vec![Line::styled(" not validated; r compares again", self.palette.faint())]
            }
            Loaded::Waiting => {
                let text = format!(" {}", self.progress_of_pass());
                vec![Line::styled(text, self.palette.faint())]
            }
            Loaded::Failed(error) => vec![self.failed(error)],
        };
        let outputs = self.line_of_outputs();
        if area.height < FRAMED {
            // Both models share a line.
            let spans = lines.into_iter().flat_map(|line| line.spans);
            let lines = vec![Line::from(spans.collect::<Vec<_>>()), outputs];
            frame.render_widget(Paragraph::new(lines), area);
            return;
        }
        lines.push(outputs);
        let block = Block::bordered().title(" Validation Score Comparison ");
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn failed(&self, error: &str) -> Line<'static> {
        Line::styled(format!(" {}", clean(error)), self.palette.bad())
    }

    fn line_of_outputs(&self) -> Line<'static> {
        let report = match &self.outputs {
            Loaded::Ready(report) => report,
            Loaded::Failed(error) => return self.failed(error),
            Loaded::Waiting => {
                let text = format!(" Outputs: {}", self.progress_of_pass());
                return Line::styled(text, self.palette.faint());
            }
            Loaded::Nothing => {
                let text = " Outputs: o runs both models on the same inputs";
                return Line::styled(text, self.palette.faint());
            }
        };
        let [mean, most, cosine] =
            [report.mean_l2, report.max_l2, report.cosine].map(|value| shown(Some(value)));
        let top = report
            .same_top
            .map_or_else(String::new, |share| format!("  same top: {:.1}%", 100.0 * share));
        let (verdict, style) = match report.passed {
            true => ("✓ PASS", self.palette.good()),
            false => ("✗ FAIL", self.palette.bad()),
        };
        let text = format!(" mean L2={mean} max={most} cosine={cosine}{top}");
        let verdict = Span::styled(verdict, style);
        Line::from(vec![Span::raw(" Outputs: "), verdict, Span::raw(text)])
    }

    /// Draws the distributions of a pair's values on one axis.
    fn draw_distributions(&self, frame: &mut Frame<'_>, area: Rect) {
        let name = self.pair().map(|pair| clean(&pair.name)).unwrap_or_default();
        let columns = usize::from(area.width).saturating_sub(8);
        let block = Block::bordered().title(format!(" {} ", fit(&name, columns)));
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let known: Vec<&HistogramReport> =
            self.compare.distributions.iter().filter_map(Loaded::ready).collect();
        let ends = known
            .iter()
            .filter(|report| !report.counts.is_empty())
            .map(|report| (report.start, report.start + report.width * report.counts.len() as f64));
        let range = ends.reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)));
        let Some(range) = range else {
            let waiting = &self.compare.distributions[0];
            return self.draw_waiting(frame, inner, waiting);
        };

        let bars = usize::from(inner.width).saturating_sub(26);
        let mut lines = Vec::new();
        for (label, loaded) in ["v1", "v2"].iter().zip(&self.compare.distributions) {
            let Some(found) = loaded.ready() else {
                lines.push(Line::from(format!(" {label}: ...")));
                continue;
            };
            let mean = found.tensor.stats.as_ref().and_then(|stats| stats.mean);
            lines.push(Line::from(vec![
                Span::raw(format!(" {label}: ")),
                Span::styled(strip(found, range, bars), self.palette.bar()),
                Span::raw(format!(" (mean={})", shown(mean))),
            ]));
        }
        let (low, high) = (shown(Some(range.0)), shown(Some(range.1)));
        let gap = bars.saturating_sub(low.len() + high.len()).max(1);
        lines.push(Line::styled(format!("     {low}{:gap$}{high}", ""), self.palette.faint()));
        frame.render_widget(Paragraph::new(lines), inner);
    }
}

/// The checks of both models that pass.
fn score_lines(
    reports: &[ValidateReport; 2],
    columns: usize,
    palette: Palette,
) -> Vec<Line<'static>> {
    let scores = reports.each_ref().map(|report| {
        let made = report.checks.iter().filter(|check| check.status != Status::Skipped);
        let passed = made.clone().filter(|check| check.status == Status::Pass).count();
        (passed, made.count())
    });
    let shares = scores.map(|(passed, made)| passed as f64 / made.max(1) as f64);
    let labels = ["v1", "v2"].into_iter().zip(reports).zip(scores);
    labels
        .map(|((label, report), (passed, made))| {
            let filled = passed * columns / made.max(1);
            let bar = format!("{}{}", "█".repeat(filled), "░".repeat(columns - filled));
            let (verdict, style) = match report.valid {
                true => ("VALID", palette.good()),
                false => ("INVALID", palette.bad()),
            };
            let change = match label {
                "v2" if shares[1] > shares[0] => " ← IMPROVED",
                "v2" if shares[1] < shares[0] => " ← WORSE",
                _ => "",
            };
            Line::from(vec![
                Span::raw(format!(" {label}: ")),
                Span::styled(bar, palette.bar()),
                Span::raw(format!(" {passed}/{made} ")),
                Span::styled(verdict, style),
                Span::styled(change, palette.odd()),
            ])
        })
        .collect()
}

fn draw_summary(frame: &mut Frame<'_>, area: Rect, report: &DiffReport) {
    let block = Block::bordered().title(" Summary ");
    let columns = usize::from(block.inner(area).width);
    let is_changed = |pair: &&TensorDiff| {
        !matches!(pair.verdict, Verdict::Identical | Verdict::Match | Verdict::Reshaped)
    };
    let changed = report.tensors.iter().filter(is_changed).count();
    // Rounded down, so that only models without a difference are 100 % alike.
    let similarity = (report.similarity * 100.0).floor() / 100.0;
    let lines = [
        format!(
            " Similarity: {similarity}%  Changed: {} of {}  New: {}",
            grouped(changed as u64),
            apr_core::counted(report.tensors.len() as u64, "tensor"),
            grouped(report.added.len() as u64)
        ),
        format!(
            " Max Δ: {}  L2 Dist: {}  Removed: {}",
            shown(Some(report.max_delta)),
            shown(Some(report.l2)),
            grouped(report.removed.len() as u64)
        ),
    ];
    let lines = lines.map(|line| Line::from(fit(&line, columns))).to_vec();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A histogram as one row of shades on an axis that it shares with another.
fn strip(report: &HistogramReport, (low, high): (f64, f64), columns: usize) -> String {
    const SHADES: [char; 5] = ['░', '▒', '▓', '█', '█'];
    let most = report.counts.iter().copied().max().unwrap_or_default().max(1);
    let step = (high - low) / columns.max(1) as f64;
    (0..columns)
        .map(|column| {
            // The fullest bin that reaches into the column.
            let (start, end) = (low + step * column as f64, low + step * (column + 1) as f64);
            let bins = report.counts.iter().enumerate().filter(|(at, _)| {
                let bin = report.start + report.width * *at as f64;
                bin < end && bin + report.width > start
            });
            match bins.map(|(_, count)| *count).max().unwrap_or_default() {
                0 => ' ',
                count => {
                    let shade = u128::from(count) * 4 / u128::from(most);
                    SHADES[usize::try_from(shade).unwrap_or(0).min(4)]
                }
            }
        })
        .collect()
}
