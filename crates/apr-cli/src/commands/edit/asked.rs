//! What is asked for, and what is refused whatever the format.

use crate::args::EditArgs;
use crate::failure::{Failure, Outcome};

/// Whether an edit asks for a change.
pub(super) fn is_any(args: &EditArgs) -> bool {
    let lists = [&args.set, &args.unset, &args.rename, &args.drop];
    lists.iter().any(|list| !list.is_empty()) || args.chat_template.is_some()
}

/// The refusal of an edit that asks for nothing, of a file in which no change was interrupted.
pub(super) fn nothing() -> Failure {
    let message = "no change requested: pass --set, --unset, --rename, --drop or --chat-template";
    Failure::Usage(message.to_owned())
}

/// Refuses to take tensors out of what may be the only copy of them.
pub(super) fn check_loss(args: &EditArgs, dropped: usize, all: usize) -> Outcome {
    if dropped == 0 || args.output.is_some() || args.force {
        return Ok(());
    }
    let tensors = apr_core::counted(all as u64, "tensor");
    let message =
        format!("--drop would remove {dropped} of {tensors} from the file itself, irreversibly");
    Err(Failure::Usage(format!(
        "{message}; -o PATH writes a copy without them, --force changes the file"
    )))
}

/// The two sides of `KEY=VALUE`.
pub(super) fn split<'a>(pair: &'a str, usage: &str) -> Outcome<(&'a str, &'a str)> {
    let parts = pair.split_once('=').filter(|(key, _)| !key.is_empty());
    parts.ok_or_else(|| Failure::Usage(format!("'{pair}' is not of the form {usage}")))
}
