//! Sixteen sub-blocks side by side against one element after the other.

#![expect(clippy::cast_possible_truncation, reason = "exponents from -12 to 12")]

use alloc::vec;
use alloc::vec::Vec;

use apr_core::DType;
use proptest::collection::vec as any_vec;
use proptest::prelude::*;

use super::layout::SUPER;
use super::quantize;

mod reference;

const TYPES: [DType; 5] = [DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K];

/// Compares the bytes with and without importance.
fn assert_same(values: &[f32], row_len: usize, importance: &[f32]) {
    for dtype in TYPES {
        for importance in [None, Some(importance)] {
            let (mut ours, mut expected) = (vec![1, 2, 3], vec![1, 2, 3]);
            quantize(dtype, values, row_len, importance, &mut ours);
            reference::quantize(dtype, values, row_len, importance, &mut expected);
            assert_eq!(ours.len(), expected.len());
            let differing =
                ours.iter().zip(&expected).position(|(ours, expected)| ours != expected);
            assert_eq!(differing, None, "{dtype}, importance: {}", importance.is_some());
        }
    }
}

/// Uniform in (-1, 1), the same sequence on every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// A super-block of one of several kinds of values.
fn block(kind: usize, noise: &mut Noise) -> [f32; SUPER] {
    let size = 2_f32.powi((noise.next() * 12.0) as i32);
    let constant = noise.next();
    core::array::from_fn(|at| match kind {
        0 => noise.next() * size,
        1 => noise.next().powi(9) * size,
        2 => constant,
        3 => 0.0,
        4 => (noise.next() * 4.0).trunc() * size,
        5 => 100.0 + noise.next(),
        6 => -noise.next().abs(),
        7 => noise.next() * f32::MIN_POSITIVE * size,
        8 => noise.next() * 1e30,
        9 => [size, -size][at % 2],
        10 => [0.0, -0.0, noise.next()][at / 16 % 3],
        11 => noise.next() * [1e-20, 1e-9, 1.0][at / 32 % 3],
        _ => {
            if at == 77 {
                constant
            } else {
                0.0
            }
        }
    })
}

#[test]
fn lanes_equal_the_scalar_searches() {
    let mut noise = Noise(1);
    for round in 0..if cfg!(debug_assertions) { 20 } else { 400 } {
        let (rows, blocks_per_row) = (1 + round % 7, 1 + round % 5);
        let count = rows * blocks_per_row;
        let values: Vec<f32> =
            (0..count).flat_map(|index| block((index + round) % 13, &mut noise)).collect();
        let row_len = blocks_per_row * SUPER;
        let importance: Vec<f32> =
            (0..row_len).map(|_| noise.next().powi(4).max(0.01 * (round % 2) as f32)).collect();
        assert_same(&values, row_len, &importance);
    }
}

#[test]
fn every_number_of_super_blocks_is_quantized() {
    let mut noise = Noise(2);
    let importance: Vec<f32> = (0..SUPER).map(|_| noise.next().abs()).collect();
    for count in 0..=33 {
        let values: Vec<f32> = (0..count).flat_map(|_| block(0, &mut noise)).collect();
        assert_same(&values, SUPER, &importance);
    }
}

fn any_finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn lanes_equal_the_scalar_searches_for_any_finite_bits(
        values in any_vec(any_finite(), 3 * SUPER),
        importance in any_vec(0.0_f32..1e3, SUPER),
    ) {
        assert_same(&values, SUPER, &importance);
    }

    #[test]
    fn values_that_are_not_finite_do_no_harm(bits in any_vec(0x7f00_0000_u32..=u32::MAX, SUPER)) {
        let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        for dtype in TYPES {
            for importance in [None, Some(&values[..])] {
                quantize(dtype, &values, SUPER, importance, &mut Vec::new());
            }
        }
    }
}
