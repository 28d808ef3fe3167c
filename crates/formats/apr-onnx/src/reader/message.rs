//! What a file holds.

use crate::proto::{Model, Tensor};

/// The content of a file: a model or a single tensor.
#[derive(Debug)]
pub(super) enum Message {
    Model(Box<Model>),
    /// A tensor alone.
    Tensor(Box<Tensor>),
}
