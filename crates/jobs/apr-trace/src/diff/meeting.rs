//! Where two runs meet: each waits until the other one has made the same value.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use apr_infer::Value;
use apr_registry::Error;

/// One of the two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Original,
    Other,
}

/// Function that compares a pair of values: the pair's number, the original's outputs and the other
/// model's.
pub(crate) type Compare<'c> = dyn FnMut(usize, &[Value], &[Value]) + Send + 'c;

/// Synchronization point at which runs of two models exchange values, pair by pair.
///
/// If both compute the values in the same order, only one pair is in memory at a time. If the other
/// run waits for a later value, the original's values are kept until they are requested.
pub(crate) struct Meeting<'c> {
    state: Mutex<State<'c>>,
    changed: Condvar,
    /// `true` if both runs are concurrent; otherwise the original runs first.
    is_parallel: bool,
    /// Bytes of the original's values that may be kept.
    most: u64,
}

struct State<'c> {
    /// Outputs of the original that were not taken yet; the original waits until they are.
    offered: Option<(usize, Vec<Value>)>,
    kept: HashMap<usize, Vec<Value>>,
    kept_bytes: u64,
    /// Pair that the other run waits for, and the other run's outputs.
    awaited: Option<(usize, Vec<Value>)>,
    /// The original's outputs for the awaited pair.
    reply: Option<Vec<Value>>,
    done: [bool; 2],
    failed: Option<Error>,
    compare: &'c mut Compare<'c>,
}

impl<'c> Meeting<'c> {
    pub(crate) fn new(is_parallel: bool, most: u64, compare: &'c mut Compare<'c>) -> Self {
        let state = State {
            offered: None,
            kept: HashMap::new(),
            kept_bytes: 0,
            awaited: None,
            reply: None,
            done: [false; 2],
            failed: None,
            compare,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), is_parallel, most }
    }

    fn lock(&self) -> MutexGuard<'_, State<'c>> {
        // A run that panicked goes on panicking where its thread is joined.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State<'c>>) -> MutexGuard<'s, State<'c>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The original has made a value of a pair.
    pub(crate) fn original(&self, pair: usize, values: Vec<Value>) {
        let mut state = self.lock();
        if let Some((awaited, _)) = &state.awaited {
            if *awaited == pair {
                state.answer(values);
                self.changed.notify_all();
            } else {
                state.keep(pair, values, self.most);
            }
            return;
        }
        if !self.is_parallel {
            return state.keep(pair, values, self.most);
        }

        state.offered = Some((pair, values));
        while state.offered.is_some() && !state.done[1] {
            state = self.wait(state);
        }
        state.offered = None;
    }

    /// Hands over the other model's outputs of a pair, and returns the original's outputs, if it
    /// computes them.
    pub(crate) fn other(&self, pair: usize, values: Vec<Value>) -> Option<Vec<Value>> {
        let mut state = self.lock();
        if let Some(original) = state.kept.remove(&pair) {
            state.kept_bytes = state.kept_bytes.saturating_sub(bytes(&original));
            (state.compare)(pair, &original, &values);
            return Some(original);
        }
        if let Some((offered, original)) = state.offered.take() {
            self.changed.notify_all();
            if offered == pair {
                (state.compare)(pair, &original, &values);
                return Some(original);
            }
            state.keep(offered, original, self.most);
        }

        state.awaited = Some((pair, values));
        while state.awaited.is_some() && !state.done[0] {
            state = self.wait(state);
        }
        state.awaited = None;
        state.reply.take()
    }

    /// A run has ended, and makes no more values.
    pub(crate) fn leave(&self, side: Side) {
        let mut state = self.lock();
        state.done[usize::from(side == Side::Other)] = true;
        self.changed.notify_all();
    }

    /// Returns `true` if the runs must stop because the kept values take too much memory.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed.is_some()
    }

    /// Returns the reason why the runs had to stop.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.lock().failed.take()
    }
}

impl State<'_> {
    fn answer(&mut self, original: Vec<Value>) {
        if let Some((pair, other)) = self.awaited.take() {
            (self.compare)(pair, &original, &other);
            self.reply = Some(original);
        }
    }

    fn keep(&mut self, pair: usize, values: Vec<Value>, most: u64) {
        self.kept_bytes = self.kept_bytes.saturating_add(bytes(&values));
        if self.kept_bytes > most {
            let message = format!(
                "values of the first model that wait to be compared take more than {most} bytes"
            );
            self.failed = Some(Error::memory(message));
            return;
        }
        self.kept.insert(pair, values);
    }
}

fn bytes(values: &[Value]) -> u64 {
    let of = |value: &Value| value.tensor().map_or(0, apr_infer::Tensor::bytes);
    values.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use apr_infer::Tensor;

    use super::*;

    fn value(number: usize) -> Vec<Value> {
        vec![Tensor::scalar(number as i64).into()]
    }

    fn number(values: &[Value]) -> i64 {
        values[0].tensor().unwrap().values::<i64>().unwrap()[0]
    }

    /// Runs both orders against each other; the pairs that met.
    fn met(is_parallel: bool, original: &[usize], other: &[usize]) -> Vec<usize> {
        let mut pairs = Vec::new();
        let mut compare = |pair: usize, one: &[Value], two: &[Value]| {
            assert_eq!(number(one), number(two));
            pairs.push(pair);
        };
        let meeting = Meeting::new(is_parallel, 1 << 20, &mut compare);
        let first = || {
            original.iter().for_each(|pair| meeting.original(*pair, value(*pair)));
            meeting.leave(Side::Original);
        };
        let second = || {
            for pair in other {
                let reply = meeting.other(*pair, value(*pair));
                assert_eq!(reply.is_some(), original.contains(pair));
            }
            meeting.leave(Side::Other);
        };
        if is_parallel {
            thread::scope(|scope| {
                scope.spawn(first);
                scope.spawn(second);
            });
        } else {
            first();
            second();
        }
        drop(meeting);
        pairs
    }

    #[test]
    fn runs_meet_in_any_order_of_their_values() {
        for is_parallel in [true, false] {
            assert_eq!(met(is_parallel, &[1, 2, 3], &[1, 2, 3]), [1, 2, 3]);
            assert_eq!(met(is_parallel, &[1, 2, 3, 4], &[3, 1, 4]), [3, 1, 4]);
            assert_eq!(met(is_parallel, &[2], &[1, 2, 5]), [2]);
            assert!(met(is_parallel, &[], &[1]).is_empty());
            assert!(met(is_parallel, &[1], &[]).is_empty());
        }
    }
}
