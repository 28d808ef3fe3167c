//! Derivatives, as a graph of the same operators.
//!
//! Reverse-mode differentiation: nodes are gone through from the last to the first, and the rule of
//! each operator (in the file of its kind, [`crate::operators`]) writes nodes that take the
//! gradients of its outputs to those of its inputs. A function is differentiated once for each kind
//! of call, so that a layer's gradient is a function that is called once a layer.

mod backward;
mod functions;
mod prune;
mod step;

use std::collections::HashSet;

use apr_core::{Error, Result};

use self::backward::{Backward, Kind};
use self::functions::Functions;
pub(crate) use self::step::{Rule, Step, index};
use crate::{
    BodyBuilder, Constant, ElementType, Graph, Meaning, Value, ValueId, ValueOrigin, ValueType,
    infer, upgrade,
};

/// The oldest operators that gradients are written with: `ScatterND` adds since 16, and sums take
/// their axes as an input.
const OLDEST: i64 = 17;

/// Values of the forward pass that a function keeps for its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Intermediates {
    /// All values that the gradient reads are outputs of the forward call and stay in memory until
    /// then.
    #[default]
    Kept,
    /// Only the call's inputs are kept, and the gradient computes the forward pass again.
    ///
    /// This needs the memory of one call instead of all calls, and about a third more time.
    Recomputed,
}

/// A graph with gradients.
#[derive(Debug)]
#[non_exhaustive]
pub struct Gradient {
    /// The graph that was given, whose calls may have more outputs now, and after it the nodes that
    /// compute gradients. It has an output `NAME/gradient` for each parameter, of the parameter's
    /// shape.
    pub graph: Graph,
    /// Parameters that no output depends on and that have no gradient.
    pub unreached: Vec<String>,
}

/// A graph that computes, besides what it computed, the gradients of the sum of `outputs` with
/// respect to `parameters`: both are names of values of the main body.
///
/// An output without dimensions is a loss, and counts with 1. For any other the graph has an input
/// `NAME/gradient` of the output's shape: what its elements count with (a vector-Jacobian product).
///
/// # Errors
/// E001 where there is no value with a name. E003 where a parameter influences an output through an
/// operator that has no rule, or has none for how it is used here: with the operator's name and
/// that of the node. All values on the way must be `f32` and have known ranks.
///
/// # Examples
/// ```
/// use apr_graph::{ElementType, GraphBuilder, Intermediates, Meaning, gradient};
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let x = main.weight("x", ElementType::F32, [3]);
/// let square = main.op("Mul", [x, x]).output("square");
/// let loss = main.op("ReduceSum", [square]).attribute("keepdims", 0).output("sum");
/// main.output("loss", loss, Meaning::Unknown);
///
/// let gradient = gradient(&graph.finish(), &["loss"], &["x"], Intermediates::Kept)?;
/// let body = &gradient.graph.body;
/// assert_eq!(body.value(body.outputs[1]).name, "x/gradient");
/// # Ok::<(), apr_core::Error>(())
/// ```
pub fn gradient(
    graph: &Graph,
    outputs: &[&str],
    parameters: &[&str],
    intermediates: Intermediates,
) -> Result<Gradient> {
    let mut graph = match graph.opset("") {
        Some(version) if version < OLDEST => upgrade(graph, OLDEST)?,
        _ => graph.clone(),
    };
    // Types of an earlier inference are those of one call, and others may have others.
    for value in graph.functions.iter_mut().flat_map(|function| &mut function.body.values) {
        forget_type(value);
    }
    let inference = infer(&mut graph);

    let find = |name: &str| {
        let named = |id: &ValueId| graph.body.value(*id).name == name;
        let all = (0..graph.body.values.len()).map(|at| ValueId(u32::try_from(at).unwrap_or(0)));
        // Outputs first, as where values of a run are wanted.
        let found =
            graph.body.outputs.iter().copied().find(named).or_else(|| all.clone().find(named));
        found.ok_or_else(|| Error::format(format!("no value '{name}' in the model")))
    };
    let outputs = outputs.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
    let parameters = parameters.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;

    let mut functions = Functions::new(&graph, &inference, intermediates);
    let mut writer = BodyBuilder::continuing(graph.body.clone());
    let mut seeds = Vec::new();
    for output in outputs {
        seeds.push((output, seed(&mut writer, output)?));
    }
    let kind = Kind { calls: &inference.calls, depth: 0 };
    let active: HashSet<ValueId> = parameters.iter().copied().collect();
    let backward = Backward::new(&mut writer, &mut functions, kind, active);
    let found = backward.run(seeds, &parameters)?;

    let mut unreached = Vec::new();
    for (parameter, gradient) in parameters.into_iter().zip(found) {
        let name = writer.body().value(parameter).name.clone();
        match gradient {
            Some(gradient) => {
                writer.output(&format!("{name}/gradient"), gradient, Meaning::Unknown);
            }
            None => unreached.push(name),
        }
    }

    let added = functions.finish();
    graph.body = writer.finish();
    for function in &added {
        if graph.opset(&function.op.domain).is_none() {
            let domain = function.op.domain.clone();
            graph.opsets.push(crate::Opset { domain, version: 1 });
        }
    }
    graph.functions.extend(added);
    infer(&mut graph);
    Ok(Gradient { graph, unreached })
}

/// Removes the type of a function's value, so that each call determines it.
fn forget_type(value: &mut Value) {
    if !matches!(value.origin, ValueOrigin::Constant(_)) {
        value.kind = ValueType::Unknown;
    }
}

/// Returns the value by which the elements of an output are weighted: the incoming gradient.
fn seed(writer: &mut BodyBuilder, output: ValueId) -> Result<ValueId> {
    let value = writer.body().value(output);
    let (name, shape) = (format!("{}/gradient", value.name), value.shape().map(<[_]>::to_vec));
    match shape {
        Some(shape) if shape.is_empty() => Ok(writer.constant(Constant::float(1.0))),
        Some(shape) => Ok(writer.input(&name, ElementType::F32, shape, Meaning::Unknown)),
        None => {
            let name = &writer.body().value(output).name;
            Err(Error::version(format!("the rank of output '{name}' is not known")))
        }
    }
}

/// Returns `true` if a value may have a gradient: it is not a constant, and its elements are floats
/// or not known.
fn is_float(writer: &BodyBuilder, id: ValueId) -> bool {
    let value = writer.body().value(id);
    !matches!(value.origin, ValueOrigin::Constant(_))
        && value.element().is_none_or(ElementType::is_float)
}
