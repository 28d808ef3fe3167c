use std::ops::Range;

use apr_core::DType;
use apr_tensor::block::dequantize;
use half::f16;

use super::super::Precision;
use super::*;
use crate::workers::Alone;

/// Dtypes, with their blocks' bytes and the places of halves in them.
const TYPES: [(DType, usize, &[usize]); 25] = [
    (DType::Q4_0, 18, &[0]),
    (DType::Q4_1, 20, &[0, 2]),
    (DType::Q5_0, 22, &[0]),
    (DType::Q5_1, 24, &[0, 2]),
    (DType::Q8_0, 34, &[0]),
    (DType::IQ4_NL, 18, &[0]),
    (DType::MXFP4, 17, &[]),
    (DType::NVFP4, 36, &[]),
    (DType::Q1_0, 18, &[0]),
    (DType::Q2_0, 18, &[0]),
    (DType::Q2_K, 84, &[80, 82]),
    (DType::Q3_K, 110, &[108]),
    (DType::Q4_K, 144, &[0, 2]),
    (DType::Q5_K, 176, &[0, 2]),
    (DType::Q6_K, 210, &[208]),
    (DType::IQ4_XS, 136, &[0]),
    (DType::IQ1_S, 50, &[0]),
    (DType::IQ1_M, 56, &[]),
    (DType::IQ2_XXS, 66, &[0]),
    (DType::IQ2_XS, 74, &[0]),
    (DType::IQ2_S, 82, &[0]),
    (DType::IQ3_XXS, 98, &[0]),
    (DType::IQ3_S, 110, &[0]),
    (DType::TQ1_0, 54, &[52]),
    (DType::TQ2_0, 66, &[64]),
];

/// A linear congruential generator.
struct Noise(u64);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }

    /// Returns a number from -1 to 1.
    fn number(&mut self) -> f32 {
        f32::from(self.byte()) / 127.5 - 1.0 + f32::from(self.byte()) / 65_280.0
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// Blocks of any levels and quantized scales; only the halves are such as files have, the power of
/// two of `MXFP4`, and the half in nibbles of `IQ1_M`.
fn rows_of(bytes: usize, halves: &[usize], blocks: usize, noise: &mut Noise) -> Vec<u8> {
    let mut rows: Vec<u8> = (0..blocks * bytes).map(|_| noise.byte()).collect();
    for block in rows.chunks_mut(bytes) {
        match (bytes, halves) {
            (56, []) => {
                let half = f16::from_f32(noise.number() * 0.01).to_bits();
                for at in 0..4 {
                    let nibble = (half >> (4 * at) & 15) as u8;
                    block[49 + 2 * at] = block[49 + 2 * at] & 15 | nibble << 4;
                }
            }
            (17, []) => block[0] = 118 + block[0] % 8,
            _ => {}
        }
        for &at in halves {
            let scale = f16::from_f32(noise.number() * 0.01);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    rows
}

fn block_len(dtype: DType) -> usize {
    dtype.block_len() as usize
}

fn activations(x: &[f32], rows: usize, kernel: Kernel) -> Activations {
    let depth = x.len() / rows;
    Activations::of(Left::in_rows(x, rows, depth), &[kernel]).unwrap()
}

/// Returns the activations that the blocks represent.
fn decoded(x: &Activations) -> Vec<f64> {
    let small = x.small.iter().flat_map(|block| {
        block.quants.iter().map(|quant| f64::from(*quant) * f64::from(block.scale))
    });
    let large = x.large.iter().flat_map(|block| {
        block.quants.iter().map(|quant| f64::from(*quant) * f64::from(block.scale))
    });
    small.chain(large).collect()
}

fn multiply(kernel: Kernel, weights: &[u8], row_bytes: usize, x: &Activations) -> Vec<Vec<f32>> {
    let mut products = vec![vec![f32::NAN; weights.len() / row_bytes]; x.rows];
    let mut out: Vec<_> = products.iter_mut().map(Vec::as_mut_slice).collect();
    match kernel {
        Kernel::Small(run) => run(weights, row_bytes, &x.small(), &mut out),
        Kernel::Large(run) => run(weights, row_bytes, &x.large(), &mut out),
    }
    products
}

#[test]
fn products_match_dequantized_weights_and_quantized_activations() {
    let mut noise = Noise(1);
    for (dtype, bytes, halves) in TYPES {
        let (blocks, kernel) = (6, plain(dtype).unwrap());
        let depth = blocks * block_len(dtype);
        let weights = rows_of(bytes, halves, 5 * blocks, &mut noise);
        let x = activations(&noise.numbers(depth), 1, kernel);
        let mut plain_weights = Vec::new();
        dequantize(dtype, &weights, depth, &mut plain_weights);
        let given = decoded(&x);
        let found = multiply(kernel, &weights, blocks * bytes, &x);
        for (row, found) in plain_weights.chunks(depth).zip(&found[0]) {
            let terms = row.iter().zip(&given).map(|(weight, x)| f64::from(*weight) * x);
            let (mut expected, mut size) = (terms.clone().sum::<f64>(), 0.0);
            terms.for_each(|term: f64| size += term.abs());
            // `Q8_1` keeps the sum of its levels in half precision.
            let least = match dtype {
                DType::Q4_1 | DType::Q5_1 => 1e-3,
                _ => 2e-6,
            };
            expected -= f64::from(*found);
            assert!(expected.abs() <= least * size, "{dtype}: {expected} of {size}");
        }
    }
}

/// Sums as ggml's portable `ggml_vec_dot_q4_0_q8_0` and `ggml_vec_dot_q4_K_q8_K` have them: one
/// integer for each block, and of super-blocks the minima apart.
#[test]
fn products_match_the_formulas_of_ggml() {
    let mut noise = Noise(2);
    let weights = rows_of(18, &[0], 8, &mut noise);
    let kernel = plain(DType::Q4_0).unwrap();
    let x = activations(&noise.numbers(8 * 32), 1, kernel);
    let mut expected = 0.0_f64;
    for (block, x) in weights.chunks(18).zip(&x.small) {
        let mut sum = 0;
        for at in 0..16 {
            sum += (i32::from(block[2 + at] & 15) - 8) * i32::from(x.quants[at]);
            sum += (i32::from(block[2 + at] >> 4) - 8) * i32::from(x.quants[at + 16]);
        }
        expected += f64::from(layout::half(block, 0) * x.scale) * f64::from(sum);
    }
    let found = multiply(kernel, &weights, weights.len(), &x)[0][0];
    assert!((f64::from(found) - expected).abs() < 1e-5, "{found} for {expected}");

    let weights = rows_of(144, &[0, 2], 3, &mut noise);
    let kernel = plain(DType::Q4_K).unwrap();
    let x = activations(&noise.numbers(3 * 256), 1, kernel);
    let mut expected = 0.0_f64;
    for (block, x) in weights.chunks(144).zip(&x.large) {
        let packed = &block[4..16];
        let (mut sum, mut minima) = (0, 0);
        for group in 0..8 {
            // `get_scale_min_k4`.
            let [scale, least] = if group < 4 {
                [packed[group] & 63, packed[group + 4] & 63]
            } else {
                [
                    packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
                    packed[group + 4] >> 4 | packed[group] >> 6 << 4,
                ]
            };
            minima += i32::from(least)
                * (i32::from(x.sums[2 * group]) + i32::from(x.sums[2 * group + 1]));
            for at in 0..32 {
                let byte = block[16 + group / 2 * 32 + at];
                let level = if group % 2 == 0 { byte & 15 } else { byte >> 4 };
                sum += i32::from(scale) * i32::from(level) * i32::from(x.quants[group * 32 + at]);
            }
        }
        expected += f64::from(layout::half(block, 0) * x.scale) * f64::from(sum);
        expected -= f64::from(layout::half(block, 2) * x.scale) * f64::from(minima);
    }
    let found = multiply(kernel, &weights, weights.len(), &x)[0][0];
    assert!((f64::from(found) - expected).abs() < 1e-3, "{found} for {expected}");
}

/// Rows of the scalar version, with fused additions.
fn fused(dtype: DType, weights: &[u8], row_bytes: usize, x: &Activations) -> Vec<Vec<f32>> {
    macro_rules! rows_of_type {
        ($blocks:ident, $row:ident, $of:ident, $bytes:literal) => {
            x.$blocks()
                .rows
                .iter()
                .map(|x| {
                    let rows = weights.chunks(row_bytes);
                    rows.map(|row| scalar::$row::<{ types::$of }, $bytes, true>(row, x)).collect()
                })
                .collect()
        };
    }
    match dtype {
        DType::Q4_0 => rows_of_type!(small, small_row, Q4_0, 18),
        DType::Q4_1 => rows_of_type!(small, small_row, Q4_1, 20),
        DType::Q5_0 => rows_of_type!(small, small_row, Q5_0, 22),
        DType::Q5_1 => rows_of_type!(small, small_row, Q5_1, 24),
        DType::Q8_0 => rows_of_type!(small, small_row, Q8_0, 34),
        DType::IQ4_NL => rows_of_type!(small, small_row, IQ4_NL, 18),
        DType::Q2_K => rows_of_type!(large, large_row, Q2_K, 84),
        DType::Q3_K => rows_of_type!(large, large_row, Q3_K, 110),
        DType::Q4_K => rows_of_type!(large, large_row, Q4_K, 144),
        DType::Q5_K => rows_of_type!(large, large_row, Q5_K, 176),
        DType::Q6_K => rows_of_type!(large, large_row, Q6_K, 210),
        DType::MXFP4 => rows_of_type!(small, small_row, MXFP4, 17),
        DType::NVFP4 => rows_of_type!(small, small_row, NVFP4, 36),
        DType::Q1_0 => rows_of_type!(small, small_row, Q1_0, 18),
        DType::Q2_0 => rows_of_type!(small, small_row, Q2_0, 18),
        DType::IQ1_S => rows_of_type!(large, large_row, IQ1_S, 50),
        DType::IQ1_M => rows_of_type!(large, large_row, IQ1_M, 56),
        DType::IQ2_XXS => rows_of_type!(large, large_row, IQ2_XXS, 66),
        DType::IQ2_XS => rows_of_type!(large, large_row, IQ2_XS, 74),
        DType::IQ2_S => rows_of_type!(large, large_row, IQ2_S, 82),
        DType::IQ3_XXS => rows_of_type!(large, large_row, IQ3_XXS, 98),
        DType::IQ3_S => rows_of_type!(large, large_row, IQ3_S, 110),
        DType::TQ1_0 => rows_of_type!(large, large_row, TQ1_0, 54),
        DType::TQ2_0 => rows_of_type!(large, large_row, TQ2_0, 66),
        DType::IQ4_XS => rows_of_type!(large, large_row, IQ4_XS, 136),
        _ => panic!("{dtype} has no kernel"),
    }
}

/// Hashes of the products of three rows from the AVX2 kernels of ggml 0.25.3, as
/// `xtask/interop/ggml_products.py` prints them. `Q2_0` has no hash.
const PRODUCTS_OF_GGML: [(DType, u64); 24] = [
    (DType::Q4_0, 0x6981_a5a2_4cd3_9158),
    (DType::Q4_1, 0x78b8_8eda_2026_b8ef),
    (DType::Q5_0, 0x3b9b_efb6_9d30_69d5),
    (DType::Q5_1, 0xb40e_16f4_2b7e_d206),
    (DType::Q8_0, 0x6cf2_26c3_7dbd_4655),
    (DType::IQ4_NL, 0x9596_b046_2eac_a5df),
    (DType::MXFP4, 0xf78b_a3be_5d1f_5cf9),
    (DType::NVFP4, 0xef1b_8c3a_2f9c_346e),
    (DType::Q1_0, 0xbae3_ee71_f79f_65b2),
    (DType::Q2_K, 0x2656_2a18_1cc5_5f0f),
    (DType::Q3_K, 0x0a28_737f_f027_d9bf),
    (DType::Q4_K, 0x01c0_9ad4_94b7_0fb6),
    (DType::Q5_K, 0x023f_9ee7_be82_0fdf),
    (DType::Q6_K, 0x748a_9eb7_7c59_1844),
    (DType::IQ4_XS, 0xe6c4_b4f9_c40e_cafa),
    (DType::IQ1_S, 0x772c_3379_db72_124f),
    (DType::IQ1_M, 0xd1a4_6dc0_8362_224e),
    (DType::IQ2_XXS, 0x4cec_c1c5_25fd_d980),
    (DType::IQ2_XS, 0x6902_39f2_3c99_3f26),
    (DType::IQ2_S, 0xf3df_43a5_5d3b_80d2),
    (DType::IQ3_XXS, 0x2bec_6a65_c918_a105),
    (DType::IQ3_S, 0x8ac4_2f54_5bc7_b166),
    (DType::TQ1_0, 0x8d0b_51d2_6314_7421),
    (DType::TQ2_0, 0x6526_00f4_fc61_fc6f),
];

#[test]
fn products_are_bit_identical_to_the_kernels_of_ggml() {
    for (dtype, expected) in PRODUCTS_OF_GGML {
        let (_, bytes, halves) = TYPES.into_iter().find(|(of, ..)| *of == dtype).unwrap();
        let (mut noise, blocks) = (Noise(5), 4);
        let weights = rows_of(bytes, halves, 3 * blocks, &mut noise);
        let given = noise.numbers(blocks * block_len(dtype));
        let x = activations(&given, 1, plain(dtype).unwrap());
        let products = fused(dtype, &weights, blocks * bytes, &x);
        let bytes = products[0].iter().flat_map(|product| product.to_le_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(hash, expected, "{dtype}: {:?}", products[0]);
    }
}

/// The kernels for this processor, all of which fuse additions with multiplications.
fn kernels_here(dtype: DType) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    {
        kernels.extend(has_avx2().then(|| kernels!(dtype, avx2)).flatten());
        kernels.extend(has_avx512().then(|| kernels!(dtype, avx512)).flatten());
    }
    kernels
}

#[test]
fn the_kernels_of_a_processor_give_the_bits_of_the_scalar_ones() {
    let mut noise = Noise(3);
    for (dtype, bytes, halves) in TYPES {
        for (blocks, columns, tokens) in
            [(1, 1, 1), (2, 3, 4), (3, 4, 5), (7, 9, 9), (3, 5, 14), (40, 9, 8)]
        {
            let weights = rows_of(bytes, halves, blocks * columns, &mut noise);
            let given = noise.numbers(tokens * blocks * block_len(dtype));
            for kernel in kernels_here(dtype) {
                let x = activations(&given, tokens, kernel);
                let expected = fused(dtype, &weights, blocks * bytes, &x);
                let found = multiply(kernel, &weights, blocks * bytes, &x);
                assert_eq!([expected.len(), expected[0].len()], [tokens, columns]);
                for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                    assert_eq!(found.to_bits(), expected.to_bits(), "{dtype}: {found} {expected}");
                }
            }
        }
    }
}

/// Rows of one type.
struct OneType {
    dtype: DType,
    bytes: Vec<u8>,
    row_bytes: usize,
}

impl StoredRows for OneType {
    fn dtypes(&self) -> Vec<DType> {
        vec![self.dtype]
    }

    fn precision(&self) -> Option<Precision> {
        Some(Precision::Blocks)
    }

    fn runs(&self, rows: Range<usize>, each: &mut dyn FnMut(Run<'_>)) -> Result<()> {
        let bytes = &self.bytes[rows.start * self.row_bytes..rows.end * self.row_bytes];
        each(Run { dtype: self.dtype, first: 0, bytes, row_bytes: self.row_bytes });
        Ok(())
    }
}

#[test]
fn rows_by_themselves_and_together_give_the_same_bits() {
    let mut noise = Noise(4);
    let (depth, width, tokens) = (512, 150, 6);
    let bytes = rows_of(144, &[0, 2], width * 2, &mut noise);
    let matrix = OneType { dtype: DType::Q4_K, bytes, row_bytes: 288 };
    let x = noise.numbers(tokens * depth);
    let mut together = vec![0.0; tokens * width];
    let left = Left::in_rows(&x, tokens, depth);
    assert!(product(left, &matrix, width, &mut together, &Alone).unwrap());
    for (x, expected) in x.chunks(depth).zip(together.chunks(width)) {
        let mut alone = vec![0.0; width];
        let left = Left::in_rows(x, 1, depth);
        assert!(product(left, &matrix, width, &mut alone, &Alone).unwrap());
        assert_eq!(alone, expected);
    }

    // What does not fit is left to others.
    for value in [f32::NAN, f32::INFINITY, 1e-38] {
        let x = vec![value; depth];
        let left = Left::in_rows(&x, 1, depth);
        assert!(!product(left, &matrix, width, &mut vec![0.0; width], &Alone).unwrap());
    }
}
