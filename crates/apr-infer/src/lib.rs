//! Runs graphs: every operator by its meaning in the version of ONNX that the graph states, with
//! every value on tap.
//!
//! [`Engine::prepare`] looks at all nodes before anything runs, and names operators that it does
//! not know. [`Session::run`] runs the nodes in order and lets values go after their last use.
//! Weights stay in the checkpoint: a large one is decoded a panel at a time, where a matrix product
//! needs it. A [`Tap`] sees what each node makes.
//!
//! Threads come from the caller, as [`Workers`]. Every piece of work gives the same result on any
//! thread, so that results do not depend on their number.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![allow(
    clippy::cast_possible_truncation,
    reason = "sizes of tensors in memory fit usize, and casts of elements are cut off by ONNX's \
        rules"
)]

mod action;
mod call;
mod cast;
mod chain;
mod constant;
mod convert;
mod engine;
mod kv_cache;
mod language;
mod live;
mod machine;
mod matrix;
mod mini_float;
mod moving;
mod operator;
mod ops;
mod plan;
mod pool;
mod registry;
mod sampling;
mod session;
mod shape;
mod store;
mod tap;
mod targets;
mod tensor;
mod value;
mod wanted;
mod weight;
mod workers;

pub use engine::{Engine, Outcome};
pub use kv_cache::{CacheType, CachedHeads};
pub use language::{Batch, LanguageModel, Memory};
pub use registry::operators;
pub use sampling::{Sampler, Sampling};
pub use session::{Arithmetic, RunLimits, Session};
pub use tap::{Flow, Step, Tap, Unwatched};
pub use tensor::{Data, Element, Tensor};
pub use value::{Value, WeightHandle};
pub use workers::{Alone, Workers};
