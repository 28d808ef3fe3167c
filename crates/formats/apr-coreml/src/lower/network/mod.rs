//! The layers of a network.
//!
//! Networks of older versions have five dimensions everywhere: sequence, batch, channels, height
//! and width. What is written has four there, since the sequence is one step long. Newer networks
//! have the dimensions of their inputs.

mod activation;
mod elementwise;
mod image;
mod layer;
mod matrix;
mod movement;
mod normalization;
mod recurrent;
mod reduce;

use apr_graph::{Body, Dim, ElementType, Graph, Node, ValueId, ValueOrigin, ValueType};
use apr_lower::{Untranslated, Writer};

use super::count;
use crate::graph::DOMAIN;
use layer::{Blob, Layer, Weight};

/// The graph of a network.
///
/// # Errors
/// The layers that are not translated, by their names.
pub(super) fn lower(body: &Body) -> Result<Graph, Untranslated> {
    let mut lowering = Lowering::new(body);
    for node in &body.nodes {
        if lowering.node(node).is_none() {
            count(&mut lowering.untranslated, node);
            lowering.leave(node);
        }
    }
    if body.outputs.is_empty() {
        lowering.untranslated.insert("a graph without outputs".into(), 1);
    }
    for id in &body.outputs {
        if lowering.returned(*id).is_none() {
            lowering.untranslated.insert("an output that no layer makes".into(), 1);
        }
    }
    lowering.out.finish_if(lowering.untranslated)
}

/// A network that is being lowered.
struct Lowering<'g> {
    from: &'g Body,
    out: Writer,
    /// Replacements for the values of `from`.
    values: Vec<Option<Blob>>,
    untranslated: Untranslated,
}

impl<'g> Lowering<'g> {
    fn new(from: &'g Body) -> Self {
        let values = vec![None; from.values.len()];
        let mut lowering =
            Self { from, out: Writer::new(), values, untranslated: Untranslated::new() };
        for id in &from.inputs {
            let value = from.value(*id);
            let made = lowering.out.input(&value.name, &value.kind).id;
            // Networks compute in single precision.
            let name = format!("{}/computed", value.name);
            let made = lowering.out.cast(made, ElementType::F32, &name);
            lowering.values[id.0 as usize] = Some(Blob::exact(made));
        }
        lowering
    }

    /// Lowers a layer. Returns `None` if it cannot be lowered.
    fn node(&mut self, node: &Node) -> Option<()> {
        (&*node.op.domain == DOMAIN && node.bodies().next().is_none()).then_some(())?;
        let (mut inputs, mut weights) = (Vec::new(), Vec::new());
        for id in &node.inputs {
            let value = self.from.value((*id)?);
            match &value.origin {
                ValueOrigin::Weight(weight) => weights.push(Weight::new(node, weight, value)?),
                _ => inputs.push(self.values[(*id)?.0 as usize]?),
            }
        }
        let first = node.outputs.first().copied().flatten()?;
        let name = self.from.value(first).name.clone();
        let layer = Layer { node, name, inputs, weights };
        let made = self.layer(&layer)?;
        (made.len() == node.outputs.len()).then_some(())?;
        for (id, blob) in node.outputs.iter().zip(made) {
            self.values[(*id)?.0 as usize] = Some(blob);
        }
        Some(())
    }

    fn layer(&mut self, layer: &Layer<'_>) -> Option<Vec<Blob>> {
        match layer.op() {
            "split" | "splitND" => return self.split(layer),
            "simpleRecurrent" | "gru" | "uniDirectionalLSTM" | "biDirectionalLSTM" => {
                return self.recurrent(layer);
            }
            "arrayInputShapeMapping" | "imageInputShapeMapping" => {
                return self.mapping(layer).map(|blob| vec![blob]);
            }
            _ => {}
        }
        let one = self.activation(layer).or_else(|| self.elementwise(layer));
        let one = one.or_else(|| self.image(layer)).or_else(|| self.matrix(layer));
        let one = one.or_else(|| self.normalization(layer)).or_else(|| self.reduce(layer));
        one.or_else(|| self.movement(layer)).map(|blob| vec![blob])
    }

    /// An input as the layers read it.
    fn mapping(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?.id;
        let sizes = match (layer.op(), self.out.shape(x)?.as_slice()) {
            // The channels alone, or an image, of which there is one.
            ("arrayInputShapeMapping", [channels]) => [channels.clone(), one(), one()],
            (_, [channels, height, width]) => [channels.clone(), height.clone(), width.clone()],
            _ => return None,
        };
        let shape: Option<Vec<i64>> =
            sizes.iter().map(|size| i64::try_from(size.size()?).ok()).collect();
        let shape: Vec<i64> = [1].into_iter().chain(shape?).collect();
        let id = self.shaped(x, &shape, &layer.name);
        Some(Blob { id, is_rank_5: layer.int("rank") == 5 })
    }

    /// Writes an output.
    fn returned(&mut self, id: ValueId) -> Option<()> {
        let value = self.from.value(id);
        let blob = self.values[id.0 as usize]?;
        let stated = value.shape().map(<[Dim]>::to_vec).unwrap_or_default();
        let name = format!("{}/returned", value.name);
        let mut made = if blob.is_rank_5 && [1, 3].contains(&stated.len()) {
            // The description has the dimensions that were given, without sequence and batch.
            let sizes: Option<Vec<i64>> =
                stated.iter().map(|size| i64::try_from(size.size()?).ok()).collect();
            let sizes = sizes?;
            let count = |sizes: &[i64]| {
                sizes.iter().try_fold(1_i64, |count, size| count.checked_mul(*size))
            };
            let own: Option<Vec<i64>> = self
                .out
                .shape(blob.id)?
                .iter()
                .map(|size| i64::try_from(size.size()?).ok())
                .collect();
            (count(&sizes) == count(&own?)).then_some(())?;
            self.shaped(blob.id, &sizes, &name)
        } else {
            self.exact(blob, &name)
        };
        if let ValueType::Tensor(kind) = &value.kind
            && let Some(element) = kind.element
        {
            made = self.out.cast(made, element, &format!("{name}/cast"));
        }
        self.out.output(&value.name, made);
        Some(())
    }

    /// A value with other sizes.
    fn shaped(&mut self, x: ValueId, sizes: &[i64], name: &str) -> ValueId {
        let sizes = self.out.main.ints(sizes);
        self.out.main.op("Reshape", [x, sizes]).output(name)
    }

    /// A value with all its dimensions.
    fn exact(&mut self, blob: Blob, name: &str) -> ValueId {
        if !blob.is_rank_5 {
            return blob.id;
        }
        let axes = self.out.main.ints(&[0]);
        self.out.main.op("Unsqueeze", [blob.id, axes]).output(&format!("{name}/rank5"))
    }

    /// Adds a placeholder for a layer that cannot be lowered.
    ///
    /// Later layers are then checked on their own.
    fn leave(&mut self, node: &Node) {
        for output in node.outputs.iter().flatten() {
            let value = self.from.value(*output);
            let made = self.out.main.call(&node.op, []).output(&value.name);
            self.out.main.set_type(made, value.kind.clone());
            self.values[output.0 as usize] = Some(Blob::exact(made));
        }
    }

    /// Writes a node under the layer's name, whose output has the dimensions of `like`.
    fn op(&mut self, layer: &Layer<'_>, op: &str, inputs: &[ValueId], like: Blob) -> Blob {
        like.with(self.out.main.op(op, inputs.iter().copied()).output(&layer.name))
    }
}

fn one() -> Dim {
    Dim::fixed(1)
}
