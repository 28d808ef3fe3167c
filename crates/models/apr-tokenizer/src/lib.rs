//! The tokenizer files that travel with a model.
//!
//! [`vocabulary`](vocabulary()) lists the tokens of a checkpoint, whichever file has them:
//! `tokenizer.json`, `vocab.json`, `vocab.txt`, SentencePiece's `tokenizer.model`, tiktoken's
//! ranks, the metadata of GGUF. [`read_tokenizer`] gets all that such files say. [`gguf`] writes a
//! tokenizer as llama.cpp's key-value pairs, and makes files of the pairs.
//!
//! ```
//! use apr_tokenizer::read_tokenizer;
//!
//! let (found, warnings) =
//!     read_tokenizer(&["vocab.json"], &mut |_| Ok(br#"{"a": 1, "b": 0}"#.into()))?;
//! assert_eq!(found.map(|tokenizer| tokenizer.tokens[&0].clone()), Some("b".to_owned()));
//! assert!(warnings.is_empty());
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod gguf;
mod input_names;
mod merging;
mod processor;
mod ranks;
mod rules;
mod vocabulary;

pub use input_names::{GGUF_INPUT_NAMES, has_token_types, returns_token_types};
pub use merging::{MergedPiece, Merging};
pub use ranks::tokenizer_of_ranks;
pub use rules::{Rules, rules};
pub use vocabulary::{
    GGUF_TOKENS, Spelling, Token, Tokenizer, Vocabulary, read_tokenizer, unreadable_vocabulary,
    vocabulary, warning, wrong_json,
};
