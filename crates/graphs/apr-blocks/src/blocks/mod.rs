//! The blocks. Each states what it computes and where that is defined.

pub(crate) mod activation;
pub(crate) mod alibi;
pub(crate) mod attention;
pub(crate) mod between;
pub(crate) mod convolution;
pub(crate) mod disentangled;
pub(crate) mod embeddings;
pub(crate) mod experts;
pub(crate) mod feed_forward;
pub(crate) mod frequencies;
pub(crate) mod grid;
pub(crate) mod heads;
pub(crate) mod latent;
pub(crate) mod layer;
pub(crate) mod linear;
pub(crate) mod maps;
pub(crate) mod mask;
pub(crate) mod norm;
pub(crate) mod places;
pub(crate) mod relative;
pub(crate) mod rotary;
pub(crate) mod short_convolution;
pub(crate) mod sinusoids;
pub(crate) mod state_space;
pub(crate) mod windows;
