//! Blocks against ggml and gguf-py (see `fixtures/quant/make.py`).
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::path::PathBuf;

use apr_core::digest::TensorDigest;
use apr_core::{DType, Shape};
use apr_tensor::block::{can_dequantize, can_quantize, dequantize, needs_importance, quantize};
use proptest::prelude::*;

/// These are not ggml's.
const ROWS: [DType; 2] = [DType::I8_ROW, DType::I4_ROW];

/// Dtypes whose groups become points of a grid.
const POINTS: [DType; 7] = [
    DType::IQ1_S,
    DType::IQ1_M,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
];

fn dtypes() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| can_dequantize(*dtype))
}

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn quantized(dtype: DType, values: &[f32], row_len: usize, importance: Option<&[f32]>) -> Vec<u8> {
    let mut out = Vec::new();
    quantize(dtype, values, row_len, importance, &mut out);
    out
}

fn dequantized(dtype: DType, bytes: &[u8], row_len: usize) -> Vec<f32> {
    let mut out = vec![1.0; 3];
    dequantize(dtype, bytes, row_len, &mut out);
    out
}

fn assert_same_blocks(dtype: DType, ours: &[u8], expected: &[u8], what: &str) {
    assert_eq!(ours.len(), expected.len(), "{dtype} {what}");
    let block = dtype.block_bytes() as usize;
    for (i, (ours, expected)) in ours.chunks(block).zip(expected.chunks(block)).enumerate() {
        assert_eq!(ours, expected, "{dtype} {what}, block {i}");
    }
}

#[test]
fn quantizing_returns_the_bytes_of_ggml() {
    let (values, importance) = (floats(&fixture("input.f32")), floats(&fixture("importance.f32")));
    let mut heeding = Vec::new();
    for dtype in dtypes()
        .filter(|dtype| can_quantize(*dtype) && !ROWS.contains(dtype) && !POINTS.contains(dtype))
    {
        let plain = fixture(&format!("{dtype}.plain"));
        assert_same_blocks(dtype, &quantized(dtype, &values, 256, None), &plain, "plain");
        let weighted = quantized(dtype, &values, 256, Some(&importance));
        if weighted != plain {
            heeding.push(dtype.name());
            assert_same_blocks(
                dtype,
                &weighted,
                &fixture(&format!("{dtype}.importance")),
                "with importance",
            );
        }
    }
    let expected = [
        "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs",
    ];
    assert_eq!(heeding, expected);
}

/// Rows that ggml ends the program for: their squares overflow, or no importance is left of any
/// value. Ours are blocks too.
fn assert_same_rows(dtype: DType, ours: &[u8], expected: &[u8], rows: usize, unmade: &[usize]) {
    let row_bytes = expected.len() / rows;
    for row in (0..rows).filter(|row| !unmade.contains(row)) {
        let range = row * row_bytes..(row + 1) * row_bytes;
        assert_same_blocks(dtype, &ours[range.clone()], &expected[range], &format!("row {row}"));
    }
}

#[test]
fn quantizing_to_points_returns_the_bytes_of_ggml() {
    let (values, importance) = (floats(&fixture("input.f32")), floats(&fixture("importance.f32")));
    let unmade = String::from_utf8(fixture("unmade.txt")).unwrap();
    let mut files = 0;
    for line in unmade.lines() {
        let (file, rows) = line.split_once(' ').unwrap_or((line, ""));
        let unmade: Vec<usize> = rows.split_whitespace().map(|row| row.parse().unwrap()).collect();
        let (dtype, kind) = file.split_once('.').unwrap();
        let dtype = POINTS.into_iter().find(|point| point.name() == dtype).unwrap();
        let importance = (kind == "importance").then_some(&importance[..]);
        let ours = quantized(dtype, &values, 256, importance);
        assert_same_rows(dtype, &ours, &fixture(file), values.len() / 256, &unmade);
        files += 1;
    }
    assert_eq!(
        files,
        POINTS.len() + POINTS.iter().filter(|dtype| !needs_importance(**dtype)).count()
    );
}

#[test]
fn sub_blocks_of_zeros_take_the_place_that_ggml_gives_them() {
    let (values, importance) = (floats(&fixture("pruned.f32")), floats(&fixture("importance.f32")));
    // In the order of the script.
    let order = ["iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m"];
    let dtypes = order.map(|name| POINTS.into_iter().find(|dtype| dtype.name() == name).unwrap());
    let ours: Vec<u8> = dtypes
        .into_iter()
        .flat_map(|dtype| quantized(dtype, &values, 256, Some(&importance)))
        .collect();
    assert_eq!(ours, fixture("pruned.blocks"));
}

#[test]
fn dequantizing_returns_the_values_of_ggml() {
    for dtype in dtypes().filter(|dtype| !ROWS.contains(dtype)) {
        let ours = dequantized(dtype, &fixture(&format!("{dtype}.blocks")), 256);
        let expected = floats(&fixture(&format!("{dtype}.f32")));
        assert_eq!(ours.len(), expected.len(), "{dtype}");
        for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            assert_eq!(
                ours.to_bits(),
                expected.to_bits(),
                "{dtype}, element {i}: {ours:e} instead of {expected:e}"
            );
        }
    }
}

#[test]
fn the_bytes_of_ggml_come_out_of_more_rows_too() {
    let Some(folder) = apr_testkit::locate::shared_data("quant") else { return };
    let read = |name: String| std::fs::read(folder.join(name)).unwrap();
    let (values, importance) =
        (floats(&read("input.f32".into())), floats(&read("imatrix.f32".into())));
    for dtype in dtypes()
        .filter(|dtype| can_quantize(*dtype) && folder.join(format!("plain.{dtype}")).exists())
    {
        let plain = read(format!("plain.{dtype}"));
        assert_same_blocks(dtype, &quantized(dtype, &values, 1024, None), &plain, "plain");
        let weighted = quantized(dtype, &values, 1024, Some(&importance));
        assert_same_blocks(dtype, &weighted, &read(format!("imatrix.{dtype}")), "with importance");
        let back = dequantized(dtype, &plain, 1024);
        assert!(
            back.iter()
                .flat_map(|value| value.to_le_bytes())
                .eq(read(format!("plain.{dtype}.dequantized.f32")))
        );
    }
}

#[test]
fn the_points_of_ggml_come_out_of_more_rows_too() {
    let Some(folder) = apr_testkit::locate::shared_data("quant") else { return };
    let read = |name: &str| floats(&std::fs::read(folder.join(name)).unwrap());
    let (values, importance) = (read("input.f32"), read("imatrix.f32"));
    let importance: Vec<f32> = importance.iter().map(|weight| weight * weight).collect();
    let digests = String::from_utf8(fixture("wide.blake3")).unwrap();
    for line in digests.lines() {
        let (digest, name) = line.split_once(' ').unwrap();
        let (kind, dtype) = name.split_once('.').unwrap();
        let dtype = POINTS.into_iter().find(|point| point.name() == dtype).unwrap();
        let ours = quantized(dtype, &values, 1024, (kind == "imatrix").then_some(&importance[..]));
        let mut found = TensorDigest::new();
        found.update(&ours);
        let found: String = found.value().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, digest, "{name}");
    }
    assert_eq!(digests.lines().count(), 11);
}

#[test]
fn rows_are_independent_and_appended() {
    let (values, importance) = (floats(&fixture("input.f32")), floats(&fixture("importance.f32")));
    for dtype in dtypes().filter(|dtype| can_quantize(*dtype)) {
        for importance in
            [None, Some(&importance[..])].into_iter().skip(usize::from(needs_importance(dtype)))
        {
            let mut by_row = Vec::new();
            for row in values.chunks(256) {
                quantize(dtype, row, 256, importance, &mut by_row);
            }
            assert_eq!(by_row, quantized(dtype, &values, 256, importance), "{dtype}");
            let shape = Shape::from(vec![values.len() as u64 / 256, 256]);
            assert_eq!(Some(by_row.len() as u64), dtype.stored_len(&shape), "{dtype}");
            assert_eq!(dequantized(dtype, &by_row, 256).len(), values.len());
        }
    }
}

#[test]
fn empty_input_gives_empty_output() {
    for dtype in dtypes() {
        assert!(dequantized(dtype, &[], 0).is_empty());
        if can_quantize(dtype) {
            assert!(quantized(dtype, &[], 0, None).is_empty());
        }
    }
}

#[test]
fn i8_row_is_a_scale_and_bytes() {
    let bytes = quantized(DType::I8_ROW, &[12.7, -1.25, 0.05, 0.15, -25.4, 0.0, 0.0, 0.1], 4, None);
    let (first, second) = bytes.split_at(8);
    assert_eq!(first[..4], (12.7_f32 / 127.0).to_le_bytes());
    assert_eq!(second[..4], (25.4_f32 / 127.0).to_le_bytes());
    assert_eq!(first[4], 127);
    assert_eq!([second[4], second[5]], [-127_i8 as u8, 0]);
    // 0.5 of a scale of 1 is a tie, which goes to the even neighbour.
    let ties = quantized(DType::I8_ROW, &[127.0, 0.5, 1.5, 2.5, -0.5, -1.5], 6, None);
    assert_eq!(
        ties[4..].iter().map(|&byte| byte.cast_signed()).collect::<Vec<_>>(),
        [127, 0, 2, 2, 0, -2]
    );
}

#[test]
fn i4_row_puts_the_first_half_of_a_group_into_low_nibbles() {
    let values: Vec<f32> = (0..32_i8).map(|i| f32::from(i % 15 - 7)).collect();
    let bytes = quantized(DType::I4_ROW, &values, 32, None);
    assert_eq!(bytes[..2], half::f16::ONE.to_le_bytes());
    for i in 0..16 {
        assert_eq!(f32::from((bytes[2 + i] & 15).cast_signed() - 8), values[i]);
        assert_eq!(f32::from((bytes[2 + i] >> 4).cast_signed() - 8), values[i + 16]);
    }
    assert_eq!(dequantized(DType::I4_ROW, &bytes, 32), values);
}

#[test]
fn rows_of_apr2_stay_finite_at_the_ends_of_f32() {
    for extreme in [f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, 190.0 * 1e-45, -0.0] {
        let values = [extreme, extreme / 2.0, 0.0, -extreme].repeat(8);
        for dtype in ROWS {
            let back = dequantized(dtype, &quantized(dtype, &values, 32, None), 32);
            assert!(back.iter().all(|value| value.is_finite()), "{dtype} of {extreme:e}");
            assert!(
                back.iter()
                    .zip(&values)
                    .all(|(back, value)| back.abs() <= value.abs() * 1.5 + 2e-8)
            );
        }
    }
}

proptest! {
    #[test]
    fn i8_rows_err_by_half_a_step_at_most(values in prop::collection::vec(-1e3_f32..1e3, 1..200)) {
        let rows = quantized(DType::I8_ROW, &values, values.len(), None);
        let back = dequantized(DType::I8_ROW, &rows, values.len());
        let step = values.iter().fold(0.0_f32, |greatest, value| greatest.max(value.abs())) / 127.0;
        for (back, value) in back.iter().zip(&values) {
            prop_assert!((back - value).abs() <= 0.5001 * step);
        }
    }

    #[test]
    fn i4_groups_err_by_half_a_step_at_most(values in prop::collection::vec(-1e3_f32..1e3, 32)) {
        let back = dequantized(DType::I4_ROW, &quantized(DType::I4_ROW, &values, 32, None), 32);
        let step = values.iter().fold(0.0_f32, |greatest, value| greatest.max(value.abs())) / 7.0;
        for (back, value) in back.iter().zip(&values) {
            // The scale's 11 bits add up to 7 / 2^11 of a step at the greatest value.
            prop_assert!((back - value).abs() <= 0.505 * step);
        }
    }

    #[test]
    fn any_bytes_are_decoded(bytes in prop::collection::vec(any::<u8>(), 1200)) {
        for dtype in dtypes().filter(|dtype| *dtype != DType::I8_ROW) {
            let (block, len) = (dtype.block_bytes() as usize, dtype.block_len() as usize);
            let whole = &bytes[..bytes.len() / block * block];
            prop_assert_eq!(dequantized(dtype, whole, len).len(), whole.len() / block * len);
        }
    }
}

#[test]
#[should_panic(expected = "whole blocks")]
fn a_row_that_splits_a_block_is_refused() {
    quantized(DType::Q4_0, &[0.0; 40], 40, None);
}

#[test]
#[should_panic(expected = "whole rows")]
fn bytes_that_are_not_whole_rows_are_rejected() {
    dequantized(DType::Q4_0, &[0; 18], 64);
}

#[test]
#[should_panic(expected = "not one to quantize to")]
fn a_type_that_is_only_read_is_not_made() {
    quantized(DType::Q8_K, &[0.0; 256], 256, None);
}

#[test]
#[should_panic(expected = "needs importance")]
fn a_type_that_needs_importance_is_not_made_without() {
    quantized(DType::IQ2_XXS, &[0.0; 256], 256, None);
}
