//! Elements of tensors: decoding, casts between floating-point precisions, block quantization, and
//! statistics in one read.
//!
//! Everything here works on chunks of a tensor's stored bytes (little-endian on every host), so
//! that a pass over a tensor of any size needs one chunk of memory, and chunks may be worked on in
//! parallel:
//!
//! | module | does |
//! |---|---|
//! | [`element`] | decodes every dtype that is not quantized into `f32` or `f64`, exactly |
//! | [`cast`] | rounds to `f32`, `f16`, `bf16` or an 8-bit float once, to nearest even, and counts what was lost |
//! | [`block`] | quantizes rows to blocks as ggml does, and dequantizes them |
//! | [`drift`] | compares a tensor with its original, mergeable over chunks |
//! | [`factors`] | reads any range of a matrix that is stored as the product of two |
//! | [`half_float`] | converts single numbers between `f32` and the 16-bit floats |
//! | [`room`] | bounds how far a dtype may hold values from what they were |
//! | [`sparse`] | stores matrices without their zeros, and reads any range of them densely |
//! | [`stats`] | counts, extrema, mean, deviation, norm and histogram, mergeable over chunks |
//!
//! ```
//! use apr_core::DType;
//! use apr_tensor::stats::{Moments, Scratch};
//!
//! let tensor: Vec<u8> =
//!     [1.0_f32, 2.0, 3.0, f32::NAN].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let mut scratch = Scratch::default();
//! let mut moments = Moments::default();
//! for chunk in tensor.chunks(apr_tensor::element::chunk_len(DType::F32)) {
//!     moments.merge(&Moments::of(DType::F32, chunk, &mut scratch));
//! }
//! let stats = moments.finish();
//! assert_eq!((stats.count, stats.nan, stats.mean), (4, 1, Some(2.0)));
//! ```
//!
//! The loops are written once and, with the feature `simd`, compiled for several generations of
//! processors, one of which is chosen at run time. The order of every floating-point operation is
//! fixed by the source, so results have the same bits on all of them.
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[macro_use]
mod wire;

#[macro_use]
mod kernel;

pub mod block;
pub mod cast;
pub mod drift;
pub mod element;
pub mod factors;
pub mod grouped;
pub mod half_float;
mod narrow;
pub mod room;
mod scale;
mod small_float;
pub mod sparse;
mod square_root;
pub mod stats;
