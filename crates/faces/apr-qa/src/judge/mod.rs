//! The points, judged: one function each, by what they are about.

pub(crate) mod behaviour;
pub(crate) mod conversion;
pub(crate) mod files;
pub(crate) mod format;
pub(crate) mod import;
pub(crate) mod learnt;
pub(crate) mod merging;
pub(crate) mod numbers;
pub(crate) mod pruning;
#[cfg(feature = "tui")]
pub(crate) mod screens;
#[cfg(not(feature = "tui"))]
#[path = "screens_off.rs"]
pub(crate) mod screens;
pub(crate) mod tooling;
pub(crate) mod values;
