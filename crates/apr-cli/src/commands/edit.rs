//! `apr edit`: metadata, names, the chat template.

mod apr2;
mod asked;
mod gguf;
mod report;

use crate::args::EditArgs;
use crate::context::Context;
use crate::failure::Outcome;

/// Edits an `.apr` or a GGUF file.
pub(super) fn run(args: &EditArgs, context: &Context) -> Outcome {
    asked::check_asked(args)?;
    if gguf::is_one(&args.model) { gguf::run(args, context) } else { apr2::run(args, context) }
}
