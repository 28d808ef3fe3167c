//! Low-rank factorization: a matrix becomes the product of two smaller ones.
//!
//! A [`Factorization`] says how much is kept: a rank, or a share of the energy, which is the sum of
//! the squared singular values. [`plan`] decides by the model's family which weights are
//! factorized, and leaves alone where that saves nothing. [`FactorPlan::apply`] decomposes one
//! matrix after the other ([`truncated_svd`]) and gives a checkpoint whose tensors are read as
//! their products, in the [form](apr_core::StoredForm::FACTORS) that the native container stores
//! factors in: whatever converts, quantizes or runs a checkpoint takes it.
//!
//! [`extract`] decomposes what a tuned model has more than its base, and gives a LoRA adapter.
//!
//! ```
//! use apr_arch::Families;
//! use apr_core::{Limits, Serial};
//! use apr_lowrank::{Factorization, InMemory, plan};
//! use apr_source::Source;
//!
//! // Each row is a multiple of the first.
//! let header = br#"{"a.weight":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! let values = (1..=4_u8).flat_map(|row| (1..=6_u8).map(move |column| f32::from(row * column)));
//! file.extend(values.flat_map(f32::to_le_bytes));
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! let families = Families::builtin();
//! let planned = plan(&Source::new(&*model, &families), Factorization::to_rank(1))?;
//! let (model, report) = planned.apply(model, Box::new(InMemory::default()), &Serial, &())?;
//! assert_eq!((report.tensors[0].bytes_before, report.tensors[0].bytes), (96, 48));
//! let last = apr_view::values::read(&*model, 0, 23..24)?[0];
//! assert!((last - 24.0).abs() < 1e-4);
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod adapter;
mod extract;
mod factored;
mod matrix;
mod plan;
mod report;
#[cfg(feature = "linalg")]
pub mod second_order;
mod store;
mod svd;
mod within_memory;

pub use adapter::{Adapter, AdapterBytes};
pub use extract::{ExtractReport, ExtractedTensor, Extraction, extract};
pub use plan::{Amount, FactorPlan, Factorization, Method, plan};
pub use report::{
    FactorReport, FactorTotal, FactorizedTensor, Left, RoundedTensor, RoundingReport,
};
pub use store::{FactorStore, InMemory};
pub use svd::{Extent, Svd, check_available, memory, product_svd, truncated_svd};
pub use within_memory::run_within_memory;
