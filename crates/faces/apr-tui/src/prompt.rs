//! A line that is typed at the bottom of a screen.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use crate::palette::Palette;
use crate::text::{clean, fit, width};

/// A line that is being typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prompt {
    label: String,
    text: String,
    /// Texts that Tab cycles through, and the current one.
    offers: Vec<&'static str>,
    offer: usize,
    /// `true` if the label asks for a confirmation.
    is_question: bool,
}

/// Effect of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Typed {
    /// The line continues.
    More,
    /// The line was cancelled.
    Cancelled,
    /// The line is complete.
    Done(String),
}

impl Prompt {
    /// Creates a prompt with a text.
    pub(crate) fn new(label: &str, text: &str) -> Self {
        Self { label: label.to_owned(), text: text.to_owned(), ..Self::default() }
    }

    /// Creates a prompt with the first of several texts; Tab selects the others.
    pub(crate) fn offering(label: &str, offers: Vec<&'static str>) -> Self {
        let text = offers.first().copied().unwrap_or_default();
        Self { offers, ..Self::new(label, text) }
    }

    /// A question whose answer `y` completes the line with a text; any other key gives it up.
    pub(crate) fn question(label: &str, text: &str) -> Self {
        Self { is_question: true, ..Self::new(label, text) }
    }

    /// Returns the text typed so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the index of the current offer.
    pub(crate) fn offer(&self) -> usize {
        self.offer
    }

    pub(crate) fn key(&mut self, key: KeyEvent) -> Typed {
        if self.is_question {
            return match key.code {
                KeyCode::Char('y' | 'Y') => Typed::Done(self.text.clone()),
                _ => Typed::Cancelled,
            };
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return Typed::Done(self.text.clone()),
            KeyCode::Esc => return Typed::Cancelled,
            KeyCode::Backspace => {
                self.text.pop();
            }
            KeyCode::Tab if !self.offers.is_empty() => {
                self.offer = (self.offer + 1) % self.offers.len();
                self.offers[self.offer].clone_into(&mut self.text);
            }
            KeyCode::Char('u') if is_control => self.text.clear(),
            KeyCode::Char(c) if !is_control => self.text.push(c),
            _ => {}
        }
        Typed::More
    }

    /// Returns the line, or its end if it is longer than the screen.
    pub(crate) fn line(&self, columns: usize, palette: Palette) -> Line<'static> {
        if self.is_question {
            let text = fit(&self.label, columns.saturating_sub(1));
            return Line::styled(format!(" {text}"), palette.odd());
        }
        let label = match self.offers.get((self.offer + 1) % self.offers.len().max(1)) {
            Some(next) => format!("{} (Tab: {next})", self.label),
            None => self.label.clone(),
        };
        let room = columns.saturating_sub(width(&label) + 4);
        let mut shown = clean(&self.text);
        while width(&shown) > room {
            shown.remove(0);
        }
        Line::from(vec![
            Span::styled(format!(" {label}: "), palette.key()),
            Span::raw(shown),
            Span::styled(" ", ratatui::style::Style::new().add_modifier(Modifier::REVERSED)),
        ])
    }
}
