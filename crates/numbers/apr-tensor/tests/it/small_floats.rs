//! Small floats against their definitions and against `ml_dtypes`.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use apr_core::DType;
use apr_tensor::element::{chunk_len, is_decodable, widen_f32, widen_f64};

/// Dtype, exponent bits, mantissa bits and bias, in the order of `golden/make_small_floats.py`.
const LAYOUTS: [(DType, u32, u32, i32); 8] = [
    (DType::F8_E4M3, 4, 3, 7),
    (DType::F8_E5M2, 5, 2, 15),
    (DType::F8_E4M3FNUZ, 4, 3, 8),
    (DType::F8_E5M2FNUZ, 5, 2, 16),
    (DType::F8_E8M0, 8, 0, 127),
    (DType::F6_E2M3, 2, 3, 1),
    (DType::F6_E3M2, 3, 2, 3),
    (DType::F4_E2M1, 2, 1, 1),
];

/// The values of all codes, decoded from a tensor that holds each code once, in order.
fn decoded(dtype: DType) -> Vec<f32> {
    let codes: Vec<u8> = match dtype {
        DType::F4_E2M1 => (0..8).map(|i| (2 * i) | ((2 * i + 1) << 4)).collect(),
        DType::F6_E2M3 | DType::F6_E3M2 => {
            let group = |i: u32| (0..4).fold(0, |bits, j| bits | ((4 * i + j) << (6 * j)));
            (0..16).flat_map(|i| group(i).to_le_bytes()[..3].to_vec()).collect()
        }
        _ => (0..=255).collect(),
    };
    let mut values = Vec::new();
    widen_f32(dtype, &codes, &mut values);
    values
}

fn assert_same(ours: f32, theirs: f32, what: &str) {
    let same = ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
    assert!(same, "{what}: {ours} instead of {theirs}");
}

#[test]
fn every_code_has_the_value_that_its_bits_define() {
    for (dtype, exponent_bits, mantissa_bits, bias) in LAYOUTS {
        for (code, value) in decoded(dtype).into_iter().enumerate() {
            let code = code as u32;
            let exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
            let fraction =
                f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
            let sign = if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
            let number = match exponent {
                // E8M0 has no zero and no subnormals.
                0 if dtype != DType::F8_E8M0 => fraction * 2_f64.powi(1 - bias),
                _ => (1.0 + fraction) * 2_f64.powi(exponent as i32 - bias),
            };
            let expected = match (dtype, code) {
                (DType::F8_E4M3, 0x7f | 0xff) | (DType::F8_E8M0, 0xff) => f64::NAN,
                (DType::F8_E5M2, 0x7c | 0xfc) => sign * f64::INFINITY,
                (DType::F8_E5M2, 0x7d..=0x7f | 0xfd..=0xff) => f64::NAN,
                (DType::F8_E4M3FNUZ | DType::F8_E5M2FNUZ, 0x80) => f64::NAN,
                _ => sign * number,
            };
            assert_same(value, expected as f32, &format!("{dtype} code {code:#x}"));
            assert!(
                expected.is_nan() || f64::from(value) == expected,
                "{dtype} code {code:#x} is not exact"
            );
        }
    }
}

#[test]
fn every_code_has_the_value_that_ml_dtypes_gives_it() {
    let golden = include_bytes!("../golden/small_floats.bin").as_chunks().0;
    let ours: Vec<(DType, f32)> = LAYOUTS
        .iter()
        .flat_map(|&(dtype, ..)| decoded(dtype).into_iter().map(move |value| (dtype, value)))
        .collect();
    assert_eq!(ours.len(), golden.len());
    for (i, (&(dtype, value), &theirs)) in ours.iter().zip(golden).enumerate() {
        assert_same(value, f32::from_le_bytes(theirs), &format!("{dtype}, entry {i}"));
    }
}

#[test]
fn largest_values_match_the_specifications() {
    let largest =
        |dtype| decoded(dtype).into_iter().filter(|value| value.is_finite()).fold(0.0, f32::max);
    assert_eq!(largest(DType::F8_E4M3), 448.0);
    assert_eq!(largest(DType::F8_E5M2), 57344.0);
    assert_eq!(largest(DType::F8_E4M3FNUZ), 240.0);
    assert_eq!(largest(DType::F8_E5M2FNUZ), 57344.0);
    assert_eq!(largest(DType::F8_E8M0), 2_f32.powi(127));
    assert_eq!(largest(DType::F6_E2M3), 7.5);
    assert_eq!(largest(DType::F6_E3M2), 28.0);
    assert_eq!(decoded(DType::F4_E2M1)[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
}

#[test]
fn both_widths_decode_to_equal_values() {
    let bytes: Vec<u8> = (0..96 * 256_u32).map(|i| (i * 167 + i / 256) as u8).collect();
    let (mut narrow, mut wide) = (Vec::new(), Vec::new());
    for &dtype in DType::ALL {
        let exact_in_f32 =
            !matches!(dtype, DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::U64);
        if is_decodable(dtype) && exact_in_f32 {
            widen_f32(dtype, &bytes, &mut narrow);
            widen_f64(dtype, &bytes, &mut wide);
            assert_eq!(narrow.len(), wide.len());
            assert!(
                narrow
                    .iter()
                    .zip(&wide)
                    .all(|(&a, &b)| f64::from(a) == b || a.is_nan() && b.is_nan()),
                "{dtype}"
            );
        }
    }
}

#[test]
fn integers_booleans_and_complex_numbers_decode_to_their_values() {
    let mut out = vec![99.0; 3];
    widen_f64(DType::I64, &i64::MIN.to_le_bytes(), &mut out);
    assert_eq!(out, [-(2_f64.powi(63))]);
    widen_f64(DType::U64, &u64::MAX.to_le_bytes(), &mut out);
    assert_eq!(out, [2_f64.powi(64)]);
    widen_f64(DType::I32, &(-7_i32).to_le_bytes(), &mut out);
    assert_eq!(out, [-7.0]);
    widen_f64(DType::U32, &u32::MAX.to_le_bytes(), &mut out);
    assert_eq!(out, [4_294_967_295.0]);
    widen_f64(DType::BOOL, &[0, 1, 2], &mut out);
    assert_eq!(out, [0.0, 1.0, 1.0]);
    let complex: Vec<u8> = [1.5_f32, -2.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    widen_f64(DType::C64, &complex, &mut out);
    assert_eq!(out, [1.5, -2.5]);
}

#[test]
fn chunks_end_where_elements_do() {
    for &dtype in DType::ALL {
        if is_decodable(dtype) {
            assert_eq!(chunk_len(dtype) as u64 % dtype.block_bytes(), 0, "{dtype}");
        }
    }
    assert_eq!((chunk_len(DType::F6_E2M3), chunk_len(DType::Q4_K)), (3 << 18, 1 << 20));
}

#[test]
fn bytes_after_the_last_whole_element_are_ignored() {
    let mut out = Vec::new();
    for (dtype, elements) in
        [(DType::F32, 1), (DType::F16, 3), (DType::F6_E2M3, 8), (DType::F4_E2M1, 14)]
    {
        widen_f32(dtype, &[0; 7], &mut out);
        assert_eq!(out.len(), elements, "{dtype}");
    }
}
