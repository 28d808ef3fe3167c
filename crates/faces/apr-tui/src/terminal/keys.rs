//! Keys of a terminal on Unix, which may go away while one waits for them.

use std::fs::File;
use std::io::{self, IsTerminal, stdin};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

/// Stops the process as Ctrl-Z does; returns when it continues.
pub(super) fn stop_process() -> io::Result<()> {
    Ok(kill_process(getpid(), Signal::TSTP)?)
}

/// Source of keys.
pub(super) struct Keys(File);

/// Reason for the end of a wait for keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A key, a signal, or time.
    Alive,
    /// The terminal no longer exists.
    ///
    /// When asked for its events, crossterm reads its end repeatedly and never returns.
    HungUp,
}

impl Keys {
    /// Opens the keys of standard input or, if that is not a terminal, of the process's terminal,
    /// as crossterm does.
    pub(super) fn of_terminal() -> io::Result<Self> {
        let input = stdin();
        match input.is_terminal() {
            true => Ok(Self(input.as_fd().try_clone_to_owned()?.into())),
            false => File::options().read(true).open("/dev/tty").map(Self),
        }
    }

    /// Waits for a key, so long at most.
    pub(super) fn wait(&self, time: Duration) -> io::Result<Woken> {
        let nanoseconds = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        self.wait_for(PollFlags::IN, Timespec { tv_sec: 0, tv_nsec: nanoseconds })
    }

    pub(super) fn are_gone(&self) -> io::Result<bool> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(self.wait_for(PollFlags::empty(), at_once)? == Woken::HungUp)
    }

    fn wait_for(&self, what: PollFlags, time: Timespec) -> io::Result<Woken> {
        let mut polled = [PollFd::new(&self.0, what)];
        match poll(&mut polled, Some(&time)) {
            // A signal, which may be one of another size.
            Err(Errno::INTR) => Ok(Woken::Alive),
            Err(error) => Err(error.into()),
            Ok(_) => {
                let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
                let is_gone = polled[0].revents().intersects(gone);
                Ok(if is_gone { Woken::HungUp } else { Woken::Alive })
            }
        }
    }
}

/// Ends the process if its terminal disappears while crossterm reads from it.
///
/// Otherwise the read would never return and would use a whole core. The terminal can disappear at
/// any time between a check and the read.
pub(super) struct Watch(Arc<AtomicBool>);

impl Watch {
    /// Time that a screen has to end by itself after the terminal disappeared.
    const PATIENCE: Duration = Duration::from_secs(1);
    /// Exit code that shells use for a program ended by SIGHUP.
    const HUNG_UP: i32 = 129;

    pub(super) fn over(keys: &Keys) -> io::Result<Self> {
        let (keys, is_over) = (Keys(keys.0.try_clone()?), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&is_over);
        thread::Builder::new().name("terminal".to_owned()).spawn(move || {
            let time = Timespec { tv_sec: 1, tv_nsec: 0 };
            while !ended.load(Ordering::Relaxed) {
                match keys.wait_for(PollFlags::empty(), time) {
                    Ok(Woken::Alive) => {}
                    Ok(Woken::HungUp) => {
                        thread::sleep(Self::PATIENCE);
                        if !ended.load(Ordering::Relaxed) {
                            std::process::exit(Self::HUNG_UP);
                        }
                    }
                    // Nothing can be known of it.
                    Err(_) => return,
                }
            }
        })?;
        Ok(Self(is_over))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
