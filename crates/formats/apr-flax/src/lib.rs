//! Weights of Flax and JAX in MessagePack (`.msgpack`), as `flax.serialization` writes them.
//!
//! ```text
//! map      "params"
//! └─ map   "dense"
//!    └─ "kernel"   extension 1, its length
//!       └─ list of three: [4, 3], "float32", bytes
//! ```
//!
//! Maps are folders and arrays files: a tensor is called `params/dense/kernel`, as
//! `flax.traverse_util.flatten_dict(sep="/")` names it. The bytes of an array lie side by side; one
//! of more than a gigabyte is in pieces, which are put together as they are read.
//!
//! # What is left out, by name
//!
//! The optimizer's state (`opt_state` beside `params`), texts, plain numbers, and arrays of dtypes
//! that no format here holds.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | paths of all arrays | [`Limits::max_index`](apr_core::Limits) | E008 |
//! | maps in each other | 100 | E001 |
//! | dimensions | 64 | E002 |
//!
//! MessagePack is described in its `spec.md`, the extensions in Flax's `serialization.py`.
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! // {"w": extension 1 of ((1,), "float32", 1.0)}
//! let file = b"\x81\xa1w\xc7\x11\x01\x93\x91\x01\xa7float32\xc4\x04\0\0\x80\x3f".to_vec();
//! let reader = apr_flax::open(file, "flax_model.msgpack", &Limits::default())?;
//! assert_eq!(reader.tensors()[0].name, "w");
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod messagepack;
mod reader;
mod tree;

use apr_core::Format;

pub use reader::open;

/// A tree of arrays.
pub static FORMAT: Format = Format {
    id: "flax",
    name: "Flax (MessagePack)",
    recognises: starts_like_a_tree,
    extensions: &["msgpack"],
    ..Format::READ_ONLY
};

/// Returns `true` if the bytes begin a map whose first key is a name.
///
/// The first value must be a map or an array, or the key must be the first one of a training state.
fn starts_like_a_tree(head: &[u8]) -> bool {
    let ([0x81..=0x8f, key @ ..] | [0xde, _, _, key @ ..] | [0xdf, _, _, _, _, key @ ..]) = head
    else {
        return false;
    };
    let (len, key) = match key {
        [len @ 0xa1..=0xbf, key @ ..] => (usize::from(len & 31), key),
        [0xd9, len, key @ ..] => (usize::from(*len), key),
        _ => return false,
    };
    let Some((key, value)) = key.split_at_checked(len) else { return false };
    // A training state begins with the number of its step.
    key == b"step"
        || key.iter().all(u8::is_ascii_graphic)
            && matches!(value.first(), Some(0x81..=0x8f | 0xc7..=0xc9 | 0xd4..=0xd8 | 0xde | 0xdf))
}
