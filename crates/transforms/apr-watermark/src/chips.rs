//! The signs that the key gives to the elements of a tensor.

use blake3::OutputReader;

use super::key::MarkKey;

/// Elements that carry one symbol together, once each Walsh function's sign.
pub(super) const GROUP: usize = 256;

/// Bytes of a group's chips.
pub(super) const GROUP_BYTES: usize = GROUP / 8;

/// Places that the symbols of a frame are laid out over; every frame's length divides it.
pub(super) const SLOTS: usize = 64;

/// Bytes of the stream that precede the chips: one block, so that blocks hold whole groups.
const HEAD: u64 = 64;

/// The chips of a tensor: an endless stream with random access.
#[derive(Debug, Clone)]
pub struct Chips {
    stream: OutputReader,
    first_slot: u64,
    /// Seed for rounding to narrow floats, which does not need to be secret.
    pub(super) dither: u64,
}

impl Chips {
    /// The stream of the tensor that its family calls `name`.
    #[must_use]
    pub fn new(key: &MarkKey, name: &str) -> Self {
        let mut stream = key.hasher("chips").update(name.as_bytes()).finalize_xof();
        let mut words = [[0; 8]; 2];
        stream.fill(words.as_flattened_mut());
        let [slot, dither] = words.map(u64::from_le_bytes);

        // 64 divides 2^64, so no slot is likelier than another.
        Self { stream, first_slot: slot % SLOTS as u64, dither }
    }

    /// Fills `chips` with the chips of whole groups, starting at `group`.
    ///
    /// Each element has one bit, lowest first; 1 stands for minus.
    pub(super) fn read(&mut self, group: u64, chips: &mut [u8]) {
        self.stream.set_position(HEAD + group * GROUP_BYTES as u64);
        self.stream.fill(chips);
    }

    /// The slot of a group.
    pub(super) fn slot(&self, group: u64) -> usize {
        let slot = (group + self.first_slot) % SLOTS as u64;
        // It is one of few.
        usize::try_from(slot).unwrap_or_default()
    }
}
