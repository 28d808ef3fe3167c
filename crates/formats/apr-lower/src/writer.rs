//! The graph that is written.

use std::collections::{HashMap, HashSet};

use apr_core::UniqueNames;
use apr_graph::{
    AttributeValue, Body, BodyBuilder, Dim, ElementType, Graph, IncrementalInference, Meaning,
    Node, NodeBuilder, Opset, TensorType, Value, ValueId, ValueOrigin, ValueType, View, WeightRef,
};

use crate::order::{Order, Placed, to_channels_first, to_natural};
use crate::{OPSET, Untranslated};

/// Adds an input to a node, if there is one. An omitted input at the end is not written.
pub fn with(node: NodeBuilder<'_>, input: Option<ValueId>) -> NodeBuilder<'_> {
    match input {
        Some(_) => node.optional(input),
        None => node,
    }
}

/// Writer of a graph of ONNX operators, which knows the types of the values written so far.
///
/// See the crate's page for an example.
#[derive(Debug)]
pub struct Writer {
    /// Body that is written; any node may be added.
    pub main: BodyBuilder,
    types: IncrementalInference,
    /// Transposed value of each value, in the other order.
    turned: HashMap<ValueId, ValueId>,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// An empty graph.
    #[must_use]
    pub fn new() -> Self {
        let types = IncrementalInference::new(&opsets());
        Self { main: BodyBuilder::default(), types, turned: HashMap::new() }
    }

    /// Adds an input of the model; floats of any shape if the file does not declare a type.
    pub fn input(&mut self, name: &str, kind: &ValueType) -> Placed {
        let mut tensor = match kind {
            ValueType::Tensor(tensor) => tensor.clone(),
            _ => TensorType::default(),
        };
        tensor.element.get_or_insert(ElementType::F32);
        Placed::natural(self.main.input_of(name, ValueType::Tensor(tensor), Meaning::Unknown))
    }

    /// Returns the type of a value, as far as known.
    pub fn kind(&mut self, id: ValueId) -> &ValueType {
        self.types.extend(&mut self.main);
        self.main.value_type(id)
    }

    /// The elements of a value.
    pub fn element(&mut self, id: ValueId) -> Option<ElementType> {
        match self.kind(id) {
            ValueType::Tensor(tensor) => tensor.element,
            _ => None,
        }
    }

    /// The sizes of a value.
    pub fn shape(&mut self, id: ValueId) -> Option<Vec<Dim>> {
        match self.kind(id) {
            ValueType::Tensor(tensor) => tensor.shape.clone(),
            _ => None,
        }
    }

    /// The number of a value's dimensions.
    pub fn rank(&mut self, id: ValueId) -> Option<usize> {
        match self.kind(id) {
            ValueType::Tensor(tensor) => tensor.shape.as_ref().map(Vec::len),
            _ => None,
        }
    }

    /// Returns the size of a dimension, if it is a number.
    pub fn size(&mut self, id: ValueId, axis: usize) -> Option<u64> {
        match self.kind(id) {
            ValueType::Tensor(tensor) => tensor.shape.as_ref()?.get(axis)?.size(),
            _ => None,
        }
    }

    /// Returns the elements of a small tensor of integers, if all are known.
    pub fn ints(&mut self, id: ValueId) -> Option<Vec<i64>> {
        self.types.extend(&mut self.main);
        self.types.elements(id)?.iter().map(Dim::as_integer).collect()
    }

    /// Returns the elements of a small tensor of integers; unknown elements are `None`.
    pub fn elements(&mut self, id: ValueId) -> Option<Vec<Option<i64>>> {
        self.types.extend(&mut self.main);
        Some(self.types.elements(id)?.iter().map(Dim::as_integer).collect())
    }

    /// Returns a value in the given order, transposed once if it is stored in the other order.
    ///
    /// Returns `None` if the number of its dimensions is not known, or if it has only one order.
    pub fn ordered(&mut self, placed: Placed, order: Order) -> Option<ValueId> {
        if placed.order == order {
            return Some(placed.id);
        }
        let rank = self.rank(placed.id)?;
        self.ordered_of(placed, order, rank)
    }

    /// Returns a value in the given order, for a value that has `rank` dimensions even if its type
    /// is not known.
    pub fn ordered_of(&mut self, placed: Placed, order: Order, rank: usize) -> Option<ValueId> {
        let name = self.main.body().value(placed.id).name.clone();
        let name = match order {
            Order::Natural => {
                let own = name.strip_suffix(suffix(rank));
                own.map_or(format!("{name}/natural"), str::to_owned)
            }
            Order::ChannelsFirst => Self::name_in(&name, order, rank),
        };
        self.ordered_as(placed, order, rank, &name)
    }

    /// Returns a value in the given order, with `name` as the name of the transposed value.
    pub fn ordered_as(
        &mut self,
        placed: Placed,
        order: Order,
        rank: usize,
        name: &str,
    ) -> Option<ValueId> {
        if placed.order == order {
            return Some(placed.id);
        }
        if let Some(known) = self.turned.get(&placed.id) {
            return Some(*known);
        }
        (rank >= 3).then_some(())?;
        let perm = match order {
            Order::Natural => to_natural(rank),
            Order::ChannelsFirst => to_channels_first(rank),
        };
        let perm: Vec<i64> = perm.iter().filter_map(|axis| i64::try_from(*axis).ok()).collect();
        let is_known = self.rank(placed.id).is_some();
        let element = self.element(placed.id);
        let made = self.main.op("Transpose", [placed.id]).attribute("perm", perm).output(name);
        if !is_known {
            let kind = TensorType { element, shape: Some(vec![Dim::Unknown; rank]) };
            self.main.set_type(made, ValueType::Tensor(kind));
        }
        self.turned.insert(placed.id, made);
        self.turned.insert(made, placed.id);
        Some(made)
    }

    /// Returns `true` if a value exists only with its channels first.
    #[must_use]
    pub fn is_turned(&self, placed: Placed) -> bool {
        placed.order == Order::ChannelsFirst && !self.turned.contains_key(&placed.id)
    }

    /// The name of a value in an order, which is called so in the natural one.
    #[must_use]
    pub fn name_in(name: &str, order: Order, rank: usize) -> String {
        match order {
            Order::Natural => name.to_owned(),
            Order::ChannelsFirst => format!("{name}{}", suffix(rank)),
        }
    }

    /// The order in which a node over these values costs no transposition: that with channels first
    /// where one of them is in it alone, and all can be.
    pub fn order_of(&mut self, values: &[Placed]) -> Order {
        let is_turned = values.iter().any(|placed| self.is_turned(*placed));
        let ranks: Vec<Option<usize>> = values.iter().map(|one| self.rank(one.id)).collect();
        let is_one_rank = ranks.windows(2).all(|pair| pair[0] == pair[1]);
        match ranks.first() {
            Some(Some(3..)) if is_turned && is_one_rank => Order::ChannelsFirst,
            _ => Order::Natural,
        }
    }

    /// A tensor of the checkpoint, that a node combines by broadcasting with values of this rank in
    /// this order. `None` for a shape that has no such view.
    pub fn weight(
        &mut self,
        weight: &WeightRef,
        element: ElementType,
        dims: &[u64],
        order: Order,
        rank: usize,
    ) -> Option<ValueId> {
        let mut views = weight.views.clone();
        let shape = match (order, dims) {
            (Order::Natural, _) | (_, []) => dims.to_vec(),
            (Order::ChannelsFirst, [channels]) => {
                // Broadcasting goes along the last dimension, which is another one there.
                let mut shape = vec![1; rank.checked_sub(1)?];
                shape[0] = *channels;
                views.push(View::Reshaped(shape.clone()));
                shape
            }
            (Order::ChannelsFirst, dims) if dims.len() == rank => {
                let axes = to_channels_first(rank);
                let shape = axes.iter().map(|axis| dims[*axis]).collect();
                views.push(View::Transposed(axes));
                shape
            }
            _ => return None,
        };
        Some(self.main.viewed(&weight.tensor, views, element, shape))
    }

    /// Returns a value converted to other elements, or the value itself if it already has them.
    pub fn cast(&mut self, id: ValueId, to: ElementType, name: &str) -> ValueId {
        if self.element(id) == Some(to) {
            return id;
        }
        self.main.op("Cast", [id]).attribute("to", i64::from(to.onnx_code())).output(name)
    }

    /// Makes a value an output of the graph.
    pub fn output(&mut self, name: &str, value: ValueId) {
        self.main.output(name, value, Meaning::Unknown);
    }

    /// Returns the finished graph.
    #[must_use]
    pub fn finish(self) -> Graph {
        let mut body = self.main.finish();
        share_weights(&mut body);
        // An output takes its name, which another value may have had: each value has its own.
        let outputs: HashSet<ValueId> = body.outputs.iter().copied().collect();
        let mut taken = UniqueNames::new("/value", 1);
        outputs.iter().for_each(|id| _ = taken.take(&body.value(*id).name));
        for position in 0..body.values.len() {
            let id = ValueId(u32::try_from(position).unwrap_or(u32::MAX));
            if !outputs.contains(&id) {
                let name = taken.unique(body.value(id).name.as_str());
                body.value_mut(id).name = name;
            }
        }
        Graph { opsets: opsets(), functions: Vec::new(), body }
    }

    /// Returns the graph, if all operators were translated.
    ///
    /// # Errors
    /// Returns the operators that were not translated.
    pub fn finish_if(self, untranslated: Untranslated) -> Result<Graph, Untranslated> {
        if untranslated.is_empty() { Ok(self.finish()) } else { Err(untranslated) }
    }
}

/// Moves weights that several inner bodies read to the outer body.
///
/// Otherwise each inner body would store its own copy of the tensor in the file.
fn share_weights(body: &mut Body) {
    let mut shared: HashMap<WeightRef, ValueId> = HashMap::new();
    for (at, value) in (0..).map(ValueId).zip(&body.values) {
        if let ValueOrigin::Weight(weight) = &value.origin {
            shared.entry(weight.clone()).or_insert(at);
        }
    }
    let (mut seen, mut more) = (HashSet::new(), Vec::new());
    for inner in body.nodes.iter().flat_map(Node::bodies) {
        let mut own = HashSet::new();
        for (weight, value) in weights_within(inner) {
            let is_new = own.insert(weight.clone()) && !shared.contains_key(weight);
            if is_new && !seen.insert(weight.clone()) {
                more.push((value.name.clone(), value.kind.clone(), weight.clone()));
            }
        }
    }
    for (name, kind, weight) in more {
        let origin = ValueOrigin::Weight(weight.clone());
        shared.entry(weight).or_insert_with(|| body.add_value(name, kind, origin));
    }
    lend(body, &shared);
}

/// The weights of a body and of those within it.
fn weights_within(body: &Body) -> Vec<(&WeightRef, &Value)> {
    let (mut found, mut open) = (Vec::new(), vec![body]);
    while let Some(body) = open.pop() {
        for value in &body.values {
            if let ValueOrigin::Weight(weight) = &value.origin {
                found.push((weight, value));
            }
        }
        open.extend(body.nodes.iter().flat_map(Node::bodies));
    }
    found
}

/// Lets the bodies of a body's nodes read these weights of it.
fn lend(body: &mut Body, shared: &HashMap<WeightRef, ValueId>) {
    if shared.is_empty() {
        return;
    }
    let attributes = body.nodes.iter_mut().flat_map(|node| node.attributes.iter_mut());
    for attribute in attributes {
        let AttributeValue::Body(inner) = &mut attribute.value else { continue };
        let mut own: HashMap<WeightRef, ValueId> = HashMap::new();
        for (at, value) in (0..).map(ValueId).zip(&mut inner.values) {
            if let ValueOrigin::Weight(weight) = &value.origin
                && let Some(outer) = shared.get(weight)
            {
                own.insert(weight.clone(), at);
                value.origin = ValueOrigin::Outer(*outer);
            }
        }
        // A body reads values of the one right around it, which hands on what is around that.
        let further: Vec<(String, ValueType, WeightRef)> = weights_within(inner)
            .into_iter()
            .filter(|(weight, _)| shared.contains_key(*weight) && !own.contains_key(*weight))
            .map(|(weight, value)| (value.name.clone(), value.kind.clone(), weight.clone()))
            .collect();
        for (name, kind, weight) in further {
            let origin = ValueOrigin::Outer(shared[&weight]);
            own.entry(weight).or_insert_with(|| inner.add_value(name, kind, origin));
        }
        lend(inner, &own);
    }
}

fn opsets() -> Vec<Opset> {
    vec![Opset { domain: "".into(), version: OPSET }]
}

/// Returns the name suffix of values with channels first.
fn suffix(rank: usize) -> &'static str {
    match rank {
        3 => "/ncw",
        4 => "/nchw",
        _ => "/ncdhw",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that adds weights of these names up.
    fn body(names: &[&str]) -> Box<Body> {
        let mut out = Writer::new();
        let ids: Vec<ValueId> =
            names.iter().map(|name| out.main.weight(name, ElementType::F32, [2])).collect();
        let sum = out.main.op("Sum", ids.iter().copied()).output("sum");
        out.output("sum", sum);
        Box::new(out.finish().body)
    }

    fn weights(body: &Body) -> Vec<&str> {
        let weight = |value: &Value| matches!(value.origin, ValueOrigin::Weight(_));
        body.values.iter().filter(|value| weight(value)).map(|value| &*value.name).collect()
    }

    #[test]
    fn a_weight_that_several_bodies_read_is_one() {
        let mut out = Writer::new();
        let which = out.input("which", &ValueType::tensor(ElementType::Bool, [])).id;
        let own = out.main.weight("around", ElementType::F32, [2]);
        let made = out
            .main
            .op("If", [which])
            .attribute("then_branch", AttributeValue::Body(body(&["around", "both", "one"])))
            .attribute("else_branch", AttributeValue::Body(body(&["both", "around"])))
            .output("made");
        let sum = out.main.op("Add", [made, own]).output("sum");
        out.output("sum", sum);
        let body = out.finish().body;
        assert_eq!(weights(&body), ["around", "both"]);
        let inner: Vec<_> = body.nodes.iter().flat_map(Node::bodies).map(weights).collect();
        assert_eq!(inner, [vec!["one"], vec![]]);
    }

    #[test]
    fn a_weight_is_handed_on_to_a_body_within_a_body() {
        let branch = |inner: Box<Body>, weight: Option<&str>| {
            let mut out = Writer::new();
            let which = out.input("which", &ValueType::tensor(ElementType::Bool, [])).id;
            let own = weight.map(|weight| out.main.weight(weight, ElementType::F32, [2]));
            let node = out.main.op("If", [which]);
            let made = node.attribute("then_branch", AttributeValue::Body(inner)).output("made");
            let sum = out.main.op("Sum", [Some(made), own].into_iter().flatten()).output("sum");
            out.output("sum", sum);
            out.finish().body
        };
        let between = branch(body(&["around", "one"]), None);
        assert_eq!(weights(&between), [""; 0]);
        let outermost = branch(Box::new(between), Some("around"));
        assert_eq!(weights(&outermost), ["around"]);
        let between = outermost.nodes.iter().flat_map(Node::bodies).next().expect("a body");
        let innermost = between.nodes.iter().flat_map(Node::bodies).next().expect("a body");
        assert_eq!((weights(between), weights(innermost)), (vec![], vec!["one"]));
        let outer = |body: &Body| {
            let is_outer = |value: &&Value| matches!(value.origin, ValueOrigin::Outer(_));
            body.values.iter().filter(is_outer).count()
        };
        assert_eq!((outer(between), outer(innermost)), (1, 1));
    }
}
