//! Graphs of layers in the operators of ONNX.
//!
//! A layer becomes a few operators, as Keras computes it outside of training: dropout and noise are
//! nothing, normalization uses its moving averages. Models among the layers are written in the
//! place of their calls. Images have their channels first between convolutions
//! ([`apr_lower`]).

mod activation;
mod convolution;
mod image;
mod layer;
mod matrix;
mod merge;
mod normalization;
mod pool;
mod recurrent;
mod shape;
mod wrapper;

use apr_graph::{Body, Graph, Node, ValueOrigin, inline};
use apr_lower::{Order, Placed, Untranslated, Writer};

use crate::graph::DOMAIN;
use layer::{Layer, Variable};

/// Layers that do nothing outside of training.
const NOTHING: [&str; 9] = [
    "ActivityRegularization",
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "Identity",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
];

/// The graph of a model's layers ([`crate::graphs_of`]) with the operators of ONNX.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/keras/small.keras");
/// # let file = std::fs::read(path).expect("the fixture");
/// let limits = apr_core::Limits::default();
/// let reader = apr_keras::open(file, "small.keras", &limits)?;
/// let graphs = apr_keras::graphs_of(&reader, &limits)?.expect("a model has a graph");
/// let lowered = apr_keras::lower::lower(&graphs[0].1).expect("known layers");
/// assert!(lowered.body.nodes.iter().any(|node| node.op.is("LSTM")));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// The layers that are not translated, by their classes: those of a program's own, and those with
/// settings that are not known here.
pub fn lower(graph: &Graph) -> Result<Graph, Untranslated> {
    let version = graph.opset(DOMAIN).unwrap_or(2);
    let Ok(flat) = inline(graph) else {
        return Err([("models in each other".to_owned(), 1)].into());
    };
    let mut lowering = Lowering::new(&flat.body, version);
    for node in &flat.body.nodes {
        if lowering.node(node).is_none() {
            *lowering.untranslated.entry(node.op.name.to_string()).or_default() += 1;
            lowering.leave(node);
        }
    }
    for id in &flat.body.outputs {
        let placed = lowering.values[id.0 as usize];
        match placed.and_then(|placed| lowering.out.ordered(placed, Order::Natural)) {
            Some(value) => lowering.out.output(&flat.body.value(*id).name, value),
            None => _ = lowering.untranslated.insert("an output that no layer makes".into(), 1),
        }
    }
    lowering.out.finish_if(lowering.untranslated)
}

/// A model that is being lowered.
struct Lowering<'g> {
    from: &'g Body,
    /// The first number of Keras' version.
    version: i64,
    out: Writer,
    /// What stands for the values of `from`.
    values: Vec<Option<Placed>>,
    untranslated: Untranslated,
}

impl<'g> Lowering<'g> {
    fn new(from: &'g Body, version: i64) -> Self {
        let mut out = Writer::new();
        let mut values = vec![None; from.values.len()];
        for id in &from.inputs {
            let value = from.value(*id);
            values[id.0 as usize] = Some(out.input(&value.name, &value.kind));
        }
        Self { from, version, out, values, untranslated: Untranslated::new() }
    }

    /// Lowers the call of a layer; `None` where that can't be done.
    fn node(&mut self, node: &Node) -> Option<()> {
        (&*node.op.domain == DOMAIN).then_some(())?;
        let (mut inputs, mut variables) = (Vec::new(), Vec::new());
        for id in &node.inputs {
            let id = (*id)?;
            let value = self.from.value(id);
            match &value.origin {
                ValueOrigin::Weight(weight) => {
                    variables.push(Variable::new(&value.name, weight, value)?);
                }
                _ => inputs.push(self.values[id.0 as usize]?),
            }
        }
        let output = node.outputs.first().copied().flatten()?;
        let layer = Layer {
            class: node.op.name.to_string(),
            name: self.from.value(output).name.clone(),
            attributes: node.attributes.clone(),
            inputs,
            variables,
        };
        let made = self.layer(&layer)?;
        (made.len() >= node.outputs.len()).then_some(())?;
        for (id, placed) in node.outputs.iter().zip(made) {
            if let Some(id) = id {
                self.values[id.0 as usize] = Some(placed);
            }
        }
        Some(())
    }

    /// Lowers a layer; what it returns.
    fn layer(&mut self, layer: &Layer) -> Option<Vec<Placed>> {
        (layer.is_of_keras() && layer.is_single_precision()).then_some(())?;
        let one = match layer.class.as_str() {
            class if NOTHING.contains(&class) => layer.only()?,
            "LSTM" | "GRU" | "SimpleRNN" => return self.recurrent(layer),
            "Bidirectional" => return self.bidirectional(layer),
            "TimeDistributed" => self.time_distributed(layer)?,
            "Dense" | "Embedding" | "Dot" => self.matrix(layer)?,
            "BatchNormalization" | "GroupNormalization" | "LayerNormalization"
            | "Normalization" | "Rescaling" | "UnitNormalization" => self.normalization(layer)?,
            class if class.contains("Conv") => self.convolution(layer)?,
            class if class.contains("Pool") => self.pool(layer)?,
            _ => {
                let image = self.image(layer).or_else(|| self.shape(layer));
                let merged = image.or_else(|| self.merge(layer));
                merged.or_else(|| self.activation_layer(layer))?
            }
        };
        Some(vec![one])
    }

    /// Lets a node that can't be lowered stand for its outputs, so that those behind it are judged
    /// by themselves.
    fn leave(&mut self, node: &Node) {
        for output in node.outputs.iter().flatten() {
            let name = &self.from.value(*output).name;
            let made = self.out.main.call(&node.op, []).output(name);
            self.values[output.0 as usize] = Some(Placed::natural(made));
        }
    }
}
