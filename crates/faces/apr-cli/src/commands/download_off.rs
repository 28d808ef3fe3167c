//! Without the feature `hub` there is nothing to download.

use crate::args::{DownloadArgs, TensorsArgs};
use crate::context::Context;
use crate::failure::{Failure, Outcome};

pub(super) fn run(_args: &DownloadArgs, _context: &Context) -> Outcome {
    Err(Failure::General("this build has no network support (feature `hub`)".to_owned()))
}

/// Lists the tensors of a model.
pub(super) fn list(args: &TensorsArgs, context: &Context) -> Outcome {
    super::tensors::run(args, context)
}
