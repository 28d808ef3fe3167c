//! Between Hugging Face's checkpoints and llama.cpp's: names, layouts, hyperparameters and tokenizers, both ways.
//!
//! What differs from family to family stands in the families' tables (`[gguf]`); here is what they have in common. One
//! format keeps in files beside the weights what the other keeps in key-value pairs.

mod companions;
mod described;
pub mod export;
mod hyperparameters;
pub mod import;
mod rope;

pub use companions::{from_gguf, is_in_gguf_layout, to_gguf};
pub use described::describe;
pub use export::{GgufExport, export, file_type};
pub use import::{Restored, described, restore};
