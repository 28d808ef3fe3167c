//! What keys do.

use std::path::Path;

use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::text::Line;

use super::views::{checks, compare, graph, histogram, stats, tensors, values, vocabulary};
use super::{Explorer, Loaded, View};
use crate::prompt::{Prompt, Typed};
use crate::screen::{Flow, Key, key_line};
use crate::text::{clean, fit};

/// The keys that every view has.
const VIEW_KEYS: [Key; 8] = [
    ("t", "tensors"),
    ("s", "stats"),
    ("h", "hist"),
    ("v", "values"),
    ("g", "graph"),
    ("c", "compare"),
    ("x", "check"),
    ("b", "vocabulary"),
];

/// What a typed line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    Filter,
    Find,
    Export,
}

impl Explorer<'_> {
    pub(crate) fn keys(&self, columns: usize) -> Line<'static> {
        if let Some((_, prompt)) = &self.prompt {
            return prompt.line(columns, self.palette);
        }
        if let Some(message) = &self.message {
            let text = fit(&clean(message), columns.saturating_sub(1));
            return Line::styled(format!(" {text}"), self.palette.odd());
        }
        let keys: Vec<Key> = self
            .view_keys()
            .iter()
            .copied()
            .chain([("?", "help")])
            .chain(VIEW_KEYS.iter().copied().filter(|(key, _)| {
                View::of(key.chars().next().unwrap_or_default()) != Some(self.view)
            }))
            .chain([("q", "quit")])
            .collect();
        key_line(&keys, columns, self.palette)
    }

    /// The keys of the view that one should know first.
    pub(crate) fn view_keys(&self) -> &'static [Key] {
        match self.view {
            View::Tensors => &[("Enter", "hist"), ("/", "filter"), ("o", "order")],
            View::Stats => &[("a", "all"), ("Enter", "hist")],
            View::Histogram => &[("←/→", "tensor")],
            View::Values => &[("↑↓←→", "move"), ("n/p", "tensor")],
            View::Graph => &[("Enter", "open"), ("Esc", "back"), ("/", "find")],
            View::Compare => &[("↑/↓", "tensor")],
            View::Checks => &[("r", "run"), ("Esc", "cancel")],
            View::Vocabulary => &[("/", "filter")],
        }
    }

    pub(crate) fn help_lines(&self) -> Vec<Key> {
        let mut lines: Vec<Key> = match self.view {
            View::Tensors => tensors::HELP.to_vec(),
            View::Stats => stats::HELP.to_vec(),
            View::Histogram => histogram::HELP.to_vec(),
            View::Values => values::HELP.to_vec(),
            View::Graph => graph::HELP.to_vec(),
            View::Compare => compare::HELP.to_vec(),
            View::Checks => checks::HELP.to_vec(),
            View::Vocabulary => vocabulary::HELP.to_vec(),
        };
        lines.extend([
            ("t s h v  1-4", "tensors, stats, histogram, values"),
            ("g c x b  5-8", "graph, compare, checks, vocabulary"),
            ("e", "write the view's report as JSON"),
            ("Ctrl-Z", "suspend; fg returns"),
            ("q  Ctrl-C", "quit"),
        ]);
        lines
    }
    pub(crate) fn key_of_view(&mut self, key: KeyEvent) {
        match self.view {
            View::Tensors => self.key_of_tensors(key),
            View::Stats => self.key_of_stats(key),
            View::Histogram => self.key_of_histogram(key),
            View::Values => self.key_of_values(key),
            View::Graph => self.key_of_graph(key),
            View::Compare => self.key_of_compare(key),
            View::Checks => self.key_of_checks(key),
            View::Vocabulary => self.key_of_vocabulary(key),
        }
    }

    pub(crate) fn ask_line(&mut self, asks: Asks, label: &'static str, text: &str) {
        self.prompt = Some((asks, Prompt::new(label, text)));
    }

    /// What a line that is being typed, or is complete, means.
    pub(crate) fn typed(&mut self, asks: Asks, text: &str, is_done: bool) {
        match (asks, self.view) {
            (Asks::Filter, View::Vocabulary) => {
                let found = self.vocabulary.ready().and_then(Option::as_ref);
                self.tokens.filter(found, text);
            }
            (Asks::Filter, _) => {
                if let Loaded::Ready(list) = &self.list {
                    self.order.filter(list, text);
                    self.cursor.at = 0;
                }
            }
            (Asks::Find, _) if is_done => self.find_in_graph(text),
            (Asks::Export, _) if is_done => {
                let written = self.write(Path::new(text));
                self.message = Some(written.unwrap_or_else(|error| error));
            }
            (Asks::Find | Asks::Export, _) => {}
        }
    }

    pub(crate) fn press(&mut self, key: KeyEvent) -> Flow {
        self.message = None;
        if self.shows_help {
            self.shows_help = false;
            return Flow::Stay;
        }
        if let Some((asks, mut prompt)) = self.prompt.take() {
            match prompt.key(key) {
                Typed::Done(text) => self.typed(asks, &text, true),
                Typed::Cancelled => self.typed(asks, "", false),
                Typed::More => {
                    self.typed(asks, prompt.text(), false);
                    self.prompt = Some((asks, prompt));
                }
            }
            return Flow::Stay;
        }
        let is_plain = key.modifiers.is_empty();
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('e') if is_plain => {
                self.ask_line(Asks::Export, "write to", self.view.file());
            }
            KeyCode::Char(letter) if is_plain => match View::of(letter) {
                Some(view) => self.open(view),
                None => self.key_of_view(key),
            },
            _ => self.key_of_view(key),
        }
        Flow::Stay
    }
}
