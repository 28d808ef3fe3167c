//! The pipeline as a row of boxes, with what flows between them.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Block;

use super::Walk;
use crate::chart::put;
use crate::text::{fit, listed, width};
use crate::zones::{Target, Zones};

/// Columns of a box's text at most.
const LABEL: usize = 20;
/// Columns of the number of boxes that do not fit, at each end.
const COUNT: usize = 6;
const ARROW: &str = " ──▶ ";
const HERE: &str = "YOU ARE HERE";

/// Box, with its position.
struct Placed {
    at: usize,
    label: String,
    x: usize,
}

/// Minimum rows within the frame for a row with the lines that bypass other boxes.
const ROOMY: u16 = 5;

/// Draws the boxes around the current one, as many as fit, and the data flow between them.
///
/// Neighbours are connected by arrows, and other boxes by lines above. The frame lists the names of
/// all inputs and readers of the current box.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, walk: &Walk, zones: &mut Zones) {
    let block = Block::bordered().title(" Pipeline ").title_bottom(beside(walk, area.width));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let columns = usize::from(inner.width).saturating_sub(2);
    let (first, last) = window(walk, columns);
    let placed = placed(walk, first, last);
    let buffer = frame.buffer_mut();
    let is_roomy = inner.height >= ROOMY;
    let top = u16::from(is_roomy);
    if is_roomy {
        passing(buffer, inner, walk, &placed);
    }
    if first > 0 {
        put(buffer, inner, (1, top), &format!("+{first}"), walk.palette.faint());
    }
    let hidden = walk.stops.len().saturating_sub(last + 1);
    let end = match hidden {
        0 => String::new(),
        hidden => format!("+{hidden}"),
    };
    for shown in &placed {
        let is_here = shown.at == walk.at;
        let style = if is_here { walk.palette.here() } else { Style::new() };
        put(buffer, inner, (column(shown.x), top), &shown.label, style);
        let columns_taken = u16::try_from(width(&shown.label)).unwrap_or(u16::MAX);
        let x = inner.x.saturating_add(column(shown.x));
        let y = inner.y.saturating_add(top);
        let zone = Rect { x, y, width: columns_taken, height: 2 };
        zones.add(zone.intersection(inner), Target::Item(shown.at));
        let next = shown.x + width(&shown.label);
        if shown.at + 1 < walk.stops.len() {
            let flows = walk.flow.is_between(shown.at, shown.at + 1);
            let arrow = if flows { ARROW } else { "     " };
            let end = if shown.at == last { end.as_str() } else { "" };
            let text = format!("{arrow}{end}");
            put(buffer, inner, (column(next), top), &text, walk.palette.faint());
        }

        let middle = shown.middle();
        let (mark, style) = match walk.stops[shown.at].is_sound(&walk.view.trace) {
            true => ("✓", walk.palette.good()),
            false => ("✗", walk.palette.bad()),
        };
        put(buffer, inner, (column(middle), top + 1), mark, style);
        if is_here {
            put(buffer, inner, (column(middle), top + 2), "▲", walk.palette.here());
            let row = top + if is_roomy { 3 } else { 2 };
            if is_roomy {
                put(buffer, inner, (column(middle), row), "│", walk.palette.here());
            }
            let right = middle + 2;
            let x = if right + width(HERE) <= columns { right } else { middle - width(HERE) - 1 };
            put(buffer, inner, (column(x), row), HERE, walk.palette.here());
        }
    }
}

impl Placed {
    fn middle(&self) -> usize {
        self.x + width(&self.label) / 2
    }
}

fn column(x: usize) -> u16 {
    u16::try_from(x).unwrap_or(u16::MAX)
}

/// Returns the inputs and the readers of the current box, including those outside the screen.
fn beside(walk: &Walk, columns: u16) -> Line<'static> {
    let names = |stops: &[usize]| {
        let names: Vec<String> = stops.iter().map(|at| walk.stops[*at].name.clone()).collect();
        names
    };
    let (reads, readers) = (walk.flow.reads(walk.at), walk.flow.readers(walk.at));
    let room = usize::from(columns).saturating_sub(24) / 2;
    let mut text = String::new();
    if !reads.is_empty() {
        text.push_str(&format!(" reads: {} ", listed(names(reads), room)));
    }
    if !readers.is_empty() {
        text.push_str(&format!(" read by: {} ", listed(names(readers), room)));
    }
    Line::styled(text, walk.palette.faint())
}

/// Draws lines above the boxes for inputs and readers of the current box other than its neighbours.
///
/// `╭` is where a line leaves a box, and `▼` where it enters one.
fn passing(buffer: &mut Buffer, inner: Rect, walk: &Walk, placed: &[Placed]) {
    let Some(here) = placed.iter().find(|shown| shown.at == walk.at) else { return };
    let style = walk.palette.faint();
    let far = |shown: &&Placed| shown.at.abs_diff(walk.at) > 1;
    let draw = |buffer: &mut Buffer, from: usize, ends: &[usize], tips: (&str, &str, &str)| {
        let Some(last) = ends.last() else { return };
        let (left, right) = (from.min(*last), from.max(*last));
        put(buffer, inner, (column(left), 0), &"─".repeat(right - left), style);
        let (at_start, between, at_end) = tips;
        put(buffer, inner, (column(from), 0), at_start, style);
        for end in ends {
            let tip = if end == last { at_end } else { between };
            put(buffer, inner, (column(*end), 0), tip, style);
        }
    };
    // The farthest is the last.
    let reads = placed.iter().filter(far).filter(|it| walk.flow.is_between(it.at, walk.at));
    let mut from: Vec<usize> = reads.map(Placed::middle).collect();
    from.reverse();
    draw(buffer, here.middle(), &from, ("▼", "┬", "╭"));
    let readers = placed.iter().filter(far).filter(|it| walk.flow.is_between(walk.at, it.at));
    let to: Vec<usize> = readers.map(Placed::middle).collect();
    // Beside the tip of what comes in.
    draw(buffer, here.middle() + 1, &to, ("╭", "▼", "▼"));
}

fn label(walk: &Walk, at: usize) -> String {
    format!("[{}]", fit(&walk.stops[at].name, LABEL))
}

/// The first and last box of a row: the current one, and neighbours on both sides while they fit.
fn window(walk: &Walk, columns: usize) -> (usize, usize) {
    // Counts and an arrow at the ends.
    let room = columns.saturating_sub(2 * COUNT + width(ARROW));
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
    let mut x = if first > 0 { COUNT } else { 1 };
    (first..=last)
        .map(|at| {
            let label = label(walk, at);
            let placed = Placed { at, x, label };
            x += width(&placed.label) + width(ARROW);
            placed
        })
        .collect()
}
