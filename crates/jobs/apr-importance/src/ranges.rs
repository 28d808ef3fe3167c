//! Ranges of activations, for integers that cover them.

use std::collections::{BTreeMap, HashMap};

use apr_core::Result;
use apr_graph::{Body, Node};
use apr_infer::{Flow, Step, Tap, Tensor, Value};
use apr_ops::products::{Calibration, Range, Ranges};
use apr_quality::{Done, Subject};
use apr_run::{Host, Prepared, RunError, RunResult};

use crate::histogram::{Extremes, Histogram};
use crate::measure::Inputs;

/// Operators whose first input and output are measured.
const MEASURED: [&str; 5] = ["Clip", "Conv", "Gemm", "MatMul", "Relu"];

/// Returns the ranges of the values around the products of a model, in runs on a data set called
/// `dataset`.
///
/// Methods with histograms run the model twice, because a histogram needs the extremes. Values
/// within functions, loops and branches are not measured.
///
/// # Errors
/// A request error if nothing was measured, and the errors of running the model.
pub fn ranges(
    subject: &Subject<'_>,
    inputs: Inputs<'_>,
    (dataset, method): (&str, Calibration),
    done: &mut Done<'_>,
) -> RunResult<Ranges> {
    let host = subject.runner().host();
    let mut parts: Vec<Observer<'_>> =
        subject.parts().iter().map(|part| Observer::new(part, host)).collect();
    watch(subject, &inputs, &mut parts, done)?;
    if parts.iter().all(|part| part.found.is_empty()) {
        let message = "nothing was measured: the graph has no Conv, Gemm or MatMul outside of \
                       functions, loops and branches";
        return Err(RunError::request(message));
    }
    if method != Calibration::MinMax {
        for part in &mut parts {
            part.count(method);
        }
        watch(subject, &inputs, &mut parts, done)?;
    }
    let parts = parts.into_iter().map(|part| part.chosen(method)).collect();
    Ok(Ranges { parts, method, data: dataset.to_owned() })
}

/// Runs a model on all inputs.
fn watch(
    subject: &Subject<'_>,
    inputs: &Inputs<'_>,
    parts: &mut [Observer<'_>],
    done: &mut Done<'_>,
) -> RunResult<()> {
    match inputs {
        Inputs::Windows(windows) => {
            for (at, window) in windows.inputs().enumerate() {
                let run = subject.run_tokens(&window, &mut parts[0]);
                ended(run, parts)?;
                done(at + 1);
            }
        }
        Inputs::Samples(samples) => {
            for (at, sample) in samples.iter().enumerate() {
                let mut taps: Vec<&mut dyn Tap> =
                    parts.iter_mut().map(|part| part as &mut dyn Tap).collect();
                let run = subject.run_watched(sample, &mut taps);
                ended(run, parts)?;
                done(at + 1);
            }
        }
    }
    Ok(())
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
    found: BTreeMap<String, Extremes>,
    /// In the second run: by the names of the values.
    counted: Option<BTreeMap<String, Histogram>>,
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
            counted: None,
            error: None,
        }
    }

    /// Prepares for the second run.
    fn count(&mut self, method: Calibration) {
        let make = match method {
            Calibration::Percentile(_) => Histogram::of_magnitudes,
            _ => Histogram::signed,
        };
        let found = self.found.iter();
        self.counted = Some(found.map(|(name, known)| (name.clone(), make(*known))).collect());
    }

    /// Returns the name of the part and the ranges by the method.
    fn chosen(self, method: Calibration) -> (String, BTreeMap<String, Range>) {
        let ranges = match self.counted {
            None => self.found.into_iter().map(|(name, known)| (name, known.range)).collect(),
            Some(counted) => {
                let range = |histogram: &Histogram| match method {
                    Calibration::Percentile(percent) => histogram.percentile(percent),
                    _ => histogram.entropy(),
                };
                counted.iter().map(|(name, counts)| (name.clone(), range(counts))).collect()
            }
        };
        (self.name, ranges)
    }

    fn add(&mut self, name: Option<&str>, value: Option<&Value>) {
        let (Some(name), Some(Value::Tensor(tensor))) = (name, value) else { return };
        if let Err(error) = self.add_tensor(name, tensor) {
            self.error = Some(error.for_tensor(name));
        }
    }

    fn add_tensor(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        if !tensor.element().is_float() {
            return Ok(());
        }
        let values = tensor.floats()?;
        if let Some(counted) = &mut self.counted {
            if let Some(histogram) = counted.get_mut(name) {
                histogram.add(&values);
            }
            return Ok(());
        }
        if values.iter().any(|value| !value.is_finite()) {
            return Err(apr_core::Error::corrupt("NaN or infinity in a calibration run"));
        }
        if let Some(extremes) = Extremes::of(&values) {
            let known = self.found.get(name).copied();
            let all = known.map_or(extremes, |known| known.with(extremes));
            self.found.insert(name.to_owned(), all);
        }
        Ok(())
    }
}

fn named(body: &Body, value: Option<apr_graph::ValueId>) -> Option<&str> {
    value.map(|value| body.value(value).name.as_str())
}

fn address(node: &Node) -> usize {
    std::ptr::from_ref(node) as usize
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
