//! Kinds of models: how the blocks are put together.

pub(crate) mod decoder;
pub(crate) mod head;
