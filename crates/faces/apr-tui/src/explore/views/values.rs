//! The values of a tensor as a grid.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::explore::background::request::Request;
use crate::explore::{Explorer, Loaded};
use crate::screen::Key;
use crate::text::{clean, fit, shown};

pub(crate) const HELP: [Key; 8] = [
    ("↑ ↓ ← →  k j", "one row or column"),
    ("PgUp PgDn", "a screen of rows"),
    ("Home End", "the first rows, the last ones"),
    ("[ ]", "previous, next matrix"),
    ("n p", "next, previous tensor"),
    ("m", "numbers, or a map of magnitudes"),
    ("u", "its path through the graph"),
    ("Esc", "back to the list"),
];

/// Columns of a number, with the space before it.
const CELL: u64 = 11;
/// Columns of a row's index.
const INDEX: u64 = 10;

/// Shown part of a tensor: one matrix of the last two dimensions at a time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Corner {
    /// Number of the matrix.
    outer: u64,
    row: u64,
    column: u64,
    /// Rows and columns that fit.
    room: (u64, u64),
    is_map: bool,
}

impl Explorer<'_> {
    /// Returns the number of matrices, rows and columns of the tensor. A vector continues in the
    /// next row.
    fn matrix(&self) -> Option<(u64, u64, u64)> {
        let info = &self.job.model.reader.tensors()[self.tensor()?];
        let dims = info.shape.dims();
        let outer = dims.iter().rev().skip(2).fold(1_u64, |all, dim| all.saturating_mul(*dim));
        Some(match dims {
            [] => (1, 1, 1),
            [only] => (1, only.div_ceil(self.corner.room.1.max(1)), 1),
            [.., rows, columns] => (outer, *rows, *columns),
        })
    }

    pub(crate) fn ask_values(&mut self) {
        let Some(tensor) = self.tensor() else { return };
        let Some((outers, rows, columns)) = self.matrix() else { return };
        let (most_rows, most_columns) = self.corner.room;
        let corner = &mut self.corner;
        corner.outer = corner.outer.min(outers.saturating_sub(1));
        corner.row = corner.row.min(rows.saturating_sub(1));
        corner.column = corner.column.min(columns.saturating_sub(1));
        let end = |start: u64, most: u64, len: u64| start.saturating_add(most).min(len);
        let of_rows = format!("{}:{}", corner.row, end(corner.row, most_rows.max(1), rows));
        // A vector fills rows.
        let row_len = corner.room.1.max(1);
        let of_vector = |row: u64| row.saturating_mul(row_len);
        let of_columns =
            format!("{}:{}", corner.column, end(corner.column, most_columns.max(1), columns));
        let dims = self.job.model.reader.tensors()[tensor].shape.dims();
        let mut parts: Vec<String> = Vec::new();
        let mut left = corner.outer;
        for dim in dims.iter().rev().skip(2) {
            parts.push((left % (*dim).max(1)).to_string());
            left /= (*dim).max(1);
        }
        parts.reverse();
        match dims.len() {
            0 => {}
            1 => {
                let start = of_vector(corner.row);
                let len = of_vector(most_rows.max(1));
                parts.push(format!("{start}:{}", end(start, len, dims[0])));
            }
            _ => parts.extend([of_rows, of_columns]),
        }
        self.ask(Request::Values { tensor, ranges: parts.join(", ") });
    }

    pub(crate) fn key_of_values(&mut self, key: KeyEvent) {
        let Some((outers, rows, columns)) = self.matrix() else { return };
        let corner = &mut self.corner;
        let page = corner.room.0.max(1);
        match key.code {
            KeyCode::Down | KeyCode::Char('j') => corner.row += 1,
            KeyCode::Up | KeyCode::Char('k') => corner.row = corner.row.saturating_sub(1),
            KeyCode::PageDown => corner.row = corner.row.saturating_add(page),
            KeyCode::PageUp => corner.row = corner.row.saturating_sub(page),
            KeyCode::Home => (corner.row, corner.column) = (0, 0),
            KeyCode::End | KeyCode::Char('G') => corner.row = rows.saturating_sub(page),
            KeyCode::Right | KeyCode::Char('l') => corner.column += 1,
            KeyCode::Left => corner.column = corner.column.saturating_sub(1),
            KeyCode::Char(']') => corner.outer = (corner.outer + 1).min(outers.saturating_sub(1)),
            KeyCode::Char('[') => corner.outer = corner.outer.saturating_sub(1),
            KeyCode::Char('m') => corner.is_map = !corner.is_map,
            KeyCode::Char('u') => return self.show_path(),
            KeyCode::Esc => return self.open(self.origin),
            KeyCode::Char(letter @ ('n' | 'p')) => {
                if !self.step(letter == 'n') {
                    return;
                }
                self.values = Loaded::Waiting;
                self.corner = Corner {
                    room: self.corner.room,
                    is_map: self.corner.is_map,
                    ..Corner::default()
                };
            }
            _ => return,
        }
        self.corner.row = self.corner.row.min(rows.saturating_sub(1));
        self.corner.column = self.corner.column.min(columns.saturating_sub(1));
        self.ask_values();
    }

    pub(crate) fn draw_values(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let [name, head, grid, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(area);
        let cell = if self.corner.is_map { 1 } else { CELL };
        let room = (u64::from(grid.height), (u64::from(grid.width).saturating_sub(INDEX)) / cell);
        if room != self.corner.room {
            self.corner.room = room;
            self.ask_values();
        }

        let Some(tensor) = self.tensor() else { return };
        let info = &self.job.model.reader.tensors()[tensor];
        let about = format!(" ({} {})", info.dtype, info.shape);
        let columns = usize::from(area.width).saturating_sub(10 + about.len());
        let title = format!(" Tensor: {}{about}", fit(&clean(&info.name), columns));
        frame.render_widget(Line::styled(title, self.palette.heading()), name);
        let report = match &self.values {
            Loaded::Ready(report) if report.tensor.name == info.name => report,
            Loaded::Ready(_) => return,
            waiting => return self.draw_waiting(frame, grid, waiting),
        };

        let ranges = &report.ranges;
        let is_vector = ranges.len() < 2;
        let row_len = self.corner.room.1.max(1);
        let columns = if is_vector { [0, row_len] } else { ranges[ranges.len() - 1] };
        let first_row = match ranges.len() {
            0 => 0,
            1 => ranges[0][0],
            len => ranges[len - 2][0],
        };
        let width = usize::try_from(columns[1] - columns[0]).unwrap_or(1).max(1);
        if !self.corner.is_map && !is_vector {
            let labels: String = (columns[0]..columns[1]).map(|at| format!(" {at:>10}")).collect();
            let text = format!("{:>10}{labels}", "");
            frame.render_widget(Line::styled(text, self.palette.faint()), head);
        }
        let largest = report.values.iter().copied().filter(|value| value.is_finite());
        let largest = largest.fold(f64::MIN_POSITIVE, |most, value| most.max(value.abs()));
        let step = if is_vector { usize::try_from(row_len).unwrap_or(1) } else { 1 };
        let lines: Vec<Line<'_>> = (first_row..)
            .step_by(step)
            .zip(report.values.chunks(width))
            .map(|(row, values)| {
                let index = Span::styled(format!("{row:>9} "), self.palette.faint());
                let cells = values.iter().map(|value| self.value_cell(*value, largest));
                Line::from([index].into_iter().chain(cells).collect::<Vec<_>>())
            })
            .collect();
        frame.render_widget(Paragraph::new(lines), grid);
        let shown_ranges: Vec<String> =
            ranges.iter().map(|[start, end]| format!("{start}:{end}")).collect();
        let scale = if self.corner.is_map {
            format!("  █ is {}", shown(Some(largest)))
        } else {
            String::new()
        };
        let text = format!(" [{}]{scale}", shown_ranges.join(", "));
        frame.render_widget(Line::styled(text, self.palette.faint()), foot);
    }

    fn value_cell(&self, value: f64, largest: f64) -> Span<'static> {
        let style = if value.is_finite() { Style::new() } else { self.palette.bad() };
        if !self.corner.is_map {
            let text = if value.is_finite() { shown(Some(value)) } else { value.to_string() };
            return Span::styled(format!(" {text:>10}"), style);
        }
        let shade = match value.abs() / largest {
            share if share.is_nan() => "?",
            share if share >= 0.8 => "█",
            share if share >= 0.6 => "▓",
            share if share >= 0.4 => "▒",
            share if share >= 0.2 => "░",
            _ => "·",
        };
        let sign = if value < 0.0 { self.palette.negative() } else { self.palette.bar() };
        Span::styled(shade, if value.is_finite() { sign } else { style })
    }
}
