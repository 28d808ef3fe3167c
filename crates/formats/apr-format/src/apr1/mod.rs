//! APR1: whisper-apr's container and the JSON-indexed one of the same name (`docs/format/older.md`,
//! C). All integers are little-endian.
//!
//! ```text
//! whisper-apr 0.1                                        aprender 0.18 to 0.20
//!  0  "APR1"                                              0  "APR1"
//!  4  header (48): version, hyperparameters               4  u32 length, metadata: a JSON object
//! 52  index: 96 bytes a tensor                               u32 tensors
//!     int8 only: an f32 scale a tensor                       u32 length, index: a JSON array
//!     tensors, without gaps                                  tensors, without gaps
//!     u32 length, vocabulary                                 CRC-32 of all before it
//!     u32 length, mel filterbank
//!     CRC-32 of all before it
//! ```
//!
//! whisper-apr 0.2 wrote the first with the magic `APR\0` and a header of 64 bytes.
//!
//! Why read it so: the programs that wrote these files never checked the CRC, and wrote floats
//! whatever the header's quantization and compression said. The length of a tensor decides what it
//! is, and what the header says otherwise is a warning. The mel filterbank is the tensor
//! [`keys::MEL_FILTERBANK_TENSOR`](apr_core::keys::MEL_FILTERBANK_TENSOR), the vocabulary the
//! metadata `tokenizer.vocabulary` and `tokenizer.merges`. Tensors of int8 with one scale are
//! presented as [`DType::I8_ROW`](apr_core::DType::I8_ROW) with that scale in each row.
//!
//! Limits: 65,535 tensors of 4 dimensions of 32 bits, names of 48 bytes. Packed int4 and LZ4 are
//! named in the header, but nothing says how they are laid out and no published program wrote them:
//! E003.
//!
//! ```
//! use apr_core::{
//!     CheckpointReader, CheckpointWriter, DType, Limits, Metadata, Notes, TensorInfo,
//! };
//! use apr_format::apr1;
//!
//! let metadata = Metadata::parse(
//!     br#"{"model_type": "whisper", "architecture": {"vocab_size": 51865, "num_mel_bins": 80,
//!         "d_model": 384, "max_source_positions": 1500, "encoder_layers": 4,
//!         "encoder_attention_heads": 6, "max_target_positions": 448, "decoder_layers": 4,
//!         "decoder_attention_heads": 6}}"#,
//! )?;
//! let tensors =
//!     [TensorInfo { name: "encoder.conv1.bias".into(), dtype: DType::F32, shape: [2].into() }];
//! let mut writer = apr1::plan(&tensors, &metadata, &[], &apr1::WriteOptions::default())?;
//! let mut file = Vec::new();
//! writer.begin(&mut file)?;
//! writer.write_chunk(&mut file, &[0; 8], None)?;
//! writer.finish(&mut file, &Notes::default())?;
//!
//! let reader = apr1::open(file, "whisper-tiny.apr", &Limits::default())?;
//! assert_eq!(reader.tensors(), tensors);
//! assert_eq!(reader.metadata().object("architecture"), metadata.object("architecture"));
//! # Ok::<(), apr_core::Error>(())
//! ```

mod format;
mod hyperparameters;
mod indexed;
mod vocabulary;
mod whisper;
mod writer;

use alloc::sync::Arc;

use apr_core::{ByteSource, Error, Limits, Result, Table};

use crate::older::{Parts, table};
use format::MAGIC_0_2;
pub use format::{FORMAT, MAGIC};
pub use hyperparameters::METADATA_KEY;
pub use writer::{Apr1Writer, WriteOptions, plan};

/// Opens an APR1 file. Reads header, index, vocabulary, and no tensor bytes.
///
/// # Errors
/// E001 for another format and headers that break this one, E002 when parts are missing or
/// contradict each other, E003 for versions and encodings that are not known, E007 when reading
/// fails, E008 beyond `limits`; each names `name`.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    let parts = read(&source, limits).map_err(|error| error.in_file(name))?;
    table(Arc::new(source), name, parts).map_err(|error| error.in_file(name))
}

fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Parts> {
    let mut head = [0; 9];
    let available = usize::try_from(source.len().min(9)).unwrap_or_default();
    source.read_at(0, &mut head[..available])?;
    match (&head[..4], head[8]) {
        // In the other layout this is the byte that says whether tensors are compressed.
        (magic, b'{') if magic == MAGIC => indexed::read(source, limits),
        (magic, _) if magic == MAGIC || magic == MAGIC_0_2 => whisper::read(source, limits),
        _ => Err(Error::format("this is not an APR1 file: it does not start with APR1").at(0)),
    }
}
