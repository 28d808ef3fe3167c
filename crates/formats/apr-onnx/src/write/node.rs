//! Nodes and their attributes.

use apr_core::{Error, Result};
use apr_graph::{Attribute, AttributeValue, Node, ValueId, ValueType};

use super::body::{Encoder, Scope};
use super::message::Message;
use super::types::{tensor, type_proto};

/// Numbers of `AttributeProto.AttributeType`.
mod kind {
    pub(super) const FLOAT: i64 = 1;
    pub(super) const INT: i64 = 2;
    pub(super) const STRING: i64 = 3;
    pub(super) const TENSOR: i64 = 4;
    pub(super) const GRAPH: i64 = 5;
    pub(super) const FLOATS: i64 = 6;
    pub(super) const INTS: i64 = 7;
    pub(super) const STRINGS: i64 = 8;
    pub(super) const TENSORS: i64 = 9;
    pub(super) const GRAPHS: i64 = 10;
    pub(super) const TYPE: i64 = 13;
    pub(super) const TYPES: i64 = 14;
}

/// Encodes a node as a `NodeProto`.
pub(crate) fn node(
    encoder: &mut Encoder<'_, '_>,
    node: &Node,
    scope: &Scope<'_>,
) -> Result<Message> {
    let mut message = Message::default();
    let name = |value: &Option<ValueId>| value.map_or("", |value| scope.name(value));
    node.inputs.iter().for_each(|value| message.text(1, name(value)));
    node.outputs.iter().for_each(|value| message.text(2, name(value)));
    message.some_text(3, &node.name);
    message.text(4, &node.op.name);
    for attribute in &node.attributes {
        message.message(
            5,
            self::attribute(encoder, attribute, scope).map_err(|error| in_node(&error, node))?,
        );
    }

    message.some_text(6, &node.doc);
    message.some_text(7, &node.op.domain);
    message.some_text(8, &node.op.overload);
    Ok(message)
}

fn in_node(error: &Error, node: &Node) -> Error {
    let message = format!("node '{}' ({}): {}", node.name, node.op, error.message());
    let located = Error::new(error.code(), message);
    error.tensor().map_or(located.clone(), |tensor| located.for_tensor(tensor))
}

/// `AttributeProto`.
pub(crate) fn attribute(
    encoder: &mut Encoder<'_, '_>,
    attribute: &Attribute,
    scope: &Scope<'_>,
) -> Result<Message> {
    let mut message = Message::default();
    if let AttributeValue::Opaque(bytes) = &attribute.value {
        message.encoded(bytes);
        return Ok(message);
    }

    message.text(1, &attribute.name);
    let kind = match &attribute.value {
        AttributeValue::Float(value) => {
            message.float(2, *value);
            kind::FLOAT
        }
        AttributeValue::Int(value) => {
            message.int(3, *value);
            kind::INT
        }
        AttributeValue::Text(value) => {
            message.bytes(4, value);
            kind::STRING
        }
        AttributeValue::Tensor(value) => {
            message.message(5, tensor(value, ""));
            kind::TENSOR
        }
        AttributeValue::Weight(weight) => {
            message.message(5, encoder.weights.tensor(weight, &ValueType::Unknown, "")?);
            kind::TENSOR
        }
        AttributeValue::Body(body) => {
            message.message(6, encoder.graph(body, Some(scope))?);
            kind::GRAPH
        }
        AttributeValue::Type(value) => {
            message.message(14, type_proto(value).unwrap_or_default());
            kind::TYPE
        }
        AttributeValue::OfCall(name) => {
            // The type has to be there, even where the value is the call's.
            message.int(20, encoder.kind_of_call(name));
            message.text(21, name);
            return Ok(message);
        }
        lists => list(encoder, &mut message, lists, scope)?,
    };

    message.int(20, kind);
    Ok(message)
}

/// Attributes of several values. They are not packed: ONNX's messages are of protobuf's second
/// version.
fn list(
    encoder: &mut Encoder<'_, '_>,
    message: &mut Message,
    value: &AttributeValue,
    scope: &Scope<'_>,
) -> Result<i64> {
    match value {
        AttributeValue::Floats(values) => values.iter().for_each(|&value| message.float(7, value)),
        AttributeValue::Ints(values) => values.iter().for_each(|&value| message.int(8, value)),
        AttributeValue::Texts(values) => values.iter().for_each(|value| message.bytes(9, value)),
        AttributeValue::Tensors(values) => {
            values.iter().for_each(|value| message.message(10, tensor(value, "")));
        }
        AttributeValue::Bodies(bodies) => {
            for body in bodies {
                message.message(11, encoder.graph(body, Some(scope))?);
            }
        }
        AttributeValue::Types(values) => {
            values
                .iter()
                .for_each(|value| message.message(15, type_proto(value).unwrap_or_default()));
        }
        _ => {
            return Err(Error::format(
                "this version of apr does not write attributes of this kind",
            ));
        }
    }

    Ok(code(value))
}

/// Returns the number of an attribute's type, or 0 if the value does not determine it.
pub(crate) fn code(value: &AttributeValue) -> i64 {
    match value {
        AttributeValue::Float(_) => kind::FLOAT,
        AttributeValue::Int(_) => kind::INT,
        AttributeValue::Text(_) => kind::STRING,
        AttributeValue::Tensor(_) | AttributeValue::Weight(_) => kind::TENSOR,
        AttributeValue::Body(_) => kind::GRAPH,
        AttributeValue::Floats(_) => kind::FLOATS,
        AttributeValue::Ints(_) => kind::INTS,
        AttributeValue::Texts(_) => kind::STRINGS,
        AttributeValue::Tensors(_) => kind::TENSORS,
        AttributeValue::Bodies(_) => kind::GRAPHS,
        AttributeValue::Type(_) => kind::TYPE,
        AttributeValue::Types(_) => kind::TYPES,
        _ => 0,
    }
}
