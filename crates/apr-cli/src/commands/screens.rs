//! What all screens need: a terminal, colours, signals, an exit code.

use apr_io::Interrupt;
use apr_ops::command::INTERRUPTED;
use apr_tui::{End, Palette, is_terminal};

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::signals;

/// Whether a screen can be shown; `instead` says what prints the same.
pub(super) fn check(context: &Context, instead: &str) -> Outcome {
    if context.json {
        let message = format!("a screen prints no JSON: {instead} with --json");
        return Err(Failure::Usage(message));
    }
    if !is_terminal() {
        let message = format!("standard output is not a terminal: {instead}");
        return Err(Failure::General(message));
    }
    Ok(())
}

/// Shows a screen with the colours that reports have. From now on signals end it, and it gives the
/// terminal back.
pub(super) fn show(
    context: &Context,
    screen: impl FnOnce(Palette, &Interrupt) -> std::io::Result<End>,
) -> Outcome {
    signals::stop_cleanly(&context.interrupt)?;
    let choice = anstream::AutoStream::choice(&std::io::stdout());
    let palette = Palette::new(choice != anstream::ColorChoice::Never);
    match screen(palette, &context.interrupt)? {
        End::Quit => Ok(()),
        End::Interrupted => Err(Failure::Told(INTERRUPTED)),
    }
}
