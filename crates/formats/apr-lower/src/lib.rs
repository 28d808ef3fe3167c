//! Writes graphs of other programs in the operators of ONNX: what the lowerings of Keras,
//! TensorFlow, TensorFlow Lite, Core ML and OpenVINO share.
//!
//! Images of these programs are `[batch, height, width, channels]`, and ONNX's convolutions and
//! pools take `[batch, channels, height, width]`. A value has both orders where both are asked for,
//! so that a chain of convolutions is transposed at its ends alone; weights are looked at in the
//! other order. Sequences `[batch, length, channels]` and volumes have two orders likewise.
//!
//! The files of Keras and TensorFlow state few shapes, so that a [`Writer`] infers those of what it
//! has written ([`apr_graph::IncrementalInference`]).
//!
//! ```
//! use apr_graph::{Dim, ElementType, ValueType};
//! use apr_lower::{Order, Placed, Writer};
//!
//! let mut writer = Writer::new();
//! let image = [Dim::symbol("batch"), Dim::fixed(8), Dim::fixed(6), Dim::fixed(3)];
//! let x = writer.input("x", &ValueType::tensor(ElementType::F32, image));
//! let turned = writer.ordered(x, Order::ChannelsFirst).expect("an image");
//! let y = writer.main.op("GlobalAveragePool", [turned]).output("y/nchw");
//! let y = writer.ordered(Placed::channels_first(y), Order::Natural).expect("an image");
//! assert_eq!(writer.shape(y).expect("a shape")[3], Dim::fixed(3));
//! writer.output("y", y);
//! assert_eq!(writer.finish().body.nodes.len(), 3);
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod gelu;
mod numbers;
mod order;
mod padding;
mod writer;

use std::collections::BTreeMap;

use apr_graph::Constant;

pub use gelu::Gelu;
pub use numbers::{floats, ints};
pub use order::{Order, Placed, to_channels_first, to_natural};
pub use padding::{Padding, Window};
pub use writer::{Writer, with};

/// The version of ONNX's operators that graphs are written in.
pub const OPSET: i64 = 18;

/// Names of the operators of a graph that can't be translated, with their counts.
pub type Untranslated = BTreeMap<String, u64>;

/// Access to the values of a checkpoint's tensors, for a lowering.
pub trait Weights {
    /// A small tensor: a shape, axes, one number. `None` for one that is too large, or missing.
    fn constant(&self, tensor: &str) -> Option<Constant>;
}
