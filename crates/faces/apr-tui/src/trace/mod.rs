//! The steps of a run, one at a time (seed 001 §4.8.5).
//!
//! `walk.rs` has what the screen of a trace shares with the view of a model: where one is, what
//! keys do, how it is drawn. The other files draw its parts.

mod details;
mod flow;
mod layer;
mod pipeline;
mod stops;
mod walk;

use std::io;
use std::path::Path;

use apr_core::Escaped;
use apr_io::Interrupt;
use apr_trace::{Trace, TraceDiff};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, MouseEvent};
use ratatui::text::Line;

pub(crate) use self::walk::Walk;
use crate::export::{Written, headed, json, overwrites, write};
use crate::prompt::{Prompt, Typed};
use crate::screen::{Flow, Frames, Key, KeyLine, Screen, ScreenOptions, drawn, help, key_line};
use crate::svg::svg;
use crate::terminal::{End, show};
use crate::text::{clean, fit};
use crate::zones::{Pointed, Target, Zones};

const DIFF: Key = ("d", "diff");

pub(crate) const KEYS: [Key; 6] = [
    ("←/→", "step"),
    ("Enter", "inspect"),
    ("e", "export"),
    ("?", "help"),
    ("/", "find"),
    ("q", "quit"),
];

pub(crate) const INSPECT_KEYS: [Key; 5] =
    [("↑/↓", "scroll"), ("←/→", "step"), ("Esc", "back"), ("e", "export"), ("q", "quit")];

const HELP: [Key; 15] = [
    ("← →  h l  k j", "previous, next step"),
    ("PgUp PgDn", "ten steps back, ahead"),
    ("Home End  g G", "first, last step"),
    ("Enter", "the step in full"),
    ("d", "drift of the step, if two models run"),
    ("[ ]  or a", "previous, next step with an anomaly"),
    ("/", "find a step by a part of its name"),
    ("n N", "next, previous step of that name"),
    ("e", "write JSON; Tab: an image as SVG"),
    ("Esc", "back"),
    ("click  wheel", "select a step; previous, next step"),
    ("M", "mouse off, to select text; on"),
    ("?", "this page"),
    ("q  Ctrl-C", "quit"),
    ("Ctrl-Z", "suspend; fg returns"),
];

/// Trace to show.
#[derive(Debug)]
pub struct TraceView {
    /// Trace of the run.
    pub trace: Trace,
    /// Comparison with another model's run on the same payload, step by step.
    pub diff: Option<TraceDiff>,
}

/// Shows a trace until a key or a signal ends it.
///
/// # Errors
/// What drawing on the terminal or reading keys ends with.
pub fn trace_screen(
    view: TraceView,
    options: &ScreenOptions<'_>,
    interrupt: &Interrupt,
) -> io::Result<End> {
    show(&mut TraceScreen::new(view, *options), interrupt)
}

/// Purpose of a typed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Find,
    Export,
    Overwrite,
}

struct TraceScreen<'o> {
    walk: Walk,
    options: ScreenOptions<'o>,
    shows_help: bool,
    prompt: Option<(Asks, Prompt)>,
    /// Message shown in place of the keys until the next key.
    message: Option<String>,
    zones: Zones,
    /// `true` if the screen is drawn for a file, which does not need keys.
    is_for_file: bool,
    /// Columns and rows of the screen when it was drawn last.
    size: (u16, u16),
}

impl<'o> TraceScreen<'o> {
    fn new(view: TraceView, options: ScreenOptions<'o>) -> Self {
        Self {
            walk: Walk::new(view, options.palette),
            options,
            shows_help: false,
            prompt: None,
            message: None,
            zones: Zones::default(),
            is_for_file: false,
            size: (80, 24),
        }
    }

    fn answer(&mut self, asks: Asks, text: &str) {
        match asks {
            Asks::Find => self.message = self.walk.find(text),
            Asks::Export | Asks::Overwrite => self.export(text, asks == Asks::Overwrite),
        }
    }

    fn export(&mut self, path: &str, overwrite: bool) {
        let bytes = match path.ends_with(".svg") {
            true => Ok(self.image()),
            false => json(&headed("trace", self.walk.trace())),
        };
        match bytes.and_then(|bytes| write(Path::new(path), &bytes, overwrite)) {
            Ok(Written::Told(message)) => self.message = Some(message),
            Ok(Written::Exists) => self.prompt = Some((Asks::Overwrite, overwrites(path))),
            Err(error) => self.message = Some(self.options.wording.message(&error.to_string())),
        }
    }

    /// The screen as SVG.
    fn image(&mut self) -> Vec<u8> {
        let title = format!("Trace of {}", Escaped(&self.walk.trace().path));
        let size = self.size;
        self.is_for_file = true;
        let buffer = drawn(self, size);
        self.is_for_file = false;
        svg(&buffer, &title).into_bytes()
    }

    fn key_of_steps(&mut self, key: KeyEvent) -> Flow {
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('M') => self.options.takes_mouse = !self.options.takes_mouse,
            KeyCode::Char('/') => self.prompt = Some((Asks::Find, Prompt::new("find", ""))),
            KeyCode::Char('e') => {
                let offers = vec!["trace.json", "trace.svg"];
                self.prompt = Some((Asks::Export, Prompt::offering("write to", offers)));
            }
            code => self.message = self.walk.key(code),
        }
        Flow::Stay
    }

    fn keys(&self, columns: usize) -> KeyLine {
        let palette = self.options.palette;
        if self.is_for_file {
            return KeyLine::default();
        }
        if let Some((_, prompt)) = &self.prompt {
            return prompt.line(columns, palette).into();
        }
        if let Some(message) = &self.message {
            let text = format!(" {}", fit(&clean(message), columns.saturating_sub(1)));
            return Line::styled(text, palette.odd()).into();
        }
        match self.walk.inspects() {
            false if self.walk.view.diff.is_some() => {
                let (first, rest) = KEYS.split_at(2);
                key_line(&[first, &[DIFF], rest].concat(), columns, palette)
            }
            false => key_line(&KEYS, columns, palette),
            true => key_line(&INSPECT_KEYS, columns, palette),
        }
    }
}

impl Screen for TraceScreen<'_> {
    fn draw(&mut self, frame: &mut Frame<'_>) {
        let palette = self.options.palette;
        self.size = (frame.area().width, frame.area().height);
        let trace = self.walk.trace();
        let title = format!(
            "Payload Trace: {} → {}",
            Escaped::short(&trace.input),
            Escaped::short(&trace.path)
        );
        let place = self.walk.place();
        let columns = usize::from(frame.area().width).saturating_sub(place.len() + 4);
        let frames = Frames {
            title: &title,
            about: "Payload Trace: ",
            kind: "Interactive",
            keys: self.keys(columns),
            above: KeyLine::default(),
            place,
        };
        self.zones.clear();
        let Some([area, keys, _]) = frames.draw(frame, palette) else { return };
        self.zones.add_keys(keys, &frames.keys.keys);
        self.walk.draw(frame, area, &mut self.zones);
        if self.shows_help {
            help(frame, "Keys", &HELP, palette);
        }
    }

    fn key(&mut self, key: KeyEvent) -> Flow {
        self.message = None;
        if self.shows_help {
            self.shows_help = false;
            return Flow::Stay;
        }
        let Some((asks, mut prompt)) = self.prompt.take() else { return self.key_of_steps(key) };
        match prompt.key(key) {
            Typed::Done(text) if !text.is_empty() => self.answer(asks, &text),
            Typed::Done(_) | Typed::Cancelled => {}
            Typed::More => self.prompt = Some((asks, prompt)),
        }
        Flow::Stay
    }

    fn mouse(&mut self, mouse: MouseEvent) -> Flow {
        match self.zones.pointed(mouse) {
            Pointed::Nothing => Flow::Stay,
            _ if self.shows_help || self.prompt.is_some() => self.key(KeyCode::Esc.into()),
            Pointed::Elsewhere => Flow::Stay,
            Pointed::At(Target::Key(key)) => self.key(key.into()),
            Pointed::At(Target::Item(at)) => {
                self.walk.go(at);
                Flow::Stay
            }
            Pointed::Wheel { is_down: true } => self.key(KeyCode::Down.into()),
            Pointed::Wheel { is_down: false } => self.key(KeyCode::Up.into()),
        }
    }

    fn takes_mouse(&self) -> bool {
        self.options.takes_mouse
    }
}

#[cfg(test)]
mod tests;
