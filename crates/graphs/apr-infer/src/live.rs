//! How much memory the values of a run take.

use std::collections::HashMap;

use crate::Value;

/// Tensors that are alive, each counted once however many values share it.
#[derive(Debug, Default)]
pub(crate) struct Live {
    tensors: HashMap<usize, (u32, u64)>,
    bytes: u64,
    peak: u64,
}

impl Live {
    pub(crate) fn add(&mut self, value: &Value) {
        for (identity, bytes) in value.pieces() {
            let entry = self.tensors.entry(identity).or_insert((0, 0));
            // What grows in place has more bytes than before.
            self.bytes += bytes - entry.1.min(bytes);
            *entry = (entry.0 + 1, entry.1.max(bytes));
        }
        self.peak = self.peak.max(self.bytes);
    }

    /// Returns the identities that [`remove`](Self::remove) needs for a value that is about to be
    /// given away.
    pub(crate) fn identities(value: &Value) -> Vec<usize> {
        value.pieces().into_iter().map(|(identity, _)| identity).collect()
    }

    pub(crate) fn remove(&mut self, identities: &[usize]) {
        for identity in identities {
            if let Some(entry) = self.tensors.get_mut(identity) {
                entry.0 -= 1;
                if entry.0 == 0 {
                    self.bytes -= entry.1;
                    self.tensors.remove(identity);
                }
            }
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }
}
