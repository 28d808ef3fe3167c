//! The facade from outside.

mod folder;
mod gguf;
mod streaming;
mod tensor_reader;
mod wrapped;
