//! The points, judged: one function each, by what they are about.

pub(crate) mod behaviour;
pub(crate) mod conversion;
pub(crate) mod files;
pub(crate) mod format;
pub(crate) mod import;
pub(crate) mod merging;
pub(crate) mod numbers;
pub(crate) mod pruning;
pub(crate) mod tooling;
pub(crate) mod values;
