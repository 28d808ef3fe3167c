//! What a file holds.

use crate::proto::{Model, Tensor};

/// What a file holds.
#[derive(Debug)]
pub(super) enum Message {
    Model(Box<Model>),
    /// A tensor alone.
    Tensor(Box<Tensor>),
}
