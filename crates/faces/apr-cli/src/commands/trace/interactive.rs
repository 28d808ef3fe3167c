//! A trace on a screen that keys drive.

use apr_trace::{Trace, TraceDiff};
use apr_tui::{TraceView, trace_screen};

use crate::commands::screens;
use crate::context::Context;
use crate::failure::Outcome;

/// Checks that a screen can be shown, before anything runs.
pub(super) fn check(context: &Context) -> Outcome {
    screens::check(context, "--interactive", "apr trace --trace-payload")
}

pub(super) fn run(
    trace: Trace,
    diff: Option<TraceDiff>,
    takes_mouse: bool,
    context: &Context,
) -> Outcome {
    let view = TraceView { trace, diff };
    screens::show(context, takes_mouse, |options, interrupt| trace_screen(view, options, interrupt))
        .map(drop)
}
