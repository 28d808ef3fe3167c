//! Legacy GGML: `ggml`, `ggmf` and `ggjt` v1 to v3, as llama.cpp and whisper.cpp wrote them before
//! GGUF.
//!
//! ```text
//! magic            4 bytes: "lmgg" (no version), "fmgg", "tjgg"; the words read backwards, for
//!                  they are little-endian
//! version          u32, fmgg and tjgg only: 1 for fmgg (100 and 101 for RWKV), 1 to 3 for tjgg
//! hyperparameters  i32 each (MPT has two f32), their number and meaning up to the program that
//!                  wrote them
//! mel filterbank   whisper only: n_mel i32, n_fft i32, f32[n_mel * n_fft]
//! vocabulary       count i32 where the family writes one; for each token: length u32, bytes, score
//!                  f32 (fmgg, tjgg)
//! tensors          up to the end of the file, for each one:
//!                  n_dims i32, name length i32, type i32,
//!                  dimensions i32[n_dims] (innermost first), name,
//!                  tjgg: zeros up to a multiple of 32 bytes; then the data
//! ```
//!
//! Everything is little-endian. Nothing in such a file says which model it holds. The reader tries
//! what it knows (see [`architectures`]): the reading is right whose hyperparameters go together,
//! whose tensors have the names that the family writes, and whose tensor headers lead exactly to
//! the end of the file. When none or several are, it says so and asks for the architecture; it
//! never guesses.
//!
//! # Quantized tensors
//! Blocks changed twice while the format was in use, which `ggjt`'s version tells, or the thousands
//! of `ftype`:
//!
//! | blocks | written as | read as |
//! |---|---|---|
//! | nibbles in pairs, f32 scales | ggmf, ggjt v1, ggml of version 0 | Q5_0, Q5_1 with their nibbles in today's order; Q4_0, Q4_1, Q4_2, Q4_3, Q8_0 as F32 |
//! | nibbles in halves, f32 scales | ggjt v2, ggml of version 1 | Q5_0, Q5_1; Q4_0, Q4_1, Q8_0 as F32 |
//! | nibbles in halves, f16 scales | ggjt v3, ggml of version 2 | as they are |
//!
//! An f32 scale has no place in today's blocks, so such tensors are decoded, to the values that
//! ggml computed; a warning names the block type. K-quants never changed.
//!
//! # Metadata
//! `ggml` holds `magic`, `version`, `ftype`, `quantization_version` and the `hyperparameters` under
//! the names of the program that wrote them; `architecture` the same under Hugging Face's.
//! `tokenizer.vocabulary` holds the tokens in the representation that
//! `tokenizer.vocabulary_encoding` names, see [`Representation`]; `tokenizer.scores` their scores.

mod block;
mod cursor;
mod detect;
mod format;
mod layout;
mod metadata;
mod reader;
mod tensor;

mod vocabulary;
mod walk;

pub use format::FORMAT;
pub use layout::architectures;
pub use reader::{GgmlReader, open};
pub use vocabulary::Representation;

/// Key of the metadata that only these formats have.
pub const METADATA_KEY: &str = "ggml";
