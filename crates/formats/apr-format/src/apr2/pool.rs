//! Things to use again, where there are threads.

use alloc::vec::Vec;
use std::sync::Mutex;

/// More than there are threads are of no use.
const MOST: usize = 16;

/// Things to use again: one for each thread that works at the same time.
pub(super) struct Pool<T> {
    free: Mutex<Vec<T>>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { free: Mutex::default() }
    }
}

impl<T> Pool<T> {
    /// One that suits, if there is one.
    pub(super) fn take(&self, suits: impl Fn(&T) -> bool) -> Option<T> {
        let mut free = self.free.lock().ok()?;
        let at = free.iter().position(suits)?;
        Some(free.swap_remove(at))
    }

    /// Keeps an object for reuse.
    pub(super) fn put_back(&self, thing: T) {
        if let Ok(mut free) = self.free.lock()
            && free.len() < MOST
        {
            free.push(thing);
        }
    }
}
