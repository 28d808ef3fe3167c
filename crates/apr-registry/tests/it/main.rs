//! The facade from outside.

mod gguf;
mod streaming;
