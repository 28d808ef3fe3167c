//! A place in a list that is longer than the screen.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Alignment;
use ratatui::text::Line;

use crate::palette::Palette;

/// Returns a note for the lower border of a list, at the right.
pub(crate) fn on_border(note: &str, palette: Palette) -> Line<'static> {
    let text = if note.is_empty() { String::new() } else { format!(" {note} ") };
    Line::styled(text, palette.faint()).alignment(Alignment::Right)
}

/// The selected row, and the first one that is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) at: usize,
    top: usize,
}

impl Cursor {
    /// Rows that are shown of a list of `len`, with the selected one among them.
    pub(crate) fn window(&mut self, len: usize, rows: usize) -> std::ops::Range<usize> {
        self.at = self.at.min(len.saturating_sub(1));
        let rows = rows.max(1);
        let lowest = (self.at + 1).saturating_sub(rows);
        self.top = self.top.clamp(lowest, self.at.max(lowest)).min(len.saturating_sub(rows));
        self.top..len.min(self.top + rows)
    }

    /// Moves the cursor for a key; returns `true` if the key moves it.
    pub(crate) fn key(&mut self, key: KeyEvent, len: usize, rows: usize) -> bool {
        let last = len.saturating_sub(1);
        let page = rows.max(2) - 1;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        self.at = match key.code {
            KeyCode::Down | KeyCode::Char('j') => self.at + 1,
            KeyCode::Up | KeyCode::Char('k') => self.at.saturating_sub(1),
            KeyCode::PageDown => self.at.saturating_add(page),
            KeyCode::PageUp => self.at.saturating_sub(page),
            KeyCode::Char('f' | 'd') if is_control => self.at.saturating_add(page),
            KeyCode::Char('b' | 'u') if is_control => self.at.saturating_sub(page),
            KeyCode::Home => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return false,
        }
        .min(last);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_row_is_always_shown() {
        let mut cursor = Cursor::default();
        let press = |cursor: &mut Cursor, code| {
            assert!(cursor.key(KeyEvent::new(code, KeyModifiers::NONE), 200_000, 20));
            cursor.window(200_000, 20)
        };
        assert_eq!(cursor.window(200_000, 20), 0..20);
        assert_eq!(press(&mut cursor, KeyCode::End), 199_980..200_000);
        assert_eq!(press(&mut cursor, KeyCode::Up), 199_980..200_000);
        assert_eq!(press(&mut cursor, KeyCode::PageUp), 199_979..199_999);
        assert_eq!(press(&mut cursor, KeyCode::Home), 0..20);
        assert_eq!(cursor.window(3, 20), 0..3);
        assert_eq!(cursor.window(0, 20), 0..0);
        cursor.at = 7;
        assert_eq!(cursor.window(10, 1), 7..8);
    }
}
