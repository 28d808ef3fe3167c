//! How work is cut into pieces that may run at the same time.

use std::sync::Mutex;

use apr_core::Result;

/// Executor for pieces of work. The caller provides the threads.
pub trait Workers: Sync {
    /// Returns the number of pieces that can run at the same time.
    fn count(&self) -> usize;

    /// Calls `work` once with every number below `pieces`, in any order, and returns when all calls
    /// are done.
    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync));
}

/// One piece after the other, on the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Workers for Alone {
    fn count(&self) -> usize {
        1
    }

    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..pieces).for_each(work);
    }
}

/// Cuts `out` after every `piece` elements, and calls `work` with the number and elements of each
/// piece. Every piece is made in the same way whatever thread makes it.
pub(crate) fn in_pieces<T: Send>(
    workers: &dyn Workers,
    out: &mut [T],
    piece: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    if workers.count() == 1 || out.len() <= piece {
        out.chunks_mut(piece.max(1)).enumerate().for_each(|(number, piece)| work(number, piece));
        return;
    }
    with_each(workers, out.chunks_mut(piece.max(1)), work);
}

/// Calls `work` with each of some things and its number.
fn with_each<T: Send>(
    workers: &dyn Workers,
    things: impl Iterator<Item = T>,
    work: impl Fn(usize, T) + Sync,
) {
    // Each number is called once, so that no lock is ever waited for.
    let things: Vec<_> = things.map(|thing| Mutex::new(Some(thing))).collect();
    workers.run(things.len(), &|number| {
        let taken = things[number].lock().ok().and_then(|mut thing| thing.take());
        if let Some(thing) = taken {
            work(number, thing);
        }
    });
}

/// Runs pieces that can fail, and returns the error of the first piece that failed.
pub(crate) fn try_in_pieces<T: Send>(
    workers: &dyn Workers,
    out: &mut [T],
    piece: usize,
    work: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    let failed = Mutex::new(None);
    in_pieces(workers, out, piece, |number, piece| {
        if let Err(error) = work(number, piece) {
            note(&failed, number, error);
        }
    });
    failed.into_inner().unwrap_or(None).map_or(Ok(()), |(_, error)| Err(error))
}

/// Calls `work` with each of some things and its number; the error of the first one that failed.
pub(crate) fn try_with_each<T: Send>(
    workers: &dyn Workers,
    things: Vec<T>,
    work: impl Fn(usize, T) -> Result<()> + Sync,
) -> Result<()> {
    let failed = Mutex::new(None);
    with_each(workers, things.into_iter(), |number, thing| {
        if let Err(error) = work(number, thing) {
            note(&failed, number, error);
        }
    });
    failed.into_inner().unwrap_or(None).map_or(Ok(()), |(_, error)| Err(error))
}

fn note(failed: &Mutex<Option<(usize, apr_core::Error)>>, number: usize, error: apr_core::Error) {
    // The error of the lowest number does not depend on which thread was faster.
    if let Ok(mut first) = failed.lock()
        && first.as_ref().is_none_or(|(earlier, _)| *earlier > number)
    {
        *first = Some((number, error));
    }
}
