//! Smallest and largest elements of activations, for integers that cover their range.

use std::collections::{BTreeMap, HashMap};

use apr_core::Result;
use apr_graph::{Body, Node};
use apr_infer::{Flow, Step, Tap, Value};
use apr_ops::products::{Range, Ranges};
use apr_quality::{Done, Subject};
use apr_run::{Host, Prepared, RunError, RunResult};

use crate::measure::Inputs;

/// Operators whose first input and output are measured.
const MEASURED: [&str; 5] = ["Clip", "Conv", "Gemm", "MatMul", "Relu"];

/// Returns the ranges of the values around the products of a model, in runs on a data set called
/// `dataset`.
///
/// Values within functions, loops and branches are not measured.
///
/// # Errors
/// A request error if nothing was measured, and the errors of running the model.
pub fn ranges(
    subject: &Subject<'_>,
    inputs: Inputs<'_>,
    dataset: &str,
    done: &mut Done<'_>,
) -> RunResult<Ranges> {
    let host = subject.runner().host();
    let mut parts: Vec<Observer<'_>> =
        subject.parts().iter().map(|part| Observer::new(part, host)).collect();
    match inputs {
        Inputs::Windows(windows) => {
            for (at, window) in windows.inputs().enumerate() {
                let run = subject.run_tokens(&window, &mut parts[0]);
                ended(run, &mut parts)?;
                done(at + 1);
            }
        }
        Inputs::Samples(samples) => {
            for (at, sample) in samples.iter().enumerate() {
                let mut taps: Vec<&mut dyn Tap> =
                    parts.iter_mut().map(|part| part as &mut dyn Tap).collect();
                let run = subject.run_watched(sample, &mut taps);
                ended(run, &mut parts)?;
                done(at + 1);
            }
        }
    }
    let parts: BTreeMap<String, BTreeMap<String, Range>> =
        parts.into_iter().map(|part| (part.name, part.found)).collect();
    if parts.values().all(BTreeMap::is_empty) {
        let message = "nothing was measured: the graph has no Conv, Gemm or MatMul outside of \
                       functions, loops and branches";
        return Err(RunError::request(message));
    }
    Ok(Ranges { parts, data: dataset.to_owned() })
}

/// Returns the error of the observer that stopped a run, if there is one, or else the result of the
/// run.
fn ended(run: RunResult<()>, parts: &mut [Observer<'_>]) -> RunResult<()> {
    match parts.iter_mut().find_map(|part| part.error.take()) {
        Some(error) => Err(error.into()),
        None => run,
    }
}

/// Names of the first input and of the output of a node.
type Names<'o> = (Option<&'o str>, Option<&'o str>);

/// Measures one part of a model.
struct Observer<'o> {
    name: String,
    /// By the addresses of the nodes.
    measured: HashMap<usize, Names<'o>>,
    host: &'o dyn Host,
    found: BTreeMap<String, Range>,
    error: Option<apr_core::Error>,
}

impl<'o> Observer<'o> {
    fn new(part: &'o Prepared<'_>, host: &'o dyn Host) -> Self {
        let body = &part.graph().body;
        let is_measured = |node: &&Node| MEASURED.iter().any(|name| node.op.is(name));
        let measured = body.nodes.iter().filter(is_measured).map(|node| {
            let output = node.outputs.first().copied().flatten();
            (address(node), (named(body, node.input(0)), named(body, output)))
        });
        Self {
            name: part.name().to_owned(),
            measured: measured.collect(),
            host,
            found: BTreeMap::new(),
            error: None,
        }
    }

    fn add(&mut self, name: Option<&str>, value: Option<&Value>) {
        let (Some(name), Some(Value::Tensor(tensor))) = (name, value) else { return };
        match range(tensor) {
            Ok(Some(range)) => {
                let known = self.found.get(name).copied();
                let all = known.map_or(range, |known| known.with(range));
                self.found.insert(name.to_owned(), all);
            }
            Ok(None) => {}
            Err(error) => self.error = Some(error.for_tensor(name)),
        }
    }
}

fn named(body: &Body, value: Option<apr_graph::ValueId>) -> Option<&str> {
    value.map(|value| body.value(value).name.as_str())
}

fn address(node: &Node) -> usize {
    std::ptr::from_ref(node) as usize
}

/// Returns the range of a tensor of floats, or `None` for other tensors and without elements.
fn range(tensor: &apr_infer::Tensor) -> Result<Option<Range>> {
    if !tensor.element().is_float() {
        return Ok(None);
    }
    let values = tensor.floats()?;
    let Some(first) = values.first().copied() else { return Ok(None) };
    let mut range = Range { min: first, max: first };
    for value in values.iter().copied() {
        if !value.is_finite() {
            let message = "NaN or infinity in a calibration run";
            return Err(apr_core::Error::corrupt(message));
        }
        range = Range { min: range.min.min(value), max: range.max.max(value) };
    }
    Ok(Some(range))
}

impl Tap for Observer<'_> {
    fn wants(&mut self, _: &str, node: &Node) -> bool {
        self.measured.contains_key(&address(node)) || self.host.is_cancelled()
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn reads(&mut self, _: &str, node: &Node, inputs: &[Option<Value>]) {
        if let Some(&(input, _)) = self.measured.get(&address(node)) {
            self.add(input, inputs.first().and_then(Option::as_ref));
        }
    }

    fn after(&mut self, step: &Step<'_>) -> Flow {
        if let Some(&(_, output)) = self.measured.get(&address(step.node)) {
            self.add(output, step.outputs.first());
        }
        match self.host.is_cancelled() || self.error.is_some() {
            true => Flow::Stop,
            false => Flow::Continue,
        }
    }
}
