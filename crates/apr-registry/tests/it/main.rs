//! The facade from outside.

mod gguf;
mod streaming;
mod tensor_reader;
