//! Adding up what meets the columns of weights.

use std::collections::{BTreeMap, BTreeSet};

use apr_arch::FamilyModel;
use apr_core::{Error, Result};
use apr_graph::Node;
use apr_infer::{Flow, Step, Tap, Value};
use apr_quality::{Done, Sample, Subject, Windows};
use apr_quantize::{ColumnSums, ImatrixSums};
use apr_run::{Host, RunError, RunResult};
use apr_trace::Sites;

use crate::targets::{Names, Target, Targets, gguf_naming};

/// Data on which a model is measured.
#[derive(Debug, Clone, Copy)]
pub enum Inputs<'i> {
    /// A text, for a model that continues texts.
    Windows(&'i Windows),
    /// Texts, sounds, images or arrays.
    Samples(&'i [Sample]),
}

impl Inputs<'_> {
    /// Runs of the model that they take.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Windows(windows) => windows.len(),
            Self::Samples(samples) => samples.len(),
        }
    }

    /// Returns `true` if there are no inputs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Options of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MeasureOptions {
    /// `true` to also measure the head of a language model, which llama-imatrix omits by default.
    pub output: bool,
}

impl MeasureOptions {
    /// Sets whether the head of a language model is measured.
    #[must_use]
    pub const fn with_output(self, output: bool) -> Self {
        Self { output }
    }
}

/// Result of a measurement.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// Sums by the name that quantizers call a weight by.
    pub sums: ImatrixSums,
    /// Weights of products that were not measured, because GGUF does not have them or stores them
    /// in another form.
    pub not_measured: Vec<String>,
}

/// Measures the importance of a model's weights on a data set called `dataset`; `model` is the
/// family that its file is of, as far as known.
///
/// # Errors
/// E001 for NaN and infinity among the inputs of a weight, naming it, and what running the model
/// ends with.
pub fn measure(
    subject: &Subject<'_>,
    model: Option<&FamilyModel<'_>>,
    inputs: Inputs<'_>,
    dataset: &str,
    options: MeasureOptions,
    done: &mut Done<'_>,
) -> RunResult<Measured> {
    let gguf = model.and_then(gguf_naming);
    let runner = subject.runner();
    let names = Names::new(runner.reader(), model, gguf.as_ref(), options.output);
    let mut parts = subject
        .parts()
        .iter()
        .map(|part| {
            let sites = Sites::of(part.graph())?;
            let targets = Targets::of(&sites, &names);
            Ok(Collector { sites, targets, host: runner.host(), found: Ok(BTreeMap::new()) })
        })
        .collect::<Result<Vec<_>>>()?;

    let mut chunk_size = 1;
    match inputs {
        Inputs::Windows(windows) => {
            chunk_size = windows.context();
            for (at, window) in windows.inputs().enumerate() {
                let run = subject.run_tokens(&window, &mut parts[0]);
                ended(run, &parts)?;
                done(at + 1);
            }
        }
        Inputs::Samples(samples) => {
            for (at, sample) in samples.iter().enumerate() {
                let mut taps: Vec<&mut dyn Tap> =
                    parts.iter_mut().map(|part| part as &mut dyn Tap).collect();
                let run = subject.run_watched(sample, &mut taps);
                ended(run, &parts)?;
                done(at + 1);
            }
        }
    }

    let mut sums = ImatrixSums::new(dataset, u32::try_from(chunk_size).unwrap_or(u32::MAX));
    let mut not_measured = BTreeSet::new();
    for part in parts {
        let mut of_part = ImatrixSums::default();
        of_part.entries = part.found?;
        of_part.chunk_size = sums.chunk_size;
        let targets = part.targets.of_site.into_values().flatten().map(|target| target.name);
        not_measured.extend(targets.filter(|name| !of_part.entries.contains_key(name)));
        not_measured.extend(part.targets.nameless);
        not_measured.extend(part.targets.others);
        sums.merge(of_part)?;
    }
    if sums.entries.is_empty() {
        return Err(RunError::request(
            "nothing was measured: no product of the model reads a weight that has a name and a \
             row for each output",
        ));
    }
    Ok(Measured { sums, not_measured: not_measured.into_iter().collect() })
}

/// Returns the error of the collector that stopped a run, if there is one, or else the result of
/// the run.
fn ended(run: RunResult<()>, parts: &[Collector<'_>]) -> RunResult<()> {
    match parts.iter().find_map(|part| part.found.as_ref().err()) {
        Some(error) => Err(error.clone().into()),
        None => run,
    }
}

/// Adds up for one part of a model.
struct Collector<'c> {
    sites: Sites,
    targets: Targets,
    host: &'c dyn Host,
    found: Result<BTreeMap<String, ColumnSums>>,
}

impl Collector<'_> {
    fn targets(&self, path: &str, node: &Node) -> Option<&Vec<Target>> {
        self.targets.of_site.get(&self.sites.find(path, node)?)
    }
}

impl Tap for Collector<'_> {
    fn wants(&mut self, path: &str, node: &Node) -> bool {
        self.targets(path, node).is_some() || self.host.is_cancelled()
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn reads(&mut self, path: &str, node: &Node, inputs: &[Option<Value>]) {
        let Some(targets) = self.targets(path, node).cloned() else { return };
        let Some(Some(Value::Tensor(rows))) = inputs.first() else { return };
        let columns = rows.shape().last().copied().unwrap_or_default();
        let Ok(found) = &mut self.found else { return };
        let mut add = || {
            let rows = rows.floats()?;
            for target in &targets {
                let entry = found
                    .entry(target.name.clone())
                    .or_insert_with(|| ColumnSums::new(target.experts, columns));
                let added = entry.add(target.expert, &rows);
                added.map_err(|error: Error| error.for_tensor(&target.name))?;
            }
            Ok(())
        };
        if let Err(error) = add() {
            self.found = Err(error);
        }
    }

    fn after(&mut self, _: &Step<'_>) -> Flow {
        if self.host.is_cancelled() || self.found.is_err() { Flow::Stop } else { Flow::Continue }
    }
}
