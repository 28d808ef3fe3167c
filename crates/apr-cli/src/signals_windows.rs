//! Ctrl-C and Ctrl-Break, for jobs that have something to clean up.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use apr_io::Interrupt;

use crate::failure::Outcome;

/// What is set when the user interrupts; a process has one handler.
static FLAGS: Mutex<Vec<Arc<AtomicBool>>> = Mutex::new(Vec::new());

/// From now on Ctrl-C and Ctrl-Break set the flag, so that the job ends between two chunks and
/// removes what it wrote. A console that is closed sets it too, but does not wait for the job.
///
/// Commands that write nothing keep the system's behaviour: they just end.
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

/// From now on Ctrl-C sets the flag and nothing else, for a conversation that goes on after it.
#[cfg(feature = "chat")]
pub(crate) fn note_interrupts(interrupt: &Interrupt) -> Outcome {
    stop_cleanly(interrupt)
}
