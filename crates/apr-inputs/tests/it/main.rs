//! What goes into models, beside what other programs make of the same.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod chats;
mod pictures;
mod sounds;
mod tokens;
