//! Tasks that run side by side as far as memory allows.

use apr_core::{Pipeline, Result, Serial};

/// Runs a task for each number of bytes in `needs`: on the pipeline those that need at most
/// `at_once`, which is the share of a thread, and then the others one after the other.
///
/// # Errors
/// The first error of a task.
pub fn run_within_memory<P: Pipeline, S: Default + Send>(
    pipeline: &P,
    needs: &[u64],
    at_once: u64,
    produce: impl Fn(usize, &mut S) -> Result<()> + Sync,
    mut consume: impl FnMut(usize, &mut S) -> Result<()>,
) -> Result<()> {
    let (small, large): (Vec<usize>, Vec<usize>) =
        (0..needs.len()).partition(|at| needs[*at] <= at_once);
    pipeline.run(
        small.len(),
        |task, slot: &mut S| produce(small[task], slot),
        |task, slot| consume(small[task], slot),
    )?;
    Serial.run(
        large.len(),
        |task, slot: &mut S| produce(large[task], slot),
        |task, slot| consume(large[task], slot),
    )
}
