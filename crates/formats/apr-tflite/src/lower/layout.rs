//! Values in both orders of dimensions, and the helpers that operators are lowered with.

use apr_graph::{Body, Constant, Node, ValueId, ValueOrigin};
use apr_lower::{Order, Placed, Untranslated, Writer};

use super::Weights;

/// Dimensions of an image.
pub(super) const RANK: usize = 4;

/// Positions of the natural dimensions of an image in the other order.
pub(super) const TO_CHANNELS_FIRST: [usize; RANK] = [0, 3, 1, 2];

/// A graph that is being lowered.
pub(super) struct Lowering<'g> {
    pub(super) from: &'g Body,
    pub(super) weights: &'g dyn Weights,
    pub(super) out: Writer,
    /// Replacements for the values of `from`.
    values: Vec<Option<Placed>>,
    pub(super) untranslated: Untranslated,
}

impl<'g> Lowering<'g> {
    pub(super) fn new(from: &'g Body, weights: &'g dyn Weights) -> Self {
        let mut out = Writer::new();
        let mut values = vec![None; from.values.len()];
        for id in &from.inputs {
            let value = from.value(*id);
            values[id.0 as usize] = Some(out.input(&value.name, &value.kind));
        }
        Self { from, weights, out, values, untranslated: Untranslated::new() }
    }

    /// Returns the replacement of a value in an order.
    ///
    /// Only images have an order other than the natural.
    pub(super) fn value(&mut self, id: ValueId, order: Order) -> Option<ValueId> {
        let value = self.from.value(id);
        if let ValueOrigin::Weight(weight) = &value.origin {
            let dims: Option<Vec<u64>> = value.shape()?.iter().map(apr_graph::Dim::size).collect();
            return self.out.weight(weight, value.element()?, &dims?, order, RANK);
        }
        let placed = self.values[id.0 as usize]?;
        let rank = self.rank(id).filter(|rank| order == Order::Natural || *rank == RANK);
        let name = Writer::name_in(&value.name, order, RANK);
        match placed.order == order {
            true => Some(placed.id),
            false => self.out.ordered_as(placed, order, rank?, &name),
        }
    }

    pub(super) fn set(&mut self, id: ValueId, made: ValueId, order: Order) {
        self.values[id.0 as usize] = Some(Placed { id: made, order });
    }

    /// The order in which a node over values of one shape costs no transposition.
    pub(super) fn order_of(&self, node: &Node) -> Order {
        let mut is_turned = false;
        for id in node.inputs.iter().flatten() {
            let placed = self.values[id.0 as usize];
            match (&self.from.value(*id).origin, self.rank(*id)) {
                (ValueOrigin::Weight(_), Some(0 | 1 | 4)) => {}
                (ValueOrigin::Weight(_), _) => return Order::Natural,
                (_, Some(4)) => {
                    is_turned |= placed.is_some_and(|placed| self.out.is_turned(placed));
                }
                _ => return Order::Natural,
            }
        }
        if is_turned { Order::ChannelsFirst } else { Order::Natural }
    }

    pub(super) fn rank(&self, id: ValueId) -> Option<usize> {
        Some(self.from.value(id).shape()?.len())
    }

    /// Returns the size of a dimension, if it is known.
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

    /// Returns the name of the value that becomes the first output, in an order.
    pub(super) fn name(&self, node: &Node, layout: Order) -> Option<String> {
        let (id, name) = self.output(node)?;
        // What becomes the graph's output takes its name: an activation, or a quantization.
        let has_more = node.attribute("output_scale").is_some()
            || node.text("fused_activation_function").is_some_and(|name| name != "NONE");
        Some(match layout {
            Order::Natural if has_more && self.from.outputs.contains(&id) => {
                format!("{name}/value")
            }
            Order::Natural => name,
            Order::ChannelsFirst => format!("{name}/nchw"),
        })
    }
}
