//! A host whose warnings are dropped.

use std::time::Duration;

use apr_infer::Workers;
use apr_registry::Result;
use apr_run::{Host, Remedy};

/// Another host without its warnings: what is done twice is warned of once.
pub(crate) struct Quiet<'h>(pub(crate) &'h dyn Host);

impl Host for Quiet<'_> {
    fn workers(&self) -> &dyn Workers {
        self.0.workers()
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    fn warn(&self, _: &str, _: Option<Remedy>) {}

    fn now(&self) -> i64 {
        self.0.now()
    }

    fn elapsed(&self) -> Option<Duration> {
        self.0.elapsed()
    }

    fn side_by_side(
        &self,
        first: &mut (dyn FnMut() + Send),
        second: &mut (dyn FnMut() + Send),
    ) -> bool {
        self.0.side_by_side(first, second)
    }

    fn isolate(&self, what: &str, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.0.isolate(what, work)
    }
}
