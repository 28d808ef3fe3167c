//! Without the feature `qa`, no model gets a score.

use crate::args::ValidateArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

pub(super) fn run(_args: &ValidateArgs, _context: &Context) -> Outcome {
    Err(Failure::General("this build has no score of a model (feature `qa`)".to_owned()))
}
