//! How a front end words what libraries say.

use apr_run::{Remedy, RunError};

/// The words of a front end: a library names settings and remedies, since it does not know what a
/// front end calls them.
///
/// ```
/// use apr_tui::{Plain, Wording};
///
/// let text = Plain.message("raise `max_memory`");
/// assert_eq!(text, "raise `max_memory`");
/// ```
pub trait Wording: Sync {
    /// A message of a library, which has names of settings between backquotes
    /// ([`apr_core::setting`]).
    fn message(&self, message: &str) -> String {
        message.to_owned()
    }

    /// Returns the change that lets a model run, or `None` if this front end does not offer it.
    fn remedy(&self, _: Remedy) -> Option<String> {
        None
    }
}

/// Messages as the libraries write them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl Wording for Plain {}

/// Returns the reason for which something was not computed, with its remedy.
pub(crate) fn of_run(wording: &dyn Wording, error: &RunError) -> String {
    let remedy = match error {
        RunError::Lacking { remedy, .. } => Some(*remedy),
        RunError::Request { remedy, .. } => *remedy,
        _ => None,
    };
    with_remedy(wording, &error.to_string(), remedy)
}

/// Returns a message followed by its remedy.
pub(crate) fn with_remedy(wording: &dyn Wording, text: &str, remedy: Option<Remedy>) -> String {
    let text = wording.message(text);
    match remedy.and_then(|remedy| wording.remedy(remedy)) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}
