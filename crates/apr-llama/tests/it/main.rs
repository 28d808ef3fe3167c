//! Whole models.

mod gguf;
