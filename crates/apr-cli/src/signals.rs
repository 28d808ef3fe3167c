//! Signals, for jobs that have something to clean up.

use std::sync::Arc;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;

use apr_io::Interrupt;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register;

use crate::failure::Outcome;

/// What asks a process to end, beside Ctrl-C and `kill`: a terminal that goes away.
#[cfg(unix)]
const HANG_UP: i32 = signal_hook::consts::SIGHUP;
/// Ctrl-Break, and a console that is closed, by the C library's name for both.
#[cfg(windows)]
const HANG_UP: i32 = signal_hook::consts::SIGBREAK;

/// From now on Ctrl-C and similar signals set the flag, so that the job ends between two chunks and
/// removes what it wrote; and a file that outgrows the allowed size is an error of the write
/// instead of the end of the process.
///
/// Commands that write nothing keep the system's behaviour: they just end.
pub(crate) fn stop_cleanly(interrupt: &Interrupt) -> Outcome {
    for signal in [SIGINT, SIGTERM, HANG_UP] {
        register(signal, Arc::clone(&interrupt.0))?;
    }
    #[cfg(unix)]
    register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// From now on Ctrl-C sets the flag and nothing else, for a conversation that goes on after it.
#[cfg(feature = "chat")]
pub(crate) fn note_interrupts(interrupt: &Interrupt) -> Outcome {
    register(SIGINT, Arc::clone(&interrupt.0))?;
    Ok(())
}
