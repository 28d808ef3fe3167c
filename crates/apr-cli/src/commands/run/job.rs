//! What every task of a model gets, and how it runs a graph.

use apr::CheckpointReader;
use apr_graph::{Body, Meaning, Node};
use apr_infer::{Engine, Flow, RunLimits, Session, Step, Tap, Value};
use apr_io::{Crew, Interrupt};
use apr_ops::run::{Facts, Runnable};

use crate::args::RunArgs;
use crate::context::Context;
use crate::failure::Outcome;

/// Stops a run when the user does.
pub(super) struct UntilInterrupted(pub(super) Interrupt);

impl Tap for UntilInterrupted {
    /// No node, until then: a run whose nodes are looked at is slower.
    fn wants(&mut self, _: &str, _: &Node) -> bool {
        self.0.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, _: &Step<'_>) -> Flow {
        Flow::Stop
    }
}

/// What a task gets.
pub(super) struct Job<'j> {
    pub(super) args: &'j RunArgs,
    pub(super) context: &'j Context,
    /// The model as its file has it.
    pub(super) reader: &'j dyn CheckpointReader,
    /// As the user wrote it.
    pub(super) name: &'j str,
    pub(super) facts: &'j Facts,
    pub(super) workers: Crew,
}

impl Job<'_> {
    /// Runs a graph, until it is done or the user has enough.
    pub(super) fn run(
        &self,
        session: &Session<'_>,
        inputs: Vec<(String, Value)>,
        wanted: &[&str],
    ) -> Outcome<apr_infer::Outcome> {
        let mut tap = UntilInterrupted(self.context.interrupt.clone());
        let outcome = session.run(inputs, wanted, &self.workers, &mut tap)?;
        if outcome.stopped {
            return Err(apr::Error::io(apr::IoCause::Interrupted, "interrupted").into());
        }
        Ok(outcome)
    }

    /// Prepares a part of the model.
    pub(super) fn session<'a>(
        &self,
        part: &'a Runnable,
        weights: &'a dyn CheckpointReader,
    ) -> Outcome<Session<'a>> {
        let mut limits = RunLimits::default();
        limits.max_memory = self.context.max_memory();
        limits.max_work = self.args.max_work;
        limits.seed = self.args.seed.unwrap_or_default();
        Ok(Engine::prepare(&part.graph, weights, limits)?)
    }

    pub(super) fn warn(&self, message: &str) {
        self.context.printer.warn(message);
    }
}

/// Name of the input or output that means something.
pub(super) fn meaning<'b>(
    body: &'b Body,
    list: &[apr_graph::ValueId],
    meaning: Meaning,
) -> Option<&'b str> {
    list.iter()
        .map(|id| body.value(*id))
        .find(|value| value.meaning == meaning)
        .map(|value| value.name.as_str())
}
