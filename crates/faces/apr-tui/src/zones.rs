//! Where the mouse does something.

use ratatui::crossterm::event::{KeyCode, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::{Position, Rect};

/// Number of rows that the wheel scrolls at a time.
pub(crate) const WHEEL: usize = 3;

/// Element at a position of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A key listed there.
    Key(KeyCode),
    /// A row or a box of the view, by its position.
    Item(usize),
}

/// Meaning of a mouse event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pointed {
    At(Target),
    /// A click outside of all elements.
    Elsewhere,
    /// The wheel was turned; away from the user is up.
    Wheel {
        is_down: bool,
    },
    Nothing,
}

/// Places of the screen as it was drawn last, in the order in which they were drawn.
#[derive(Debug, Default)]
pub(crate) struct Zones(Vec<(Rect, Target)>);

impl Zones {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn add(&mut self, area: Rect, target: Target) {
        self.0.push((area, target));
    }

    /// Adds the keys of a line, whose columns count from the left of `area`.
    pub(crate) fn add_keys(&mut self, area: Rect, keys: &[(std::ops::Range<u16>, KeyCode)]) {
        for (columns, key) in keys {
            let x = area.x.saturating_add(columns.start);
            let width = columns.end.saturating_sub(columns.start);
            let zone = Rect { x, width, ..area }.intersection(area);
            self.add(zone, Target::Key(*key));
        }
    }

    /// Returns the number of rows and boxes.
    #[cfg(test)]
    pub(crate) fn items(&self) -> usize {
        let is_item = |zone: &&(Rect, Target)| matches!(zone.1, Target::Item(_));
        self.0.iter().filter(is_item).count()
    }

    pub(crate) fn pointed(&self, mouse: MouseEvent) -> Pointed {
        match mouse.kind {
            MouseEventKind::Down(MouseButton::Left) => {
                let at = Position::new(mouse.column, mouse.row);
                // What was drawn last lies above.
                let found = self.0.iter().rev().find(|(area, _)| area.contains(at));
                found.map_or(Pointed::Elsewhere, |(_, target)| Pointed::At(*target))
            }
            MouseEventKind::ScrollDown => Pointed::Wheel { is_down: true },
            MouseEventKind::ScrollUp => Pointed::Wheel { is_down: false },
            _ => Pointed::Nothing,
        }
    }
}

/// Returns the key with this name in a line of keys, if a click can press it.
pub(crate) fn key_named(name: &str) -> Option<KeyCode> {
    let mut letters = name.chars();
    match (name, letters.next(), letters.next()) {
        ("Enter", ..) => Some(KeyCode::Enter),
        ("Esc", ..) => Some(KeyCode::Esc),
        (_, Some(letter), None) => Some(KeyCode::Char(letter)),
        _ => None,
    }
}
