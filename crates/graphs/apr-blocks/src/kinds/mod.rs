//! Kinds of models: how the blocks are put together.

pub(crate) mod decoder;
pub(crate) mod dual;
pub(crate) mod encoder;
pub(crate) mod encoder_decoder;
pub(crate) mod head;
pub(crate) mod image_features;
pub(crate) mod sound;
pub(crate) mod stack;
pub(crate) mod stages;
pub(crate) mod state_space;
pub(crate) mod vision;
pub(crate) mod whole;
pub(crate) mod windows;
