//! A budget of work: what a file may ask for besides memory.

use alloc::format;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result, grouped};

/// A budget of steps for the work that a file requests.
///
/// A few bytes can request unlimited work: an endless loop, or a table of a thousand columns that
/// is read for each of a million rows. So the loops count steps. A step is about a nanosecond of
/// one core: an element that is read or written, a few multiplications of a fast kernel. It is
/// counted before the work is done, and does not depend on the machine or on the number of threads.
///
/// ```
/// use apr_core::Work;
///
/// let work = Work::new(1000);
/// work.spend(999)?;
/// assert!(work.spend(2).is_err());
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Work {
    spent: AtomicU64,
    limit: u64,
    /// `true` if the limit follows from the file alone, so that nobody can raise it.
    is_of_file: bool,
}

impl Work {
    /// Text in every error about an exceeded budget.
    pub const OVER: &'static str = "steps of work needed";

    /// Text in every error about an exceeded budget that follows from a file's size.
    pub const NOT_JUSTIFIED: &'static str = "which the size of the file does not justify";

    /// Creates a budget of `limit` steps chosen by the caller.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { spent: AtomicU64::new(0), limit, is_of_file: false }
    }

    /// Creates a budget of `limit` steps that follows from the size of the input.
    #[must_use]
    pub const fn of_file(limit: u64) -> Self {
        Self { spent: AtomicU64::new(0), limit, is_of_file: true }
    }

    /// Counts steps that are about to be done.
    ///
    /// # Errors
    /// E008 over the budget.
    pub fn spend(&self, steps: u64) -> Result<()> {
        let add = |spent: u64| Some(spent.saturating_add(steps));
        let before =
            self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).unwrap_or(u64::MAX);
        if before.saturating_add(steps) > self.limit {
            let over = format!("more than {} {}", grouped(self.limit), Self::OVER);
            return Err(Error::memory(match self.is_of_file {
                true => format!("{over}, {}", Self::NOT_JUSTIFIED),
                false => over,
            }));
        }
        Ok(())
    }

    /// Steps that were spent.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn spent_steps_are_not_returned() {
        let work = Work::new(10);
        assert!(work.spend(10).is_ok());
        let over = work.spend(1).unwrap_err();
        assert_eq!(over.code(), Code::Memory);
        assert!(over.message().contains(Work::OVER));
        assert!(work.spend(u64::MAX).is_err());
        assert_eq!(work.spent(), u64::MAX);
        assert!(work.spend(0).is_err());

        let over = Work::of_file(0).spend(1).unwrap_err();
        assert!(over.message().ends_with(Work::NOT_JUSTIFIED));
    }
}
