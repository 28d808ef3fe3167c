//! Whole models.

mod gguf;
mod keys;
mod limits;
mod support;
