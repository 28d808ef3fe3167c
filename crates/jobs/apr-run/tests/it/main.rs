//! Models that run as programs run them.

mod batches;
#[cfg(all(feature = "text", feature = "chat"))]
mod conversation;
mod last_rows;
mod memory;
mod prompt_cache;
mod support;
#[cfg(feature = "text")]
mod texts;
