//! Times the decomposition of a random matrix of single precision, on one thread:
//!
//! ```sh
//! cargo run --release -p apr-lowrank --example svd_speed -- 4096 64 [all]
//! ```
//!
//! Prints the seconds and the relative error of rank 64; with `all` those of all singular values.
//! `fixtures/lowrank/times.py 4096 64` does the same with numpy and torch, and the same matrix.

use std::time::Instant;

use apr_lowrank::{Extent, truncated_svd};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [size, rank, rest @ ..] = &arguments[..] else {
        return Err("expected a size and a rank".into());
    };
    let (size, rank): (usize, usize) = (size.parse()?, rank.parse()?);
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let matrix: Vec<f32> = (0..size * size).map(|_| next()).collect();
    let wanted = if rest.is_empty() { rank } else { size };
    let start = Instant::now();
    let svd = truncated_svd(&matrix, size, size, Extent::Rank(wanted))?;
    let seconds = start.elapsed().as_secs_f64();
    let kept: f64 = svd.values.iter().take(rank).map(|value| f64::from(*value).powi(2)).sum();
    println!("{seconds:.2} s, relative error {:.5}", (1.0 - kept / svd.energy).sqrt());
    Ok(())
}
