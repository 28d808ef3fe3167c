//! Graphs of layers in the operators of ONNX.
//!
//! A layer becomes a few operators, as Keras computes it outside of training: dropout and noise are
//! nothing, normalization uses its moving averages. Models among the layers are written in the
//! place of their calls. What Keras computes in half precision is computed in single precision, and
//! returned as halves. Images have their channels first between convolutions
//! ([`apr_lower`]).

mod activation;
mod attention;
mod convolution;
mod image;
mod layer;
mod mask;
mod matrix;
mod merge;
mod normalization;
mod pool;
mod recurrent;
mod shape;
mod wrapper;

use apr_graph::{
    AttributeValue, Body, ElementType, Graph, Node, ValueId, ValueOrigin, ValueType, inline,
};
use apr_lower::{Order, Placed, Untranslated, Writer};

use crate::graph::{ARGUMENTS, DOMAIN};
use layer::{Layer, Variable};
use mask::{Masks, Turn};

/// Layers that have no effect outside of training.
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
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/keras/small.keras");
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
    for Step { node, turn } in steps(&flat.body) {
        (lowering.reason, lowering.turn) = (None, turn);
        if lowering.node(node).is_none() {
            let name = match lowering.reason.take() {
                Some(reason) => format!("{} ({reason})", node.op.name),
                None => node.op.name.to_string(),
            };
            *lowering.untranslated.entry(name).or_default() += 1;
            lowering.leave(node);
        }
    }
    for id in &flat.body.outputs {
        let placed = lowering.values[id.0 as usize];
        match placed.and_then(|placed| lowering.out.ordered(placed, Order::Natural)) {
            Some(value) => {
                let name = &flat.body.value(*id).name;
                let value = match lowering.halves[id.0 as usize] {
                    Some(half) => lowering.out.cast(value, half, &format!("{name}/half")),
                    None => value,
                };
                lowering.out.output(name, value);
            }
            None => _ = lowering.untranslated.insert("an output that no layer makes".into(), 1),
        }
    }
    lowering.out.finish_if(lowering.untranslated)
}

/// The call of a layer, and when Keras takes it.
struct Step<'g> {
    node: &'g Node,
    turn: Turn,
}

/// The calls that the outputs are computed from, in the order that Keras takes them: those first
/// that are the furthest from the outputs. Functions that compute a mask stand among the layers
/// whether it is read or not.
fn steps(body: &Body) -> Vec<Step<'_>> {
    let mut depths: Vec<Option<usize>> = vec![None; body.values.len()];
    body.outputs.iter().for_each(|id| depths[id.0 as usize] = Some(0));
    let mut steps = Vec::new();
    for node in body.nodes.iter().rev() {
        let outputs = node.outputs.iter().flatten();
        let depth = outputs.filter_map(|id| depths[id.0 as usize]).max();
        let Some(depth) = depth else { continue };
        for id in node.inputs.iter().flatten() {
            let own = &mut depths[id.0 as usize];
            *own = (*own).max(Some(depth + 1));
        }
        let model = node.name.rsplit_once('/').map_or("", |(model, _)| model).to_owned();
        steps.push(Step { node, turn: Turn { depth, model } });
    }
    steps.reverse();
    steps.sort_by_key(|step| std::cmp::Reverse(step.turn.depth));
    steps
}

/// A model that is being lowered.
struct Lowering<'g> {
    from: &'g Body,
    /// The first number of Keras' version.
    version: i64,
    out: Writer,
    /// Replacements for the values of `from`.
    values: Vec<Option<Placed>>,
    /// Masks of the lowered values.
    masks: Masks,
    /// Position in Keras' execution order of the layer that is being lowered.
    turn: Turn,
    /// Types of the values in Keras, if they are half precision.
    halves: Vec<Option<ElementType>>,
    /// The mask that the layer being lowered made.
    mask_made: Option<ValueId>,
    /// Reason why the layer cannot be lowered.
    reason: Option<&'static str>,
    untranslated: Untranslated,
}

impl<'g> Lowering<'g> {
    fn new(from: &'g Body, version: i64) -> Self {
        let mut out = Writer::new();
        let mut values = vec![None; from.values.len()];
        let mut halves = vec![None; from.values.len()];
        for id in &from.inputs {
            let value = from.value(*id);
            let mut placed = out.input(&value.name, &value.kind);
            if let ValueType::Tensor(tensor) = &value.kind
                && let Some(half @ (ElementType::F16 | ElementType::BF16)) = tensor.element
            {
                let name = format!("{}/float", value.name);
                placed = Placed::natural(out.cast(placed.id, ElementType::F32, &name));
                halves[id.0 as usize] = Some(half);
            }
            values[id.0 as usize] = Some(placed);
        }
        Self {
            from,
            version,
            out,
            values,
            masks: Masks::default(),
            turn: Turn::default(),
            halves,
            mask_made: None,
            reason: None,
            untranslated: Untranslated::new(),
        }
    }

    /// Records the reason why a layer cannot be lowered.
    fn refuse<T>(&mut self, reason: &'static str) -> Option<T> {
        self.reason = Some(reason);
        None
    }

    /// Lowers the call of a layer. Returns `None` if it cannot be lowered.
    fn node(&mut self, node: &Node) -> Option<()> {
        (&*node.op.domain == DOMAIN).then_some(())?;
        let output = node.outputs.first().copied().flatten()?;
        let mut layer = Layer {
            class: node.op.name.to_string(),
            name: self.from.value(output).name.clone(),
            attributes: node.attributes.clone(),
            inputs: Vec::new(),
            arguments: Vec::new(),
            masks: Vec::new(),
            mask: None,
            variables: Vec::new(),
        };
        let mut names = arguments(node).into_iter();
        let mut half = None;
        for id in &node.inputs {
            let id = (*id)?;
            let value = self.from.value(id);
            if let ValueOrigin::Weight(weight) = &value.origin {
                layer.variables.push(Variable::new(&value.name, weight, value)?);
                continue;
            }
            let argument = names.next().unwrap_or_default();
            let placed = self.values[id.0 as usize]?;
            if argument == "mask" {
                layer.mask.is_none().then_some(())?;
                layer.mask = Some(self.out.ordered(placed, Order::Natural)?);
                continue;
            }
            half = half.or(self.halves[id.0 as usize]);
            layer.inputs.push(placed);
            layer.arguments.push(argument);
            let mask = match mask::goes_by_masks(&layer.class) {
                true => self.masks.find(placed.id, &self.turn),
                false => Ok(None),
            };
            match mask {
                Ok(mask) => layer.masks.push(mask),
                Err(reason) => return self.refuse(reason),
            }
        }
        let made = self.layer(&layer)?;
        if layer.class == "MultiHeadAttention"
            && self.version >= 3
            && let Err(reason) = self.masks.take_away(&layer.inputs, &self.turn)
        {
            return self.refuse(reason);
        }
        if let (Some(first), Some(mask)) = (made.first(), self.mask_of(&layer)?) {
            self.masks.set(first.id, mask);
        }
        (made.len() >= node.outputs.len()).then_some(())?;
        for (id, placed) in node.outputs.iter().zip(made) {
            if let Some(id) = id {
                self.values[id.0 as usize] = Some(placed);
                self.halves[id.0 as usize] = match layer.text("dtype") {
                    Some(_) => layer.half(),
                    None => half,
                };
            }
        }
        Some(())
    }

    /// Lowers a layer and returns its outputs.
    fn layer(&mut self, layer: &Layer) -> Option<Vec<Placed>> {
        /// Arguments that are what layers of one input read, or their states.
        const KNOWN: [&str; 5] = ["", "inputs", "sequences", "sequence", "initial_state"];

        match layer.class.as_str() {
            "Lambda" => return self.refuse("Python code"),
            _ if layer.is_set("call_training") => return self.refuse("called in training"),
            _ if layer.is_registered() => return self.refuse("a class of the program's own"),
            _ => {}
        }
        if !layer.is_of_keras() {
            return self.function(layer).map(|made| vec![made]);
        }
        if !layer.is_of_floats() {
            return self.refuse("of this dtype or with adapters");
        }
        if layer.class == "MultiHeadAttention" {
            return self.multi_head(layer);
        }
        layer.arguments.iter().all(|name| KNOWN.contains(&name.as_str())).then_some(())?;
        let one = match layer.class.as_str() {
            class if NOTHING.contains(&class) => layer.only()?,
            "Attention" => return self.attention(layer),
            "LSTM" | "GRU" | "SimpleRNN" => return self.recurrent(layer),
            "Bidirectional" => return self.bidirectional(layer),
            "Masking" => self.masking(layer)?,
            "Softmax" if layer.first_mask().is_some() => return self.refuse("with a mask"),
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

    /// Adds a placeholder for a node that cannot be lowered.
    ///
    /// Later nodes are then checked on their own.
    fn leave(&mut self, node: &Node) {
        for output in node.outputs.iter().flatten() {
            let name = &self.from.value(*output).name;
            let made = self.out.main.call(&node.op, []).output(name);
            self.values[output.0 as usize] = Some(Placed::natural(made));
        }
    }
}

/// The names of the arguments that a node's first inputs are.
fn arguments(node: &Node) -> Vec<String> {
    match node.attribute(ARGUMENTS) {
        Some(AttributeValue::Texts(names)) => {
            names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
        }
        _ => Vec::new(),
    }
}
