//! Checkpoints to and from GGUF: what one format keeps in files beside the weights, the other keeps in key-value pairs.

pub mod tokenizer;
