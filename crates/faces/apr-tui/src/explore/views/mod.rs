//! The views, one in a file: the keys that each has of its own, what it asks for, how it is drawn.

pub(super) mod checks;
pub(super) mod compare;
pub(super) mod filter;
pub(super) mod graph;
pub(super) mod histogram;
pub(super) mod list;
pub(super) mod path;
pub(super) mod stats;
pub(super) mod tensors;
pub(super) mod trace;
pub(super) mod values;
pub(super) mod vocabulary;
