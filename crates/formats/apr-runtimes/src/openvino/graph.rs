//! What a model computes: its layers as nodes of the domain `openvino`.
//!
//! Settings are attributes, and so is the operator set of a layer (`version`). Constants are
//! weights, parameters are inputs, results are outputs; each of them has the first name of its
//! tensor, or the name of the layer. Bodies of loops and branches are attributes.

use std::collections::{BTreeMap, HashMap, HashSet};

use apr_core::{CheckpointReader, Error, Escaped, Limits, Result, UniqueNames, read_vec};
use apr_graph::{
    Attribute, AttributeValue, Body, Dim, ElementType, Graph, Node, Op, Opset, TensorType, ValueId,
    ValueOrigin, ValueType, WeightRef,
};
use apr_skeleton::Skeleton;

use crate::openvino::FORMAT;
use crate::openvino::model::{Layer, Model, Net, Port};

/// The domain of the operators.
pub const DOMAIN: &str = "openvino";

/// Attribute of a node with the operator set of its layer.
pub(crate) const VERSION: &str = "version";

/// Returns the graph of the OpenVINO model that a checkpoint was imported from.
///
/// Returns `None` if the checkpoint has no OpenVINO model. Weights have the names of that model's
/// tensors.
///
/// # Errors
/// E001 to E003 for a damaged companion or file, E007 when reading fails, E008 over the limits.
pub fn graphs_of(
    reader: &dyn CheckpointReader,
    limits: &Limits,
) -> Result<Option<Vec<(String, Graph)>>> {
    let Some(skeleton) = Skeleton::of(reader, &[FORMAT.id], limits)? else { return Ok(None) };
    let read = || {
        let source = skeleton.source();
        let len = apr_core::ByteSource::len(source);
        skeleton.limits(limits).check_index(len)?;
        let model = Model::parse(&read_vec(source, 0, len)?)?;
        let version = i64::try_from(model.version).unwrap_or_default();
        let opsets = vec![Opset { domain: DOMAIN.into(), version }];
        Ok(Graph { opsets, functions: Vec::new(), body: body(&model.net)? })
    };
    let graph: Result<Graph> = read();
    let graph = graph.map_err(|error| error.in_file(skeleton.file()))?;
    Ok(Some(vec![("model".to_owned(), graph)]))
}

/// A port of a layer, by the ids of both.
type End = (u64, u64);

fn body(net: &Net) -> Result<Body> {
    let mut body = Body::default();
    let sources: HashMap<End, End> = net.edges.iter().map(|edge| (edge.to, edge.from)).collect();
    let mut values: HashMap<End, ValueId> = HashMap::new();
    // Inputs and outputs keep their names; what else has one of them gets another.
    let mut named: BTreeMap<(u8, ValueId), String> = BTreeMap::new();
    let returned: HashSet<End> = results(net)
        .filter_map(|layer| sources.get(&(layer.id, layer.inputs.first()?.id)).copied())
        .collect();
    for layer in &net.layers {
        for (position, port) in layer.outputs.iter().enumerate() {
            let (name, rank) = match port.names.first() {
                _ if layer.is_constant() => (layer.tensor.clone(), 2),
                Some(name) if layer.kind == PARAMETER => (name.clone(), 0),
                None if layer.kind == PARAMETER => (layer.name.clone(), 0),
                Some(name) if returned.contains(&(layer.id, port.id)) => (name.clone(), 1),
                _ if layer.outputs.len() == 1 => (layer.name.clone(), 2),
                _ => (format!("{}:{position}", layer.name), 2),
            };
            let origin = match layer.kind.as_str() {
                PARAMETER => ValueOrigin::Input,
                _ if layer.is_constant() && port_kind(layer, port).is_some() => {
                    ValueOrigin::Weight(WeightRef::whole(&layer.tensor))
                }
                _ => ValueOrigin::Missing,
            };
            let id = body.add_value("", type_of(layer, port), origin);
            if layer.kind == PARAMETER {
                body.inputs.push(id);
            }
            named.insert((rank, id), name);
            if values.insert((layer.id, port.id), id).is_some() {
                let name = Escaped::short(&layer.name);
                let message = format!("the layer '{name}' has an id that another layer has");
                return Err(Error::corrupt(message));
            }
        }
    }
    let mut taken = UniqueNames::default();
    for ((_, id), name) in named {
        body.value_mut(id).name = taken.unique(name);
    }
    for layer in &net.layers {
        if [PARAMETER, RESULT].contains(&layer.kind.as_str())
            || layer.is_constant() && layer.outputs.iter().all(|p| port_kind(layer, p).is_some())
        {
            continue;
        }
        body.add_node(node(layer, &sources, &values)?);
    }
    for layer in results(net) {
        let port = layer.inputs.first().map_or(0, |port| port.id);
        let value = sources.get(&(layer.id, port)).and_then(|from| values.get(from));
        let value = value.ok_or_else(|| unconnected(layer))?;
        body.outputs.push(*value);
    }
    body.sort_nodes();
    Ok(body)
}

const PARAMETER: &str = "Parameter";
const RESULT: &str = "Result";

fn results(net: &Net) -> impl Iterator<Item = &Layer> {
    net.layers.iter().filter(|layer| layer.kind == RESULT)
}

fn unconnected(layer: &Layer) -> Error {
    let name = Escaped::short(&layer.name);
    Error::corrupt(format!("the layer '{name}' reads a value that no layer makes"))
}

/// The elements of a constant or of another value, by what the file says of them.
fn port_kind(layer: &Layer, port: &Port) -> Option<ElementType> {
    match layer.is_constant() {
        true => ElementType::from_dtype(layer.constant().ok()?.dtype()?),
        false => port.precision?.element(),
    }
}

fn type_of(layer: &Layer, port: &Port) -> ValueType {
    if layer.is_constant()
        && let (Ok(constant), Some(element)) = (layer.constant(), port_kind(layer, port))
        && constant.dims.len() <= apr_graph::MAX_RANK
    {
        return ValueType::tensor(element, constant.dims.into_iter().map(Dim::fixed));
    }
    let is_input = layer.kind == PARAMETER;
    let dim = |(position, size): (usize, &Option<u64>)| match size {
        Some(size) => Dim::fixed(*size),
        None if is_input && position == 0 => Dim::symbol("batch"),
        None => Dim::Unknown,
    };
    let dims = port.dims.as_ref();
    let dims: Option<Vec<Dim>> = dims.map(|dims| dims.iter().enumerate().map(dim).collect());
    // A value of an unknown number of dimensions has none in the file, as a scalar has.
    let is_known = |dims: &Vec<Dim>| {
        let shape = layer.setting("shape").map(str::trim_ascii);
        !dims.is_empty() || is_input && shape == Some("")
    };
    let shape = dims.filter(is_known).filter(|dims| dims.len() <= apr_graph::MAX_RANK);
    ValueType::Tensor(TensorType { element: port_kind(layer, port), shape })
}

fn node(
    layer: &Layer,
    sources: &HashMap<End, End>,
    values: &HashMap<End, ValueId>,
) -> Result<Node> {
    let mut attributes = vec![attribute(VERSION, AttributeValue::from(layer.opset.as_str()))];
    let settings = layer.data.iter();
    attributes.extend(settings.map(|(name, text)| attribute(name, setting(text))));
    for (name, inner) in &layer.bodies {
        attributes.push(attribute(name, body(inner)?.into()));
    }
    let inputs = layer.inputs.iter().map(|port| {
        let Some(from) = sources.get(&(layer.id, port.id)) else { return Ok(None) };
        values.get(from).copied().map(Some).ok_or_else(|| unconnected(layer))
    });
    let outputs = layer.outputs.iter().map(|port| values.get(&(layer.id, port.id)).copied());
    Ok(Node {
        name: layer.name.clone(),
        op: Op::new(DOMAIN, &layer.kind),
        inputs: inputs.collect::<Result<_>>()?,
        outputs: outputs.collect(),
        attributes,
        doc: String::new(),
    })
}

fn attribute(name: &str, value: AttributeValue) -> Attribute {
    Attribute { name: name.into(), value }
}

/// The value of a setting, which the file has as a text.
fn setting(text: &str) -> AttributeValue {
    let items: Vec<&str> = text.split(',').map(str::trim_ascii).collect();
    let ints: Option<Vec<i64>> = items.iter().map(|item| item.parse().ok()).collect();
    let floats: Option<Vec<f32>> = items.iter().map(|item| item.parse().ok()).collect();
    match (ints, floats, items.len()) {
        (Some(ints), _, 1) => AttributeValue::Int(ints[0]),
        (Some(ints), ..) => AttributeValue::Ints(ints),
        (None, Some(floats), 1) => AttributeValue::Float(floats[0]),
        (None, Some(floats), _) => AttributeValue::Floats(floats),
        _ => AttributeValue::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_numbers_lists_and_texts() {
        assert_eq!(setting("3"), AttributeValue::Int(3));
        assert_eq!(setting("1, 2"), AttributeValue::Ints(vec![1, 2]));
        assert_eq!(setting("1e-05"), AttributeValue::Float(1e-5));
        assert_eq!(setting("true"), AttributeValue::from("true"));
        assert_eq!(setting(""), AttributeValue::from(""));
    }
}
