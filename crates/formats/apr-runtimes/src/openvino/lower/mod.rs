//! Graphs of OpenVINO in the operators of ONNX.
//!
//! Each layer becomes a few operators, as OpenVINO's operation sets describe it. The order of the
//! dimensions is ONNX's. What is computed in half precision or in 64 bits is computed in single
//! precision, as OpenVINO's own plugin for processors does; inputs and outputs keep their types.
//!
//! A file states the shape of every value, so that what is written is compared with it: a layer
//! whose outputs would have another shape is not translated.

mod call;
mod element;
mod elementwise;
mod image;
mod matrix;
mod movement;
mod normalization;
mod recurrent;
mod reduce;
mod source;

use apr_graph::{Body, Graph, Node, TensorType, ValueId, ValueType};
use apr_lower::{Untranslated, Weights, Writer};

use crate::openvino::graph::DOMAIN;
use call::Call;
use element::computed;
use source::Source;

/// A model's graph ([`crate::openvino::graphs_of`]) with the operators of ONNX.
///
/// # Errors
/// The layers that are not translated, by their types: those that ONNX lacks, and those with
/// settings that are not known here.
pub fn lower(graph: &Graph, weights: &dyn Weights) -> Result<Graph, Untranslated> {
    let body = &graph.body;
    let mut lowering = Lowering::new(body, weights);
    for node in &body.nodes {
        if lowering.node(node).is_none() {
            *lowering.untranslated.entry(node.op.name.to_string()).or_default() += 1;
            lowering.leave(node);
        }
    }
    if body.outputs.is_empty() {
        lowering.untranslated.insert("a graph without outputs".into(), 1);
    }
    let mut names = apr_core::UniqueNames::default();
    for id in &body.outputs {
        let name = names.unique(body.value(*id).name.as_str());
        let Some(value) = lowering.value(*id) else {
            lowering.untranslated.insert("an output that no layer makes".into(), 1);
            continue;
        };
        let value = match body.value(*id).element() {
            Some(element) => lowering.out.cast(value, element, &format!("{name}/returned")),
            None => value,
        };
        lowering.out.output(&name, value);
    }
    lowering.out.finish_if(lowering.untranslated)
}

/// A model that is being lowered.
struct Lowering<'g> {
    from: &'g Body,
    weights: &'g dyn Weights,
    out: Writer,
    /// Replacements for the values of `from`.
    values: Vec<Option<Source>>,
    untranslated: Untranslated,
}

impl<'g> Lowering<'g> {
    fn new(from: &'g Body, weights: &'g dyn Weights) -> Self {
        let values = from.values.iter().map(Source::fixed).collect();
        let (out, untranslated) = (Writer::new(), Untranslated::new());
        let mut lowering = Self { from, weights, out, values, untranslated };
        for id in &from.inputs {
            let value = from.value(*id);
            if value.element().is_none() {
                let name = "Parameter (elements that ONNX does not have)";
                *lowering.untranslated.entry(name.into()).or_default() += 1;
            }
            let made = lowering.out.input(&value.name, &value.kind).id;
            let element = lowering.out.element(made).map(computed);
            let made = match element {
                Some(to) => lowering.out.cast(made, to, &format!("{}/computed", value.name)),
                None => made,
            };
            lowering.values[id.0 as usize] = Some(Source::Made(made));
        }
        lowering
    }

    /// Lowers a layer. Returns `None` if it cannot be lowered.
    fn node(&mut self, node: &'g Node) -> Option<()> {
        (&*node.op.domain == DOMAIN && node.bodies().next().is_none()).then_some(())?;
        let call = Call::new(node, self.from)?;
        if let Some(source) = self.passed(&call) {
            call.is_understood().then_some(())?;
            let output = call.outputs.first().copied().flatten()?;
            self.values[output.0 as usize] = Some(source);
            return Some(());
        }
        let made = self.call(&call)?;
        call.is_understood().then_some(())?;
        (made.len() == call.outputs.len()).then_some(())?;
        for (id, made) in call.outputs.iter().zip(made) {
            let Some(id) = id else { continue };
            self.is_stated(*id, made).then_some(())?;
            self.values[id.0 as usize] = Some(Source::Made(made));
        }
        Some(())
    }

    fn call(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        match call.op {
            "LSTMSequence" | "GRUSequence" | "RNNSequence" => return self.recurrent(call),
            "Split" | "VariadicSplit" => return self.split(call),
            "TopK" => return self.topk(call),
            "MaxPool" => return self.max_pool(call),
            _ => {}
        }
        let one = self.elementwise(call).or_else(|| self.matrix(call));
        let one = one.or_else(|| self.image(call)).or_else(|| self.normalization(call));
        let one = one.or_else(|| self.reduce(call)).or_else(|| self.movement(call));
        one.map(|made| vec![made])
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
                let element = element.or_else(|| self.out.element(made));
                let kind = TensorType { element, shape: Some(shape.to_vec()) };
                self.out.main.set_type(made, ValueType::Tensor(kind));
            }
            return true;
        };
        stated.len() == own.len()
            && stated.iter().zip(&own).all(|(stated, own)| match (stated.size(), own.size()) {
                (Some(stated), Some(own)) => stated == own,
                _ => true,
            })
    }

    /// Adds a placeholder for a layer that cannot be lowered. Later layers are then checked on
    /// their own.
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

    /// Writes a step on the way to the first output.
    fn step(&mut self, call: &Call<'_>, step: &str, op: &str, inputs: &[ValueId]) -> ValueId {
        self.out.main.op(op, inputs.iter().copied()).output(&call.step(step))
    }
}

/// Returns the position of an axis among `rank` dimensions. Negative axes count from the end.
fn position(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis.checked_add(rank)? } else { axis };
    usize::try_from(axis).ok().filter(|_| axis < rank)
}
