//! Word vectors: binary files of word2vec and fastText, both called `.bin`.
//!
//! ```text
//! word2vec                                     fastText
//! ├─ "5 300\n"   words and dimensions          ├─ magic      i32 793712314
//! └─ for each word                             ├─ version    i32 11 or 12
//!    ├─ word     bytes up to a space           ├─ arguments  12 x i32, f64
//!    ├─ f32      as many as dimensions         ├─ dictionary i32 entries, words, labels;
//!    └─ "\n"     in files of the original tool │             i64 tokens, pruned n-grams
//!                                              │  └─ for each entry: bytes up to NUL, i64 count,
//!                                              │     i8: 0 for a word, 1 for a label
//!                                              ├─ u8 quantized?  input:  i64 rows, columns; f32
//!                                              └─ u8 quantized?  output: i64 rows, columns; f32
//! ```
//!
//! All numbers are little-endian. The vectors of word2vec are one tensor, `embedding`; where each
//! begins is found at the first read, since a word may have any length. The matrices of fastText
//! are `input`, with a row for each word and after those one for each bucket of n-grams, and
//! `output`. Words and labels are companions, a line for each: `words.txt`, `labels.txt`.
//!
//! # What is refused, by name
//!
//! Quantized models of fastText (`.ftz`), whose vectors are codes of a product quantizer (E003).
//! Vectors as text (`.vec`, `.txt`) are not recognized.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | bytes of a word | 65,535 | E002 |
//! | a companion | [`Limits::max_companion`](apr_core::Limits), or it is left out | |
//!
//! Written from the C program of word2vec (`word2vec.c`) and fastText's `fasttext.cc`, `args.cc`,
//! `dictionary.cc` and `densematrix.cc`.
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! let file = b"2 1\nking \0\0\x80\x3fqueen \0\0\0\x40".to_vec();
//! let reader = apr_bin::vectors::open(file, "vectors.bin", &Limits::default())?;
//! assert_eq!(reader.tensors()[0].name, "embedding");
//! assert_eq!(reader.read_companion(0)?, b"king\nqueen\n");
//! # Ok::<(), apr_core::Error>(())
//! ```

mod cursor;
mod fasttext;
mod reader;
mod word2vec;

use apr_core::Format;

pub use reader::open;

/// Vectors in word2vec's binary form.
pub static WORD2VEC: Format = Format {
    id: "word2vec",
    name: "word2vec (.bin)",
    recognises: word2vec::recognises,
    ..Format::READ_ONLY
};

/// A model of fastText.
pub static FASTTEXT: Format = Format {
    id: "fasttext",
    name: "fastText (.bin)",
    recognises: |head| head.starts_with(&fasttext::MAGIC.to_le_bytes()),
    extensions: &["ftz"],
    ..Format::READ_ONLY
};
