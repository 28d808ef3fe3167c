//! llama.cpp's formats: GGUF v1 to v3, split or whole, and the legacy GGML formats before it.
//!
//! ```text
//! byte 0        4         8                24              aligned              aligned  end
//!      ├────────┼─────────┼────────────────┼───────┬───────┬──┬──────────┬──┬───┬──┬──────────┬──┤
//!      │ "GGUF" │ version │ tensors, pairs │ pairs │ infos │0…│ tensor 0 │0…│ … │0…│ tensor k │0…│
//!      │        │ u32     │ u64, u64       │       │       │  │          │  │   │  │          │  │
//!      └────────┴─────────┴────────────────┴───────┴───────┴──┴──────────┴──┴───┴──┴──────────┴──┘
//!                                                             0 ◀─ offsets count from here
//!      pair: key, type u32, value; an array is: type of its items u32, their number u64, the items
//!      info: name, number of dims u32, dims u64, innermost first, type u32, offset u64
//!      keys, names and texts: length u64, UTF-8
//! ```
//!
//! Version 1 has lengths, counts and dims of 32 bits. Version 2 widened them, version 3 allows
//! big-endian files, in which all numbers but the magic are swapped; a version whose upper half
//! alone is set tells them. Data start at a multiple of the alignment, which the pair
//! `general.alignment` states unless it is 32, and so does each tensor.
//!
//! A large model is split into parts, each a complete file; see [`open_split`].
//!
//! # Why so strict
//!
//! Header and data come from anywhere, and llama.cpp had its share of overflows on them. No two
//! tensors may share bytes, no key and no name may occur twice, and everything is counted against
//! what is left of the file before there is room made for it. What llama.cpp refuses though it is
//! harmless (long names, holes between tensors, no `general.architecture`) is read with a warning.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | key-value pairs | [`Limits::max_metadata`](apr_core::Limits) bytes; items of arrays, an eighth of that number | E008 |
//! | tensor infos | [`Limits::max_index`](apr_core::Limits) bytes | E008 |
//! | nested arrays | 4 levels; llama.cpp has one | E001 |
//! | dimensions | 4 | E001 |
//! | tensor name, written | 63 bytes | E001 |
//! | alignment, written | 65,536 bytes | E001 |
//!
//! The format is documented in ggml's repository, `docs/gguf.md`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::sync::Arc;

use apr_core::{Metadata, Result};

mod cursor;
mod derived;
mod dtype;
mod edit;
mod encode;
mod format;
pub mod ggml;
mod header;
mod losses;
mod open_file;
mod part;
mod plan;
mod reader;
mod split;
mod swap;
mod tail;
mod writer;

pub use apr_core::{Array, KeyValue, KeyValues, Pair, Value};
pub use derived::derived;
pub use dtype::{from_ggml_type, ggml_type};
pub use edit::{PairEdits, front_in_place, with_pairs};
pub use format::FORMAT;
pub use losses::{has_own_scores, is_regression, lost_hyperparameters};
pub use part::is_part_name;
pub use plan::{WriteOptions, plan};
pub use reader::open;
pub use split::{asked_for, open_part, open_split, part_names};
pub use writer::GgufWriter;

/// Returns the pairs in the metadata under [`keys::GGUF`](apr_core::keys::GGUF), in the order of
/// the file, or `None` if the key is absent.
///
/// ```
/// use apr_core::Metadata;
/// use apr_gguf::key_values;
///
/// let json = br#"{"gguf": {"kv": [
///     {"key": "general.architecture", "type": "string", "value": "llama"}]}}"#;
/// let pairs = key_values(&Metadata::parse(json)?)?.unwrap();
/// assert_eq!(pairs.text("general.architecture"), Some("llama"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for what is not of the form that readers give, an empty key, or a key that appears twice.
pub fn key_values(metadata: &Metadata) -> Result<Option<Arc<KeyValues>>> {
    metadata.key_values()
}
