//! A line that is typed at the bottom of a screen.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use crate::palette::Palette;
use crate::text::{clean, width};

/// A line that is being typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prompt {
    label: &'static str,
    text: String,
}

/// What came of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Typed {
    /// The line goes on.
    More,
    /// It is given up.
    Cancelled,
    /// It is complete.
    Done(String),
}

impl Prompt {
    /// One that has a text already.
    pub(crate) fn new(label: &'static str, text: &str) -> Self {
        Self { label, text: text.to_owned() }
    }

    /// What is typed so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn key(&mut self, key: KeyEvent) -> Typed {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return Typed::Done(self.text.clone()),
            KeyCode::Esc => return Typed::Cancelled,
            KeyCode::Backspace => {
                self.text.pop();
            }
            KeyCode::Char('u') if is_control => self.text.clear(),
            KeyCode::Char(c) if !is_control => self.text.push(c),
            _ => {}
        }
        Typed::More
    }

    /// The line, its end where it is longer than the screen.
    pub(crate) fn line(&self, columns: usize, palette: Palette) -> Line<'static> {
        let room = columns.saturating_sub(width(self.label) + 4);
        let mut shown = clean(&self.text);
        while width(&shown) > room {
            shown.remove(0);
        }
        Line::from(vec![
            Span::styled(format!(" {}: ", self.label), palette.key()),
            Span::raw(shown),
            Span::styled(" ", ratatui::style::Style::new().add_modifier(Modifier::REVERSED)),
        ])
    }
}
