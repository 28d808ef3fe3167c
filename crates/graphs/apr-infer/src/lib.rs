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
//!
//! # How a graph runs
//!
//! `apr_infer::Engine` plans every body of a graph once: the operator of each node, the order, and
//! the last use of each value. `ops/` has the operators, one file per kind, as rows of a table:
//! name, first version, function. An operator receives its inputs by value, so that it can change
//! an input in place at its last use. `computes` operators receive 16-bit floats as `f32`; `moves`
//! operators handle every dtype. An operator whose output is larger than its inputs calls
//! `Call::room` first.
//!
//! Weights above 64 KiB stay in the checkpoint. `MatMul`, `Gemm` and `Gather` read rows of them
//! (`matrix/stored.rs`), also through views that only cut, join or turn. Other operators receive
//! them decoded. `DequantizeLinear` and `Transpose` of a weight make another view of it
//! (`value.rs`), not a tensor. The `Store` keeps weights in their stored form if memory allows,
//! and otherwise reads them at every use. `matrix/product.rs` packs 256 columns at a time for
//! every dtype, and the kernels process strips of `f32`. `f32` weights in memory are packed from
//! where they are. With `Arithmetic::Fast`, weights in ggml's blocks are multiplied in their
//! stored form with activations in 8-bit blocks (`matrix/blocks/`): a scalar version, an AVX2
//! version, and an AVX-512 version for several rows, with bit-identical results. One row times a
//! matrix of 16-bit floats widens them in registers (`matrix/halves.rs`). `pool.rs` reuses the
//! buffers of dropped values. Work is cut into pieces that do not depend on the number of threads;
//! `apr_io::Crew` has the threads.
//!
//! The KV cache is not a tensor: it stores rows per head in a growable buffer (`kv_cache.rs`).
//! `Concat` adds to it, `Transpose` is another view of it, and products read rows of `f32`, `f16`
//! or `q8_0` (`matrix/heads.rs`). Every other operator receives it as a tensor.
//!
//! `chain.rs` finds attention that a graph spells out (products, a factor, a mask, softmax,
//! products). It runs as one operation, some queries at a time (`ops/spelled_attention.rs`), with
//! bit-identical results. If a tap or a requested value needs one of its nodes, the nodes run
//! separately. `wanted.rs` finds requested values by name, and within a called function by the
//! path of the call.
//!
//! `apr_ops::graph::with_graphs` brings a model into the form that its graph expects: unchanged if
//! the file has the graph, and under canonical names in Hugging Face's layout if the family has
//! it.
//!
//! `LanguageModel` continues texts token by token with the KV cache. It reads long prompts in
//! pieces, and computes what is behind the last attention for the last tokens alone
//! (`last_rows.rs`). `Memory` holds the KV cache and can be cut to the first tokens.
//!
//! `apr_run` builds on this. A `Runner` has the model's parts and its facts (`Facts`), and
//! `Runner::prepare` prepares a part. `Generator`, `TextEncoder`, `QuestionAnswering`,
//! `Transcriber`, `AudioEncoder` and `ImageEncoder` perform one task each. `Conversation` keeps a
//! history and its memory. `Host` provides what layers 0-2 lack (threads, time, an interrupt,
//! isolation of untrusted tokenizers); `apr_io::NativeHost` implements it for programs. Errors and
//! warnings have a `Remedy`, which the command line words as an option.
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
mod last_rows;
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
pub use kv_cache::{CacheType, CachedHeads, KeptSize, kept_size};
pub use language::{
    Batch, LanguageModel, Memory, PromptRun, TokenRows, prompt_runs, vectors_of_logits,
};
pub use registry::operators;
pub use sampling::Sampler;
pub use session::{Arithmetic, RunLimits, Session};
pub use tap::{Flow, Step, Tap, Unwatched};
pub use tensor::{Data, Element, Tensor};
pub use value::{Value, WeightHandle};
pub use workers::{Alone, Workers};
