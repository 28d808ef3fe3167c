//! What the user should know of how files were fetched.

use std::sync::{Arc, Mutex, PoisonError};

/// Remarks, each once; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    all: Vec<String>,
    /// Number of notes that were returned.
    told: usize,
}

impl Notes {
    /// Adds a remark, unless it is there.
    pub(crate) fn add(&self, note: String) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.all.contains(&note) {
            notes.all.push(note);
        }
    }

    /// Returns the notes that were not returned before.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let news = notes.all[notes.told..].to_vec();
        notes.told = notes.all.len();
        news
    }
}
