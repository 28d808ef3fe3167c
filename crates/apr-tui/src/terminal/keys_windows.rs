//! Keys of a console on Windows: it ends the process where it goes away, and has no Ctrl-Z that
//! stops one.

use std::io;
use std::time::Duration;

use ratatui::crossterm::event;

/// Nothing stops a process.
#[expect(clippy::unnecessary_wraps, reason = "on Unix it fails")]
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
    #[expect(clippy::unnecessary_wraps, reason = "on Unix it fails")]
    pub(super) fn of_terminal() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for a key, so long at most.
    #[expect(clippy::unused_self, reason = "on Unix the terminal is asked")]
    pub(super) fn wait(&self, time: Duration) -> io::Result<Woken> {
        event::poll(time).map(|_| Woken::Alive)
    }

    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "on Unix it may be")]
    pub(super) fn are_gone(&self) -> io::Result<bool> {
        Ok(false)
    }
}

/// There is nothing to watch.
pub(super) struct Watch;

impl Watch {
    #[expect(clippy::unnecessary_wraps, reason = "on Unix it fails")]
    pub(super) fn over(_keys: &Keys) -> io::Result<Self> {
        Ok(Self)
    }
}
