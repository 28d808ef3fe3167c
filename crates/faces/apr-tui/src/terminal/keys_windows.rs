//! Keys of a console on Windows: it ends the process where it goes away, and has no Ctrl-Z that
//! stops one.

use std::io;
use std::time::Duration;

use ratatui::crossterm::event;

/// Does nothing: a process cannot be stopped on Windows.
pub(super) fn stop_process() -> io::Result<()> {
    Ok(())
}

/// Source of keys.
pub(super) struct Keys;

/// Reason for the end of a wait for keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A key, or time.
    Alive,
    /// The terminal no longer exists.
    #[allow(dead_code, reason = "the system ends the process")]
    HungUp,
}

impl Keys {
    /// Opens the keys of the process's console.
    pub(super) fn of_terminal() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for a key, so long at most.
    pub(super) fn wait(&self, time: Duration) -> io::Result<Woken> {
        event::poll(time).map(|_| Woken::Alive)
    }

    pub(super) fn are_gone(&self) -> io::Result<bool> {
        Ok(false)
    }
}

/// Placeholder, because there is nothing to watch on Windows.
pub(super) struct Watch;

impl Watch {
    pub(super) fn over(_keys: &Keys) -> io::Result<Self> {
        Ok(Self)
    }
}
