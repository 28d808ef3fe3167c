//! Contracts of the `apr` workspace.
//!
//! Every model file is a *checkpoint*: metadata, an ordered list of tensor descriptors, and bytes
//! on demand. A format is a [`CheckpointReader`] or a [`CheckpointWriter`] of one; a command is a
//! pass from the first to the second. This crate holds what the two sides agree on and nothing that
//! touches a file, a thread or a clock.
//!
//! ```
//! use apr_core::{ByteSource, DType, Shape};
//!
//! let shape = Shape::from([2, 32]);
//! assert_eq!(DType::Q8_0.stored_len(&shape), Some(2 * 34));
//!
//! let bytes: &[u8] = b"APR2";
//! let mut magic = [0; 4];
//! bytes.read_at(0, &mut magic)?;
//! assert_eq!(&magic, b"APR2");
//! # Ok::<(), apr_core::Error>(())
//! ```
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod checkpoint;
mod container;
mod crc32c;
pub mod digest;
mod dtype;
mod due;
mod error;
mod escape;
mod file_name;
mod format;
pub mod human;
pub mod json;
mod json_pieces;
mod key_values;
mod limits;
mod metadata;
mod pass_on;
mod pipeline;
mod progress;
pub mod protobuf;
pub mod setting;
mod shape;
mod shard_index;
mod shard_units;
mod sink;
mod source;
mod stated;
mod stored;
mod strided;
mod table;
mod text;
mod unique_names;
// Small processors count 32 bits at once, and nothing that a budget of work binds runs there.
#[cfg(target_has_atomic = "64")]
mod work;

pub use checkpoint::{
    CheckpointReader, CheckpointWriter, ChunkEncoder, Companion, FileInfo, Layout, Loss, Notes,
    PlannedTensor, TensorInfo,
};
pub use container::{
    Absence, Container, ContainerFacts, Extent, ExtentKind, Features, FileChecksum, Signed,
    Unlisted, WEIGHTS_KEY, below_changes, of_files,
};
pub use crc32c::Crc32c;
pub use dtype::{DType, DTypeKind};
pub use due::Due;
pub use error::{Code, Error, IoCause, NotFinite, Result};
pub use escape::{Escaped, is_hidden};
pub use file_name::{check_file_name, relative_path};
pub use format::{
    Alignments, Computes, Convention, Entries, Format, HEAD_LEN, QuantizedTypes, Sharding, Target,
};
pub use key_values::{Array, KeyValue, KeyValues, KeyValuesBuilder, Pair, Value};
pub use limits::Limits;
pub use metadata::{Brief, Metadata, keys};
pub use pipeline::{Pipeline, Serial};
pub use progress::{Phase, Progress};
pub use setting::foreign;
pub use shape::Shape;
pub use shard_index::{ShardIndex, absence_warning};
pub use shard_units::shard_units;
pub use sink::{MemoryFolder, Sink};
pub use source::{ByteSource, SharedSource, SourceSet, check_range, read_pieces, read_vec};
pub use stated::{state_dtype, stated_dtype, torch_name};
pub use stored::{
    BlockFit, CodesInBlocks, Coding, CodingPart, Encoded, KeepCodes, KeptCodes, ReadEncoded,
    Stored, StoredForm, StoredPart, StoredRange, Sum,
};
pub use strided::Strided;
pub use table::{Table, TensorBytes, TensorDecoder};
pub use text::{counted, grouped, number};
pub use unique_names::UniqueNames;
#[cfg(target_has_atomic = "64")]
pub use work::Work;
