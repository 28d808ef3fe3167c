//! Adapters (LoRA, DoRA, LoHa, LoKr) merged into a model.
//!
//! An [`Adapted`] is a checkpoint like any other, to be converted, quantized or run.
//!
//! ```
//! use std::sync::Arc;
//!
//! use apr::lora::{AdaptOptions, Adapted, Adapter};
//! use apr::{CheckpointReader, Result};
//!
//! # #[allow(dead_code)]
//! fn changed(base: Arc<dyn CheckpointReader>, lora: Arc<dyn CheckpointReader>) -> Result<usize> {
//!     let adapter = Adapter { name: "lora".into(), reader: lora, weight: 0.8 };
//!     let adapted = Adapted::plan(base, "base", &[adapter], AdaptOptions::default())?;
//!     Ok(adapted.report().changed)
//! }
//! ```

pub use apr_lora::{
    AdaptOptions, AdaptReport, Adapted, Adapter, MergedAdapter, PortedAdapter, SecondMatrices,
};
#[cfg(feature = "lowrank")]
pub use apr_lora::{
    Combination, CombineMethod, CombineReport, CombinedModule, MajoritySign, combine,
};
