//! Casts against numpy and `ml_dtypes` (see `golden/make_casts.py`).
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use apr_core::DType;
use apr_tensor::cast::{CastCounts, can_cast, cast_float};
use apr_tensor::element::widen_f64;

const TARGETS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn widened(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let mut values = Vec::new();
    widen_f64(dtype, bytes, &mut values);
    values
}

/// Casts, checks the counts against the values, and returns the bytes.
fn cast(from: DType, to: DType, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![1, 2, 3];
    let counts = cast_float(from, to, bytes, &mut out);
    let (before, after) = (widened(from, bytes), widened(to, &out));
    assert_eq!(before.len(), after.len());
    let count = |what: fn(f64, f64) -> bool| {
        before.iter().zip(&after).filter(|&(&a, &b)| what(a, b)).count() as u64
    };
    let expected = CastCounts {
        overflowed: count(|before, after| before.is_finite() && after.is_infinite()),
        flushed: count(|before, after| before != 0.0 && after == 0.0),
        inexact: count(|before, after| before != after && !before.is_nan()),
    };
    assert_eq!(counts, expected, "{from} to {to}");
    assert_eq!(count(|before, after| before.is_nan() != after.is_nan()), 0);
    out
}

fn assert_golden(from: DType, golden: &[u8], targets: &[DType]) {
    let width = |dtype: DType| dtype.block_bytes() as usize;
    let per_value = width(from) + targets.iter().map(|&to| width(to)).sum::<usize>();
    let n = golden.len() / per_value;
    assert_eq!(golden.len(), n * per_value);
    let (source, mut rest) = golden.split_at(n * width(from));
    for &to in targets {
        let (expected, next) = rest.split_at(n * width(to));
        rest = next;
        let ours = cast(from, to, source);
        let elements =
            ours.chunks(width(to)).zip(expected.chunks(width(to))).zip(widened(from, source));
        for ((ours, expected), value) in elements {
            let nan = value.is_nan() && widened(to, expected)[0].is_nan();
            assert!(
                ours == expected || nan,
                "{value:e} to {to}: {ours:x?} instead of {expected:x?}"
            );
        }
    }
}

#[test]
fn f32_rounds_to_the_nearest_16_bit_float() {
    assert_golden(
        DType::F32,
        include_bytes!("../golden/casts_f32.bin"),
        &[DType::F16, DType::BF16],
    );
}

#[test]
fn f64_rounds_once() {
    assert_golden(DType::F64, include_bytes!("../golden/casts_f64.bin"), &TARGETS);
}

/// Greatest value, and the least magnitude that is too large to be rounded to it.
const EIGHT_BITS: [(DType, f64, f64); 2] =
    [(DType::F8_E4M3, 448.0, 464.0), (DType::F8_E5M2, 57344.0, 61440.0)];

fn cast_one(to: DType, value: f64) -> (u8, CastCounts) {
    let mut out = Vec::new();
    let counts = cast_float(DType::F64, to, &value.to_le_bytes(), &mut out);
    (out[0], counts)
}

#[test]
fn every_f16_rounds_to_8_bits_as_in_ml_dtypes_but_saturates() {
    // See golden/make_f8.py: the first f16, from zero up, that is rounded to each code; 0xffff if
    // none is.
    let golden = include_bytes!("../golden/f8_of_f16.bin").as_chunks::<256>().0;
    for ((to, greatest, _), firsts) in EIGHT_BITS.into_iter().zip(golden) {
        let firsts: Vec<u16> =
            firsts.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect();
        for bits in 0..=u16::MAX {
            let value = half::f16::from_bits(bits);
            let (mut out, magnitude) = (Vec::new(), bits & 0x7fff);
            let counts = cast_float(DType::F16, to, &bits.to_le_bytes(), &mut out);
            let code = firsts
                .iter()
                .enumerate()
                .filter(|&(_, &first)| first <= magnitude)
                .max_by_key(|&(_, first)| first);
            let by_ml_dtypes = u8::try_from(code.unwrap().0).unwrap() | (bits >> 8) as u8 & 0x80;
            let (expected, ours) = (widened(to, &[by_ml_dtypes])[0], widened(to, &out)[0]);
            if value.is_nan() {
                assert!(ours.is_nan());
            } else if value.is_finite() && !expected.is_finite() {
                assert_eq!((ours.abs(), counts.overflowed), (greatest, 1), "{value} to {to}");
                assert_eq!(ours.is_sign_negative(), value.is_sign_negative());
            } else {
                assert!(
                    out[0] == by_ml_dtypes || ours.is_nan() && expected.is_nan(),
                    "{value} to {to}: {out:x?}"
                );
                assert_eq!(counts.overflowed, 0);
            }
        }
    }
}

#[test]
fn eight_bit_floats_round_to_nearest_and_halfway_cases_to_even() {
    for (to, greatest, beyond) in EIGHT_BITS {
        for code in 0..=u8::MAX / 2 {
            let (here, next) = (widened(to, &[code])[0], widened(to, &[code + 1])[0]);
            if here >= greatest {
                break;
            }
            let middle = f64::midpoint(here, next);
            for (sign, bit) in [(1.0, 0), (-1.0, 0x80)] {
                assert_eq!(cast_one(to, sign * middle).0, (code + (code & 1)) | bit);
                assert_eq!(cast_one(to, sign * middle.next_down()).0, code | bit);
                assert_eq!(cast_one(to, sign * middle.next_up()).0, (code + 1) | bit);
            }
        }
        let last = cast_one(to, greatest).0;
        assert_eq!(
            cast_one(to, beyond.next_down()),
            (last, CastCounts { overflowed: 0, flushed: 0, inexact: 1 })
        );
        assert_eq!(
            cast_one(to, beyond.next_up()),
            (last, CastCounts { overflowed: 1, flushed: 0, inexact: 1 })
        );
        assert_eq!(cast_one(to, -1e300).0, last | 0x80);
    }
    assert!(widened(DType::F8_E4M3, &[cast_one(DType::F8_E4M3, f64::INFINITY).0])[0].is_nan());
    assert_eq!(
        widened(DType::F8_E5M2, &[cast_one(DType::F8_E5M2, f64::NEG_INFINITY).0])[0],
        f64::NEG_INFINITY
    );
}

#[test]
fn every_16_bit_float_survives_f32_and_f64() {
    let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in [DType::F16, DType::BF16] {
        let single = cast(dtype, DType::F32, &codes);
        let double: Vec<u8> =
            widened(dtype, &codes).iter().flat_map(|value| value.to_le_bytes()).collect();
        for back in [cast(DType::F32, dtype, &single), cast(DType::F64, dtype, &double)] {
            let nan = widened(dtype, &codes);
            for ((before, after), value) in
                codes.as_chunks::<2>().0.iter().zip(back.as_chunks::<2>().0).zip(nan)
            {
                assert!(
                    before == after || value.is_nan(),
                    "{dtype} {before:x?} came back as {after:x?}"
                );
            }
        }
        assert_eq!(cast(dtype, dtype, &codes), codes);
    }
}

#[test]
fn casts_between_small_and_16_bit_floats_equal_those_from_f64() {
    let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for &from in DType::ALL {
        for to in TARGETS {
            if can_cast(from, to) && from != to {
                let double: Vec<u8> =
                    widened(from, &codes).iter().flat_map(|value| value.to_le_bytes()).collect();
                let (direct, by_f64) = (cast(from, to, &codes), cast(DType::F64, to, &double));
                let pairs = widened(to, &direct).into_iter().zip(widened(to, &by_f64));
                assert!(
                    { pairs }.all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
                    "{from} to {to}"
                );
            }
        }
    }
}

#[test]
fn only_floats_of_at_least_8_bits_are_cast() {
    let sources = DType::ALL.iter().filter(|&&from| can_cast(from, DType::F16));
    let names: Vec<&str> = sources.map(|dtype| dtype.name()).collect();
    let expected = [
        "f32",
        "f16",
        "bf16",
        "f64",
        "f8_e4m3",
        "f8_e5m2",
        "f8_e8m0",
        "f8_e4m3fnuz",
        "f8_e5m2fnuz",
    ];
    assert_eq!(names, expected);
    assert!(!can_cast(DType::F32, DType::F64) && !can_cast(DType::F32, DType::F8_E8M0));
}

#[test]
fn counts_of_parts_add_up() {
    let mut counts = CastCounts { overflowed: 1, flushed: 2, inexact: 3 };
    counts.merge(CastCounts { overflowed: 10, flushed: 20, inexact: 30 });
    assert_eq!(counts, CastCounts { overflowed: 11, flushed: 22, inexact: 33 });
}
