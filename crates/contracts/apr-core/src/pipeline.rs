//! How a pass gets its work done, on one thread or several.

use crate::Result;

/// Runs independent tasks and hands their results over in order.
///
/// Passes are written once against this trait; a threaded implementation comes from layer 3.
pub trait Pipeline {
    /// Runs `tasks` tasks: `produce` in parallel if possible, then `consume` in order.
    ///
    /// For every `i` below `tasks`, it calls `produce(i, slot)` and then `consume(i, slot)`.
    ///
    /// `consume` gets the same slot. It is called strictly in the order of `i` and on the calling
    /// thread.
    ///
    /// Slots are reused, which keeps their buffers; only a few exist, so a slow `consume` delays
    /// `produce`.
    ///
    /// # Errors
    /// The first error by order of `i`; tasks after it are dropped.
    fn run<S: Default + Send>(
        &self,
        tasks: usize,
        produce: impl Fn(usize, &mut S) -> Result<()> + Sync,
        consume: impl FnMut(usize, &mut S) -> Result<()>,
    ) -> Result<()>;
}

/// One task after the other, on the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Pipeline for Serial {
    fn run<S: Default + Send>(
        &self,
        tasks: usize,
        produce: impl Fn(usize, &mut S) -> Result<()> + Sync,
        mut consume: impl FnMut(usize, &mut S) -> Result<()>,
    ) -> Result<()> {
        let mut slot = S::default();
        (0..tasks).try_for_each(|task| {
            produce(task, &mut slot)?;
            consume(task, &mut slot)
        })
    }
}
