//! Products of weights in ggml's blocks with activations that are quantized to 8 bits, as ggml
//! computes them: integers are multiplied, and their sums scaled block by block.
//!
//! A row of activations is quantized once for each product: to `Q8_0` or `Q8_1` for weights in
//! blocks of 32 to 128, to `Q8_K` for those in blocks of 256. The order of summation is that of
//! ggml's kernels for AVX2 (`ggml-cpu/arch/x86/quants.c`), except for `Q2_0`, which has none there
//! and is summed as `Q1_0`; where there is no fused multiplication and
//! addition, a product and a sum are rounded each. What does not fit 8-bit blocks is left to the
//! products of floats.

mod activations;
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
#[allow(
    unsafe_code,
    reason = "kernels for a processor's features are called after detecting them; vectors are \
        loaded"
)]
mod avx2;
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
#[allow(
    unsafe_code,
    reason = "kernels for a processor's features are called after detecting them; vectors are \
        loaded"
)]
mod avx512;
mod layout;
mod points;
mod scalar;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use apr_core::{DType, Result};

pub(crate) use self::activations::push_q8_0;
use self::activations::{Large, Small, quantize_large, quantize_small};
use self::layout::types;
use super::sides::Left;
use super::{Run, StoredRows};
use crate::workers::{Workers, try_with_each};

/// Weights that share a scale.
const GROUP: usize = 32;
/// Weights of a super-block.
const SUPER: usize = 256;
/// Multiplications of a piece of work.
const PIECE: usize = 1 << 17;
/// Maximum number of columns of a piece, so that their blocks stay in the second-level cache.
const COLUMNS: usize = 64;

/// Destination of products: a slice for each row of activations, with a column for each row of
/// weights.
type Outputs<'a> = [&'a mut [f32]];

/// Rows of weights, bytes of one, rows of activations, products.
type Multiply<B> = fn(&[u8], usize, &Rows<'_, B>, &mut Outputs<'_>);

/// Rows of activations in blocks, and what a kernel makes of them for all rows of weights.
struct Rows<'a, B: Block> {
    rows: Vec<&'a [B]>,
    tiles: OnceLock<B::Tiles>,
}

impl<'a, B: Block> Rows<'a, B> {
    fn of(blocks: &'a [B], count: usize) -> Self {
        let rows = blocks.chunks((blocks.len() / count.max(1)).max(1)).collect();
        Self { rows, tiles: OnceLock::new() }
    }
}

/// A block of activations.
trait Block {
    /// Several rows of blocks, arranged for a kernel.
    type Tiles: Send + Sync;
}

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod tiles {
    use super::{Block, Large, Small, avx512};

    impl Block for Small {
        type Tiles = avx512::SmallTiles;
    }

    impl Block for Large {
        type Tiles = avx512::LargeTiles;
    }
}

#[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
mod tiles {
    use super::{Block, Large, Small};

    impl Block for Small {
        type Tiles = ();
    }

    impl Block for Large {
        type Tiles = ();
    }
}

#[derive(Clone, Copy)]
enum Kernel {
    Small(Multiply<Small>),
    Large(Multiply<Large>),
}

/// Returns `true` if the sums of every other block are kept apart.
const fn is_in_pairs(of: u8) -> bool {
    matches!(of, types::IQ4_NL | types::MXFP4)
}

/// Groups of 32 weights in a block that is not a super-block.
const fn groups(of: u8) -> usize {
    match of {
        types::Q1_0 => 4,
        types::Q2_0 | types::NVFP4 => 2,
        _ => 1,
    }
}

/// Returns `true` if the groups of a block are added up before they are multiplied with its scale.
const fn groups_share_scale(of: u8) -> bool {
    matches!(of, types::Q1_0 | types::Q2_0)
}

/// Returns the amount by which the integers of a type are too large. Its contribution to the
/// products is subtracted from the sums of a block.
const fn surplus(of: u8) -> i32 {
    match of {
        types::Q6_K => 32,
        types::TQ1_0 | types::TQ2_0 => 1,
        _ => 0,
    }
}

/// Multiplies several rows of activations at a time, and the remaining rows one by one. In a
/// separate function, the loop would lack the target features of the function that contains it.
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
macro_rules! by_tokens {
    (
        $weights:ident, $row_bytes:ident, $x:ident, $out:ident, $tokens:ident,
        $row:ident::<$of:ident, $bytes:ident>
    ) => {
        for (x, out) in $x.chunks($tokens).zip($out.chunks_mut($tokens)) {
            let rows = $weights.chunks_exact($row_bytes).enumerate();
            if let Ok(x) = <[_; $tokens]>::try_from(x) {
                for (number, row) in rows {
                    let products = $row::<$of, $bytes, $tokens>(row, x);
                    out.iter_mut().zip(products).for_each(|(out, product)| out[number] = product);
                }
                continue;
            }
            for (x, out) in x.iter().zip(out) {
                for (number, row) in rows.clone() {
                    [out[number]] = $row::<$of, $bytes, 1>(row, [*x]);
                }
            }
        }
    };
}
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
use by_tokens;

/// The kernels of a module by dtype.
macro_rules! kernels {
    ($dtype:expr, $module:ident) => {
        Some(match $dtype {
            DType::Q4_0 => Kernel::Small($module::small::<{ types::Q4_0 }, 18>),
            DType::Q4_1 => Kernel::Small($module::small::<{ types::Q4_1 }, 20>),
            DType::Q5_0 => Kernel::Small($module::small::<{ types::Q5_0 }, 22>),
            DType::Q5_1 => Kernel::Small($module::small::<{ types::Q5_1 }, 24>),
            DType::Q8_0 => Kernel::Small($module::small::<{ types::Q8_0 }, 34>),
            DType::IQ4_NL => Kernel::Small($module::small::<{ types::IQ4_NL }, 18>),
            DType::MXFP4 => Kernel::Small($module::small::<{ types::MXFP4 }, 17>),
            DType::NVFP4 => Kernel::Small($module::small::<{ types::NVFP4 }, 36>),
            DType::Q1_0 => Kernel::Small($module::small::<{ types::Q1_0 }, 18>),
            DType::Q2_0 => Kernel::Small($module::small::<{ types::Q2_0 }, 18>),
            DType::Q2_K => Kernel::Large($module::large::<{ types::Q2_K }, 84>),
            DType::Q3_K => Kernel::Large($module::large::<{ types::Q3_K }, 110>),
            DType::Q4_K => Kernel::Large($module::large::<{ types::Q4_K }, 144>),
            DType::Q5_K => Kernel::Large($module::large::<{ types::Q5_K }, 176>),
            DType::Q6_K => Kernel::Large($module::large::<{ types::Q6_K }, 210>),
            DType::IQ4_XS => Kernel::Large($module::large::<{ types::IQ4_XS }, 136>),
            DType::IQ1_S => Kernel::Large($module::large::<{ types::IQ1_S }, 50>),
            DType::IQ1_M => Kernel::Large($module::large::<{ types::IQ1_M }, 56>),
            DType::IQ2_XXS => Kernel::Large($module::large::<{ types::IQ2_XXS }, 66>),
            DType::IQ2_XS => Kernel::Large($module::large::<{ types::IQ2_XS }, 74>),
            DType::IQ2_S => Kernel::Large($module::large::<{ types::IQ2_S }, 82>),
            DType::IQ3_XXS => Kernel::Large($module::large::<{ types::IQ3_XXS }, 98>),
            DType::IQ3_S => Kernel::Large($module::large::<{ types::IQ3_S }, 110>),
            DType::TQ1_0 => Kernel::Large($module::large::<{ types::TQ1_0 }, 54>),
            DType::TQ2_0 => Kernel::Large($module::large::<{ types::TQ2_0 }, 66>),
            _ => return None,
        })
    };
}

#[cfg(all(test, feature = "simd", target_arch = "x86_64"))]
use kernels;

/// The kernel for a dtype on this processor.
fn best(dtype: DType) -> Option<Kernel> {
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    {
        if has_avx512() {
            return kernels!(dtype, avx512);
        }
        if has_avx2() {
            return kernels!(dtype, avx2);
        }
    }
    plain(dtype)
}

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
fn has_avx2() -> bool {
    use std::arch::is_x86_feature_detected;
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
fn has_avx512() -> bool {
    use std::arch::is_x86_feature_detected;
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// The kernel for any processor.
fn plain(dtype: DType) -> Option<Kernel> {
    kernels!(dtype, scalar)
}

/// Returns `true` if weights of a dtype can be multiplied with 8-bit activations.
pub(crate) fn can_multiply(dtype: DType) -> bool {
    plain(dtype).is_some()
}

/// Rows of activations in blocks.
struct Activations {
    rows: usize,
    small: Vec<Small>,
    large: Vec<Large>,
}

impl Activations {
    /// Quantizes activations for the kernels. Returns `None` if they do not fit 8-bit blocks.
    fn of(left: Left<'_>, kernels: &[Kernel]) -> Option<Self> {
        let mut made = Self { rows: left.rows, small: Vec::new(), large: Vec::new() };
        let needs_small = kernels.iter().any(|kernel| matches!(kernel, Kernel::Small(_)));
        let needs_large = kernels.iter().any(|kernel| matches!(kernel, Kernel::Large(_)));
        if needs_small {
            made.small.reserve_exact(left.rows * left.depth / GROUP);
        }
        if needs_large {
            made.large.reserve_exact(left.rows * left.depth / SUPER);
        }
        for row in 0..left.rows {
            let values = &left.values[row * left.row_step..][..left.depth];
            let fits = (!needs_small || quantize_small(values, &mut made.small))
                && (!needs_large || quantize_large(values, &mut made.large));
            if !fits {
                return None;
            }
        }
        Some(made)
    }

    fn small(&self) -> Rows<'_, Small> {
        Rows::of(&self.small, self.rows)
    }

    fn large(&self) -> Rows<'_, Large> {
        Rows::of(&self.large, self.rows)
    }
}

fn multiply(
    run: &Run<'_>,
    small: &Rows<'_, Small>,
    large: &Rows<'_, Large>,
    out: &mut Outputs<'_>,
) {
    match best(run.dtype) {
        Some(Kernel::Small(multiply)) => multiply(run.bytes, run.row_bytes, small, out),
        Some(Kernel::Large(multiply)) => multiply(run.bytes, run.row_bytes, large, out),
        None => {}
    }
}

/// Writes the product over the contents of `out`, in rows of `width`, and returns `true`. Returns
/// `false` if the activations do not fit 8-bit blocks.
pub(super) fn product(
    left: Left<'_>,
    matrix: &dyn StoredRows,
    width: usize,
    out: &mut [f32],
    workers: &dyn Workers,
) -> Result<bool> {
    let kernels: Vec<_> = matrix.dtypes().into_iter().filter_map(best).collect();
    if left.depth_step != 1 {
        return Ok(false);
    }
    let Some(x) = Activations::of(left, &kernels) else { return Ok(false) };
    let (small, large) = (x.small(), x.large());

    let size = (PIECE / left.depth).clamp(1, COLUMNS).next_multiple_of(8);
    let pieces = width.div_ceil(size);
    let mut parts: Vec<_> = (0..pieces).map(|_| Vec::with_capacity(left.rows)).collect();
    for row in out.chunks_mut(width) {
        row.chunks_mut(size).zip(&mut parts).for_each(|(piece, part)| part.push(piece));
    }
    try_with_each(workers, parts, |piece, mut part: Vec<&mut [f32]>| {
        let first = piece * size;
        let columns = size.min(width - first);
        matrix.runs(first..first + columns, &mut |run| {
            let mut out: Vec<_> = part.iter_mut().map(|row| &mut row[run.first..]).collect();
            multiply(&run, &small, &large, &mut out);
        })
    })?;
    Ok(true)
}
