//! APR v2 as other programs wrote it (`docs/format/older.md`, A and D). All integers are
//! little-endian.
//!
//! ```text
//! aprender 0.20, aprender and apr-cli 0.25 to 0.72     whisper-apr 0.3
//!  0  header (64): "APR\0" or "APR2", where the         0  header (24): "APR\0", u16 2, family,
//!     sections are, CRC-32 of itself                       sizes, quantization; architecture
//! 64  metadata: a JSON object                              index: 128 bytes a tensor
//!     index: names ascending; offsets, sizes               tensors, without gaps
//!     tensors, each aligned to 64 bytes                    CRC-32 of all before it
//!     CRC-32 of all before it, absent from some files
//! ```
//!
//! Why read it so: the index says where everything is, so padding and order don't matter; the
//! header's CRC tells the two apart, as both start with the same magic and version.
//!
//! Dtypes that only these programs have are presented as one that holds the same values:
//!
//! | stored | presented | because |
//! |---|---|---|
//! | AprQ4, rows of whole blocks | `Q4_0` | the same scales and quants, in ggml's order |
//! | AprQ4, other rows | `F32` | a block spans two rows |
//! | AprQ8 | `I8_ROW` | the tensor's scale stands in front of each row |
//! | Q4_K, Q6_K, rows of whole blocks | the same | |
//! | Q4_K, Q6_K, other rows | `F32` | each row, or the whole, is padded to 256 elements, which are left out |
//! | int8 of whisper-apr 0.3 | `I8_ROW` | with the scale 1/127: the program dropped the true one, and reads it so |
//! | int4 of whisper-apr 0.3 | `F32` | as the program reads it: (q - 8) / 7 |
//!
//! ```
//! use apr_core::Limits;
//! use apr_format::dialect;
//!
//! let error =
//!     dialect::open(b"APR\0\x02\0".to_vec(), "model.apr", &Limits::default()).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "E002: model.apr: the file is truncated: it ends inside the header (at byte 6)"
//! );
//! ```

mod aprender;
mod dtype;
mod format;
mod metadata;
mod whisper;

use alloc::sync::Arc;

use apr_core::{ByteSource, Error, Limits, Result, Table};

pub use format::FORMAT;
use format::{MAGIC, MAGIC_0_20};

use crate::older::{Parts, table};

/// Opens a file. Reads header, metadata and index, and no tensor bytes.
///
/// # Errors
/// E001 for another format and headers that break this one, E002 when parts are missing or
/// contradict each other, E003 for encodings that are not known, E004 when the header's own CRC is
/// wrong, E007 when reading fails, E008 beyond `limits`; each names `name`.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    let parts = read(&source, limits).map_err(|error| error.in_file(name))?;
    table(Arc::new(source), name, parts).map_err(|error| error.in_file(name))
}

fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Parts> {
    let mut magic = [0; 4];
    let available = usize::try_from(source.len().min(4)).unwrap_or_default();
    source.read_at(0, &mut magic[..available])?;
    match magic {
        MAGIC if whisper::is_one(source)? => whisper::read(source, limits),
        MAGIC | MAGIC_0_20 => aprender::read(source, limits),
        _ => Err(Error::format(
            "this is not an APR v2 dialect: it starts with neither APR\\0 nor APR2",
        )
        .at(0)),
    }
}
