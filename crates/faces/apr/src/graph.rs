//! Graphs of models, of ONNX's operators: shapes, costs and images of them.

pub use apr_blocks::{GraphOptions, LatentCache};
pub use apr_graph::{
    Attribute, AttributeValue, Body, Constant, ConstantData, Cost, Dim, ElementType, Function,
    Graph, Inference, Meaning, Name, Node, NodeId, Op, Opset, Sizes, TensorType, Totals, Value,
    ValueId, ValueOrigin, ValueType, WeightRef, cost, infer,
};
pub use apr_graph::{draw, upgrade};
pub use apr_ops::graph::{Computed, GraphPart};
