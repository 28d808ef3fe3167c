//! What the commands do, without files, threads or a terminal.
//!
//! A pass takes readers, writers and a [`Pipeline`](apr::Pipeline) as values and returns a report that serializes; front
//! ends parse, call and render.
#![forbid(unsafe_code)]

mod chunks;
pub mod convert;
pub mod debug;
pub mod diff;
pub mod explain;
pub mod inspect;
mod nearest;
mod progress;
pub mod tensors;
mod text;
pub mod validate;
pub mod vocabulary;

pub use nearest::nearest;
pub use progress::Progress;
pub use text::{counted, grouped};
