//! The whole: versions of operators, functions, the main body.

use crate::{Attribute, Body, Name, Op};

/// What a model computes.
///
/// See the crate's page for an example.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Which version of its operators each domain has.
    pub opsets: Vec<Opset>,
    /// What nodes may call besides operators.
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
    /// Who defines them; empty for ONNX itself.
    pub domain: Name,
    /// Which version.
    pub version: i64,
}

/// A body that nodes call by its name. It has no weights of its own: they are inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// What a node that calls it has as its operator.
    pub op: Op,
    /// Versions of the operators in it; empty: those of the graph.
    pub opsets: Vec<Opset>,
    /// Attributes that a call may have without a default.
    pub required: Vec<Name>,
    /// Attributes that a call may leave out, with their values then.
    pub defaults: Vec<Attribute>,
    /// What it computes.
    pub body: Body,
    /// A note for people.
    pub doc: String,
}

impl Graph {
    /// The version of a domain's operators; `None` where the graph does not use the domain.
    #[must_use]
    pub fn opset(&self, domain: &str) -> Option<i64> {
        self.opsets.iter().find(|opset| &*opset.domain == domain).map(|opset| opset.version)
    }

    /// The function that an operator calls, where it is one.
    #[must_use]
    pub fn function(&self, op: &Op) -> Option<&Function> {
        self.functions.iter().find(|function| function.op == *op)
    }
}
