//! What meets the columns of weights, row by row.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use apr_arch::FamilyModel;
use apr_core::{Error, Result};
use apr_graph::Node;
use apr_infer::{Flow, Step, Tap, Value};
use apr_quality::{Done, Subject};
use apr_run::{Host, Prepared, RunResult};
use apr_trace::Sites;

use crate::measure::Inputs;
use crate::targets::{Names, Target, Targets, gguf_naming};

/// Function that receives rows of a weight's inputs: the weight's name in quantizers, the rows one
/// after another, and the length of a row.
pub type Take<'t> = dyn FnMut(&str, &[f32], usize) -> Result<()> + 't;

/// Returns the matrices of the products in a run of a model, in order, by their
/// [`measured_names`](apr_quantize::measured_names).
///
/// # Errors
/// E008 if the model has too many operators.
pub fn measured_weights(
    subject: &Subject<'_>,
    model: Option<&FamilyModel<'_>>,
) -> RunResult<Vec<String>> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for (_, targets) in targets(subject, model)? {
        for name in targets.into_values().flatten() {
            if seen.insert(name.clone()) {
                found.push(name);
            }
        }
    }
    Ok(found)
}

/// Passes the inputs of some weights to `take` in runs of a model. A run ends when all of these
/// weights have been used.
///
/// # Errors
/// Returns the errors of `take` and of running the model.
pub fn observe<'t>(
    subject: &Subject<'_>,
    model: Option<&FamilyModel<'_>>,
    inputs: Inputs<'_>,
    wanted: &BTreeSet<&str>,
    take: &'t mut Take<'t>,
    done: &mut Done<'_>,
) -> RunResult<()> {
    let mut parts = targets(subject, model)?;
    for (_, targets) in &mut parts {
        targets.values_mut().for_each(|names| names.retain(|name| wanted.contains(name.as_str())));
        targets.retain(|_, names| !names.is_empty());
    }
    let take = RefCell::new(take);
    let mut run = |at: usize,
                   run: &mut dyn FnMut(&mut [Observer<'_, '_>]) -> RunResult<()>|
     -> RunResult<()> {
        let mut observers = observers(&parts, subject.runner().host(), &take);
        let ran = run(&mut observers);
        if let Some(error) = observers.iter_mut().find_map(|observer| observer.error.take()) {
            return Err(error.into());
        }
        if !observers.iter().any(|observer| observer.is_done) {
            ran?;
        }
        done(at + 1);
        Ok(())
    };
    match inputs {
        Inputs::Windows(windows) => {
            for (at, window) in windows.inputs().enumerate() {
                run(at, &mut |observers| match observers {
                    [first, ..] => subject.run_tokens(&window, first),
                    [] => Ok(()),
                })?;
            }
        }
        Inputs::Samples(samples) => {
            for (at, sample) in samples.iter().enumerate() {
                run(at, &mut |observers| {
                    let taps = observers.iter_mut().map(|observer| observer as &mut dyn Tap);
                    subject.run_watched(sample, &mut taps.collect::<Vec<_>>())
                })?;
            }
        }
    }
    Ok(())
}

/// Weights by the positions of their products among the operators of a part.
type Part = (Sites, BTreeMap<usize, Vec<String>>);

fn targets(subject: &Subject<'_>, model: Option<&FamilyModel<'_>>) -> RunResult<Vec<Part>> {
    let gguf = model.and_then(gguf_naming);
    let names = Names::new(subject.runner().reader(), model, gguf.as_ref(), false);
    let part = |part: &Prepared<'_>| {
        let sites = Sites::of(part.graph())?;
        let targets = Targets::of(&sites, &names).of_site.into_iter();
        let matrices = targets
            .map(|(site, targets)| (site, targets.into_iter().map(Target::matrix).collect()));
        let matrices = matrices.collect();
        Ok((sites, matrices))
    };
    Ok(subject.parts().iter().map(part).collect::<Result<_>>()?)
}

/// Gives what one part of a model reads.
struct Observer<'o, 't> {
    part: &'o Part,
    host: &'o dyn Host,
    take: &'o RefCell<&'t mut Take<'t>>,
    /// Products that were not met yet.
    left: BTreeSet<usize>,
    /// `true` if no later part must run.
    is_last: bool,
    is_done: bool,
    error: Option<Error>,
}

fn observers<'o, 't>(
    parts: &'o [Part],
    host: &'o dyn Host,
    take: &'o RefCell<&'t mut Take<'t>>,
) -> Vec<Observer<'o, 't>> {
    let last = parts.iter().rposition(|(_, targets)| !targets.is_empty());
    let observer = |(at, part): (usize, &'o Part)| Observer {
        part,
        host,
        take,
        left: part.1.keys().copied().collect(),
        is_last: Some(at) == last,
        is_done: false,
        error: None,
    };
    parts.iter().enumerate().map(observer).collect()
}

impl Observer<'_, '_> {
    fn site(&self, path: &str, node: &Node) -> Option<usize> {
        self.part.0.find(path, node).filter(|site| self.part.1.contains_key(site))
    }
}

impl Tap for Observer<'_, '_> {
    fn wants(&mut self, path: &str, node: &Node) -> bool {
        self.site(path, node).is_some() || self.host.is_cancelled()
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn reads(&mut self, path: &str, node: &Node, inputs: &[Option<Value>]) {
        let Some(site) = self.site(path, node) else { return };
        let Some(Some(Value::Tensor(rows))) = inputs.first() else { return };
        let columns = rows.shape().last().copied().unwrap_or_default();
        let give = || {
            let rows = rows.floats()?;
            let mut take = self.take.borrow_mut();
            let names = self.part.1.get(&site).into_iter().flatten();
            names.into_iter().try_for_each(|name| take(name, &rows, columns))
        };
        self.error = give().err();
        self.left.remove(&site);
    }

    fn after(&mut self, _: &Step<'_>) -> Flow {
        self.is_done = self.is_last && self.left.is_empty();
        match self.host.is_cancelled() || self.error.is_some() || self.is_done {
            true => Flow::Stop,
            false => Flow::Continue,
        }
    }
}
