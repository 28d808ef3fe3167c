//! The native containers of `apr`.
//!
//! [`apr2`] is the one this project writes: aligned, checksummed, readable tensor by tensor.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod apr2;
#[cfg(feature = "compression")]
pub mod codec;
#[cfg(any(feature = "encryption", feature = "signing"))]
pub mod crypto;
