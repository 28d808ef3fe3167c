//! The formats, by name.
//!
//! ```
//! use apr::format;
//!
//! assert_eq!(format::recognise(b"APR2").map(|format| format.id), Some(format::APR2.id));
//! assert!(format::writable().any(|format| format == &format::SAFETENSORS));
//! ```

pub use apr_format::apr1::FORMAT as APR1;
pub use apr_format::apr2::FORMAT as APR2;
#[cfg(feature = "typed")]
pub use apr_format::aprn::FORMAT as APRN;
#[cfg(feature = "formats")]
pub use apr_registry::coreml::{MODEL as COREML, PACKAGE as COREML_PACKAGE};
#[cfg(feature = "formats")]
pub use apr_registry::flax::FORMAT as FLAX;
#[cfg(feature = "formats")]
pub use apr_registry::gguf::FORMAT as GGUF;
#[cfg(feature = "formats")]
pub use apr_registry::gguf::ggml::FORMAT as GGML;
#[cfg(feature = "formats")]
pub use apr_registry::keras::{ARCHIVE as KERAS, HDF5};
#[cfg(feature = "formats")]
pub use apr_registry::lightgbm::FORMAT as LIGHTGBM;
#[cfg(feature = "formats")]
pub use apr_registry::numpy::{NPY, NPZ};
#[cfg(feature = "formats")]
pub use apr_registry::onnx::FORMAT as ONNX;
#[cfg(feature = "formats")]
pub use apr_registry::openvino::FORMAT as OPENVINO;
#[cfg(feature = "formats")]
pub use apr_registry::orbax::FORMAT as ORBAX;
#[cfg(feature = "formats")]
pub use apr_registry::ort::FORMAT as ORT;
#[cfg(feature = "formats")]
pub use apr_registry::pytorch::FORMAT as PYTORCH;
pub use apr_registry::safetensors::FORMAT as SAFETENSORS;
#[cfg(feature = "formats")]
pub use apr_registry::tensorflow::{
    CHECKPOINT as TENSORFLOW_CHECKPOINT, GRAPH as TENSORFLOW_GRAPH, JS as TENSORFLOW_JS,
    SAVED_MODEL,
};
#[cfg(feature = "formats")]
pub use apr_registry::tflite::FORMAT as TFLITE;
#[cfg(feature = "formats")]
pub use apr_registry::torchscript::FORMAT as TORCHSCRIPT;
#[cfg(feature = "formats")]
pub use apr_registry::vectors::{FASTTEXT, WORD2VEC};
#[cfg(feature = "formats")]
pub use apr_registry::xgboost::FORMAT as XGBOOST;
pub use apr_registry::{
    formats as all, recognise, recognise_file, target_by_extension, targets as writable,
};
