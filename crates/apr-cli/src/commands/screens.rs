//! What all screens need: a terminal, colours, signals, an exit code.

use apr_tui::{End, Palette, is_terminal};

use crate::context::Context;
use crate::failure::{Failure, INTERRUPTED, Outcome};
use crate::signals;

/// Whether a screen can be shown; `instead` says what prints the same. From now on signals end the
/// screen, which gives the terminal back.
pub(super) fn check(context: &Context, instead: &str) -> Outcome {
    if context.json {
        let message = format!("a screen prints no JSON: {instead} with --json");
        return Err(Failure::Usage(message));
    }
    if !is_terminal() {
        let message = format!("standard output is not a terminal: {instead}");
        return Err(Failure::General(message));
    }
    signals::stop_cleanly(&context.interrupt)
}

/// With the colours that reports have.
pub(super) fn palette() -> Palette {
    let choice = anstream::AutoStream::choice(&std::io::stdout());
    Palette::new(choice != anstream::ColorChoice::Never)
}

/// What the command comes to after its screen.
pub(super) fn ended(end: std::io::Result<End>) -> Outcome {
    match end? {
        End::Quit => Ok(()),
        End::Interrupted => Err(Failure::Told(INTERRUPTED)),
    }
}
