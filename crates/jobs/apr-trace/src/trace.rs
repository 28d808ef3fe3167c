//! One model, step by step.

use std::collections::HashMap;

use apr_infer::{Outcome, Value};
use apr_registry::Code;
use apr_run::{AssumedInput, AudioFile, Host, RunError, RunOptions, RunResult, with_runner};
use serde::Serialize;

use crate::attention::AttentionPattern;
use crate::file_names::FileNames;
use crate::level::Level;
use crate::payload::{Pass, Passes, Payload, Subject, Written, generated, states_of};
use crate::predictions::{Predictions, predictions};
use crate::profile::DeadNeurons;
use crate::sites::Sites;
use crate::tracer::{OperatorTrace, Tracer, ValueSink, ValueTrace, Watched};
use crate::weights::{StepWeights, Weights};

/// Options for tracing a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TraceOptions {
    /// Options of the run. The setting for the KV cache is ignored, because a trace computes all
    /// tokens together.
    pub run: RunOptions,
    /// Granularity of a step.
    pub level: Level,
    /// Looks at values: statistics, attention, NaN.
    pub payload: bool,
    /// `true` to read the weights of each step again for statistics; requires `payload`.
    pub weights: bool,
    /// Maximum number of tokens that are generated first and traced with the prompt; by default
    /// none, or 16 where an encoder and a decoder run apart.
    pub max_tokens: Option<usize>,
}

impl TraceOptions {
    /// Creates options for a trace by blocks, without values.
    #[must_use]
    pub fn new(run: RunOptions) -> Self {
        let mut run = run;
        run.keeps_past = false;
        Self { run, level: Level::default(), payload: false, weights: false, max_tokens: None }
    }
}

/// A run, step by step.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Trace {
    /// Path of the model.
    pub path: String,
    /// Input of the run.
    pub input: String,
    /// Granularity of a step.
    pub level: Level,
    /// Token ids and the text that were generated before the trace, and that it includes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generated: Option<Written>,
    /// The parts of the model that ran, one after the other.
    pub passes: Vec<PassTrace>,
    /// Seconds of all operators; `None` without a clock.
    pub seconds: Option<f64>,
    /// Maximum number of bytes of all values at the same time, between two operators.
    pub peak_bytes: u64,
    /// Predictions of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predictions: Vec<Predictions>,
}

/// A part of a model that ran.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PassTrace {
    /// Name of the part: `model`, `encoder_model`.
    pub part: String,
    /// Inputs that were not given, with the assumed values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<AssumedInput>,
    /// Inputs of the part.
    pub inputs: Vec<InputTrace>,
    /// The steps, in the order in which they began.
    pub steps: Vec<StepTrace>,
    /// All operators, in the order in which they ran.
    pub operators: Vec<OperatorTrace>,
    /// Seconds of all operators; `None` without a clock.
    pub seconds: Option<f64>,
    /// Maximum number of bytes of all values at the same time, between two operators.
    pub peak_bytes: u64,
    /// Steps of work, as a limit bounds them.
    pub work: u64,
}

/// Input of a run with its trace.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct InputTrace {
    /// Name in the graph or, for a file, the kind of input.
    pub name: String,
    /// Value of the input.
    #[serde(flatten)]
    pub value: ValueTrace,
    /// The audio file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sound: Option<AudioFile>,
}

/// Step of a run with its trace.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StepTrace {
    /// Number of the step, starting at 1. Inputs are also numbered.
    pub number: usize,
    /// Path of the step: `layers.3/attention`.
    pub path: String,
    /// Number of operators that ran.
    #[serde(rename = "operator_count")]
    pub operators: usize,
    /// Seconds of its operators; `None` without a clock.
    pub seconds: Option<f64>,
    /// Maximum number of bytes of all values during the step, between two operators.
    pub peak_bytes: u64,
    /// Bytes of the values that its operators made.
    pub made_bytes: u64,
    /// The path of its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Result of the step, if values are traced.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub value: Option<ValueTrace>,
    /// Outputs of other steps and model inputs that the step reads, if values are traced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<StepInput>,
    /// Weights that the step reads, if values are traced.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub weights: Option<StepWeights>,
    /// Attention of the step, if it is computed by separate operators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionPattern>,
    /// Neurons that the step's activation function set to zero, if it is a ReLU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activations: Option<DeadNeurons>,
    /// Path of the first operator in it that made NaN or infinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_finite_at: Option<String>,
}

/// Input of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StepInput {
    /// Path of the operator that made it, or name of the model's input.
    pub path: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// Traces a model. `sink`, if there is one, receives every value with its part and path.
///
/// # Errors
/// Returns the errors of [`with_runner`], of running the model, and of `sink`.
pub fn trace(
    subject: Subject<'_>,
    payload: &Payload,
    options: &TraceOptions,
    host: &dyn Host,
    sink: Option<&mut ValueSink<'_>>,
) -> RunResult<Trace> {
    let Subject { source, facts } = subject;
    // A model that makes NaN generates nothing; a look at its values says where they begin.
    let written = match generated(subject, &options.run, host, payload, options.max_tokens) {
        Err(RunError::Model(error)) if error.code() == Code::Format => {
            host.warn(&format!("no text is generated: {}", error.message()), None);
            None
        }
        written => written?,
    };
    let mut sink = sink;
    let names = FileNames::of(source)?;
    with_runner(source, facts, &options.run, host, |runner| {
        let passes = Passes::of(runner, payload)?;
        let mut trace = Trace {
            path: source.name().to_owned(),
            input: payload.name(),
            level: options.level,
            generated: written.clone().filter(|written| !written.added.is_empty()),
            passes: Vec::new(),
            seconds: None,
            peak_bytes: 0,
            predictions: Vec::new(),
        };

        let mut states = None;
        for at in 0..passes.parts().len() {
            let pass = passes.pass(at, payload, written.as_ref(), states.as_ref())?;
            let sink = sink.as_mut().map(|sink| &mut **sink as &mut ValueSink<'_>);
            let first = trace.next_number();
            let (traced, outcome) = run_pass(&pass, options, host, (first, &names), sink)?;
            trace.predictions = predictions(&pass, &outcome, options.run.top)?;
            states = states_of(&pass, &outcome);
            trace.add(traced);
        }
        Ok(trace)
    })
}

/// Runs a part, and numbers its steps from `first` on.
fn run_pass(
    pass: &Pass<'_>,
    options: &TraceOptions,
    host: &dyn Host,
    (first, names): (usize, &FileNames<'_>),
    sink: Option<&mut ValueSink<'_>>,
) -> RunResult<(PassTrace, Outcome)> {
    let sites = Sites::of(pass.part.graph())?;
    let ends = sites.ends(|path| options.level.step_of(path));
    let mut watched = Watched { looks_inside: options.payload, ..Watched::default() };
    if options.payload {
        watched.sites.extend(ends.iter().map(|(_, end)| *end));
    }
    watched.sink = match sink {
        Some(sink) => Some((pass.part.name(), sink)),
        None => None,
    };

    let inputs = input_traces(pass)?;
    let mut tracer = Tracer::new(host, &sites, watched, host.elapsed());
    let outcome = pass.part.run_watched(pass.inputs.clone(), &pass.outputs(), &mut tracer);
    if let Some(error) = tracer.failed {
        return Err(error.into());
    }
    let outcome = outcome?;
    let mut steps = steps_of(&ends, &tracer, options.level);
    for (at, step) in steps.iter_mut().enumerate() {
        step.number = first + inputs.len() + at;
    }
    if options.payload {
        add_inputs(&mut steps, &inputs, &tracer, options.level);
        let mut weights = Weights::of(pass.part.runner().weights(), names, options.weights);
        weights.add(&mut steps, &tracer, options.level)?;
    }

    let operators = tracer.operators;
    let traced = PassTrace {
        part: pass.part.name().to_owned(),
        assumed: pass.assumed.clone(),
        inputs,
        steps,
        seconds: sum(operators.iter().map(|operator| operator.seconds)),
        operators,
        peak_bytes: outcome.peak_bytes,
        work: outcome.work,
    };
    Ok((traced, outcome))
}

/// Files first, then the values that the graph is given.
fn input_traces(pass: &Pass<'_>) -> RunResult<Vec<InputTrace>> {
    let raw = pass.raw.iter().map(|raw| (raw.name, &raw.value, raw.sound.clone()));
    let given = pass.inputs.iter().map(|(name, value)| (name.as_str(), value, None));
    let traced = |(name, value, sound): (&str, &Value, _)| {
        Ok(InputTrace { name: name.to_owned(), value: ValueTrace::of_input(value)?, sound })
    };
    raw.chain(given).map(traced).collect()
}

/// Returns the steps that the operators belong to.
fn steps_of(ends: &[(&str, usize)], tracer: &Tracer<'_, '_>, level: Level) -> Vec<StepTrace> {
    let mut steps: Vec<(StepTrace, usize)> =
        ends.iter().map(|(path, end)| (StepTrace::new(path), *end)).collect();
    let place: HashMap<&str, usize> =
        ends.iter().enumerate().map(|(at, (path, _))| (*path, at)).collect();
    for operator in &tracer.operators {
        let Some(at) = place.get(level.step_of(&operator.path)) else { continue };
        let (step, end) = &mut steps[*at];
        step.operators += 1;
        step.seconds = sum([step.seconds, operator.seconds].into_iter().filter(Option::is_some));
        step.peak_bytes = step.peak_bytes.max(operator.live_bytes);
        step.made_bytes += operator.made_bytes;
        if step.not_finite_at.is_none() && operator.not_finite.is_some_and(|count| count > 0) {
            step.not_finite_at = Some(operator.path.clone());
        }
        if operator.site == *end {
            step.result = Some(operator.path.clone());
            step.value = tracer.values.get(end).cloned();
        }
    }

    for (site, pattern) in &tracer.attention {
        let path = tracer.sites().list()[*site].path.as_str();
        if let Some(at) = place.get(level.step_of(path)) {
            steps[*at].0.attention = Some(pattern.clone());
        }
    }
    for (site, found) in &tracer.activations {
        let path = tracer.sites().list()[*site].path.as_str();
        if let Some(at) = place.get(level.step_of(path)) {
            steps[*at].0.activations = Some(found.clone());
        }
    }
    // What only sizes and masks come from runs nothing where a part of the graph is left out.
    steps.into_iter().map(|(step, _)| step).filter(|step| step.operators > 0).collect()
}

/// Adds the inputs of the steps from each other and from the model, in the order of their
/// operators.
fn add_inputs(
    steps: &mut [StepTrace],
    given: &[InputTrace],
    tracer: &Tracer<'_, '_>,
    level: Level,
) {
    let list = tracer.sites().list();
    let shapes: HashMap<usize, &[usize]> =
        tracer.operators.iter().map(|operator| (operator.site, &*operator.shape)).collect();
    let place = places(steps);
    let mut found: Vec<Vec<StepInput>> = vec![Vec::new(); steps.len()];
    for operator in &tracer.operators {
        let site = &list[operator.site];
        let own = level.step_of(&site.path);
        let Some(inputs) = place.get(own).map(|at| &mut found[*at]) else { continue };
        let made = site.reads.iter().filter(|read| level.step_of(&list[**read].path) != own);
        let made = made.filter_map(|read| Some((list[*read].path.as_str(), *shapes.get(read)?)));
        let named = |name: &String| {
            let input = given.iter().find(|input| input.name == *name)?;
            Some((input.name.as_str(), &*input.value.shape))
        };
        for (path, shape) in site.inputs.iter().filter_map(named).chain(made) {
            if !inputs.iter().any(|input| input.path == path) {
                inputs.push(StepInput { path: path.to_owned(), shape: shape.to_vec() });
            }
        }
    }
    for (step, inputs) in steps.iter_mut().zip(found) {
        step.inputs = inputs;
    }
}

/// Positions of steps by their paths.
pub(crate) fn places(steps: &[StepTrace]) -> HashMap<String, usize> {
    steps.iter().enumerate().map(|(at, step)| (step.path.clone(), at)).collect()
}

/// Returns the sum, or `None` if any value is missing.
fn sum(seconds: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    seconds.sum()
}

impl StepTrace {
    fn new(path: &str) -> Self {
        Self {
            number: 0,
            path: path.to_owned(),
            operators: 0,
            seconds: None,
            peak_bytes: 0,
            made_bytes: 0,
            result: None,
            value: None,
            inputs: Vec::new(),
            weights: None,
            attention: None,
            activations: None,
            not_finite_at: None,
        }
    }
}

impl Trace {
    /// The number of the next step.
    fn next_number(&self) -> usize {
        1 + self.passes.iter().map(|pass| pass.inputs.len() + pass.steps.len()).sum::<usize>()
    }

    fn add(&mut self, pass: PassTrace) {
        self.peak_bytes = self.peak_bytes.max(pass.peak_bytes);
        self.seconds = match (self.seconds, pass.seconds) {
            (Some(sum), Some(more)) => Some(sum + more),
            (None, seconds) => seconds,
            (sum, None) => sum,
        };
        self.passes.push(pass);
    }

    /// All steps, with the part that they belong to.
    pub fn steps(&self) -> impl Iterator<Item = (&str, &StepTrace)> {
        self.passes.iter().flat_map(|pass| pass.steps.iter().map(|step| (pass.part.as_str(), step)))
    }
}
