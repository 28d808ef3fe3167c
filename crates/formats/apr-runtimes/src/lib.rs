//! Models as runtimes keep them, read as tensors and graphs: onnxruntime's own format ([`ort`]),
//! OpenVINO ([`openvino`]), and [`trees`] of XGBoost and LightGBM.
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/ort/model.ort");
//! # let file = std::fs::read(path).expect("the fixture");
//! let reader = apr_runtimes::ort::open(file, "model.ort", &Limits::default())?;
//! assert!(reader.tensors().iter().any(|info| info.name == "bias"));
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod openvino;
pub mod ort;
pub mod trees;
