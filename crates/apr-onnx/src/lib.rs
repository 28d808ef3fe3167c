//! ONNX.
#![forbid(unsafe_code)]

pub mod write;
