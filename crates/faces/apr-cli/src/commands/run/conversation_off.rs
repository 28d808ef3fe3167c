//! Without the feature `chat` there is no template that writes a history.

use apr_registry::Error;

use super::job::Job;
use crate::failure::Outcome;

/// Returns an error, because this build has no conversations.
pub(super) fn run(_: &Job<'_>) -> Outcome {
    Err(Error::version("conversations need the feature `chat`, which this build lacks").into())
}
