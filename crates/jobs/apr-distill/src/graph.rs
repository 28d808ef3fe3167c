//! The student's graph with a loss and its gradients.

use std::collections::BTreeSet;

use apr_core::{CheckpointReader, Error, Result};
use apr_graph::{
    BodyBuilder, Dim, ElementType, Graph, Intermediates, Meaning, ValueId, gradient, infer,
};

use crate::batch::OWN;
use crate::parameters::{Parameter, parameters};
use crate::targets::Goal;

/// The loss, a number.
pub(crate) const LOSS: &str = "distill/loss";
/// Name of the loss on predictions or states, without the loss on labels.
pub(crate) const SOFT: &str = "distill/soft";
/// Names of the inputs with targets and their weights.
pub(crate) const TARGET: &str = "distill/target";
pub(crate) const TOKENS: &str = "distill/tokens";
pub(crate) const LABELS: &str = "distill/labels";
pub(crate) const LABEL_WEIGHTS: &str = "distill/label_weights";
pub(crate) const WEIGHTS: &str = "distill/weights";
pub(crate) const MEANS: &str = "distill/means";
pub(crate) const MEAN_TARGET: &str = "distill/mean_target";

/// Graph for training a student.
pub(crate) struct TrainingGraph {
    pub(crate) graph: Graph,
    pub(crate) parameters: Vec<Parameter>,
    /// Names of the values that are the parameters' gradients.
    pub(crate) gradients: Vec<String>,
    /// Tensors that the loss does not depend on.
    pub(crate) untrained: Vec<String>,
    /// Tensors that are not trained because another part also uses them.
    pub(crate) frozen: Vec<String>,
    /// The value that the loss is of.
    pub(crate) output: String,
}

/// Terms of the loss besides its goal.
pub(crate) struct Terms {
    pub(crate) temperature: f32,
    pub(crate) labels: bool,
    /// Values whose mean squared difference counts, and with what.
    pub(crate) layers: Vec<String>,
    /// Tensors that are not trained.
    pub(crate) frozen: BTreeSet<String>,
    pub(crate) intermediates: Intermediates,
}

impl TrainingGraph {
    /// # Errors
    /// E003 where something in the graph has no gradient.
    pub(crate) fn new(
        student: &Graph,
        goal: &Goal,
        terms: &Terms,
        weights: &dyn CheckpointReader,
    ) -> Result<Self> {
        let mut graph = student.clone();
        let frozen: BTreeSet<String> = { student.body.weights() }
            .map(|(_, weight)| weight.tensor.clone())
            .filter(|tensor| terms.frozen.contains(tensor))
            .collect();
        let all = parameters(&mut graph, weights, &frozen)?;
        infer(&mut graph);
        let mut body = BodyBuilder::continuing(graph.body.clone());
        let output = named(&body, &goal.output)?;
        let mut parts = match goal.is_logits {
            true => predictions(&mut body, output, goal, terms)?,
            false => vec![states(&mut body, output)?],
        };
        for (at, layer) in terms.layers.iter().enumerate() {
            let value = named(&body, layer)?;
            parts.push(hidden(&mut body, value, at)?);
        }
        let first = parts[0];
        body.output(SOFT, first, Meaning::Unknown);
        let sum = parts[1..]
            .iter()
            .fold(parts[0], |sum, part| body.op("Add", [sum, *part]).output("distill/sum"));
        body.output(LOSS, sum, Meaning::Unknown);
        graph.body = body.finish();

        let names: Vec<&str> = all.iter().map(|parameter| parameter.input.as_str()).collect();
        let made = gradient(&graph, &[LOSS], &names, terms.intermediates)?;
        let is_trained = |parameter: &Parameter| !made.unreached.contains(&parameter.input);
        let parameters: Vec<Parameter> =
            all.iter().filter(|one| is_trained(one)).cloned().collect();
        let gradients = parameters.iter().map(|one| format!("{}/gradient", one.input)).collect();
        let mut graph = made.graph;
        // What the loss does not depend on stays what it is in the checkpoint.
        let mut untrained = Vec::new();
        for parameter in all.iter().filter(|one| !is_trained(one)) {
            restore(&mut graph, parameter);
            untrained.push(parameter.tensor.clone());
        }
        let (frozen, output) = (frozen.into_iter().collect(), goal.output.clone());
        Ok(Self { graph, parameters, gradients, untrained, frozen, output })
    }
}

/// Makes a parameter a weight again.
fn restore(graph: &mut Graph, parameter: &Parameter) {
    let body = &mut graph.body;
    let place = body.inputs.iter().position(|id| body.value(*id).name == parameter.input);
    if let Some(place) = place {
        let id = body.inputs.remove(place);
        body.value_mut(id).origin = apr_graph::ValueOrigin::Weight(parameter.reference());
    }
}

fn named(body: &BodyBuilder, name: &str) -> Result<ValueId> {
    let values = &body.body().values;
    let outputs = body.body().outputs.iter().copied();
    let found = { outputs }.find(|id| body.body().value(*id).name == name).or_else(|| {
        let place = values.iter().position(|value| value.name == name)?;
        u32::try_from(place).ok().map(ValueId)
    });
    found.ok_or_else(|| Error::format(format!("no value '{name}' in the model")))
}

/// Returns the dimensions of a value, which its targets share.
fn shape(body: &BodyBuilder, id: ValueId) -> Result<Vec<Dim>> {
    let value = body.body().value(id);
    let shape = value.shape().map(<[Dim]>::to_vec);
    shape.ok_or_else(|| Error::version(format!("the rank of '{}' is not known", value.name)))
}

fn input(body: &mut BodyBuilder, name: &str, element: ElementType, shape: Vec<Dim>) -> ValueId {
    body.input(name, element, shape, Meaning::Unknown)
}

/// Minus the sum of a value.
fn minus_sum(body: &mut BodyBuilder, value: ValueId) -> ValueId {
    let sum = body.op("ReduceSum", [value]).attribute("keepdims", 0).output("sum");
    body.op("Neg", [sum]).output("loss")
}

/// Adds the cross-entropy with the teacher's softened predictions, and with labels; of a score, the
/// squared difference.
///
/// The targets contain the weights of the terms.
fn predictions(
    body: &mut BodyBuilder,
    logits: ValueId,
    goal: &Goal,
    terms: &Terms,
) -> Result<Vec<ValueId>> {
    let whole = shape(body, logits)?;
    let outer = whole[..whole.len() - 1].to_vec();
    let beside = |last: Dim| [outer.clone(), vec![last]].concat();
    let kept = Dim::fixed(goal.kept as u64);
    let target = input(body, TARGET, ElementType::F32, beside(kept.clone()));
    if goal.is_score() {
        let weights = input(body, WEIGHTS, ElementType::F32, beside(kept));
        return Ok(vec![body.scope(OWN.trim_end_matches('/'), |body| {
            let difference = body.op("Sub", [logits, target]).output("difference");
            let square = body.op("Mul", [difference, difference]).output("square");
            let weighted = body.op("Mul", [square, weights]).output("weighted");
            body.op("ReduceSum", [weighted]).attribute("keepdims", 0).output("loss")
        })]);
    }
    let tokens = goal.is_cut().then(|| input(body, TOKENS, ElementType::I64, beside(kept)));
    let scope = OWN.trim_end_matches('/');
    let mut parts = vec![body.scope(scope, |body| {
        let inverse = body.float(1.0 / terms.temperature);
        let softened = body.op("Mul", [logits, inverse]).output("softened");
        let log = body.op("LogSoftmax", [softened]).attribute("axis", -1).output("log");
        let picked = match tokens {
            Some(tokens) => {
                body.op("GatherElements", [log, tokens]).attribute("axis", -1).output("picked")
            }
            None => log,
        };
        let product = body.op("Mul", [picked, target]).output("product");
        minus_sum(body, product)
    })];
    if terms.labels {
        let labels = input(body, LABELS, ElementType::I64, beside(Dim::fixed(1)));
        let weights = input(body, LABEL_WEIGHTS, ElementType::F32, beside(Dim::fixed(1)));
        parts.push(body.scope(scope, |body| {
            let log = body.op("LogSoftmax", [logits]).attribute("axis", -1).output("plain");
            let of_label = body.op("GatherElements", [log, labels]).attribute("axis", -1);
            let of_label = of_label.output("of_label");
            let product = body.op("Mul", [of_label, weights]).output("weighted");
            minus_sum(body, product)
        }));
    }
    Ok(parts)
}

/// The distance of the cosines from 1: of each token's states, and of their mean. Targets are of
/// length 1.
fn states(body: &mut BodyBuilder, states: ValueId) -> Result<ValueId> {
    let whole = shape(body, states)?;
    let width = whole[whole.len() - 1].clone();
    let batch = whole[0].clone();
    let target = input(body, TARGET, ElementType::F32, whole.clone());
    let beside = [whole[..whole.len() - 1].to_vec(), vec![Dim::fixed(1)]].concat();
    let weights = input(body, WEIGHTS, ElementType::F32, beside.clone());
    let scope = OWN.trim_end_matches('/');
    if whole.len() == 2 {
        return Ok(body.scope(scope, |body| far(body, states, target, weights)));
    }
    let means = input(body, MEANS, ElementType::F32, beside);
    let mean_target = input(body, MEAN_TARGET, ElementType::F32, vec![batch, width]);
    Ok(body.scope(scope, |body| {
        let of_tokens = far(body, states, target, weights);
        let counted = body.op("Mul", [states, means]).output("counted");
        let axis = body.ints(&[1]);
        let mean = body.op("ReduceSum", [counted, axis]).attribute("keepdims", 0).output("mean");
        let cosine = cosine(body, mean, mean_target);
        let all = body.op("ReduceMean", [cosine]).attribute("keepdims", 0).output("mean_cosine");
        let one = body.float(1.0);
        let of_means = body.op("Sub", [one, all]).output("of_means");
        body.op("Add", [of_tokens, of_means]).output("both")
    }))
}

/// Adds the weighted sum of `1 - cosine`, for weights with the sum 1.
fn far(body: &mut BodyBuilder, states: ValueId, target: ValueId, weights: ValueId) -> ValueId {
    let cosine = cosine(body, states, target);
    let weighted = body.op("Mul", [cosine, weights]).output("weighted");
    let sum = body.op("ReduceSum", [weighted]).attribute("keepdims", 0).output("sum");
    let one = body.float(1.0);
    body.op("Sub", [one, sum]).output("distance")
}

/// Adds the cosine with targets of length 1 along the last dimension. The dimension is kept.
fn cosine(body: &mut BodyBuilder, states: ValueId, target: ValueId) -> ValueId {
    let axis = body.ints(&[-1]);
    let product = body.op("Mul", [states, target]).output("product");
    let product = body.op("ReduceSum", [product, axis]).output("dot");
    let square = body.op("Mul", [states, states]).output("square");
    let square = body.op("ReduceSum", [square, axis]).output("length_square");
    let tiny = body.float(1e-12);
    let square = body.op("Add", [square, tiny]).output("positive");
    let length = body.op("Sqrt", [square]).output("length");
    body.op("Div", [product, length]).output("cosine")
}

/// The weighted sum of the squared differences of a layer's states.
fn hidden(body: &mut BodyBuilder, states: ValueId, at: usize) -> Result<ValueId> {
    let whole = shape(body, states)?;
    let beside = [whole[..whole.len() - 1].to_vec(), vec![Dim::fixed(1)]].concat();
    let target = input(body, &layer_target(at), ElementType::F32, whole);
    let weights = input(body, &layer_weights(at), ElementType::F32, beside);
    let scope = OWN.trim_end_matches('/');
    Ok(body.scope(scope, |body| {
        let difference = body.op("Sub", [states, target]).output("difference");
        let square = body.op("Mul", [difference, difference]).output("square");
        let weighted = body.op("Mul", [square, weights]).output("weighted");
        body.op("ReduceSum", [weighted]).attribute("keepdims", 0).output("hidden")
    }))
}

pub(crate) fn layer_target(at: usize) -> String {
    format!("distill/layer{at}")
}

pub(crate) fn layer_weights(at: usize) -> String {
    format!("distill/layer{at}_weights")
}
