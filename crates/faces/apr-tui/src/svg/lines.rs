//! The lines of frames, joined over cells.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::glyphs::Ends;
use super::{HEIGHT, Look, WIDTH};

/// Ranges of half cells: the start and the end of each.
type Stretches = Vec<(usize, usize)>;

/// Lines by style, weight, and row or column.
#[derive(Debug, Default)]
pub(super) struct Lines {
    across: BTreeMap<(String, u8, usize), Stretches>,
    down: BTreeMap<(String, u8, usize), Stretches>,
}

impl Lines {
    /// Adds the lines of a cell; cells must be added row by row, from left to right.
    pub(super) fn add(&mut self, (column, row): (usize, usize), ends: Ends, look: Look) {
        let [up, right, down, left] = ends;
        let half = |at: usize, is_second: bool| 2 * at + usize::from(is_second);
        for (weight, half) in [(left, half(column, false)), (right, half(column, true))] {
            if weight > 0 {
                extend(self.across.entry((look.class(), weight, row)).or_default(), half);
            }
        }
        for (weight, half) in [(up, half(row, false)), (down, half(row, true))] {
            if weight > 0 {
                extend(self.down.entry((look.class(), weight, column)).or_default(), half);
            }
        }
    }

    /// Writes one path for all lines of the same style.
    pub(super) fn write(&self, svg: &mut String) {
        let mut paths: BTreeMap<(&str, u8), String> = BTreeMap::new();
        // Writing to a `String` does not fail.
        for ((class, weight, row), stretches) in &self.across {
            let path = paths.entry((class, *weight)).or_default();
            let y = HEIGHT * (*row as f64 + 0.5);
            for (start, end) in stretches {
                let [from, to] = [start, end].map(|half| *half as f64 * WIDTH / 2.0);
                let _ = write!(path, "M{from:.1} {y:.1}H{to:.1}");
            }
        }
        for ((class, weight, column), stretches) in &self.down {
            let path = paths.entry((class, *weight)).or_default();
            let x = WIDTH * (*column as f64 + 0.5);
            for (start, end) in stretches {
                let [from, to] = [start, end].map(|half| *half as f64 * HEIGHT / 2.0);
                let _ = write!(path, "M{x:.1} {from:.1}V{to:.1}");
            }
        }
        for ((class, weight), path) in paths {
            let thick = if weight > 1 { "2.4" } else { "1.1" };
            let _ = write!(svg, "<path class=\"{class}\" stroke-width=\"{thick}\" ");
            let _ = writeln!(svg, "stroke-linecap=\"square\" d=\"{path}\"/>");
        }
    }
}

fn extend(stretches: &mut Stretches, half: usize) {
    match stretches.last_mut() {
        Some((_, end)) if *end == half => *end = half + 1,
        _ => stretches.push((half, half + 1)),
    }
}
