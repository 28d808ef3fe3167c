//! What stands for the values of a graph.

use apr_graph::{Constant, Dim, ElementType, Node, Value, ValueId, ValueOrigin, View, WeightRef};
use apr_lower::{Order, Placed, Weights};

use super::Lowering;
use super::list::Count;

/// Source of a value: an existing value, or a weight that is written in the requested order.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Made(Placed),
    Weight {
        weight: WeightRef,
        element: ElementType,
        dims: Vec<u64>,
    },
    Constant(Constant),
    /// A list whose items are not set yet: their number, and their sizes, with -1 for unknown ones.
    List {
        count: Count,
        element: ElementType,
        dims: Option<Vec<i64>>,
    },
}

impl Source {
    /// Returns a value without a node.
    ///
    /// A few integers become a constant if they may be part of a shape.
    pub(super) fn fixed(value: &Value, weights: &dyn Weights) -> Option<Self> {
        /// Maximum number of integers of a shape.
        const MOST: u64 = 64;

        match &value.origin {
            ValueOrigin::Weight(weight) => {
                let dims: Option<Vec<u64>> = value.shape()?.iter().map(Dim::size).collect();
                let (dims, element) = (dims?, value.element()?);
                let count = dims.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
                let is_shape = matches!(element, ElementType::I32 | ElementType::I64)
                    && weight.views.is_empty()
                    && count.is_some_and(|count| count <= MOST);
                if is_shape && let Some(constant) = weights.constant(&weight.tensor) {
                    return Some(Self::Constant(constant));
                }
                Some(Self::Weight { weight: weight.clone(), element, dims })
            }
            ValueOrigin::Constant(constant) => Some(Self::Constant(constant.clone())),
            _ => None,
        }
    }
}

impl Lowering<'_> {
    pub(super) fn source(&self, node: &Node, input: usize) -> Option<&Source> {
        self.values[node.input(input)?.0 as usize].as_ref()
    }

    /// A value in an order. Weights have the natural one here.
    pub(super) fn value(&mut self, id: ValueId, order: Order) -> Option<ValueId> {
        let source = self.values[id.0 as usize].clone()?;
        self.written(&source, order, 0)
    }

    /// An input in the natural order.
    pub(super) fn natural(&mut self, node: &Node, input: usize) -> Option<ValueId> {
        self.value(node.input(input)?, Order::Natural)
    }

    /// A value in an order, to be combined by broadcasting with images of this rank.
    pub(super) fn written(
        &mut self,
        source: &Source,
        order: Order,
        rank: usize,
    ) -> Option<ValueId> {
        match source {
            Source::Made(placed) => self.out.ordered(*placed, order),
            Source::Weight { weight, element, dims } => {
                self.out.weight(weight, *element, dims, order, rank)
            }
            Source::Constant(constant) => {
                let mut constant = constant.clone();
                if order == Order::ChannelsFirst {
                    constant.shape = match constant.shape.as_slice() {
                        [] => Vec::new(),
                        [channels] => {
                            let mut shape = vec![1; rank.checked_sub(1)?];
                            shape[0] = *channels;
                            shape
                        }
                        shape if shape.iter().all(|size| *size == 1) => shape.to_vec(),
                        _ => return None,
                    };
                }
                Some(self.out.main.constant(constant))
            }
            Source::List { count, element, dims } => self.zeros(*count, *element, dims.as_deref()),
        }
    }

    /// A weight or a constant with its dimensions in another order, and then in another shape;
    /// what a node makes is transposed and reshaped by nodes of this name.
    pub(super) fn turned(
        &mut self,
        source: &Source,
        order: &[usize],
        shape: Option<Vec<u64>>,
        name: &str,
    ) -> Option<ValueId> {
        if let Source::Weight { weight, element, dims } = source {
            (dims.len() == order.len()).then_some(())?;
            let mut views = weight.views.clone();
            views.push(View::Transposed(order.to_vec()));
            views.extend(shape.clone().map(View::Reshaped));
            let shape = shape.unwrap_or_else(|| order.iter().map(|axis| dims[*axis]).collect());
            return Some(self.out.main.viewed(&weight.tensor, views, *element, shape));
        }
        let x = self.written(source, Order::Natural, 0)?;
        let perm: Vec<i64> = order.iter().filter_map(|axis| i64::try_from(*axis).ok()).collect();
        let made = self.out.main.op("Transpose", [x]).attribute("perm", perm).output(name);
        let Some(shape) = shape else { return Some(made) };
        let shape: Option<Vec<i64>> = shape.iter().map(|size| i64::try_from(*size).ok()).collect();
        let shape = self.out.main.ints(&shape?);
        Some(self.out.main.op("Reshape", [made, shape]).output(&format!("{name}/shaped")))
    }

    /// Returns the sizes of an input. Unknown sizes are `None`.
    pub(super) fn dims(&mut self, node: &Node, input: usize) -> Option<Vec<Option<u64>>> {
        match self.source(node, input)?.clone() {
            Source::Weight { dims, .. } => Some(dims.into_iter().map(Some).collect()),
            Source::Constant(constant) => Some(constant.shape.into_iter().map(Some).collect()),
            Source::List { .. } => None,
            Source::Made(placed) => {
                let shape = self.out.shape(placed.id)?;
                let rank = shape.len();
                let at = |axis: usize| shape.get(placed.axis(axis, rank)).and_then(Dim::size);
                Some((0..rank).map(at).collect())
            }
        }
    }

    pub(super) fn rank(&mut self, node: &Node, input: usize) -> Option<usize> {
        self.dims(node, input).map(|dims| dims.len())
    }

    /// The elements' type of an input.
    pub(super) fn element(&mut self, node: &Node, input: usize) -> Option<ElementType> {
        match self.source(node, input)?.clone() {
            Source::Weight { element, .. } | Source::List { element, .. } => Some(element),
            Source::Constant(constant) => Some(constant.element),
            Source::Made(placed) => self.out.element(placed.id),
        }
    }

    /// Returns the integers of an input, if they are known.
    pub(super) fn ints(&mut self, node: &Node, input: usize) -> Option<Vec<i64>> {
        match self.source(node, input)?.clone() {
            Source::Weight { weight, .. } if weight.views.is_empty() => {
                self.weights.constant(&weight.tensor)?.as_ints()
            }
            Source::Weight { .. } | Source::List { .. } => None,
            Source::Constant(constant) => constant.as_ints(),
            Source::Made(placed) => self.out.ints(placed.id),
        }
    }

    /// Returns the integers of an input. Unknown ones are `None`.
    pub(super) fn elements(&mut self, node: &Node, input: usize) -> Option<Vec<Option<i64>>> {
        match self.source(node, input)?.clone() {
            Source::Made(placed) => self.out.elements(placed.id),
            _ => Some(self.ints(node, input)?.into_iter().map(Some).collect()),
        }
    }

    /// Returns an input as integers of 64 bits, the type of ONNX's shapes and indices.
    pub(super) fn longs(&mut self, node: &Node, input: usize) -> Option<ValueId> {
        if let Some(known) = self.ints(node, input)
            && self.rank(node, input) == Some(1)
        {
            return Some(self.out.main.ints(&known));
        }
        let x = self.natural(node, input)?;
        let name = format!("{}/long{input}", self.output(node)?.1);
        Some(self.out.cast(x, ElementType::I64, &name))
    }

    /// Returns the position of an axis among `rank` dimensions. Negative axes count from the end.
    pub(super) fn position(axis: i64, rank: usize) -> Option<usize> {
        let rank = i64::try_from(rank).ok()?;
        let axis = if axis < 0 { axis.checked_add(rank)? } else { axis };
        usize::try_from(axis).ok().filter(|_| axis < rank)
    }

    /// The order in which a node over these inputs costs no transposition.
    pub(super) fn order_of(&mut self, node: &Node, inputs: &[usize]) -> Option<(Order, usize)> {
        let mut placed = Vec::new();
        let mut others = Vec::new();
        for input in inputs {
            match self.source(node, *input)? {
                Source::Made(one) => placed.push(*one),
                Source::Weight { dims, .. } => others.push((dims.clone(), false)),
                Source::Constant(constant) => others.push((constant.shape.clone(), true)),
                Source::List { .. } => return None,
            }
        }
        let rank = placed.first().and_then(|one| self.out.rank(one.id)).unwrap_or_default();
        let fits = |(dims, is_constant): &(Vec<u64>, bool)| match dims.len() {
            0 | 1 => true,
            len if *is_constant => len <= rank && dims.iter().all(|size| *size == 1),
            len => len == rank,
        };
        let order = self.out.order_of(&placed);
        let order = if others.iter().all(fits) { order } else { Order::Natural };
        Some((order, rank))
    }

    /// Inputs in one order, and a name in it.
    pub(super) fn in_one_order(
        &mut self,
        node: &Node,
        inputs: &[usize],
    ) -> Option<(Vec<ValueId>, Order, String)> {
        let (order, rank) = self.order_of(node, inputs)?;
        let mut ids = Vec::with_capacity(inputs.len());
        for input in inputs {
            let source = self.source(node, *input)?.clone();
            ids.push(self.written(&source, order, rank)?);
        }
        let (_, name) = self.output(node)?;
        Some((ids, order, apr_lower::Writer::name_in(&name, order, rank)))
    }
}
