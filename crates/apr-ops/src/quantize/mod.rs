//! Quantization: which tensor gets which type, with what importance, and how types are added.
//!
//! [`assign`] gives every tensor of a model its type. For ggml's types it does what llama.cpp's quantizer does, tensor
//! by tensor, so that a model quantized here is the one that llama-quantize makes. [`Imatrix`] reads the importance that
//! llama.cpp measured, [`importance_from_csv`] gets what little sample data alone tell, and [`plugin`] is the interface
//! for types of one's own.

mod calibration;
mod category;
mod facts;
mod idle;
mod imatrix;
mod mix;
mod plan;
pub mod plugin;
mod record;
mod role;
mod rules;
mod scheme;

#[cfg(test)]
mod tests;

pub use calibration::{ColumnStatistics, importance_from_csv};
pub use category::Kept;
pub use facts::ModelFacts;
pub use imatrix::{Imatrix, Importance};
pub use mix::{Candidate, Casts, Choices, Decision, Reason, assign};
pub use plan::{Quantization, QuantizationPlan, Weighting, plan};
pub use record::{QUANTIZATION, file_type_name, place, record, record_cast, record_dequantized, recorded_scheme};
pub use role::Role;
pub use scheme::{Scheme, SchemeKind, UnknownType, parse_dtype};
