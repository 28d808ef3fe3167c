//! Signals, for jobs that have something to clean up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use apr_io::Interrupt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag::register;

use crate::failure::Outcome;

/// From now on Ctrl-C and similar signals set the flag, so that the job ends between two chunks and
/// removes what it wrote; and a file that outgrows the allowed size is an error of the write
/// instead of the end of the process.
///
/// Commands that write nothing keep the system's behaviour: they just end.
pub(crate) fn stop_cleanly(interrupt: &Interrupt) -> Outcome {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register(signal, Arc::clone(&interrupt.0))?;
    }
    register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// From now on Ctrl-C sets the flag and nothing else, for a conversation that goes on after it.
#[cfg(feature = "chat")]
pub(crate) fn note_interrupts(interrupt: &Interrupt) -> Outcome {
    register(SIGINT, Arc::clone(&interrupt.0))?;
    Ok(())
}
