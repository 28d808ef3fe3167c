//! Without the feature `hub` nothing is uploaded.

use crate::args::UploadArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

pub(super) fn run(_args: &UploadArgs, _context: &Context) -> Outcome {
    Err(Failure::General("this build has no network support (feature `hub`)".to_owned()))
}
