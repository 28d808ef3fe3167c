//! What the workspace's tests share: files packed by hand, broken copies, sources and allocators
//! that count, and where fixtures are.
//!
//! ```
//! use apr_testkit::corrupt;
//!
//! assert_eq!(corrupt::truncations(b"abc").count(), 3);
//! assert_eq!(corrupt::bit_flips(b"ab", 0..2).count(), 16);
//! ```

pub mod apr2;
mod base64;
pub mod corrupt;
mod counting;
pub mod excessive;
mod folder;
pub mod ggml;
pub mod gguf;
pub mod hub;
pub mod llama_cpp;
pub mod locate;
pub mod older;
pub mod onnx;
mod peak;
pub mod peers;
mod read_all;
pub mod safetensors;
mod sparse;
pub mod tmux;
pub mod torch;
pub mod written;

pub use base64::from_base64;
pub use counting::CountingSource;
pub use folder::FolderInMemory;
pub use peak::{PeakAlloc, asked_memory, peak_memory};
pub use read_all::read_everything;
pub use sparse::SparseSource;
