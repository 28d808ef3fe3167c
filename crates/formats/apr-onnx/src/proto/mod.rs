//! ONNX's messages as plain structs, without the data of tensors.
//!
//! Field numbers are those of `onnx.proto`. A message that appears twice where one is expected is
//! merged, as protobuf says: scalars are replaced, lists go on. Fields that are not listed here are
//! skipped.

mod entries;
mod function;
mod graph;
mod model;
mod node;
mod tensor;
mod types;
mod walk;

pub use entries::{OperatorSet, Property};
pub use function::Function;
pub use graph::{Graph, QuantizationAnnotation};
pub use model::Model;
pub use node::{Attribute, AttributeKind, Node};
pub(crate) use tensor::shape;
pub use tensor::{SparseTensor, Tensor, Typed};
pub use types::{Dimension, Type, TypeKind, ValueInfo};
