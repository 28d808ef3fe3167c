//! A pickle machine that builds plain values and calls nothing.

pub(crate) mod blobs;
pub(crate) mod build;
pub(crate) mod by_call;
pub(crate) mod dangers;
pub(crate) mod derived;
pub(crate) mod element;
pub(crate) mod encode;
pub(crate) mod globals;
pub(crate) mod numpy;
pub(crate) mod opcode;
pub(crate) mod shown;
pub(crate) mod survey;
pub(crate) mod sweep;
pub(crate) mod text;
pub(crate) mod torchao;
pub(crate) mod uses;
pub(crate) mod value;
pub(crate) mod vm;

pub(crate) use value::{Derived, Heap, Id, Indices, Node, Scale, Sparse, Storage, Tensor};
pub(crate) use vm::{Outcome, Persistent, Policy, run};
