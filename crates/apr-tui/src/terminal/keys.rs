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

/// Stops the process as Ctrl-Z does; returns once it goes on.
pub(super) fn stop_process() -> io::Result<()> {
    Ok(kill_process(getpid(), Signal::TSTP)?)
}

/// Where keys come from.
pub(super) struct Keys(File);

/// What ended a wait for keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A key, a signal, or time.
    Alive,
    /// There is no terminal any more. Asked for events of one, crossterm reads its end again and
    /// again, and never returns.
    HungUp,
}

impl Keys {
    /// Those of standard input, or where that is something else of the terminal of the process, as
    /// crossterm has it.
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

/// Ends the process where its terminal went away while crossterm read of it, which would never end
/// and take a processor: between a look at the terminal and that read it may go at any time.
pub(super) struct Watch(Arc<AtomicBool>);

impl Watch {
    /// How long a screen has to end by itself, and how often the watch looks whether it did.
    const PATIENCE: Duration = Duration::from_secs(1);
    /// What shells call the end of a program by SIGHUP.
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
