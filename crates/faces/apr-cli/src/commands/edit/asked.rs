//! What is asked for, and what is refused whatever the format.

use crate::args::EditArgs;
use crate::commands::tensor_edits::TensorEdits;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Returns `true` if an edit requests a change.
pub(super) fn is_any(args: &EditArgs) -> bool {
    let metadata = [&args.set, &args.unset];
    metadata.iter().any(|list| !list.is_empty())
        || args.chat_template.is_some()
        || changes_tensors(args)
}

/// Returns `true` if an edit requests other tensors or other names.
pub(super) fn changes_tensors(args: &EditArgs) -> bool {
    !args.names.is_empty() || !args.add.is_empty()
}

/// Returns the error for an edit that requests no change, if the file has no interrupted change to
/// undo.
pub(super) fn nothing() -> Failure {
    let message = "no change requested: pass --set, --unset, --rename, --drop, --keep, --add or \
                   --chat-template";
    Failure::Usage(message.to_owned())
}

/// Rejects the removal of tensors from a file that may be their only copy.
pub(super) fn check_loss(args: &EditArgs, dropped: usize, all: usize) -> Outcome {
    if dropped == 0 || args.output.is_some() || args.force {
        return Ok(());
    }
    let tensors = apr_core::counted(all as u64, "tensor");
    let option = if args.names.drop.is_empty() { "--keep" } else { "--drop" };
    let message =
        format!("{option} would remove {dropped} of {tensors} from the file itself, irreversibly");
    Err(Failure::Usage(format!(
        "{message}; -o PATH writes a copy without them, --force changes the file"
    )))
}

/// Returns the requested edits of tensors.
pub(super) fn tensor_edits(args: &EditArgs, context: &Context) -> Outcome<TensorEdits> {
    if args.force && args.names.drop.is_empty() && args.names.keep.is_empty() {
        return Err(Failure::Usage("--force applies to --drop and --keep only".to_owned()));
    }
    TensorEdits::of(&args.names)?.adding(&args.add, context)
}
