//! Without the feature `qa`, no model gets a score.

use crate::args::ValidateArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

pub(super) fn run(_args: &ValidateArgs, _context: &Context) -> Outcome {
    let message = "this build has no score of a model (feature `qa`); two models, or --text, are \
                   judged without it";
    Err(Failure::General(message.to_owned()))
}
