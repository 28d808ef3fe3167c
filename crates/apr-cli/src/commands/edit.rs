//! `apr edit`: metadata, names, the chat template.

mod apr2;
mod asked;
mod gguf;
mod report;

use apr_io::LockedFile;

use crate::args::EditArgs;
use crate::context::Context;
use crate::failure::Outcome;

/// Edits an `.apr` or a GGUF file.
pub(super) fn run(args: &EditArgs, context: &Context) -> Outcome {
    if !asked::is_any(args) {
        return undo_interrupted(args, context);
    }
    if gguf::is_one(&args.model) { gguf::run(args, context) } else { apr2::run(args, context) }
}

/// Undoes an interrupted change, which is all that an edit without options does.
fn undo_interrupted(args: &EditArgs, context: &Context) -> Outcome {
    if args.output.is_some() || !LockedFile::undo_interrupted(&args.model)? {
        return Err(asked::nothing());
    }
    context.printer.report(&report::EditReport::undone(&args.model), report::render)
}
