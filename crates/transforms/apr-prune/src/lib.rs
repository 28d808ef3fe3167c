//! Pruning: weights become zero, and the model computes almost what it did.
//!
//! A [`Pruning`] says how much, and by what measure: the smallest magnitudes of each tensor or of
//! all, what is below a threshold, or all but `n` of every `m` weights of a row. With the
//! activations of a calibration run, magnitudes are weighed by the norm of the column's inputs
//! (Wanda, Sun et al. 2023, arXiv:2306.11695), and each row loses its share. With gradients,
//! magnitudes are weighed one by one (Theis et al. 2018, arXiv:1801.05787).
//!
//! [`plan`] decides what is pruned by the model's family. [`PrunePlan::apply`] finds the
//! thresholds, in a few passes over the weights and a bounded amount of memory, and gives a
//! checkpoint that is pruned as it is read: whatever converts, quantizes or runs a checkpoint takes
//! it. [`plan_layers`] drops whole layers, [`plan_widths`] attention heads and neurons, and
//! [`sparsify`] stores what has many zeros without them.
//!
//! ```
//! use apr_arch::Families;
//! use apr_core::{Limits, Serial};
//! use apr_prune::{Amount, Pruning, Scope, plan};
//! use apr_source::Source;
//!
//! let header = br#"{"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend([1.0_f32, -0.1, 3.0, 0.2].iter().flat_map(|value| value.to_le_bytes()));
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! let families = Families::builtin();
//! let half = Pruning::new(Amount::Share { share: 0.5, scope: Scope::Tensor });
//! let planned = plan(&Source::new(&*model, &families), half)?;
//! let (pruned, report) = planned.apply(model, &Serial, &())?;
//! assert_eq!(report.tensors[0].zeros, 2);
//! assert_eq!(apr_view::values::read(&*pruned, 0, 0..4)?, [1.0, 0.0, 3.0, 0.0]);
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod configuration;
mod cut;
mod layers;
mod mask;
mod plan;
mod pruned;
mod report;
#[cfg(feature = "second-order")]
pub mod second_order;
mod sparse;
mod weights;
mod widths;

pub use apr_tensor::sparse::SparseLayout;
pub use configuration::Configuration;
pub use layers::{LayerChoice, LayerPlan, LayerReport, least_influential, plan_layers};
pub use plan::{Amount, Left, PrunePlan, Pruning, Scope, plan};
pub use report::{PruneReport, PruneTotal, PrunedTensor};
pub use sparse::{SparseReport, SparseTensor, Sparsity, sparsify};
pub use widths::{
    Gradients, LayerWidth, UnitKind, UnitTensor, WidthChoice, WidthPlan, WidthReport, plan_widths,
    unit_tensors,
};
