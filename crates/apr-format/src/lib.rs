//! The native containers of `apr`.
//!
//! [`apr2`] is the one this project writes: aligned, checksummed, readable tensor by tensor.
//! [`apr1`], [`aprn`] and [`dialect`] are what older programs wrote.
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod apr1;
pub mod apr2;
#[cfg(feature = "typed")]
pub mod aprn;
#[cfg(feature = "compression")]
pub mod codec;
pub mod dialect;
mod older;

pub use apr_crypto as crypto;
