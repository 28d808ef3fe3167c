//! The belt where there are threads.

use alloc::collections::VecDeque;
use core::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use apr_core::{Error, IoCause, Result};

use super::Parcel;

/// Parcels in the order of the file.
#[derive(Default)]
pub(in crate::apr2) struct Belt {
    places: Mutex<Places>,
    changed: Condvar,
}

#[derive(Default)]
struct Places {
    waiting: VecDeque<BeltSlot>,
    /// Parcels that were taken off so far: the number of the first that is on the belt.
    taken_off: u64,
}

enum BeltSlot {
    ToDo(Parcel),
    UnderWay,
    Done(Parcel),
    /// The thread that worked on it panicked.
    Lost,
}

impl Belt {
    /// Lays a parcel on the belt; returns none, since its work is still to be done.
    pub(in crate::apr2) fn put(
        &self,
        parcel: Parcel,
        _work: impl Fn(&mut Parcel),
    ) -> Option<Parcel> {
        self.lock().waiting.push_back(BeltSlot::ToDo(parcel));
        None
    }

    /// Returns the number of parcels on the belt.
    pub(in crate::apr2) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Processes one parcel that no thread has begun. Returns `false` if there is none.
    pub(in crate::apr2) fn help(&self, work: impl Fn(&mut Parcel)) -> bool {
        let mut places = self.lock();
        let Some(at) = places.waiting.iter().position(|place| matches!(place, BeltSlot::ToDo(_)))
        else {
            return false;
        };
        let number = places.taken_off + at as u64;
        let BeltSlot::ToDo(mut parcel) = mem::replace(&mut places.waiting[at], BeltSlot::UnderWay)
        else {
            return false;
        };
        drop(places);
        let mut promise = Promise { belt: self, number, outcome: BeltSlot::Lost };
        work(&mut parcel);
        promise.outcome = BeltSlot::Done(parcel);
        true
    }

    /// Takes the first parcel off when its work is done; `None` before that.
    pub(in crate::apr2) fn take_done(&self) -> Option<Parcel> {
        let mut places = self.lock();
        match places.waiting.front()? {
            BeltSlot::Done(_) => match places.take_off()? {
                BeltSlot::Done(parcel) => Some(parcel),
                _ => None,
            },
            _ => None,
        }
    }

    /// Takes the first parcel off. Processes it, or waits for the thread that has begun it. Returns
    /// `None` if the belt is empty.
    ///
    /// # Errors
    /// E007 when the thread that had begun it panicked.
    pub(in crate::apr2) fn take(&self, work: impl Fn(&mut Parcel)) -> Option<Result<Parcel>> {
        let mut places = self.lock();
        while matches!(places.waiting.front()?, BeltSlot::UnderWay) {
            places = self.changed.wait(places).unwrap_or_else(PoisonError::into_inner);
        }

        let place = places.take_off()?;
        drop(places);
        match place {
            BeltSlot::ToDo(mut parcel) => {
                work(&mut parcel);
                Some(Ok(parcel))
            }
            BeltSlot::Done(parcel) => Some(Ok(parcel)),
            BeltSlot::UnderWay | BeltSlot::Lost => {
                Some(Err(Error::io(IoCause::Other, "a worker thread failed")))
            }
        }
    }

    /// Locks the slots. A panic elsewhere is reported by its own thread, and never leaves them half
    /// changed.
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn take_off(&mut self) -> Option<BeltSlot> {
        let place = self.waiting.pop_front()?;
        self.taken_off += 1;
        Some(place)
    }
}

/// Puts the outcome in its place, even when the work panicked: somebody may be waiting for it.
struct Promise<'a> {
    belt: &'a Belt,
    number: u64,
    outcome: BeltSlot,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        let mut places = self.belt.lock();
        let at = usize::try_from(self.number - places.taken_off).unwrap_or(usize::MAX);
        if let Some(place) = places.waiting.get_mut(at) {
            *place = mem::replace(&mut self.outcome, BeltSlot::Lost);
        }
        drop(places);
        self.belt.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;
    use core::sync::atomic::{AtomicBool, Ordering};

    use super::super::Work;
    use super::*;

    fn parcel(number: u8) -> Parcel {
        Parcel {
            entry: 0,
            work: Work::Compress,
            input: vec![number],
            output: Vec::new(),
            mismatches: 0,
        }
    }

    fn double(parcel: &mut Parcel) {
        parcel.output = vec![2 * parcel.input[0]];
    }

    #[test]
    fn parcels_come_off_in_order_whoever_did_the_work() {
        for helpers in 0..4 {
            let belt = Belt::default();
            let stop = AtomicBool::new(false);
            let help = || {
                while !stop.load(Ordering::Relaxed) {
                    belt.help(double);
                    std::thread::yield_now();
                }
            };

            let mut seen = Vec::new();
            std::thread::scope(|scope| {
                for _ in 0..helpers {
                    scope.spawn(help);
                }
                for number in 0..100 {
                    assert!(belt.put(parcel(number), double).is_none());
                    seen.extend(belt.take_done());
                    if belt.len() > 3 {
                        seen.extend(belt.take(double).transpose().expect("nobody panics"));
                    }
                }
                while let Some(parcel) = belt.take(double) {
                    seen.push(parcel.expect("nobody panics"));
                }
                stop.store(true, Ordering::Relaxed);
            });
            let outputs: Vec<u8> = seen.iter().map(|parcel| parcel.output[0]).collect();
            assert_eq!(
                outputs,
                (0..100).map(|number| 2 * number).collect::<Vec<u8>>(),
                "{helpers} helpers"
            );
        }
    }

    #[test]
    fn a_panic_during_work_is_reported_and_does_not_block_other_threads() {
        let belt = Belt::default();
        belt.put(parcel(1), double);
        std::thread::scope(|scope| {
            let helper = scope.spawn(|| belt.help(|_| panic!("as the test wants it")));
            assert!(helper.join().is_err());
        });
        assert!(belt.take_done().is_none());
        assert!(belt.take(double).is_some_and(|lost| lost.is_err()));
        assert!(belt.take(double).is_none());
    }
}
