//! The list of tensors.

use apr_core::human::{bytes, statistic};
use apr_ops::tensors::{TensorRow, TensorsReport};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::filter::Wanted;
use super::list::Cursor;
use crate::explore::{Asks, Explorer, Loaded, View};
use crate::screen::Key;
use crate::text::{beside, cell, cells, clean, fit, left_out, more};
use crate::zones::Target;

pub(crate) const HELP: [Key; 7] = [
    ("↑ ↓  k j", "previous, next tensor"),
    ("PgUp PgDn  ^U ^D", "a page up, down"),
    ("Home End  G", "the first, the last"),
    ("/", "filter by words, or letters in order"),
    ("o", "stored, name, size, dtype first"),
    ("Enter", "histogram of the tensor"),
    ("u", "its path through the graph"),
];

/// Columns of a shape at most.
const WIDEST_SHAPE: usize = 20;
/// Columns of a dtype at most.
const WIDEST_DTYPE: usize = 10;
/// Columns of a size, and spaces.
const BESIDE: usize = 14;
/// Minimum columns for which available statistics are shown.
const WIDE: u16 = 120;

/// Sort order of the list, as in `apr tensors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Sort {
    #[default]
    Stored,
    Name,
    Size,
    DType,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Stored => Self::Name,
            Self::Name => Self::Size,
            Self::Size => Self::DType,
            Self::DType => Self::Stored,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Stored => "as stored",
            Self::Name => "by name",
            Self::Size => "by size",
            Self::DType => "by dtype",
        }
    }
}

/// Tensors in the order that they are listed in.
#[derive(Debug, Default)]
pub(crate) struct Order {
    shown: Vec<usize>,
    sort: Sort,
    text: String,
    /// Tensors to list with a description of the selection; `None` for all tensors.
    chosen: Option<(Vec<usize>, String)>,
    /// Columns of dtypes and shapes.
    widths: (usize, usize),
}

impl Order {
    pub(crate) fn list(&mut self, report: &TensorsReport) {
        let widest = |text: fn(&TensorRow) -> String, least: usize, most: usize| {
            let widths = report.tensors.iter().map(|row| text(row).len());
            widths.max().unwrap_or_default().clamp(least, most)
        };
        self.widths = (
            widest(|row| row.dtype.to_string(), 5, WIDEST_DTYPE),
            widest(|row| row.shape.to_string(), 5, WIDEST_SHAPE),
        );
        self.arrange(report);
    }

    pub(crate) fn filter(&mut self, report: &TensorsReport, text: &str) {
        text.clone_into(&mut self.text);
        if text.is_empty() {
            self.chosen = None;
        }
        self.arrange(report);
    }

    fn arrange(&mut self, report: &TensorsReport) {
        let rows = &report.tensors;
        self.shown = Wanted::new(&self.text).of(&rows.iter().map(|row| row.name.as_str()));
        if let Some((chosen, _)) = &self.chosen {
            self.shown.retain(|tensor| chosen.binary_search(tensor).is_ok());
        }
        match self.sort {
            Sort::Stored => {}
            Sort::Name => self.shown.sort_by(|&a, &b| rows[a].name.cmp(&rows[b].name)),
            Sort::Size => self.shown.sort_by_key(|&at| std::cmp::Reverse(rows[at].bytes)),
            Sort::DType => self.shown.sort_by_key(|&at| rows[at].dtype),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shown.len()
    }

    /// The tensor in a row.
    pub(crate) fn tensor(&self, row: usize) -> Option<usize> {
        self.shown.get(row).copied()
    }

    /// The row of a tensor.
    pub(crate) fn row(&self, tensor: usize) -> Option<usize> {
        self.shown.iter().position(|shown| *shown == tensor)
    }
}

impl Explorer<'_> {
    pub(crate) fn key_of_tensors(&mut self, key: KeyEvent) {
        if self.cursor.key(key, self.order.len(), self.rows) {
            return;
        }
        match key.code {
            KeyCode::Enter => self.open(View::Histogram),
            KeyCode::Char('/') => {
                let text = self.order.text.clone();
                self.ask_line(Asks::Filter, "filter", &text);
            }
            KeyCode::Esc => self.filter(""),
            KeyCode::Char('u') => self.show_path(),
            KeyCode::Char('o') => self.sort(),
            _ => {}
        }
    }

    /// Selects a tensor; clears the filter if it hides the tensor.
    pub(crate) fn choose(&mut self, tensor: usize) {
        if self.order.row(tensor).is_none()
            && let Loaded::Ready(list) = &self.list
        {
            self.order.filter(list, "");
        }
        self.cursor.at = self.order.row(tensor).unwrap_or_default();
    }

    /// Lists these tensors, which are in the order of the file.
    pub(crate) fn list_chosen(&mut self, tensors: Vec<usize>, what: &str) {
        let Loaded::Ready(list) = &self.list else { return };
        if tensors.is_empty() {
            self.message = Some(format!("{what} does not read tensors"));
            return;
        }
        self.order.text.clear();
        self.order.chosen = Some((tensors, what.to_owned()));
        self.order.arrange(list);
        self.cursor = Cursor::default();
        self.open(View::Tensors);
    }

    fn sort(&mut self) {
        let Loaded::Ready(list) = &self.list else { return };
        let tensor = self.order.tensor(self.cursor.at);
        self.order.sort = self.order.sort.next();
        self.order.arrange(list);
        self.cursor.at = tensor.and_then(|tensor| self.order.row(tensor)).unwrap_or_default();
    }

    pub(crate) fn draw_tensors(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let Loaded::Ready(list) = &self.list else {
            return self.draw_waiting(frame, area, &self.list);
        };
        let unread: Vec<Line<'_>> = left_out(&list.left_out)
            .iter()
            .map(|line| fit(&format!(" {line}"), usize::from(area.width)))
            .map(|line| Line::styled(line, self.palette.faint()))
            .collect();
        let below = u16::try_from(unread.len()).unwrap_or(u16::MAX);
        let [area, below] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(area);
        frame.render_widget(Paragraph::new(unread), below);
        let [head, rows, foot] = three(area);
        let has_stats = area.width >= WIDE && !self.statistics.is_empty();
        let stats_width = if has_stats { 40 } else { 0 };
        let (dtype, shape) = self.order.widths;
        let name = usize::from(area.width).saturating_sub(BESIDE + dtype + shape + stats_width);
        let mut heading = format!(
            " {} {} {} {:>9}",
            cell("Name", name),
            cell("Dtype", dtype),
            cell("Shape", shape),
            "Size"
        );
        if has_stats {
            for label in ["Min", "Max", "Mean", "Std"] {
                heading.push_str(&format!(" {label:>9}"));
            }
        }
        frame.render_widget(Line::styled(heading, self.palette.heading()), head);

        self.rows = usize::from(rows.height);
        let window = self.cursor.window(self.order.len(), self.rows);
        if has_stats && self.measures && window != self.preferred {
            let shown = window.clone().filter_map(|at| self.order.tensor(at));
            let unknown: Vec<usize> =
                shown.filter(|tensor| !self.statistics.contains_key(tensor)).collect();
            self.desk.prefer(&unknown);
            self.preferred = window.clone();
        }
        let hidden = self.order.len() - window.len();
        let shown: Vec<_> = window.filter_map(|at| Some((at, self.order.tensor(at)?))).collect();
        let names = shown.iter().map(|(_, tensor)| clean(&list.tensors[*tensor].name));
        let names = cells(names, name);
        for (y, ((at, tensor), name)) in (rows.y..).zip(shown.into_iter().zip(&names)) {
            let row = &list.tensors[tensor];
            let mut text = row_text(row, name, (dtype, shape));
            if let Some(known) = self.statistics.get(&tensor).filter(|_| has_stats)
                && let Some(stats) = &known.report.stats
            {
                for value in [stats.min, stats.max, stats.mean, stats.std] {
                    let shown = value.map_or_else(|| "-".to_owned(), statistic);
                    text.push_str(&format!(" {shown:>9}"));
                }
            }
            let is_here = at == self.cursor.at;
            let style = if is_here { self.palette.selected() } else { Style::new() };
            let text = cell(&text, usize::from(rows.width));
            frame.buffer_mut().set_stringn(rows.x, y, text, usize::from(rows.width), style);
            self.zones.add(Rect { y, height: 1, ..rows }, Target::Item(at));
        }

        let total: u64 = list.tensors.iter().map(|row| row.bytes).sum();
        let of = if self.order.len() == list.tensor_count {
            String::new()
        } else {
            format!("{} of ", apr_core::grouped(self.order.len() as u64))
        };
        let mut filter = match self.order.text.as_str() {
            "" => String::new(),
            text => format!(", filter '{}'", clean(text)),
        };
        if let Some((_, what)) = &self.order.chosen {
            filter.push_str(&format!(", of {what}; Esc lists all"));
        }
        let text = format!(
            " {of}{}, {}, {}{filter}",
            apr_core::counted(list.tensor_count as u64, "tensor"),
            bytes(total),
            self.order.sort.name()
        );
        let text = beside(&text, &more(hidden), usize::from(foot.width));
        frame.render_widget(Line::styled(text, self.palette.faint()), foot);
    }
}

fn row_text(row: &TensorRow, name: &str, (dtype, shape): (usize, usize)) -> String {
    format!(
        " {name} {} {} {:>9}",
        cell(&row.dtype.to_string(), dtype),
        cell(&row.shape.to_string(), shape),
        bytes(row.bytes)
    )
}

/// A heading, rows, and a line below.
pub(crate) fn three(area: Rect) -> [Rect; 3] {
    Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(area)
}
