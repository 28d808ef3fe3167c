//! Files of other programs that are called `.bin`: word vectors of word2vec and fastText, and
//! models of CTranslate2. Their first bytes tell them apart.
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! let file = b"1 1\nking \0\0\x80\x3f".to_vec();
//! assert!((apr_bin::vectors::WORD2VEC.recognises)(&file));
//! let reader = apr_bin::vectors::open(file, "vectors.bin", &Limits::default())?;
//! assert_eq!(reader.tensors()[0].name, "embedding");
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod ctranslate2;
pub mod vectors;
