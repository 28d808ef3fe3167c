//! Without the feature `tui` there are no screens.

use crate::args::TuiArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

pub(super) fn run(_args: &TuiArgs, _context: &Context) -> Outcome {
    Err(Failure::General("this build has no screens (feature `tui`)".to_owned()))
}
