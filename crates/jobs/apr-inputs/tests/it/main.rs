//! Preprocessed inputs, beside those of other programs.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod chats;
mod pictures;
mod sounds;
mod tokens;
