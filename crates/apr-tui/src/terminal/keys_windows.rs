//! Keys of a console on Windows: it ends the process where it goes away, and has no Ctrl-Z that
//! stops one.

use std::io;
use std::time::Duration;

use ratatui::crossterm::event;

/// Nothing stops a process.
pub(super) fn stop_process() -> io::Result<()> {
    Ok(())
}

/// Where keys come from.
pub(super) struct Keys;

/// What ended a wait for keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A key, or time.
    Alive,
    /// There is no terminal any more.
    #[allow(dead_code, reason = "the system ends the process")]
    HungUp,
}

impl Keys {
    /// Those of the console of the process.
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

/// There is nothing to watch.
pub(super) struct Watch;

impl Watch {
    pub(super) fn over(_keys: &Keys) -> io::Result<Self> {
        Ok(Self)
    }
}
