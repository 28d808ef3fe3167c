//! Adapters: small matrices that were trained beside a model's weights, and the model with them
//! merged in.
//!
//! [`Adapted`] is a checkpoint over an open base and open [`Adapter`]s, of PEFT (LoRA, rsLoRA,
//! DoRA, LoHa, LoKr, IA3, AdaLoRA, VeRA, VB-LoRA, HRA, OFT, MiSS, FourierFT, LN-tuning), MLX,
//! llama.cpp, diffusers, kohya or LyCORIS: it has the base's tensors and computes their elements as
//! they are read, a block at a time, so that the ordinary passes convert, check and write it like
//! any other. Of an adapter, the matrices of a few tensors are in memory. The arithmetic is that of
//! PEFT 0.21's `merge_and_unload`, as it was observed from outside.
//!
//! [`combine`] makes one adapter of several, or one of a lower rank.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod adapted;
mod adapter;
mod bank;
mod beside;
mod combine;
mod configuration;
mod form;
mod fourier;
mod image_names;
mod matrix;
mod patterns;
mod plan;
mod ported;
mod report;
mod targets;
mod turn;
mod unet_names;

pub use adapted::{AdaptOptions, Adapted, inputs_first};
pub use adapter::Adapter;
pub use combine::{
    Combination, CombineMethod, CombineReport, CombinedModule, MajoritySign, combine,
};
pub use ported::{PortedAdapter, SecondMatrices};
pub use report::{AdaptReport, MergedAdapter};
