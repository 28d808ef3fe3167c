//! Matrices that are rewritten by their inputs: SparseGPT (Frantar and Alistarh 2023,
//! arXiv:2301.00774) and GPTQ (Frantar et al. 2022, arXiv:2210.17323).
//!
//! A weight that changes moves a layer's outputs; the weights of its row that come after it take up
//! what they can. How far they can follows from the products of the inputs' columns with each
//! other, the [`Gram`] of a calibration run. [`Gram::rewrite`] works through the columns in blocks:
//! a [`Change`] says what becomes of each weight ([`round`]: the nearest code), and the rest of
//! the matrix is updated.
//!
//! [`Layers`] are the matrices in the order in which a run meets them, and [`Rewrites::over`] is
//! the checkpoint with the matrices that are done so far, so that a later layer's inputs are those
//! that the rewritten layers before it give.

mod checkpoint;
mod gram;
mod layers;
mod rounded;
mod solve;

pub use self::checkpoint::{Rewrites, Rewritten};
pub use self::gram::Gram;
pub use self::layers::{Layers, Matrix};
pub use self::rounded::{RoundingWork, round};
pub use self::solve::{BLOCK, Block, Change};
