//! Values in both orders of dimensions, and the helpers that operators are lowered with.

use std::collections::BTreeMap;

use apr_graph::{
    Body, BodyBuilder, Constant, ElementType, Meaning, Node, NodeBuilder, ValueId, ValueOrigin,
    View,
};

use super::Weights;

/// The order of the dimensions of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// As the file has them: `[batch, height, width, channels]`.
    Natural,
    /// `[batch, channels, height, width]`.
    ChannelsFirst,
}

/// Positions of the natural dimensions in the other order, and the other way round.
pub(super) const TO_CHANNELS_FIRST: [usize; 4] = [0, 3, 1, 2];
const TO_NATURAL: [usize; 4] = [0, 2, 3, 1];

/// What stands for a value, by its order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pair {
    pub(super) natural: Option<ValueId>,
    pub(super) channels_first: Option<ValueId>,
}

/// Adds an input to a node where there is one: one that is left out at the end is not written.
pub(super) fn with(node: NodeBuilder<'_>, input: Option<ValueId>) -> NodeBuilder<'_> {
    match input {
        Some(_) => node.optional(input),
        None => node,
    }
}

/// A graph that is being lowered.
pub(super) struct Lowering<'g> {
    pub(super) from: &'g Body,
    pub(super) weights: &'g dyn Weights,
    pub(super) main: BodyBuilder,
    /// By the values of `from`.
    values: Vec<Pair>,
    pub(super) others: BTreeMap<String, u64>,
}

impl<'g> Lowering<'g> {
    pub(super) fn new(from: &'g Body, weights: &'g dyn Weights) -> Self {
        let mut main = BodyBuilder::default();
        let mut values = vec![Pair::default(); from.values.len()];
        for id in &from.inputs {
            let value = from.value(*id);
            let element = value.element().unwrap_or(ElementType::F32);
            let shape = value.shape().unwrap_or_default().to_vec();
            let made = main.input(&value.name, element, shape, Meaning::Unknown);
            values[id.0 as usize].natural = Some(made);
        }
        Self { from, weights, main, values, others: BTreeMap::new() }
    }

    /// The body, once all nodes are lowered.
    pub(super) fn finish(mut self) -> Option<Body> {
        for id in &self.from.outputs {
            let value = self.value(*id, Layout::Natural)?;
            self.main.output(&self.from.value(*id).name, value, Meaning::Unknown);
        }
        Some(self.main.finish())
    }

    /// What stands for a value in an order; images alone have the other one.
    pub(super) fn value(&mut self, id: ValueId, layout: Layout) -> Option<ValueId> {
        let Pair { natural, channels_first } = self.values[id.0 as usize];
        let value = self.from.value(id);
        if let ValueOrigin::Weight(weight) = &value.origin {
            let dims: Option<Vec<u64>> = value.shape()?.iter().map(apr_graph::Dim::size).collect();
            let (dims, element) = (dims?, value.element()?);
            return Some(match (layout, dims.as_slice()) {
                (Layout::Natural, _) | (_, []) => self.main.weight(&weight.tensor, element, dims),
                (_, [channels]) => {
                    // Broadcasting goes along the last dimension, which is another one there.
                    let shape = vec![*channels, 1, 1];
                    let views = vec![View::Reshaped(shape.clone())];
                    self.main.viewed(&weight.tensor, views, element, shape)
                }
                (_, [_, _, _, _]) => {
                    let shape = TO_CHANNELS_FIRST.map(|dim| dims[dim]);
                    let views = vec![View::Transposed(TO_CHANNELS_FIRST.to_vec())];
                    self.main.viewed(&weight.tensor, views, element, shape)
                }
                _ => return None,
            });
        }
        let (found, other, order, name) = match layout {
            Layout::Natural => (natural, channels_first, TO_NATURAL, value.name.clone()),
            Layout::ChannelsFirst => {
                let name = format!("{}/nchw", value.name);
                (channels_first, natural, TO_CHANNELS_FIRST, name)
            }
        };
        if found.is_some() {
            return found;
        }
        if layout == Layout::ChannelsFirst && self.rank(id) != Some(4) {
            return None;
        }
        let order: Vec<i64> = order.iter().map(|dim| *dim as i64).collect();
        let made = self.main.op("Transpose", [other?]).attribute("perm", order).output(&name);
        self.set(id, made, layout);
        Some(made)
    }

    pub(super) fn set(&mut self, id: ValueId, made: ValueId, layout: Layout) {
        let pair = &mut self.values[id.0 as usize];
        match layout {
            Layout::Natural => pair.natural = Some(made),
            Layout::ChannelsFirst => pair.channels_first = Some(made),
        }
    }

    /// The order in which a node over values of one shape costs no transposition.
    pub(super) fn layout_of(&self, node: &Node) -> Layout {
        let mut is_turned = false;
        for id in node.inputs.iter().flatten() {
            let pair = self.values[id.0 as usize];
            match (&self.from.value(*id).origin, self.rank(*id)) {
                (ValueOrigin::Weight(_), Some(0 | 1 | 4)) => {}
                (ValueOrigin::Weight(_), _) => return Layout::Natural,
                (_, Some(4)) => {
                    is_turned |= pair.natural.is_none() && pair.channels_first.is_some();
                }
                _ => return Layout::Natural,
            }
        }
        if is_turned { Layout::ChannelsFirst } else { Layout::Natural }
    }

    pub(super) fn rank(&self, id: ValueId) -> Option<usize> {
        Some(self.from.value(id).shape()?.len())
    }

    /// The size of a dimension, counted from the end where it is below 0.
    pub(super) fn size(&self, id: ValueId, dim: usize) -> Option<u64> {
        self.from.value(id).shape()?.get(dim)?.size()
    }

    /// The values of an input that is a constant.
    pub(super) fn constant(&self, node: &Node, input: usize) -> Option<Constant> {
        match &self.from.value(node.input(input)?).origin {
            ValueOrigin::Weight(weight) => self.weights.constant(&weight.tensor),
            _ => None,
        }
    }

    /// The integers of an input that is a constant.
    pub(super) fn ints(&self, node: &Node, input: usize) -> Option<Vec<i64>> {
        self.constant(node, input)?.as_ints()
    }

    /// The first output, and its name.
    pub(super) fn output(&self, node: &Node) -> Option<(ValueId, String)> {
        let id = node.outputs.first().copied().flatten()?;
        Some((id, self.from.value(id).name.clone()))
    }

    /// The name of what makes the first output in an order.
    pub(super) fn name(&self, node: &Node, layout: Layout) -> Option<String> {
        let (id, name) = self.output(node)?;
        // What becomes the graph's output takes its name: an activation, or a quantization.
        let has_more = node.attribute("output_scale").is_some()
            || node.text("fused_activation_function").is_some_and(|name| name != "NONE");
        Some(match layout {
            Layout::Natural if has_more && self.from.outputs.contains(&id) => {
                format!("{name}/value")
            }
            Layout::Natural => name,
            Layout::ChannelsFirst => format!("{name}/nchw"),
        })
    }
}
