//! Whole models.

mod gguf;
mod limits;
mod support;
