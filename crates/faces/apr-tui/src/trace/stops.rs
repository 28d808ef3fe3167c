//! Inputs, steps and predictions of a trace as one list.

use apr_trace::{InputTrace, PassTrace, Predictions, StepTrace, Trace, ValueTrace};

use crate::text::clean;

/// Item of a trace's sequence, with its number in the command's text.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    pub(crate) number: usize,
    /// Escaped name of the stop.
    pub(crate) name: String,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Input { pass: usize, at: usize },
    Step { pass: usize, at: usize },
    Output(usize),
}

/// Returns all stops of a trace, in the order in which they run.
pub(crate) fn stops(trace: &Trace) -> Vec<Stop> {
    let mut stops = Vec::new();
    for (pass, traced) in trace.passes.iter().enumerate() {
        let inputs = traced.inputs.iter().enumerate();
        let inputs = inputs.map(|(at, input)| (clean(&input.name), What::Input { pass, at }));
        let steps = traced.steps.iter().enumerate();
        let steps = steps.map(|(at, step)| (clean(&step.path), What::Step { pass, at }));
        stops.extend(inputs.chain(steps));
    }
    let outputs = trace.predictions.iter().enumerate();
    stops.extend(outputs.map(|(at, found)| (clean(&found.output), What::Output(at))));
    let numbered = stops.into_iter().enumerate();
    numbered.map(|(at, (name, what))| Stop { number: at + 1, name, what }).collect()
}

impl Stop {
    /// The part of the model that it belongs to: paths are unique within a part alone.
    pub(crate) fn pass<'t>(&self, trace: &'t Trace) -> Option<&'t PassTrace> {
        match self.what {
            What::Input { pass, .. } | What::Step { pass, .. } => trace.passes.get(pass),
            What::Output(_) => None,
        }
    }

    /// The number of its part, and its path there; `None` for predictions.
    pub(crate) fn path<'t>(&self, trace: &'t Trace) -> Option<(usize, &'t str)> {
        match self.what {
            What::Input { pass, .. } => Some((pass, &self.input(trace)?.name)),
            What::Step { pass, .. } => Some((pass, &self.step(trace)?.path)),
            What::Output(_) => None,
        }
    }

    pub(crate) fn input<'t>(&self, trace: &'t Trace) -> Option<&'t InputTrace> {
        match self.what {
            What::Input { pass, at } => trace.passes.get(pass)?.inputs.get(at),
            _ => None,
        }
    }

    pub(crate) fn step<'t>(&self, trace: &'t Trace) -> Option<&'t StepTrace> {
        match self.what {
            What::Step { pass, at } => trace.passes.get(pass)?.steps.get(at),
            _ => None,
        }
    }

    pub(crate) fn output<'t>(&self, trace: &'t Trace) -> Option<&'t Predictions> {
        match self.what {
            What::Output(at) => trace.predictions.get(at),
            _ => None,
        }
    }

    pub(crate) fn value<'t>(&self, trace: &'t Trace) -> Option<&'t ValueTrace> {
        match self.what {
            What::Input { .. } => Some(&self.input(trace)?.value),
            What::Step { .. } => self.step(trace)?.value.as_ref(),
            What::Output(_) => None,
        }
    }

    /// Returns `true` if all examined values are finite.
    pub(crate) fn is_sound(&self, trace: &Trace) -> bool {
        let statistics = self.value(trace).and_then(|value| value.statistics.as_ref());
        let is_finite = statistics.is_none_or(|found| found.stats.nan + found.stats.inf == 0);
        is_finite && self.step(trace).is_none_or(|step| step.not_finite_at.is_none())
    }
}
