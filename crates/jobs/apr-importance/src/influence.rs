//! How much each layer changes what passes through it.

use std::collections::HashMap;

use apr_core::{Error, Result};
use apr_graph::{Body, Node, ValueId};
use apr_infer::{Flow, Step, Tap, Value};
use apr_quality::{Done, Subject};
use apr_run::{Host, RunError, RunResult};

use crate::measure::Inputs;

/// The name that graphs of families have for a layer, before its number.
const LAYER: &str = "layers.";

/// The influence of each layer of a model that has one stack of them: the mean distance of the
/// cosine of a token's states before and behind it from 1 (ShortGPT's block influence, Men et al.
/// 2024, arXiv:2403.03853). A layer of 0 passes everything on as it is.
///
/// # Errors
/// [`RunError::Request`] for a model without such layers, E001 for states that are not finite, and
/// what running the model ends with.
pub fn layer_influence(
    subject: &Subject<'_>,
    inputs: Inputs<'_>,
    done: &mut Done<'_>,
) -> RunResult<Vec<f64>> {
    let [part] = subject.parts() else {
        return Err(RunError::request("layers are compared in models of one part"));
    };
    let host = subject.runner().host();
    let mut tap = Influence::of(&part.graph().body, host)
        .ok_or_else(|| RunError::request("the model's graph does not have consecutive layers"))?;
    let runs = inputs.len();
    let run = |at: usize, tap: &mut Influence<'_>| match inputs {
        Inputs::Windows(windows) => match windows.inputs().nth(at) {
            Some(window) => subject.run_tokens(&window, tap),
            None => Ok(()),
        },
        Inputs::Samples(samples) => subject.run_watched(&samples[at], &mut [tap as &mut dyn Tap]),
    };
    for at in 0..runs {
        tap.before = None;
        let ran = run(at, &mut tap);
        if let Some(error) = tap.error.take() {
            return Err(error.into());
        }
        ran?;
        done(at + 1);
    }
    tap.means()
}

/// Sums over tokens, by layer.
struct Influence<'i> {
    host: &'i dyn Host,
    /// Layers by the paths of their calls; `None` for the call that computes the states before the
    /// first layer.
    places: HashMap<String, Option<usize>>,
    before: Option<Vec<f32>>,
    sums: Vec<(f64, u64)>,
    error: Option<Error>,
}

impl<'i> Influence<'i> {
    fn of(body: &Body, host: &'i dyn Host) -> Option<Self> {
        let number = |node: &Node| node.name.strip_prefix(LAYER)?.parse::<usize>().ok();
        let layers: Vec<(usize, &Node)> =
            body.nodes.iter().filter_map(|node| Some((number(node)?, node))).collect();
        let is_in_order = layers.iter().enumerate().all(|(at, (number, _))| at == *number);
        let states: Option<ValueId> = layers.first()?.1.inputs.first().copied().flatten();
        let makes = |node: &&Node| states.is_some() && node.outputs.first() == Some(&states);
        let maker = body.nodes.iter().find(makes)?;
        let mut places: HashMap<String, Option<usize>> =
            layers.iter().map(|(number, node)| (node.name.clone(), Some(*number))).collect();
        places.insert(maker.name.clone(), None);
        let sums = vec![(0.0, 0); layers.len()];
        is_in_order.then_some(Self { host, places, before: None, sums, error: None })
    }

    fn add(&mut self, layer: Option<usize>, value: &Value) -> Result<()> {
        let states = value.tensor()?;
        let width = states.shape().last().copied().unwrap_or_default().max(1);
        let states = states.floats()?.to_vec();
        if let (Some(layer), Some(before)) = (layer, &self.before) {
            if before.len() != states.len() {
                return Err(Error::format("layers have states of different shapes"));
            }
            let (sum, count) = &mut self.sums[layer];
            for (before, behind) in before.chunks(width).zip(states.chunks(width)) {
                *sum += 1.0 - cosine(before, behind);
                *count += 1;
            }
        }
        self.before = Some(states);
        Ok(())
    }

    fn means(&self) -> RunResult<Vec<f64>> {
        let mean = |(sum, count): &(f64, u64)| sum / (*count).max(1) as f64;
        let means: Vec<f64> = self.sums.iter().map(mean).collect();
        match self.sums.iter().any(|(sum, count)| *count == 0 || !sum.is_finite()) {
            true => Err(Error::format("the states of a layer are not finite, or none").into()),
            false => Ok(means),
        }
    }
}

/// The cosine of the angle of two vectors; 1 for vectors of zeros.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let (mut product, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (f64::from(*a), f64::from(*b));
        product += a * b;
        of_a += a * a;
        of_b += b * b;
    }
    let lengths = (of_a * of_b).sqrt();
    if lengths == 0.0 { 1.0 } else { product / lengths }
}

impl Tap for Influence<'_> {
    fn wants(&mut self, path: &str, _: &Node) -> bool {
        self.places.contains_key(path) || self.host.is_cancelled()
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, step: &Step<'_>) -> Flow {
        if let (Some(&layer), Some(value)) = (self.places.get(step.path), step.outputs.first()) {
            self.error = self.add(layer, value).err();
        }
        match self.host.is_cancelled() || self.error.is_some() {
            true => Flow::Stop,
            false => Flow::Continue,
        }
    }
}
