//! The pipeline as a row of boxes.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Block;

use super::Walk;
use crate::chart::put;
use crate::text::{fit, width};
use crate::zones::{Target, Zones};

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
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, walk: &Walk, zones: &mut Zones) {
    let block = Block::bordered().title(" Pipeline ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let columns = usize::from(inner.width).saturating_sub(2);
    let (first, last) = window(walk, columns);
    let placed = placed(walk, first, last);
    let buffer = frame.buffer_mut();
    let column = |x: usize| u16::try_from(x).unwrap_or(u16::MAX);
    if first > 0 {
        put(buffer, inner, (1, 0), "…", walk.palette.faint());
    }
    for shown in &placed {
        let is_here = shown.at == walk.at;
        let style = if is_here { walk.palette.here() } else { Style::new() };
        put(buffer, inner, (column(shown.x), 0), &shown.label, style);
        let columns_taken = u16::try_from(width(&shown.label)).unwrap_or(u16::MAX);
        let x = inner.x.saturating_add(column(shown.x));
        let zone = Rect { x, width: columns_taken, height: 2, ..inner };
        zones.add(zone.intersection(inner), Target::Item(shown.at));
        let next = shown.x + width(&shown.label);
        if shown.at + 1 < walk.stops.len() {
            let arrow = if shown.at == last { " ──▶ …" } else { ARROW };
            put(buffer, inner, (column(next), 0), arrow, walk.palette.faint());
        }

        let middle = shown.x + width(&shown.label) / 2;
        let (mark, style) = match walk.stops[shown.at].is_sound(&walk.view.trace) {
            true => ("✓", walk.palette.good()),
            false => ("✗", walk.palette.bad()),
        };
        put(buffer, inner, (column(middle), 1), mark, style);
        if is_here {
            put(buffer, inner, (column(middle), 2), "▲", walk.palette.here());
            let row = if inner.height > 3 { 3 } else { 2 };
            if row == 3 {
                put(buffer, inner, (column(middle), 3), "│", walk.palette.here());
            }
            let right = middle + 2;
            let x = if right + width(HERE) <= columns { right } else { middle - width(HERE) - 1 };
            put(buffer, inner, (column(x), row), HERE, walk.palette.here());
        }
    }
}

fn label(walk: &Walk, at: usize) -> String {
    format!("[{}]", fit(&walk.stops[at].name, LABEL))
}

/// The first and last box of a row: the current one, and neighbours on both sides while they fit.
fn window(walk: &Walk, columns: usize) -> (usize, usize) {
    // Dots and arrows at the ends.
    let room = columns.saturating_sub(8);
    let (mut first, mut last) = (walk.at, walk.at);
    let mut taken = width(&label(walk, walk.at));
    loop {
        let mut grew = false;
        let candidates = [first.checked_sub(1), Some(last + 1).filter(|at| *at < walk.stops.len())];
        for at in candidates.into_iter().flatten() {
            let needed = width(&label(walk, at)) + width(ARROW);
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

fn placed(walk: &Walk, first: usize, last: usize) -> Vec<Placed> {
    let mut x = if first > 0 { 3 } else { 1 };
    (first..=last)
        .map(|at| {
            let label = label(walk, at);
            let placed = Placed { at, x, label };
            x += width(&placed.label) + width(ARROW);
            placed
        })
        .collect()
}
