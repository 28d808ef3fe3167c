//! The operations of a program.
//!
//! A program states the shape of every value, so that what is written is compared with it: an
//! operation whose outputs would have another shape is not translated.

mod control;
mod elementwise;
mod image;
mod indexing;
mod matrix;
mod movement;
mod normalization;
mod recurrent;
mod reduce;
mod source;

use std::cell::Cell;
use std::rc::Rc;

use apr_graph::{Body, Dim, ElementType, Graph, Node, ValueId, ValueOrigin, ValueType};
use apr_lower::{Untranslated, Weights, Writer};

use super::call::Call;
use super::count;
use super::element::computed;
use crate::graph::DOMAIN;
use source::Source;

/// Operations of all bodies that are written, at most, unless a program has more.
const MOST_NODES: usize = 1 << 16;

/// The graph of a program.
///
/// # Errors
/// The operations that are not translated, by their names.
pub(super) fn lower(body: &Body, weights: &dyn Weights) -> Result<Graph, Untranslated> {
    let mut lowering = Lowering::new(body, weights);
    lowering.operations();
    if body.outputs.iter().all(|id| is_label(body, *id)) {
        lowering.untranslated.insert("a graph without outputs".into(), 1);
    }
    for id in body.outputs.iter().filter(|id| !is_label(body, **id)) {
        let name = &body.value(*id).name;
        let element = body.value(*id).element();
        match lowering.value(*id) {
            Some(value) => {
                // What is computed in single precision is returned as the file says.
                let value = match element {
                    Some(element) => lowering.out.cast(value, element, &format!("{name}/returned")),
                    None => value,
                };
                lowering.out.output(name, value);
            }
            None => {
                lowering.untranslated.insert("an output that no operation makes".into(), 1);
            }
        }
    }
    lowering.out.finish_if(lowering.untranslated)
}

/// The operation that ends a classifier: its outputs are the label of the class and all scores.
const CLASSIFY: &str = "classify";

/// Returns `true` if a value is the label of a class.
///
/// A label is a text or an integer that follows from the scores. The caller determines it.
fn is_label(body: &Body, id: ValueId) -> bool {
    let ValueOrigin::Node(node) = body.value(id).origin else { return false };
    let node = body.node(node);
    &*node.op.name == CLASSIFY && node.outputs.first() == Some(&Some(id))
}

/// A program that is being lowered.
struct Lowering<'g> {
    from: &'g Body,
    weights: &'g dyn Weights,
    out: Writer,
    /// Replacements for the values of `from`.
    values: Vec<Option<Source>>,
    untranslated: Untranslated,
    /// Number of enclosing bodies.
    depth: usize,
    /// Operations that may still be written: a condition is written twice, and so is what is in it.
    nodes_left: Rc<Cell<usize>>,
}

impl<'g> Lowering<'g> {
    fn new(from: &'g Body, weights: &'g dyn Weights) -> Self {
        let values = from.values.iter().map(Source::fixed).collect();
        let (out, untranslated) = (Writer::new(), Untranslated::new());
        let nodes_left = Rc::new(Cell::new(MOST_NODES.max(2 * from.nodes.len())));
        let mut lowering = Self { from, weights, out, values, untranslated, depth: 0, nodes_left };
        for id in &from.inputs {
            let value = from.value(*id);
            let made = lowering.out.input(&value.name, &value.kind).id;
            let made = match value.element() {
                Some(element) => {
                    lowering.out.cast(made, computed(element), &format!("{}/computed", value.name))
                }
                None => made,
            };
            lowering.values[id.0 as usize] = Some(Source::Made(made));
        }
        lowering
    }

    /// Lowers all operations, and counts the ones that cannot be lowered by their names.
    fn operations(&mut self) {
        let from = self.from;
        for node in &from.nodes {
            let left = self.nodes_left.get().checked_sub(1);
            self.nodes_left.set(left.unwrap_or_default());
            if left.is_none() || self.node(node).is_none() {
                count(&mut self.untranslated, node);
                self.leave(node);
            }
        }
    }

    /// Lowers an operation. Returns `None` if it cannot be lowered.
    fn node(&mut self, node: &'g Node) -> Option<()> {
        (&*node.op.domain == DOMAIN).then_some(())?;
        if node.bodies().next().is_some() {
            let made = self.control(node)?;
            return self.set(&node.outputs, made);
        }
        let call = Call::new(node, self.from)?;
        call.ignore("name");
        if call.op == CLASSIFY {
            let scores = self.tensor(&call, "probabilities")?;
            let output = call.outputs.get(1).copied().flatten()?;
            self.values[output.0 as usize] = Some(Source::Made(scores));
            return Some(());
        }
        let made = self.call(&call)?;
        call.is_understood().then_some(())?;
        self.set(call.outputs, made)
    }

    /// Sets the values of the outputs of an operation.
    fn set(&mut self, outputs: &[Option<ValueId>], made: Vec<ValueId>) -> Option<()> {
        (made.len() == outputs.len()).then_some(())?;
        for (id, made) in outputs.iter().zip(made) {
            let Some(id) = id else { continue };
            self.is_stated(*id, made).then_some(())?;
            self.values[id.0 as usize] = Some(Source::Made(made));
        }
        Some(())
    }

    fn call(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        match call.op {
            "gru" | "lstm" | "rnn" => return self.recurrent(call),
            "split" => return self.split(call),
            "topk" => return self.topk(call),
            _ => {}
        }
        let one = self.elementwise(call).or_else(|| self.matrix(call));
        let one = one.or_else(|| self.image(call)).or_else(|| self.normalization(call));
        let one = one.or_else(|| self.reduce(call)).or_else(|| self.movement(call));
        one.or_else(|| self.indexing(call)).map(|made| vec![made])
    }

    /// Returns `true` if a value has the declared element type and shape, as far as both are known.
    ///
    /// If the shape of the new value is unknown, it is set to the declared one.
    fn is_stated(&mut self, id: ValueId, made: ValueId) -> bool {
        let ValueType::Tensor(stated) = &self.from.value(id).kind else { return true };
        let (element, shape) = (stated.element.map(computed), stated.shape.as_deref());
        if let (Some(stated), Some(own)) = (element, self.out.element(made))
            && stated != own
        {
            return false;
        }
        let (Some(stated), Some(own)) = (shape, self.out.shape(made)) else {
            if let Some(shape) = shape {
                let kind = ValueType::Tensor(apr_graph::TensorType {
                    element: element.or_else(|| self.out.element(made)),
                    shape: Some(shape.to_vec()),
                });
                self.out.main.set_type(made, kind);
            }
            return true;
        };
        stated.len() == own.len()
            && stated.iter().zip(&own).all(|(stated, own)| match (stated.size(), own.size()) {
                (Some(stated), Some(own)) => stated == own,
                _ => true,
            })
    }

    /// Returns the declared sizes of the first output, if all are known.
    fn stated_sizes(&self, call: &Call<'_>) -> Option<Vec<u64>> {
        let id = call.outputs.first().copied().flatten()?;
        self.from.value(id).shape()?.iter().map(Dim::size).collect()
    }

    /// The elements that are computed for the first output.
    fn stated_element(&self, call: &Call<'_>) -> Option<ElementType> {
        let id = call.outputs.first().copied().flatten()?;
        self.from.value(id).element().map(computed)
    }

    /// Adds a placeholder for a node that cannot be lowered.
    ///
    /// Later nodes are then checked on their own.
    fn leave(&mut self, node: &Node) {
        for output in node.outputs.iter().flatten() {
            let value = self.from.value(*output);
            let made = self.out.main.call(&node.op, []).output(&value.name);
            if let ValueType::Tensor(kind) = &value.kind {
                let mut kind = kind.clone();
                kind.element = kind.element.map(computed);
                self.out.main.set_type(made, ValueType::Tensor(kind));
            }
            self.values[output.0 as usize] = Some(Source::Made(made));
        }
    }

    /// Writes a node under the name of the first output.
    fn op(&mut self, call: &Call<'_>, op: &str, inputs: &[ValueId]) -> ValueId {
        self.out.main.op(op, inputs.iter().copied()).output(&call.name)
    }
}

/// Returns the position of an axis among `rank` dimensions. Negative axes count from the end.
fn position(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis.checked_add(rank)? } else { axis };
    usize::try_from(axis).ok().filter(|_| axis < rank)
}
