//! The line that all connections of a test hub share.

use std::slice::Chunks;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Number of bytes per send if the rate is limited.
const SENT_AT_ONCE: usize = 64 << 10;

/// Delay that the line catches up with after it was idle or a thread woke up late.
const BURST: Duration = Duration::from_millis(10);

/// A line with a rate.
#[derive(Default)]
pub(super) struct Line(Mutex<State>);

#[derive(Default)]
struct State {
    /// Bytes a second; 0: as many as the machine can.
    rate: u64,
    /// Time when the line is free again.
    free: Option<Instant>,
}

impl Line {
    pub(super) fn set(&self, rate: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State { rate, free: None };
    }

    /// Iterates over pieces of the bytes to send, and waits for the turn of each.
    pub(super) fn pieces<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        let is_limited = self.0.lock().unwrap_or_else(PoisonError::into_inner).rate > 0;
        let pieces: Chunks<'a, u8> =
            bytes.chunks(if is_limited { SENT_AT_ONCE } else { bytes.len().max(1) });
        pieces.inspect(|piece| self.wait(piece.len()))
    }

    fn wait(&self, len: usize) {
        let now = Instant::now();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.rate == 0 {
            return;
        }
        let start = state.free.map_or(now, |free| free.max(now - BURST));
        state.free = Some(start + Duration::from_secs_f64(len as f64 / state.rate as f64));
        drop(state);
        thread::sleep(start.saturating_duration_since(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_bytes_and_the_line_is_taken_for_their_time() {
        let line = Line::default();
        let bytes = vec![7; 3 * SENT_AT_ONCE + 1];
        assert_eq!(line.pieces(&bytes).collect::<Vec<_>>(), [&bytes[..]]);
        line.set(1 << 30);
        let before = Instant::now();
        let lens: Vec<usize> = line.pieces(&bytes).map(<[u8]>::len).collect();
        assert_eq!(lens, [SENT_AT_ONCE, SENT_AT_ONCE, SENT_AT_ONCE, 1]);
        let taken = line.0.lock().expect("nobody panicked").free.expect("it was used") - before;
        assert!(
            taken
                >= Duration::from_secs_f64(bytes.len() as f64 / f64::from(1 << 30))
                    - Duration::from_micros(1)
        );
    }
}
