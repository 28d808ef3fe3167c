//! What keys and the mouse do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, MouseEvent};
use ratatui::text::Line;

use super::views::{checks, compare, graph, histogram, stats, tensors, trace, values, vocabulary};
use super::{Explorer, Loaded, View};
use crate::prompt::{Prompt, Typed};
use crate::screen::{Flow, Key, KeyLine, ViewKeys, rule_columns};
use crate::text::{clean, fit};
use crate::zones::{Pointed, Target, WHEEL};

/// The keys that every view has.
const VIEW_KEYS: [Key; 9] = [
    ("t", "tensors"),
    ("s", "stats"),
    ("h", "hist"),
    ("v", "values"),
    ("g", "graph"),
    ("c", "compare"),
    ("x", "check"),
    ("b", "vocab"),
    ("i", "trace"),
];

/// Purpose of a typed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    Filter,
    Find,
    /// A prompt for the model.
    Prompt,
    /// The location of another model.
    Other,
    Export,
    /// Confirmation for overwriting an existing file with the report of this number.
    Overwrite(usize),
}

impl Explorer<'_> {
    /// The line at the bottom, and the keys in the rule above it.
    pub(crate) fn keys(&self, columns: usize) -> (KeyLine, KeyLine) {
        if self.is_for_file {
            return Default::default();
        }
        if let Some((_, prompt)) = &self.prompt {
            return (prompt.line(columns, self.palette).into(), KeyLine::default());
        }
        if let Some(message) = &self.message {
            let text = fit(&clean(message), columns.saturating_sub(1));
            let line = Line::styled(format!(" {text}"), self.palette.odd());
            return (line.into(), KeyLine::default());
        }
        let others = VIEW_KEYS
            .iter()
            .copied()
            .filter(|(key, _)| View::of(key.chars().next().unwrap_or_default()) != Some(self.view));
        let views: Vec<Key> = others.collect();
        let own = [self.view_keys(), &[("?", "help")]].concat();
        let letters = ("t s h v g c x b i", "views");
        let keys = ViewKeys { own: &own, views: &views, last: ("q", "quit"), letters };
        keys.lines(columns, rule_columns(self.size), self.palette)
    }

    /// The keys of the view that one should know first.
    fn view_keys(&self) -> &'static [Key] {
        match self.view {
            View::Tensors => &[("Enter", "hist"), ("/", "filter"), ("o", "order")],
            View::Stats => &[("a", "all"), ("Enter", "hist")],
            View::Histogram => &[("←/→", "tensor")],
            View::Values => &[("↑↓←→", "move"), ("n/p", "tensor")],
            View::Graph => &[("Enter", "open"), ("Esc", "back"), ("/", "find")],
            View::Compare if self.job.other.is_none() => &[("Enter", "compare")],
            View::Compare => &[("↑/↓", "tensor"), ("o", "outputs")],
            View::Checks => &[("r", "run"), ("Esc", "cancel")],
            View::Vocabulary => &[("/", "filter")],
            View::Trace => match &self.trace {
                Loaded::Ready(_) => &[("←/→", "step"), ("Enter", "inspect"), ("r", "prompt")],
                Loaded::Waiting => &[("Esc", "cancel")],
                _ if !self.takes_text() => &[],
                _ => &[("Enter", "prompt")],
            },
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
            View::Trace => trace::HELP.to_vec(),
        };
        lines.extend([
            ("t s h v  1-4", "tensors, stats, histogram, values"),
            ("g c x b i  5-9", "graph, compare, checks, tokens, trace"),
            ("e", "write JSON; Tab: an image as SVG"),
            ("click  wheel", "select, again to open; scroll"),
            ("M", "mouse off, to select text; on"),
            ("Ctrl-Z", "suspend; fg returns"),
            ("q  Ctrl-C", "quit"),
        ]);
        lines
    }

    fn key_of_view(&mut self, key: KeyEvent) {
        match self.view {
            View::Tensors => self.key_of_tensors(key),
            View::Stats => self.key_of_stats(key),
            View::Histogram => self.key_of_histogram(key),
            View::Values => self.key_of_values(key),
            View::Graph => self.key_of_graph(key),
            View::Compare => self.key_of_compare(key),
            View::Checks => self.key_of_checks(key),
            View::Vocabulary => self.key_of_vocabulary(key),
            View::Trace => self.key_of_trace(key),
        }
    }

    pub(crate) fn ask_line(&mut self, asks: Asks, label: &str, text: &str) {
        self.prompt = Some((asks, Prompt::new(label, text)));
    }

    /// Applies a filter while it is typed.
    pub(crate) fn filter(&mut self, text: &str) {
        if self.view == View::Vocabulary {
            let found = self.vocabulary.ready().and_then(Option::as_ref);
            self.tokens.filter(found, text);
        } else if let Loaded::Ready(list) = &self.list {
            self.order.filter(list, text);
            self.cursor.at = 0;
        }
    }

    /// Handles a completed line.
    fn typed(&mut self, asks: Asks, text: &str, offer: usize) {
        match asks {
            Asks::Filter => self.filter(text),
            Asks::Find if self.view == View::Trace => {
                if let Loaded::Ready(walk) = &mut self.trace {
                    self.message = walk.find(text);
                }
            }
            Asks::Find => self.find_in_graph(text),
            Asks::Prompt => self.trace_prompt(text),
            Asks::Other => self.wanted = Some(text.trim().to_owned()).filter(|it| !it.is_empty()),
            Asks::Export => self.export(text, offer, false),
            Asks::Overwrite(offer) => self.export(text, offer, true),
        }
    }

    fn key_of_line(&mut self, asks: Asks, mut prompt: Prompt, key: KeyEvent) {
        match prompt.key(key) {
            Typed::Done(text) => self.typed(asks, &text, prompt.offer()),
            Typed::Cancelled if asks == Asks::Filter => self.filter(""),
            Typed::Cancelled => {}
            Typed::More => {
                if asks == Asks::Filter {
                    self.filter(prompt.text());
                }
                self.prompt = Some((asks, prompt));
            }
        }
    }

    pub(crate) fn press(&mut self, key: KeyEvent) -> Flow {
        self.message = None;
        if self.shows_help {
            self.shows_help = false;
            return Flow::Stay;
        }
        if let Some((asks, prompt)) = self.prompt.take() {
            self.key_of_line(asks, prompt, key);
            // The front end opens the other model.
            return if self.wanted.is_some() { Flow::Quit } else { Flow::Stay };
        }
        let is_plain = key.modifiers.is_empty();
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('e') if is_plain => self.ask_export(),
            KeyCode::Char('M') => self.options.takes_mouse = !self.options.takes_mouse,
            KeyCode::Char(letter) if is_plain => match View::of(letter) {
                Some(view) => self.open(view),
                None => self.key_of_view(key),
            },
            _ => self.key_of_view(key),
        }
        Flow::Stay
    }

    pub(crate) fn point(&mut self, mouse: MouseEvent) -> Flow {
        match self.zones.pointed(mouse) {
            Pointed::Nothing => Flow::Stay,
            _ if self.shows_help || self.prompt.is_some() => self.press(KeyCode::Esc.into()),
            Pointed::Elsewhere => Flow::Stay,
            Pointed::At(Target::Key(key)) => self.press(key.into()),
            Pointed::At(Target::Item(at)) => {
                self.message = None;
                self.click(at);
                Flow::Stay
            }
            Pointed::Wheel { is_down } => {
                let key = if is_down { KeyCode::Down } else { KeyCode::Up };
                // A step to another tensor or box is a large one.
                let is_large = matches!(self.view, View::Histogram | View::Graph | View::Trace);
                for _ in 0..if is_large { 1 } else { WHEEL } {
                    let _ = self.press(key.into());
                }
                Flow::Stay
            }
        }
    }

    /// Selects a row or a box; opens it if it is already selected.
    fn click(&mut self, at: usize) {
        let selected = match self.view {
            View::Tensors => &mut self.cursor.at,
            View::Stats => &mut self.stats.cursor.at,
            View::Vocabulary => &mut self.tokens.cursor.at,
            View::Compare => {
                self.compare.cursor.at = at;
                return self.ask_distributions();
            }
            View::Graph => match self.graph_place.selected() {
                Some(selected) => selected,
                None => return,
            },
            View::Trace => {
                if let Loaded::Ready(walk) = &mut self.trace {
                    walk.go(at);
                }
                return;
            }
            View::Histogram | View::Values | View::Checks => return,
        };
        if *selected == at {
            return self.key_of_view(KeyCode::Enter.into());
        }
        *selected = at;
    }
}
