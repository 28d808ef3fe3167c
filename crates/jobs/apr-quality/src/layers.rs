//! What the layers of a model end with, and how far that is from what another one's end with.

use std::collections::HashMap;

use apr_core::Result;
use apr_graph::{Graph, Node};
use apr_infer::{Flow, Step, Tap, Tensor};
use apr_run::Host;
use apr_trace::{Level, Sites};
use serde::Serialize;

use crate::distance::l2_and_cosine;
use crate::rows::centred_cosine;

/// Distance between a layer of B and the same layer of A.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LayerDrift {
    /// Path of the layer in the graph: `layers.3`.
    pub layer: String,
    /// Norm of the difference of the layer outputs, divided by A's norm; mean over the inputs.
    pub l2: f64,
    /// Cosine of the layer outputs without the mean of their positions; mean over the inputs with
    /// several positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub centred_cosine: Option<f64>,
}

/// The layers of a graph, each with the operator that it ends with.
pub(crate) struct Layers {
    sites: Sites,
    /// Names by the positions of operators.
    ends: HashMap<usize, String>,
}

impl Layers {
    /// Finds the layers of a graph. `prefix` is put before their names.
    pub(crate) fn of(graph: &Graph, prefix: &str) -> Result<Self> {
        let sites = Sites::of(graph)?;
        let ends = sites.ends(|path| Level::Layer.step_of(path));
        let ends = ends.into_iter().map(|(name, site)| (site, format!("{prefix}{name}"))).collect();
        Ok(Self { sites, ends })
    }

    fn name(&self, path: &str, node: &Node) -> Option<&str> {
        self.ends.get(&self.sites.find(path, node)?).map(String::as_str)
    }
}

/// Keeps what layers end with.
pub(crate) struct LayerTap<'t> {
    layers: &'t Layers,
    host: &'t dyn Host,
    /// Bytes that may still be kept.
    room: u64,
    pub(crate) values: LayerValues,
}

/// Outputs of layers, in execution order.
#[derive(Default)]
pub(crate) struct LayerValues {
    /// Outputs with the paths of their layers.
    pub(crate) kept: Vec<(String, Tensor)>,
    /// Paths of the layers that did not fit in memory.
    pub(crate) left_out: Vec<String>,
}

impl LayerValues {
    pub(crate) fn append(&mut self, mut other: Self) {
        self.kept.append(&mut other.kept);
        self.left_out.append(&mut other.left_out);
    }

    /// Bytes of all that was kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.iter().map(|(_, tensor)| tensor.bytes()).sum()
    }
}

impl<'t> LayerTap<'t> {
    /// Creates a tap that stores at most `room` bytes.
    pub(crate) fn new(layers: &'t Layers, host: &'t dyn Host, room: u64) -> Self {
        Self { layers, host, room, values: LayerValues::default() }
    }
}

impl Tap for LayerTap<'_> {
    fn wants(&mut self, path: &str, node: &Node) -> bool {
        self.layers.name(path, node).is_some() || self.host.is_cancelled()
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, step: &Step<'_>) -> Flow {
        if self.host.is_cancelled() {
            return Flow::Stop;
        }
        let tensor = step.outputs.first().and_then(|value| value.tensor().ok());
        let tensor = tensor.filter(|tensor| tensor.element().is_float());
        if let (Some(name), Some(tensor)) = (self.layers.name(step.path, step.node), tensor) {
            match self.room.checked_sub(tensor.bytes()) {
                Some(room) => {
                    self.room = room;
                    self.values.kept.push((name.to_owned(), tensor.clone()));
                }
                None => self.values.left_out.push(name.to_owned()),
            }
        }
        Flow::Continue
    }
}

/// Sums of distances by layer, in the order in which layers run.
#[derive(Default)]
pub(crate) struct Drifts {
    sums: Vec<Sum>,
    left_out: Vec<String>,
}

/// Sums over the inputs of a layer.
struct Sum {
    layer: String,
    l2: Mean,
    cosine: Mean,
}

/// Mean of the values that were added.
#[derive(Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

impl Drifts {
    /// Adds the layer outputs of two models for one input.
    ///
    /// Layers that only one model has, or with different shapes, are skipped. Layers that exceed
    /// the memory of either model are recorded.
    pub(crate) fn add(&mut self, a: &LayerValues, b: &LayerValues) -> Result<()> {
        for name in a.left_out.iter().chain(&b.left_out) {
            if !self.left_out.contains(name) {
                self.left_out.push(name.clone());
            }
        }
        for (name, left) in &a.kept {
            let Some((_, right)) = b.kept.iter().find(|(other, _)| other == name) else { continue };
            if left.shape() != right.shape() {
                continue;
            }
            let width = left.shape().last().copied().unwrap_or_default();
            let (left, right) = (left.floats()?, right.floats()?);
            let at = match self.sums.iter().position(|known| known.layer == *name) {
                Some(at) => at,
                None => {
                    let (l2, cosine) = (Mean::default(), Mean::default());
                    self.sums.push(Sum { layer: name.clone(), l2, cosine });
                    self.sums.len() - 1
                }
            };
            self.sums[at].l2.add(l2_and_cosine(&left, &right).0);
            if let Some(cosine) = centred_cosine(&left, &right, width) {
                self.sums[at].cosine.add(cosine);
            }
        }
        Ok(())
    }

    /// Means by layer, and the layers that were left out of an input at least.
    pub(crate) fn report(self) -> (Vec<LayerDrift>, Vec<String>) {
        let mean = |Sum { layer, l2, cosine }| LayerDrift {
            layer,
            l2: l2.value().unwrap_or_default(),
            centred_cosine: cosine.value(),
        };
        (self.sums.into_iter().map(mean).collect(), self.left_out)
    }
}
