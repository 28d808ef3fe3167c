//! What all screens need: a terminal, colours, signals, an exit code.

use apr_io::Interrupt;
use apr_ops::command::INTERRUPTED;
use apr_run::Remedy;
use apr_tui::{End, Palette, ScreenOptions, Wording, is_terminal};

use super::run::remedy::advice;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::options::in_options;
use crate::signals;

/// Checks that the screen of `name` can be shown; `instead` is a command that prints a report.
pub(super) fn check(context: &Context, name: &str, instead: &str) -> Outcome {
    if context.json {
        let message = format!("{name} has no JSON output; use `{instead} --json`");
        return Err(Failure::Usage(message));
    }
    if !is_terminal() {
        let message = format!("standard output is not a terminal; use `{instead}`");
        return Err(Failure::General(message));
    }
    Ok(())
}

/// Settings are options.
struct Options;

impl Wording for Options {
    fn message(&self, message: &str) -> String {
        in_options(message)
    }

    fn remedy(&self, remedy: Remedy) -> Option<String> {
        let advice = advice(remedy);
        Some(match remedy {
            Remedy::Arrays | Remedy::NameInput | Remedy::TokenIds => advice.to_owned(),
            // Options that the command which only traces has.
            _ => format!("with `apr trace --interactive`, {advice}"),
        })
    }
}

/// Shows a screen with the colours that reports have. From now on signals end it, and it gives the
/// terminal back. Returns the location of the model to compare with, if it ended for that.
pub(super) fn show(
    context: &Context,
    takes_mouse: bool,
    screen: impl FnOnce(&ScreenOptions<'_>, &Interrupt) -> std::io::Result<End>,
) -> Outcome<Option<String>> {
    signals::stop_cleanly(&context.interrupt)?;
    let choice = anstream::AutoStream::choice(&std::io::stdout());
    let palette = Palette::new(choice != anstream::ColorChoice::Never);
    let options = ScreenOptions { palette, takes_mouse, wording: &Options };
    match screen(&options, &context.interrupt)? {
        End::Quit => Ok(None),
        End::Compare(location) => Ok(Some(location)),
        End::Interrupted => Err(Failure::Told(INTERRUPTED)),
    }
}
