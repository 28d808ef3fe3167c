//! APRN: the files of published programs, the typed API, and broken files.
//!
//! What the sample files hold was read from them by a Python script with `msgpack`, `zstandard`,
//! `cryptography` and `argon2-cffi`.
#![cfg(all(
    feature = "typed",
    feature = "compression",
    feature = "encryption",
    feature = "signing"
))]

mod bad_input;
mod checkpoint;
mod model_card;
mod published;
mod sealed;
mod support;
