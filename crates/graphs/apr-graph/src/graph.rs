//! The whole: versions of operators, functions, the main body.

use crate::{Attribute, Body, Name, Op};

/// Graph of the operators that a model computes.
///
/// See the crate's page for an example.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Operator version of each domain.
    pub opsets: Vec<Opset>,
    /// Functions that nodes may call besides operators.
    pub functions: Vec<Function>,
    /// The computation.
    pub body: Body,
}

/// Position in [`Graph::functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

/// A version of the operators of a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opset {
    /// Domain of the operators; empty for ONNX itself.
    pub domain: Name,
    /// Version of the operators.
    pub version: i64,
}

/// Body that nodes call by name. It has no weights: weights are passed as inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Operator of the nodes that call the function.
    pub op: Op,
    /// Versions of the operators in the body; if empty, the versions of the graph apply.
    pub opsets: Vec<Opset>,
    /// Attributes that a call may have without a default.
    pub required: Vec<Name>,
    /// Attributes that a call may leave out, with their values then.
    pub defaults: Vec<Attribute>,
    /// Body of the function.
    pub body: Body,
    /// A note for people.
    pub doc: String,
}

impl Graph {
    /// Returns the version of a domain's operators, or `None` if the graph does not use the domain.
    #[must_use]
    pub fn opset(&self, domain: &str) -> Option<i64> {
        self.opsets.iter().find(|opset| &*opset.domain == domain).map(|opset| opset.version)
    }

    /// Returns the function that an operator calls, or `None` if it is not a function.
    #[must_use]
    pub fn function(&self, op: &Op) -> Option<&Function> {
        self.functions.iter().find(|function| function.op == *op)
    }
}
