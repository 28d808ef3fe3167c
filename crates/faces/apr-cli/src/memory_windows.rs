//! Windows gives memory as far as its page file goes, and has no limit like `ulimit -v` that a user
//! sets: the standard library ends the process where there is none left, by an exception that can't
//! be caught, and its own message says how much was asked for. What a command plans for beyond
//! `--max-memory` is E008 as everywhere.

/// Does nothing: there is no preparation on Windows.
pub(crate) fn prepare() -> Result<(), u8> {
    Ok(())
}

/// Does nothing: out-of-memory errors are not reported on Windows.
pub(crate) fn tell_as_json(_json: bool) {}
