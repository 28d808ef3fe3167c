//! Libraries that panic where their input is wrong.

use std::cell::Cell;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` if a panic on this thread would be caught and become an error. A panic hook need
/// not report it then.
#[must_use]
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// Runs what another library does with a stranger's data; `what` is the data, for the error.
#[cfg(any(feature = "text", feature = "audio", feature = "images"))]
pub(crate) fn guarded<T>(
    what: &str,
    work: impl FnOnce() -> apr_core::Result<T>,
) -> apr_core::Result<T> {
    let before = GUARDED.replace(true);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    GUARDED.set(before);
    outcome.unwrap_or_else(|_| {
        Err(apr_core::Error::format(format!("{what} can't be read: its decoder failed")))
    })
}
