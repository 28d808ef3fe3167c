//! Hosts whose warnings are dropped, or name the model that they are about.

use std::time::Duration;

use apr_infer::Workers;
use apr_registry::Result;
use apr_run::{Host, Remedy};

/// Host that drops the warnings of another host, for work that is done twice but warned of once.
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

/// Another host whose warnings begin with a model's name.
pub(crate) struct Naming<'h> {
    pub(crate) host: &'h dyn Host,
    pub(crate) model: &'h str,
}

impl Host for Naming<'_> {
    fn workers(&self) -> &dyn Workers {
        self.host.workers()
    }

    fn is_cancelled(&self) -> bool {
        self.host.is_cancelled()
    }

    fn warn(&self, message: &str, remedy: Option<Remedy>) {
        self.host.warn(&format!("{}: {message}", self.model), remedy);
    }

    fn now(&self) -> i64 {
        self.host.now()
    }

    fn elapsed(&self) -> Option<Duration> {
        self.host.elapsed()
    }

    fn side_by_side(
        &self,
        first: &mut (dyn FnMut() + Send),
        second: &mut (dyn FnMut() + Send),
    ) -> bool {
        self.host.side_by_side(first, second)
    }

    fn isolate(&self, what: &str, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.host.isolate(what, work)
    }
}
