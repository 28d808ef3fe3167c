//! The pipeline as a row of boxes.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Block;

use super::TraceScreen;
use crate::chart::put;
use crate::text::{fit, width};

/// Columns of a box's text at most.
const LABEL: usize = 20;
const ARROW: &str = " ──▶ ";
const HERE: &str = "YOU ARE HERE";

/// A box, and where it begins.
struct Placed {
    at: usize,
    label: String,
    x: usize,
}

/// Boxes around the current one: as many as fit.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, screen: &TraceScreen) {
    let block = Block::bordered().title(" Pipeline ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let columns = usize::from(inner.width).saturating_sub(2);
    let (first, last) = window(screen, columns);
    let placed = placed(screen, first, last);
    let buffer = frame.buffer_mut();
    let column = |x: usize| u16::try_from(x).unwrap_or(u16::MAX);
    if first > 0 {
        put(buffer, inner, (1, 0), "…", screen.palette.faint());
    }
    for shown in &placed {
        let is_here = shown.at == screen.at;
        let style = if is_here { screen.palette.here() } else { Style::new() };
        put(buffer, inner, (column(shown.x), 0), &shown.label, style);
        let next = shown.x + width(&shown.label);
        if shown.at + 1 < screen.stops.len() {
            let arrow = if shown.at == last { " ──▶ …" } else { ARROW };
            put(buffer, inner, (column(next), 0), arrow, screen.palette.faint());
        }

        let middle = shown.x + width(&shown.label) / 2;
        let (mark, style) = match screen.stops[shown.at].is_sound(&screen.view.trace) {
            true => ("✓", screen.palette.good()),
            false => ("✗", screen.palette.bad()),
        };
        put(buffer, inner, (column(middle), 1), mark, style);
        if is_here {
            put(buffer, inner, (column(middle), 2), "▲", screen.palette.here());
            let row = if inner.height > 3 { 3 } else { 2 };
            if row == 3 {
                put(buffer, inner, (column(middle), 3), "│", screen.palette.here());
            }
            let right = middle + 2;
            let x = if right + width(HERE) <= columns { right } else { middle - width(HERE) - 1 };
            put(buffer, inner, (column(x), row), HERE, screen.palette.here());
        }
    }
}

fn label(screen: &TraceScreen, at: usize) -> String {
    format!("[{}]", fit(&screen.stops[at].name, LABEL))
}

/// The first and last box of a row: the current one, and neighbours on both sides while they fit.
fn window(screen: &TraceScreen, columns: usize) -> (usize, usize) {
    // Dots and arrows at the ends.
    let room = columns.saturating_sub(8);
    let (mut first, mut last) = (screen.at, screen.at);
    let mut taken = width(&label(screen, screen.at));
    loop {
        let mut grew = false;
        let candidates =
            [first.checked_sub(1), Some(last + 1).filter(|at| *at < screen.stops.len())];
        for at in candidates.into_iter().flatten() {
            let needed = width(&label(screen, at)) + width(ARROW);
            if taken + needed <= room {
                taken += needed;
                first = first.min(at);
                last = last.max(at);
                grew = true;
            }
        }
        if !grew {
            return (first, last);
        }
    }
}

fn placed(screen: &TraceScreen, first: usize, last: usize) -> Vec<Placed> {
    let mut x = if first > 0 { 3 } else { 1 };
    (first..=last)
        .map(|at| {
            let label = label(screen, at);
            let placed = Placed { at, x, label };
            x += width(&placed.label) + width(ARROW);
            placed
        })
        .collect()
}
