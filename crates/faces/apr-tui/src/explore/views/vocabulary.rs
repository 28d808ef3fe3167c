//! The tokens of a model.

use apr_core::counted;
use apr_tokenizer::Vocabulary;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::filter::Wanted;
use super::list::Cursor;
use super::tensors::three;
use crate::explore::{Asks, Explorer, Loaded};
use crate::screen::Key;
use crate::text::{beside, cell, clean, more};
use crate::zones::Target;

pub(crate) const HELP: [Key; 4] = [
    ("↑ ↓  k j", "previous, next token"),
    ("PgUp PgDn", "a page up, down"),
    ("/", "filter by the token's text"),
    ("Esc", "all tokens"),
];

/// Tokens that are listed.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    shown: Vec<usize>,
    text: String,
    pub(crate) cursor: Cursor,
}

impl Tokens {
    pub(crate) fn list(&mut self, found: Option<&Vocabulary>) {
        let text = self.text.clone();
        self.filter(found, &text);
    }

    pub(crate) fn filter(&mut self, found: Option<&Vocabulary>, text: &str) {
        let tokens = found.map(|found| found.tokens.as_slice()).unwrap_or_default();
        text.clone_into(&mut self.text);
        self.shown = Wanted::new(text).of(&tokens.iter().map(|token| token.text.as_str()));
        self.cursor = Cursor::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.shown.len()
    }
}

impl Explorer<'_> {
    pub(crate) fn key_of_vocabulary(&mut self, key: KeyEvent) {
        if self.tokens.cursor.key(key, self.tokens.len(), self.rows) {
            return;
        }
        match key.code {
            KeyCode::Char('/') => {
                let text = self.tokens.text.clone();
                self.ask_line(Asks::Filter, "filter", &text);
            }
            KeyCode::Esc => self.filter(""),
            _ => {}
        }
    }

    pub(crate) fn draw_vocabulary(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let Loaded::Ready(found) = &self.vocabulary else {
            return self.draw_waiting(frame, area, &self.vocabulary);
        };
        let Some(found) = found else {
            let line = Line::styled(" the model contains no vocabulary", self.palette.faint());
            frame.render_widget(line, area);
            return;
        };
        let [head, rows, foot] = three(area);
        frame.render_widget(Line::styled("        Id  Token", self.palette.heading()), head);
        self.rows = usize::from(rows.height);
        let room = usize::from(rows.width);
        let window = self.tokens.cursor.window(self.tokens.len(), self.rows);
        let hidden = self.tokens.len() - window.len();
        for (y, at) in (rows.y..).zip(window) {
            let Some(token) = self.tokens.shown.get(at).and_then(|at| found.tokens.get(*at)) else {
                break;
            };
            let text = cell(&format!("{:>10}  {}", token.id, clean(&found.readable(token))), room);
            let is_here = at == self.tokens.cursor.at;
            let style = if is_here { self.palette.selected() } else { Style::new() };
            frame.buffer_mut().set_stringn(rows.x, y, text, room, style);
            self.zones.add(Rect { y, height: 1, ..rows }, Target::Item(at));
        }
        let filter = match self.tokens.text.as_str() {
            "" => String::new(),
            text => format!(", filter '{}'", clean(text)),
        };
        let text = format!(
            " {} from {}{filter}",
            counted(found.size as u64, "token"),
            clean(&found.source)
        );
        let text = beside(&text, &more(hidden), usize::from(foot.width));
        frame.render_widget(Line::styled(text, self.palette.faint()), foot);
    }
}
