//! Models of serde types, one in a file.

pub use apr_format::aprn::{Andon, LoadOptions, ModelInfo, ModelType, SaveOptions};
pub use apr_io::typed::*;
