//! The dashboard of statistics, which fills while tensors are read.

use std::collections::BTreeMap;

use apr_arch::TensorKind;
use apr_core::grouped;
use apr_core::human::bytes;
use apr_ops::physics::{Level, Violation};
use apr_ops::session::Judged;
use apr_ops::tensors::TensorRow;
use apr_ops::validate::Status;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::list::{Cursor, on_border};
use crate::explore::{Explorer, Loaded, View};
use crate::screen::Key;
use crate::text::{cell, cells, clean, cut, fit, left_out, listed, more, paragraph, shown, width};
use crate::zones::Target;

pub(crate) const HELP: [Key; 5] = [
    ("↑ ↓  k j", "previous, next tensor"),
    ("a", "all tensors; norms and findings"),
    ("Enter", "histogram of the tensor"),
    ("u", "its path through the graph"),
    ("Esc  r", "stop, resume measuring"),
];

/// Columns of the bar of a role.
const BAR: usize = 16;
/// Columns of a kind and a count beside it.
const BESIDE: usize = 44;

/// Statistics of a kind of tensor.
#[derive(Debug, Clone, Default)]
struct Role {
    tensors: usize,
    /// Tensors with values that are impossible for their kind.
    odd: Vec<usize>,
}

/// Tensors of the table, and the statistics of each kind.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Tensors with violations, the worst first, and norms; each in the order of the file.
    health: Vec<(u8, usize)>,
    measured: Vec<usize>,
    shows_all: bool,
    roles: BTreeMap<&'static str, Role>,
    pub(crate) cursor: Cursor,
    rows: usize,
}

impl Rows {
    pub(crate) fn add(&mut self, tensor: usize, found: &Judged<TensorRow>) {
        fn insert<T: Ord>(list: &mut Vec<T>, item: T) {
            if let Err(at) = list.binary_search(&item) {
                list.insert(at, item);
            }
        }
        insert(&mut self.measured, tensor);
        let is_odd = !found.violations.is_empty();
        let rank = match found.violations.first().map(Violation::level) {
            Some(Level::Error) => 0,
            Some(Level::Warning) => 1,
            None => 2,
        };
        if found.kind == Some(TensorKind::NormGamma) || is_odd {
            insert(&mut self.health, (rank, tensor));
        }
        let role = self.roles.entry(found.kind.map_or("other", TensorKind::name)).or_default();
        role.tensors += 1;
        if is_odd {
            role.odd.push(tensor);
        }
    }

    /// The tensor in a row.
    fn tensor(&self, row: usize) -> Option<usize> {
        match self.shows_all {
            true => self.measured.get(row).copied(),
            false => self.health.get(row).map(|(_, tensor)| *tensor),
        }
    }

    pub(crate) fn len(&self) -> usize {
        if self.shows_all { self.measured.len() } else { self.health.len() }
    }
}

impl Explorer<'_> {
    pub(crate) fn key_of_stats(&mut self, key: KeyEvent) {
        let (len, rows) = (self.stats.len(), self.stats.rows);
        if self.stats.cursor.key(key, len, rows) {
            return;
        }
        match key.code {
            KeyCode::Char('a') => {
                self.stats.shows_all = !self.stats.shows_all;
                self.stats.cursor = Cursor::default();
            }
            KeyCode::Enter => {
                let tensor = self.stats.tensor(self.stats.cursor.at);
                if let Some(tensor) = tensor {
                    self.choose(tensor);
                    self.open(View::Histogram);
                }
            }
            KeyCode::Esc => self.cancel(),
            KeyCode::Char('r') => self.measure(),
            KeyCode::Char('u') => {
                if let Some(tensor) = self.stats.tensor(self.stats.cursor.at) {
                    self.choose(tensor);
                    self.show_path();
                }
            }
            _ => {}
        }
    }

    pub(crate) fn draw_stats(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let roles = u16::try_from(self.stats.roles.len().clamp(1, 8)).unwrap_or(1);
        let is_low = area.height < 20;
        let is_lowest = area.height < 15;
        let beside = match &self.inspect {
            Loaded::Ready(report) => u16::from(!report.left_out.is_empty()),
            _ => 0,
        };
        let roles = if is_low { roles.min(3 - beside) } else { roles };
        let [overview, health, distribution, score] = Layout::vertical([
            Constraint::Length(4 + beside),
            Constraint::Min(4),
            Constraint::Length(if is_lowest { 0 } else { roles + 2 }),
            Constraint::Length(if is_lowest { 0 } else { 3 }),
        ])
        .areas(area);
        self.draw_overview(frame, overview);
        self.draw_health(frame, health);
        self.draw_roles(frame, distribution);
        self.draw_score(frame, score);
    }

    fn draw_overview(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::bordered().title(" Overview ");
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let Loaded::Ready(report) = &self.inspect else {
            return self.draw_waiting(frame, inner, &self.inspect);
        };
        let dtypes: Vec<String> =
            report.dtypes.iter().map(|share| share.dtype.to_string()).collect();
        let vocab = report.vocab_size.map_or_else(|| "-".to_owned(), grouped);
        let family = report.family.as_ref().map(|family| family.title.as_str());
        let family = family.or(report.model_type.as_deref()).unwrap_or("-");
        let columns = usize::from(inner.width);
        let after = format!("  Vocab: {vocab}  Arch: {}", clean(family));
        let beside = width(" Dtypes: ") + width(&after);
        let mut lines = vec![
            format!(
                " Total Params: {}  Tensors: {}  Size: {}",
                grouped(report.parameters),
                grouped(report.tensor_count as u64),
                bytes(report.bytes)
            ),
            format!(" Dtypes: {}{after}", listed(dtypes, columns.saturating_sub(beside))),
        ];
        if let [first, more @ ..] = &left_out(&report.left_out)[..] {
            let more = match more.len() {
                0 => String::new(),
                count => format!("; {count} more: t lists them"),
            };
            let room = usize::from(inner.width).saturating_sub(more.len() + 1);
            lines.push(format!(" {}{more}", fit(first, room)));
        }
        let lines: Vec<_> = lines.iter().map(|line| Line::from(fit(line, columns))).collect();
        frame.render_widget(Paragraph::new(lines), inner);
    }

    fn draw_health(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let known = self.statistics.len();
        let all = self.job.model.reader.tensors().len();
        let what = if self.stats.shows_all { "All Tensors" } else { "Layer Norm Health" };
        let progress = if known < all {
            let stopped = if self.measures { "" } else { ", stopped" };
            format!("({} of {} read{stopped}) ", grouped(known as u64), grouped(all as u64))
        } else {
            String::new()
        };
        let block = Block::bordered().title(format!(" {what} {progress}"));
        let inner = block.inner(area);
        if let Some(error) = &self.statistics_failed {
            let lines = paragraph(&clean(error), inner.width, self.palette.bad());
            frame.render_widget(Paragraph::new(lines).block(block), area);
            return;
        }

        let rows = inner.height.saturating_sub(1);
        self.stats.rows = usize::from(rows);
        let len = self.stats.len();
        let window = self.stats.cursor.window(len, self.stats.rows);
        let rest = more(len - window.len());
        frame.render_widget(block.title_bottom(on_border(&rest, self.palette)), area);
        let room = usize::from(inner.width).saturating_sub(30);
        let heading = format!(" {} {:>9} {:>9}  Status", cell("Tensor", room), "Mean", "Std");
        frame.render_widget(Line::styled(heading, self.palette.heading()), inner);
        let found = window.filter_map(|at| {
            let found = self.stats.tensor(at).and_then(|tensor| self.statistics.get(&tensor));
            Some((at, found?))
        });
        let found: Vec<_> = found.collect();
        let names = cells(found.iter().map(|(_, found)| clean(&found.report.name)), room);
        for (y, ((at, found), name)) in (inner.y + 1..).zip(found.into_iter().zip(&names)) {
            let is_here = at == self.stats.cursor.at;
            let line = self.health_row(found, name, is_here);
            let line_area = Rect { y, height: 1, ..inner };
            frame.render_widget(line, line_area);
            self.zones.add(line_area, Target::Item(at));
        }
        if len == 0 && known == all {
            let text = " no norms and no findings; a lists all tensors";
            let line_area = Rect { y: inner.y + 1, height: inner.height.min(1), ..inner };
            frame.render_widget(Line::styled(text, self.palette.faint()), line_area);
        }
    }

    fn health_row(&self, found: &Judged<TensorRow>, name: &str, is_here: bool) -> Line<'static> {
        let row = &found.report;
        let (mean, std) = match &row.stats {
            Some(stats) => (shown(stats.mean), shown(stats.std)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let style = if is_here { self.palette.selected() } else { Style::new() };
        let text = format!(" {name} {mean:>9} {std:>9}  ");
        let (status, mark) = match found.violations.first().map(Violation::level) {
            None => ("✓ OK", self.palette.good()),
            Some(Level::Warning) => ("⚠ odd", self.palette.odd()),
            Some(Level::Error) => ("✗ BAD", self.palette.bad()),
        };
        Line::from(vec![Span::styled(text, style), Span::styled(status, mark)])
    }

    /// Draws the number of valid tensors for each kind.
    fn draw_roles(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::bordered().title(" Weight Distribution ");
        let inner = block.inner(area);
        frame.render_widget(block, area);
        // The odd ones first: there may be more than rows.
        let mut roles: Vec<_> = self.stats.roles.iter().collect();
        roles.sort_by_key(|(_, role)| std::cmp::Reverse(role.odd.len()));
        let columns = usize::from(inner.width);
        let wide = BAR.min(columns.saturating_sub(BESIDE));
        let lines: Vec<Line<'static>> = roles
            .iter()
            .map(|(kind, role)| {
                let sound = role.tensors - role.odd.len();
                let filled = sound * wide / role.tensors.max(1);
                let bar = format!("{}{}", "█".repeat(filled), "░".repeat(wide - filled));
                let (mark, style) = match role.odd.is_empty() {
                    true => ("✓", self.palette.good()),
                    false => ("✗", self.palette.bad()),
                };
                let head = format!(" {} ", cell(kind, 19));
                let count = format!(" {sound}/{} as expected ", role.tensors);
                let used = 24 + wide + count.len() + 3;
                let tensors = self.job.model.reader.tensors();
                let outliers = role.odd.iter().map(|tensor| clean(&tensors[*tensor].name));
                let outlier = format!(" {}", listed(outliers, columns.saturating_sub(used)));
                Line::from(vec![
                    Span::raw(head),
                    Span::styled(bar, self.palette.bar()),
                    Span::raw(count),
                    Span::styled(mark, style),
                    Span::styled(outlier, self.palette.odd()),
                ])
            })
            .collect();
        let lines = cut(lines, inner.height, self.palette.faint());
        frame.render_widget(Paragraph::new(lines), inner);
    }

    /// Draws the score of `apr validate`, if it was run.
    fn draw_score(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::bordered().title(" Validation Score ");
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let Loaded::Ready(checks) = &self.checks else {
            let text = " Not validated yet. Press x.";
            frame.render_widget(Line::styled(text, self.palette.faint()), inner);
            return;
        };
        let made = checks.validation.checks.iter().filter(|it| it.status != Status::Skipped);
        let passed = made.clone().filter(|check| check.status == Status::Pass).count();
        let made = made.count().max(1);
        let filled = passed * BAR / made;
        let (verdict, style) = match checks.validation.valid {
            true => ("VALID", self.palette.good()),
            false => ("INVALID", self.palette.bad()),
        };
        let bar = format!(" {}{}", "█".repeat(filled), "░".repeat(BAR - filled));
        let line = Line::from(vec![
            Span::styled(bar, self.palette.bar()),
            Span::raw(format!("  {passed}/{made} checks pass  ")),
            Span::styled(verdict, style),
        ]);
        frame.render_widget(line, inner);
    }
}
