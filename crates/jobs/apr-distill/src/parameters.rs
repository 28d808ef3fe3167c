//! The weights of a graph as inputs that change from step to step.

use std::collections::{BTreeSet, HashMap};

use apr_core::{CheckpointReader, Error, Result};
use apr_graph::{
    Attribute, Body, Constant, ElementType, Graph, GraphBuilder, Meaning, Node, NodeId, Op,
    ValueId, ValueOrigin, ValueType, View, WeightRef,
};
use apr_infer::{Alone, Engine, RunLimits, Tensor, Unwatched};

/// A weight that is trained.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    /// The input that it is now.
    pub(crate) input: String,
    /// The tensor's name.
    pub(crate) tensor: String,
    /// Views between the tensor and the input: transposed, reshaped, or none.
    views: Vec<View>,
    /// Dimensions of the tensor.
    shape: Vec<u64>,
}

/// Turns every weight of the main body into an input, except for frozen weights.
///
/// A tensor with a single view becomes an input with this view applied, such as transposed. Other
/// tensors become inputs as stored, and nodes apply the views.
///
/// # Errors
/// E003 for weights in functions or nodes, which graphs of families don't have; E001 for a tensor
/// that the checkpoint lacks.
pub(crate) fn parameters(
    graph: &mut Graph,
    reader: &dyn CheckpointReader,
    frozen: &BTreeSet<String>,
) -> Result<Vec<Parameter>> {
    let body = &mut graph.body;
    let mut order: Vec<String> = Vec::new();
    let mut uses: HashMap<String, Vec<(ValueId, Vec<View>)>> = HashMap::new();
    let mut joined = Vec::new();
    for at in 0..body.values.len() {
        let id = ValueId(u32::try_from(at).unwrap_or(u32::MAX));
        let ValueOrigin::Weight(WeightRef { tensor, views }) = &body.value(id).origin else {
            continue;
        };
        if frozen.contains(tensor) {
            continue;
        }
        let uses = uses.entry(tensor.clone()).or_insert_with(|| {
            order.push(tensor.clone());
            Vec::new()
        });
        uses.push((id, views.clone()));
        for view in views {
            if let View::Joined { with, .. } | View::Stacked(with) = view {
                joined.extend(with.iter().cloned());
            }
        }
    }
    for name in joined {
        uses.entry(name.clone()).or_insert_with(|| {
            order.push(name.clone());
            Vec::new()
        });
    }

    let mut parameters = Vec::new();
    let mut raw: HashMap<String, ValueId> = HashMap::new();
    let mut looked: Vec<(String, ValueId, Vec<View>)> = Vec::new();
    for tensor in order {
        let uses = &uses[&tensor];
        let shape = shape_of(reader, &tensor)?;
        let is_plain = |views: &[View]| {
            views.iter().all(|view| matches!(view, View::Transposed(_) | View::Reshaped(_)))
        };
        if let [(id, views)] = uses.as_slice()
            && is_plain(views)
        {
            let value = body.value_mut(*id);
            value.origin = ValueOrigin::Input;
            let input = value.name.clone();
            body.inputs.push(*id);
            parameters.push(Parameter { input, tensor, views: views.clone(), shape });
            continue;
        }
        let name = format!("{tensor}/whole");
        let kind = ValueType::tensor(
            ElementType::F32,
            shape.iter().map(|size| apr_graph::Dim::fixed(*size)),
        );
        let id = body.add_value(&name, kind, ValueOrigin::Input);
        body.inputs.push(id);
        raw.insert(tensor.clone(), id);
        looked.extend(uses.iter().map(|(id, views)| (tensor.clone(), *id, flat(views, &shape))));
        parameters.push(Parameter { input: name, tensor, views: Vec::new(), shape });
    }

    let before = body.nodes.len();
    for (tensor, id, views) in looked {
        look(body, raw[&tensor], id, &views, &raw)?;
    }
    to_front(body, before);
    Ok(parameters)
}

fn shape_of(reader: &dyn CheckpointReader, tensor: &str) -> Result<Vec<u64>> {
    let info = reader.tensors().iter().find(|info| info.name == tensor);
    let info = info.ok_or_else(|| Error::format("the model lacks it").for_tensor(tensor))?;
    Ok(info.shape.dims().to_vec())
}

/// Views of a tensor of this shape, with tensors that are stacked put side by side and reshaped.
fn flat(views: &[View], shape: &[u64]) -> Vec<View> {
    let Some((View::Stacked(with), rest)) = views.split_first() else { return views.to_vec() };
    let stacked = [&[1 + with.len() as u64], shape].concat();
    let joined = View::Joined { axis: 0, with: with.clone() };
    [&[joined, View::Reshaped(stacked)], rest].concat()
}

/// Writes nodes that look at a tensor as views do; the last one makes `result`.
fn look(
    body: &mut Body,
    tensor: ValueId,
    result: ValueId,
    views: &[View],
    raw: &HashMap<String, ValueId>,
) -> Result<()> {
    let name = body.value(result).name.clone();
    let mut value = tensor;
    let steps = views.len().max(1);
    for at in 0..steps {
        let output = if at + 1 == steps {
            result
        } else {
            body.add_value(format!("{name}/look{at}"), ValueType::Unknown, ValueOrigin::Missing)
        };
        let mut node = Node {
            name: format!("{name}/look{at}"),
            op: Op::onnx("Identity"),
            inputs: vec![Some(value)],
            outputs: vec![Some(output)],
            attributes: Vec::new(),
            doc: String::new(),
        };
        if let Some(view) = views.get(at) {
            as_view(body, &mut node, view, raw)?;
        }
        body.add_node(node);
        value = output;
    }
    Ok(())
}

fn as_view(
    body: &mut Body,
    node: &mut Node,
    view: &View,
    raw: &HashMap<String, ValueId>,
) -> Result<()> {
    let attribute = |name: &str, value| Attribute { name: name.into(), value };
    let int = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    let index = |at: usize| i64::try_from(at).unwrap_or(i64::MAX);
    let mut ints = |numbers: &[i64]| {
        let constant = Constant::ints(numbers);
        let kind = ValueType::tensor(
            ElementType::I64,
            constant.shape.iter().copied().map(apr_graph::Dim::fixed),
        );
        let name = format!("{}/numbers{}", node.name, body.values.len());
        Some(body.add_value(name, kind, ValueOrigin::Constant(constant)))
    };
    let known = |name: &String| {
        let id = raw.get(name).copied().map(Some);
        id.ok_or_else(|| Error::version("it is looked at in two ways").for_tensor(name))
    };
    match view {
        View::Transposed(order) => {
            node.op = Op::onnx("Transpose");
            let order: Vec<i64> = order.iter().copied().map(index).collect();
            node.attributes.push(attribute("perm", order.into()));
        }
        View::Reshaped(dims) => {
            node.op = Op::onnx("Reshape");
            let dims: Vec<i64> = dims.iter().copied().map(int).collect();
            node.inputs.push(ints(&dims));
        }
        View::Slice { axis, start, len } => {
            node.op = Op::onnx("Slice");
            for number in [int(*start), int(start.saturating_add(*len)), index(*axis)] {
                node.inputs.push(ints(&[number]));
            }
        }
        View::Joined { axis, with } => {
            node.op = Op::onnx("Concat");
            node.attributes.push(attribute("axis", index(*axis).into()));
            for name in with {
                node.inputs.push(known(name)?);
            }
        }
        View::Plus(number) => {
            node.op = Op::onnx("Add");
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let constant = Constant::float(*number as f32);
            let kind = ValueType::tensor(ElementType::F32, []);
            let name = format!("{}/number", node.name);
            let id = body.add_value(name, kind, ValueOrigin::Constant(constant));
            node.inputs.push(Some(id));
        }
        other => {
            return Err(Error::version(format!(
                "a weight that is looked at by {other:?} can't be trained"
            )));
        }
    }
    Ok(())
}

/// Moves the nodes from a place on before all others.
fn to_front(body: &mut Body, place: usize) {
    let moved = body.nodes.len() - place;
    body.nodes.rotate_right(moved);
    for at in 0..body.nodes.len() {
        for output in body.nodes[at].outputs.clone().into_iter().flatten() {
            let id = NodeId(u32::try_from(at).unwrap_or(u32::MAX));
            body.value_mut(output).origin = ValueOrigin::Node(id);
        }
    }
}

/// Reads the initial values of the parameters in single precision.
///
/// # Errors
/// E008 if they need more memory than `max_memory`. Also the errors of reading them.
pub(crate) fn initial(
    parameters: &[Parameter],
    reader: &dyn CheckpointReader,
    max_memory: u64,
) -> Result<Vec<Tensor>> {
    let mut graph = GraphBuilder::new(17);
    for parameter in parameters {
        let shape = parameter.viewed_shape();
        let body = graph.body();
        let views = parameter.views.clone();
        let weight = body.viewed(&parameter.tensor, views, ElementType::F32, shape);
        body.output(&parameter.input, weight, Meaning::Unknown);
    }
    let graph = graph.finish();
    let mut limits = RunLimits::default();
    limits.max_memory = max_memory;
    limits.max_work = Some(u64::MAX);
    let session = Engine::prepare(&graph, reader, limits)?;
    let one = |parameter: &Parameter| {
        let outcome = session.run(Vec::new(), &[&parameter.input], &Alone, &mut Unwatched)?;
        outcome.outputs[0].tensor().cloned()
    };
    parameters.iter().map(one).collect()
}

impl Parameter {
    /// The weight that it is in the checkpoint.
    pub(crate) fn reference(&self) -> WeightRef {
        WeightRef { tensor: self.tensor.clone(), views: self.views.clone() }
    }

    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().copied().fold(1, u64::saturating_mul)
    }

    /// Dimensions of the input.
    fn viewed_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        for view in &self.views {
            match view {
                View::Transposed(order) => shape = order.iter().map(|at| shape[*at]).collect(),
                View::Reshaped(dims) => shape.clone_from(dims),
                _ => {}
            }
        }
        shape
    }

    /// Returns the elements of the tensor, given the elements of the input.
    pub(crate) fn stored(&self, values: &[f32]) -> Vec<f32> {
        let mut shapes = vec![self.shape.clone()];
        for view in &self.views {
            let shape = shapes.last().cloned().unwrap_or_default();
            shapes.push(match view {
                View::Transposed(order) => order.iter().map(|at| shape[*at]).collect(),
                View::Reshaped(dims) => dims.clone(),
                _ => shape,
            });
        }
        let mut values = values.to_vec();
        for (view, shape) in self.views.iter().zip(&shapes).rev() {
            if let View::Transposed(order) = view {
                values = transposed_back(&values, shape, order);
            }
        }
        values
    }
}

/// Elements in the order that they had before dimensions changed places.
fn transposed_back(values: &[f32], shape: &[u64], order: &[usize]) -> Vec<f32> {
    let sizes: Vec<usize> = shape.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect();
    let mut strides = vec![1; sizes.len()];
    for at in (1..sizes.len()).rev() {
        strides[at - 1] = strides[at] * sizes[at];
    }
    let turned: Vec<(usize, usize)> = order.iter().map(|at| (sizes[*at], strides[*at])).collect();
    let mut back = vec![0.0; values.len()];
    let mut place = vec![0; turned.len()];
    for value in values {
        let offset: usize = place.iter().zip(&turned).map(|(at, (_, stride))| at * stride).sum();
        back[offset] = *value;
        for (at, (size, _)) in place.iter_mut().zip(&turned).rev() {
            *at += 1;
            if *at < *size {
                break;
            }
            *at = 0;
        }
    }
    back
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transposed_tensor_is_stored_as_it_was() {
        let parameter = Parameter {
            input: "w".into(),
            tensor: "w".into(),
            views: vec![View::Reshaped(vec![2, 1, 3]), View::Transposed(vec![2, 0, 1])],
            shape: vec![2, 3],
        };
        assert_eq!(parameter.viewed_shape(), [3, 2, 1]);
        let stored = parameter.stored(&[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(stored, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
