//! Signals, for jobs that have something to clean up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use apr_io::Interrupt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag::register;

use crate::failure::Outcome;

/// Makes Ctrl-C and similar signals set the flag, so that the job ends between two chunks.
///
/// The job then removes its output. A file that exceeds the allowed size becomes a write error
/// instead of ending the process.
///
/// Commands that do not write files keep the system's behaviour: they just end.
pub(crate) fn stop_cleanly(interrupt: &Interrupt) -> Outcome {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register(signal, Arc::clone(&interrupt.0))?;
    }
    register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// Makes Ctrl-C only set the flag, for a conversation that continues afterwards.
#[cfg(feature = "chat")]
pub(crate) fn note_interrupts(interrupt: &Interrupt) -> Outcome {
    register(SIGINT, Arc::clone(&interrupt.0))?;
    Ok(())
}
