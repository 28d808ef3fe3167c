//! Nodes: an operator, what it reads and makes, its attributes.

use std::fmt;
use std::sync::Arc;

use crate::{Body, Constant, ValueId, ValueType, WeightRef};

/// A name that many nodes share, such as an operator's.
pub type Name = Arc<str>;

/// An operator, or a function of the graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op {
    /// Domain of the operator; empty for ONNX itself, which files may also call `ai.onnx`.
    pub domain: Name,
    /// Name within the domain: `MatMul`.
    pub name: Name,
    /// Variant of a function if several have the same name; nearly always empty.
    pub overload: Name,
}

impl Op {
    /// An operator of ONNX.
    #[must_use]
    pub fn onnx(name: &str) -> Self {
        Self::new("", name)
    }

    /// An operator of a domain.
    #[must_use]
    pub fn new(domain: &str, name: &str) -> Self {
        let domain = if domain == "ai.onnx" { "" } else { domain };
        Self { domain: domain.into(), name: name.into(), overload: "".into() }
    }

    /// Returns `true` if this is the ONNX operator with the given name.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.domain.is_empty() && &*self.name == name
    }
}

/// Returns the program that an operator domain belongs to, if its operators have no counterpart in
/// ONNX.
///
/// Graphs of other formats show such operators as their files store them.
///
/// ```
/// assert_eq!(apr_graph::foreign("tflite"), Some("TensorFlow Lite"));
/// assert_eq!(apr_graph::foreign("com.microsoft"), None);
/// ```
#[must_use]
pub fn foreign(domain: &str) -> Option<&'static str> {
    Some(match domain {
        "coreml" => "Core ML",
        "keras" => "Keras",
        "lightgbm" => "LightGBM",
        "openvino" => "OpenVINO",
        "tensorflow" => "TensorFlow",
        "tflite" => "TensorFlow Lite",
        "xgboost" => "XGBoost",
        _ => return None,
    })
}

impl fmt::Display for Op {
    /// `MatMul`, or `com.microsoft::MatMulNBits`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.domain.is_empty() {
            write!(f, "{}::", self.domain)?;
        }
        f.write_str(&self.name)?;
        if !self.overload.is_empty() {
            write!(f, ":{}", self.overload)?;
        }
        Ok(())
    }
}

/// A step of the computation.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Path within the body: `attention/scores`. May be empty in files of others.
    pub name: String,
    /// Operator of the node.
    pub op: Op,
    /// Inputs; `None` for an omitted optional input.
    pub inputs: Vec<Option<ValueId>>,
    /// Outputs; `None` for an optional output that is not used.
    pub outputs: Vec<Option<ValueId>>,
    /// Attributes, in the order of the file.
    pub attributes: Vec<Attribute>,
    /// A note for people.
    pub doc: String,
}

impl Node {
    /// The value of an attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes
            .iter()
            .find(|attribute| &*attribute.name == name)
            .map(|attribute| &attribute.value)
    }

    /// Returns the tensor of the checkpoint that a `Constant` node outputs.
    ///
    /// Small constants are in the node itself.
    pub(crate) fn constant_weight(&self) -> Option<&WeightRef> {
        match self.attribute("value") {
            Some(AttributeValue::Weight(weight)) if self.op.is("Constant") => Some(weight),
            _ => None,
        }
    }

    /// An attribute that is an integer.
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            AttributeValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// An attribute that is a list of integers.
    #[must_use]
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name)? {
            AttributeValue::Ints(values) => Some(values),
            _ => None,
        }
    }

    /// An attribute that is a float.
    #[must_use]
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name)? {
            AttributeValue::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// An attribute that is a text in UTF-8.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            AttributeValue::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Returns the input at a position, or `None` if it does not exist or is omitted.
    #[must_use]
    pub fn input(&self, position: usize) -> Option<ValueId> {
        self.inputs.get(position).copied().flatten()
    }

    /// The bodies in its attributes: branches, loops.
    pub fn bodies(&self) -> impl Iterator<Item = &Body> {
        self.attributes.iter().flat_map(|attribute| attribute.value.bodies())
    }
}

/// A setting of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// Name that the operator gives it.
    pub name: Name,
    /// Value of the attribute.
    pub value: AttributeValue,
}

/// The value of an attribute (`AttributeProto` in `onnx.proto`).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AttributeValue {
    /// Integer.
    Int(i64),
    /// A number with a fraction.
    Float(f32),
    /// Text: bytes that should be UTF-8.
    Text(Vec<u8>),
    /// A small tensor.
    Tensor(Constant),
    /// A tensor of the checkpoint.
    Weight(WeightRef),
    /// A body that the node runs.
    Body(Box<Body>),
    /// Type of a value.
    Type(ValueType),
    /// List of integers.
    Ints(Vec<i64>),
    /// Numbers with fractions.
    Floats(Vec<f32>),
    /// List of texts.
    Texts(Vec<Vec<u8>>),
    /// List of small tensors.
    Tensors(Vec<Constant>),
    /// Bodies that the node runs.
    Bodies(Vec<Body>),
    /// List of types.
    Types(Vec<ValueType>),
    /// Within a function: the attribute of the call that has this name.
    OfCall(Name),
    /// Value that this crate does not parse, such as a sparse tensor, as the message's bytes in the
    /// file.
    Opaque(Vec<u8>),
}

impl AttributeValue {
    /// The bodies in it.
    #[must_use]
    pub fn bodies(&self) -> &[Body] {
        match self {
            Self::Body(body) => std::slice::from_ref(body),
            Self::Bodies(bodies) => bodies,
            _ => &[],
        }
    }
}

impl From<i64> for AttributeValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f32> for AttributeValue {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for AttributeValue {
    fn from(value: &str) -> Self {
        Self::Text(value.as_bytes().to_vec())
    }
}

impl From<Vec<i64>> for AttributeValue {
    fn from(values: Vec<i64>) -> Self {
        Self::Ints(values)
    }
}

impl<const N: usize> From<[i64; N]> for AttributeValue {
    fn from(values: [i64; N]) -> Self {
        Self::Ints(values.to_vec())
    }
}

impl From<Constant> for AttributeValue {
    fn from(value: Constant) -> Self {
        Self::Tensor(value)
    }
}

impl From<Body> for AttributeValue {
    fn from(body: Body) -> Self {
        Self::Body(Box::new(body))
    }
}
