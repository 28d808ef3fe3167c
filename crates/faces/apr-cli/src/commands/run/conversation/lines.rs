//! Lines that are typed on a terminal, and edited there.

use std::cell::Cell;

use apr_registry::{Error, IoCause};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, Config, Context, Editor, Helper};

use crate::failure::{Failure, Outcome};

const PROMPT: &str = "> ";

/// Line editor with a history, which is kept in memory only because messages may be private.
pub(super) struct Lines(Editor<Watch, MemHistory>);

/// Result of reading a line.
pub(super) enum Typed {
    Line(String),
    /// A line that was given up.
    Dropped,
    /// End of the input.
    End,
}

impl Lines {
    pub(super) fn new() -> Outcome<Self> {
        // The prompt belongs on the terminal, wherever standard output goes.
        let config =
            Config::builder().auto_add_history(true).behavior(Behavior::PreferTerm).build();
        let history = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history).map_err(failed)?;
        editor.set_helper(Some(Watch(Cell::new(true))));
        Ok(Self(editor))
    }

    pub(super) fn read(&mut self) -> Outcome<Typed> {
        self.watch(|watch| watch.0.set(true));
        match self.0.readline(PROMPT) {
            Ok(line) => Ok(Typed::Line(line)),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(ReadlineError::Interrupted) => {
                let is_empty = self.watch(|watch| watch.0.get());
                Ok(if is_empty == Some(true) { Typed::End } else { Typed::Dropped })
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn watch<T>(&self, with: impl FnOnce(&Watch) -> T) -> Option<T> {
        self.0.helper().map(with)
    }
}

fn failed(error: ReadlineError) -> Failure {
    match error {
        ReadlineError::Io(error) => error.into(),
        error => Error::io(IoCause::Other, format!("can't read from the terminal: {error}")).into(),
    }
}

/// `true` if the line is empty.
///
/// The editor requests a hint after every change of the line, and its Ctrl-C event does not report
/// the line's content.
struct Watch(Cell<bool>);

impl Hinter for Watch {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.0.set(line.is_empty());
        None
    }
}

impl Completer for Watch {
    type Candidate = String;
}

impl Highlighter for Watch {}

impl Validator for Watch {}

impl Helper for Watch {}
