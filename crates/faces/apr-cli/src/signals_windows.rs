//! Ctrl-C and Ctrl-Break, for jobs that have something to clean up.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use apr_io::Interrupt;

use crate::failure::Outcome;

/// Flags to set when the user interrupts; a process has only one handler.
static FLAGS: Mutex<Vec<Arc<AtomicBool>>> = Mutex::new(Vec::new());

/// Makes Ctrl-C and Ctrl-Break set the flag, so that the job ends between two chunks.
///
/// The job then removes its output. Closing the console also sets the flag, but does not wait for
/// the job.
///
/// Commands that do not write files keep the system's behaviour: they just end.
pub(crate) fn stop_cleanly(interrupt: &Interrupt) -> Outcome {
    let is_first = {
        let mut flags = FLAGS.lock().unwrap_or_else(PoisonError::into_inner);
        flags.push(Arc::clone(&interrupt.0));
        flags.len() == 1
    };
    if is_first {
        ctrlc::set_handler(|| {
            let flags = FLAGS.lock().unwrap_or_else(PoisonError::into_inner);
            flags.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
        })
        .map_err(io::Error::other)?;
    }
    Ok(())
}

/// Makes Ctrl-C only set the flag, for a conversation that continues afterwards.
#[cfg(feature = "chat")]
pub(crate) fn note_interrupts(interrupt: &Interrupt) -> Outcome {
    stop_cleanly(interrupt)
}
