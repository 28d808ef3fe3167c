//! What a model computes: a graph of ONNX's operators.
//!
//! ```text
//! Graph
//! ├─ opsets       what the operators mean: a version for each domain
//! ├─ functions    bodies that are called: a block that a model repeats is one of them
//! └─ body
//!    ├─ values    inputs, weights, constants, results; each with a type and a symbolic shape
//!    ├─ nodes     in the order they run; each an operator, or a call of a function
//!    └─ inputs, outputs
//! ```
//!
//! A graph holds no weights. A [`Value`] that is a weight names the tensor of the checkpoint, and
//! how it is looked at ([`WeightRef`]). Names are paths, `layers.3/attention/scores`, and stay the
//! same in every view of the graph: a picture, an ONNX file, a trace.
//!
//! Operators are those of ONNX, at the version that the graph states. What an operator means is in
//! <https://onnx.ai/onnx/operators/>.
//!
//! ```
//! use apr_graph::{Dim, ElementType, GraphBuilder, Meaning};
//!
//! let mut graph = GraphBuilder::new(17);
//! let main = graph.body();
//! let ids = main.input(
//!     "input_ids",
//!     ElementType::I64,
//!     [Dim::symbol("batch"), Dim::symbol("sequence")],
//!     Meaning::TokenIds,
//! );
//! let table = main.weight("token_embedding", ElementType::F32, [1003, 320]);
//! let embedded =
//!     main.scope("embeddings", |main| main.op("Gather", [table, ids]).output("tokens"));
//! main.output("embedded", embedded, Meaning::HiddenStates);
//!
//! let graph = graph.finish();
//! assert_eq!(graph.body.nodes[0].name, "embeddings/tokens");
//! ```
//!
//! # How shapes are inferred
//!
//! `apr-graph` has ONNX's operators as data: `operators/*.txt`, generated from the schemas of
//! `onnx` and `onnxruntime`, list the inputs of each version. A list in the file of each kind of
//! operator (`operators/convolution.rs`, ...) names its shape rule. `infer` walks over each body
//! once. Element types come from the table, and shapes from the rules. Small integer tensors are
//! followed element by element, as polynomials over the symbols, so that computed shapes are
//! known. A function is followed once for each kind of call. Depth, repeated work and the memory
//! of shapes are bounded. `check` finds the errors of `onnx.checker`, `cost` counts with the types
//! of `infer`, and `inline` and `upgrade` make equivalent graphs.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod body;
mod builder;
mod check;
mod cost;
mod dim;
pub mod draw;
mod either;
mod element;
mod finding;
mod gradient;
mod graph;
mod infer;
mod inline;
mod meaning;
mod node;
mod operators;
pub mod outline;
mod upgrade;
mod uses;
mod value;

pub use body::{Body, NodeId, ValueId};
pub use builder::{BodyBuilder, GraphBuilder, NodeBuilder};
pub use check::check;
pub use cost::{Activations, Cost, FunctionCost, NodeCost, Sizes, Totals, activations, cost};
pub use dim::Dim;
pub use either::either;
pub use element::ElementType;
pub use finding::{Finding, Findings, Severity};
pub use gradient::{Gradient, Intermediates, gradient};
pub use graph::{Function, FunctionId, Graph, Opset};
pub use infer::{IncrementalInference, Inference, MAX_DEPTH, Signature, infer};
pub use inline::inline;
pub use meaning::Meaning;
pub use node::{Attribute, AttributeValue, Name, Node, Op, foreign};
pub use operators::{AttributeKind, Occurs, Operator, Parameter, Setting, TypeSet, first_cast};
pub use upgrade::upgrade;
pub use uses::{Use, uses};
pub use value::{
    Constant, ConstantData, MAX_RANK, TensorType, Value, ValueOrigin, ValueType, View, WeightRef,
};
