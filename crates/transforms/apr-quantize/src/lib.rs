//! Quantization: which tensor gets which type, with what importance, and how types are added.
//!
//! [`assign`] gives every tensor of a model its type. For ggml's types it does what llama.cpp's
//! quantizer does, tensor by tensor, so that a model quantized here is the one that llama-quantize
//! makes. [`Imatrix`] reads the importance that llama.cpp measured, [`importance_from_csv`] gets
//! what little sample data alone show, and [`plugin`] is the interface for types of your own. A
//! [`Recode`](recode::Recode) takes a tensor to its type, a chunk at a time, and a
//! [`QuantizationReport`] reports how far that moved its values.
//!
//! ```
//! use apr_core::DType;
//! use apr_quantize::{Candidate, Choices, ModelFacts, Scheme, assign};
//!
//! let tensors = [
//!     Candidate::new("blk.0.attn_q.weight", DType::F32, [256, 256]),
//!     Candidate::new("blk.0.attn_norm.weight", DType::F32, [1, 256]),
//! ];
//! let decisions = assign(&tensors, &ModelFacts::default(), &Choices::new(Scheme::Q8_0))?;
//! assert_eq!(decisions[0].dtype, DType::Q8_0);
//! # Ok::<(), apr_core::Error>(())
//! ```
//!
//! # How a model is quantized
//!
//! `apr_quantize::plan` gives every tensor a target. `Scheme` is the type that the user requested.
//! `mix.rs` has llama.cpp's rules over GGUF tensor names, which the family provides, and
//! `imatrix.rs` has the importance. The conversion has a `Recode` for each tensor that changes its
//! encoding (`apr-quantize/src/recode.rs`). `produce` decodes some eight thousand elements at a
//! time. It quantizes, dequantizes and compares them while they are in the first-level cache, so
//! that the error report requires no second read. `consume` writes and accumulates. A NaN ends the
//! job at the end of the tensor, and a `QualityGate` ends it before the output appears.
//!
//! The kernels are in `apr-tensor/src/block`. ggml's results depend on the order of its
//! floating-point operations, so operations must not be reassociated. A kernel works on several
//! blocks or sub-blocks in parallel, one per lane, each in the reference's order. Kernels are
//! plain loops over arrays, compiled for several instruction sets. A test compares the dispatched
//! version with the plain one, and goldens compare both with ggml.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod calibration;
mod candidate;
mod category;
mod choices;
mod facts;
mod idle;
mod imatrix;
mod layout;
mod like;
mod mix;
mod plan;
pub mod plugin;
mod quality;
pub mod recode;
mod record;
mod role;
mod rules;
mod scheme;

#[cfg(test)]
mod tests;

pub use calibration::{ColumnStatistics, importance_from_csv};
pub use candidate::Candidate;
pub use category::Kept;
pub use choices::{Casts, Choices};
pub use facts::ModelFacts;
pub use idle::{idle_requantize, nothing_changes};
pub use imatrix::{
    ColumnSums, Imatrix, ImatrixSums, Importance, LayerStatistics, WeightStatistics,
    layer_statistics,
};
pub use layout::{
    Chosen, Laid, LaidErrors, Layout, LayoutRule, LeftReason, LeftWeight, Rounded, Rounding, Scale,
    TensorType, global_scale, joined,
};
pub use like::QuantizedLike;
pub use mix::{Decision, DecisionReason, assign, check_again};
pub use plan::{Quantization, QuantizationPlan, Weighting, importance, note_of_unweighted, plan};
pub use quality::{
    DEGRADED_ABOVE, Degradation, LOST_ABOVE, LayoutOfWeights, Measured, Quality, QualityGate,
    QualityLog, QuantizationReport, TensorQuality, TypeQuality,
};
pub use recode::TensorTarget;
pub use record::{file_type_name, place, record, record_cast, record_dequantized, recorded_scheme};
pub use role::{Role, measured_expert, measured_names, roles_of};
pub use scheme::{Scheme, SchemeKind, UnknownType, parse_dtype};
