//! Without the feature `tui` there are no screens.

use apr_trace::{Trace, TraceDiff};

use crate::context::Context;
use crate::failure::{Failure, Outcome};

pub(super) fn check(_context: &Context) -> Outcome {
    Err(Failure::General("this build has no screens (feature `tui`)".to_owned()))
}

pub(super) fn run(
    _trace: Trace,
    _diff: Option<TraceDiff>,
    _takes_mouse: bool,
    context: &Context,
) -> Outcome {
    check(context)
}
