//! Prints the graphs of a Hugging Face folder as JSON, for `xtask/interop/graphs.py`.
//!
//! `graph_json FOLDER [past|plain] [OPSET] [TASK]`

use std::error::Error;
use std::path::Path;

use apr_arch::Families;
use apr_blocks::{GraphOptions, graphs};
use apr_core::{DType, Metadata, TensorInfo};
use apr_graph::{Attribute, AttributeValue, Body, Constant, ConstantData, Origin, Value, ValueId, View};
use serde_json::{Map, Value as Json, json};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = Path::new(arguments.first().ok_or("which folder?")?);
    let options = GraphOptions {
        past: arguments.get(1).is_none_or(|past| past == "past"),
        opset: arguments.get(2).map_or(Ok(17), |opset| opset.parse())?,
        task: arguments.get(3).cloned(),
    };
    let mut config: Map<String, Json> = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let model_type = config.remove("model_type").ok_or("no model_type")?;
    config.retain(|_, value| !value.is_null());
    let mut metadata = Metadata::new();
    metadata.set("model_type", model_type);
    metadata.set("architecture", config);
    let tensors = header(&std::fs::read(folder.join("model.safetensors"))?)?;
    let families = Families::builtin();
    let model = families.identify(&tensors, &metadata).ok_or("of no known family")?;
    let graphs = graphs(&model, &tensors, &options)?;
    let parts: Vec<Json> = graphs
        .parts
        .iter()
        .map(|part| {
            let functions: Vec<Json> = part.graph.functions.iter().map(|function| {
            json!({"domain": &*function.op.domain, "name": &*function.op.name, "body": body(&function.body)})
        }).collect();
            let opsets: Vec<Json> =
                part.graph.opsets.iter().map(|opset| json!([&*opset.domain, opset.version])).collect();
            json!({"name": part.name, "opsets": opsets, "functions": functions, "body": body(&part.graph.body)})
        })
        .collect();
    let names: Map<String, Json> = tensors
        .iter()
        .enumerate()
        .filter_map(|(at, info)| Some((model.canonical(at)?.to_owned(), info.name.clone().into())))
        .collect();
    println!("{}", json!({"parts": parts, "unused": graphs.unused, "names": names}));
    Ok(())
}

/// Names and shapes in the header of a safetensors file.
fn header(bytes: &[u8]) -> Result<Vec<TensorInfo>, Box<dyn Error>> {
    let length = usize::try_from(u64::from_le_bytes(bytes.get(..8).ok_or("too short")?.try_into()?))?;
    let header: Map<String, Json> = serde_json::from_slice(bytes.get(8..8 + length).ok_or("too short")?)?;
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__").map(|(name, entry)| {
        let dims = entry["shape"].as_array().map(|dims| dims.iter().filter_map(Json::as_u64).collect::<Vec<_>>());
        TensorInfo { name: name.clone(), dtype: DType::F32, shape: dims.unwrap_or_default().into() }
    });
    Ok(tensors.collect())
}

fn body(body: &Body) -> Json {
    let name = |id: &Option<ValueId>| id.map_or("", |id| body.value(id).name.as_str()).to_owned();
    let values: Vec<Json> = body.values.iter().filter_map(origin).collect();
    let nodes: Vec<Json> = body
        .nodes
        .iter()
        .map(|node| {
            json!({
                "name": node.name, "domain": &*node.op.domain, "op": &*node.op.name,
                "inputs": node.inputs.iter().map(name).collect::<Vec<_>>(),
                "outputs": node.outputs.iter().map(name).collect::<Vec<_>>(),
                "attributes": node.attributes.iter().map(attribute).collect::<Vec<_>>(),
            })
        })
        .collect();
    let port = |id: &ValueId| {
        let value = body.value(*id);
        let shape = value.shape().map(|dims| {
            dims.iter().map(|dim| dim.size().map_or(json!(dim.to_string()), |n| json!(n))).collect::<Vec<_>>()
        });
        json!({"name": value.name, "type": value.element().map(|element| element.onnx_code()), "shape": shape})
    };
    json!({
        "values": values, "nodes": nodes,
        "inputs": body.inputs.iter().map(port).collect::<Vec<_>>(),
        "outputs": body.outputs.iter().map(port).collect::<Vec<_>>(),
    })
}

fn origin(value: &Value) -> Option<Json> {
    match &value.origin {
        Origin::Weight(weight) => {
            let views: Vec<Json> = weight.views.iter().map(view).collect();
            let shape: Option<Vec<u64>> = value.shape()?.iter().map(|dim| dim.size()).collect();
            Some(json!({"name": value.name, "tensor": weight.tensor, "views": views, "shape": shape}))
        }
        Origin::Constant(constant) => Some(json!({"name": value.name, "constant": data(constant)})),
        _ => None,
    }
}

fn view(view: &View) -> Json {
    match view {
        View::Transposed(order) => json!(["transposed", order]),
        View::Slice { axis, start, len } => json!(["slice", axis, start, len]),
        View::Reshaped(shape) => json!(["reshaped", shape]),
        View::Joined { axis, with } => json!(["joined", axis, with]),
        View::Stacked(with) => json!(["stacked", with]),
        View::Plus(number) => json!(["plus", number]),
    }
}

fn data(constant: &Constant) -> Json {
    let bytes = match &constant.data {
        ConstantData::Bytes(bytes) => bytes.clone(),
        ConstantData::Texts(_) => Vec::new(),
    };
    json!({"type": constant.element.onnx_code(), "shape": constant.shape, "bytes": bytes})
}

fn attribute(attribute: &Attribute) -> Json {
    let value = match &attribute.value {
        AttributeValue::Int(value) => json!({"int": value}),
        AttributeValue::Float(value) => json!({"float": value}),
        AttributeValue::Text(bytes) => json!({"text": String::from_utf8_lossy(bytes)}),
        AttributeValue::Ints(values) => json!({"ints": values}),
        AttributeValue::Floats(values) => json!({"floats": values}),
        AttributeValue::Tensor(constant) => json!({"tensor": data(constant)}),
        other => json!({"unknown": format!("{other:?}")}),
    };
    json!([&*attribute.name, value])
}
