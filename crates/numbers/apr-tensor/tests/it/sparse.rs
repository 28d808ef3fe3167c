//! Sparse layouts against scipy, on any matrix, and on damaged bytes.

use std::cell::Cell;

use apr_core::{Code, DType, Error, Result, Shape};
use apr_tensor::sparse::{Matrix, SparseLayout, SparseReader, count_entries, encode};
use proptest::prelude::*;

// From tests/sparse_expected.py.
const CSR_F32: &str = "0400000000000000000000000000000002000000000000000200000000000000040000000000\
    000002000000040000000000000004000000000040400000a0400000803f000000c0";
const BSR_2_U8: &str = "020000000000000003000000000000000000000000000000020000000000000003000000000\
    00000000000000200000001000000010000000200000000070000";
const BSR_3_U8: &str = "030000000000000002000000000000000000000000000000020000000000000000000000010\
    00000010000000000000000000200000000070000";

fn bytes_of_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex"))
        .collect()
}

fn matrix(dtype: DType, dims: &[u64]) -> Matrix {
    Matrix::new(dtype, &Shape::from(dims.to_vec())).expect("a matrix")
}

fn source(stored: &[u8]) -> impl Fn(u64, &mut [u8]) -> Result<()> + Copy + '_ {
    move |offset, buf| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = stored.get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or_else(|| Error::corrupt("the source ends").at(offset))?);
        Ok(())
    }
}

fn open(matrix: Matrix, layout: SparseLayout, stored: &[u8]) -> Result<SparseReader> {
    let len = stored.len() as u64;
    match layout {
        SparseLayout::Csr => SparseReader::open_csr(matrix, len, source(stored)),
        SparseLayout::Bsr { .. } => SparseReader::open_bsr(matrix, len, source(stored)),
    }
}

fn dense(matrix: Matrix, layout: SparseLayout, stored: &[u8]) -> Result<Vec<u8>> {
    let reader = open(matrix, layout, stored)?;
    let mut bytes = vec![0xaa; usize::try_from(matrix.dense_len()).expect("small")];
    reader.read(0, &mut bytes, source(stored))?;
    reader.check(source(stored))?;
    Ok(bytes)
}

fn floats() -> Vec<u8> {
    let values: [f32; 15] = [0., 0., 3., 0., 5., 0., 0., 0., 0., 0., 1., 0., 0., 0., -2.];
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

const SMALL: [u8; 15] = [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0];

const BSR_2: SparseLayout = SparseLayout::Bsr { block: 2 };

#[test]
fn stored_bytes_match_scipy() {
    for (dtype, layout, plain, expected) in [
        (DType::F32, SparseLayout::Csr, floats(), CSR_F32),
        (DType::U8, BSR_2, SMALL.to_vec(), BSR_2_U8),
        (DType::U8, SparseLayout::Bsr { block: 3 }, SMALL.to_vec(), BSR_3_U8),
    ] {
        let matrix = matrix(dtype, &[3, 5]);
        let expected = bytes_of_hex(expected);
        assert_eq!(encode(matrix, layout, &plain).expect("encodes"), expected, "{layout:?}");
        assert_eq!(dense(matrix, layout, &expected).expect("decodes"), plain, "{layout:?}");
        let entries = count_entries(matrix, layout, &plain).expect("counts");
        assert_eq!(layout.stored_len(matrix, entries), Some(expected.len() as u64));
    }
}

#[test]
fn negative_zeros_and_nans_are_entries() {
    let values = [0.0_f32, -0.0, f32::from_bits(0x7fc0_1234), 0.0];
    let plain: Vec<u8> = values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect();
    let matrix = matrix(DType::F32, &[2, 2]);
    for layout in [SparseLayout::Csr, SparseLayout::Bsr { block: 1 }] {
        assert_eq!(count_entries(matrix, layout, &plain), Ok(2));
        let stored = encode(matrix, layout, &plain).expect("encodes");
        assert_eq!(dense(matrix, layout, &stored), Ok(plain.clone()));
    }
}

#[test]
fn it_is_worth_while_it_is_smaller() {
    let matrix = matrix(DType::F32, &[100, 100]);
    // 8 + 101 * 8 bytes, and 8 an entry.
    assert_eq!(SparseLayout::Csr.stored_len(matrix, 10), Some(896));
    assert!(SparseLayout::Csr.is_worth(matrix, 4897));
    assert!(!SparseLayout::Csr.is_worth(matrix, 4898));
    assert_eq!(SparseLayout::Csr.stored_len(matrix, u64::MAX), None);
    assert_eq!(SparseLayout::Bsr { block: 0 }.stored_len(matrix, 1), None);
    assert_eq!(SparseLayout::Bsr { block: u32::MAX }.stored_len(matrix, 1), None);
}

#[test]
fn tensors_that_are_not_a_matrix_are_rejected() {
    for (dtype, dims) in [
        (DType::Q8_0, vec![2, 32]),
        (DType::I8_ROW, vec![2, 32]),
        (DType::F4_E2M1, vec![2, 2]),
        (DType::F32, vec![]),
        (DType::F32, vec![1 << 40, 1 << 40]),
    ] {
        let error = Matrix::new(dtype, &Shape::from(dims.clone())).expect_err("no matrix");
        assert_eq!(error.code(), Code::Format, "{dtype} {dims:?}");
    }
    assert!(encode(matrix(DType::U8, &[2, 2]), SparseLayout::Csr, &[0; 3]).is_err());
    assert!(encode(matrix(DType::U8, &[2, 2]), SparseLayout::Bsr { block: 0 }, &[0; 4]).is_err());
}

#[test]
fn empty_matrices_and_vectors_are_matrices() {
    for dims in [&[0, 5][..], &[5, 0], &[0], &[7], &[0, u64::MAX, 3], &[3, 2, 2]] {
        let matrix = matrix(DType::U8, dims);
        for layout in [SparseLayout::Csr, BSR_2] {
            let plain: Vec<u8> = (0..matrix.dense_len()).map(|at| u8::from(at % 3 == 1)).collect();
            let stored = encode(matrix, layout, &plain).expect("encodes");
            assert_eq!(dense(matrix, layout, &stored), Ok(plain), "{dims:?} {layout:?}");
        }
    }
}

/// The bytes of the small matrix with a part replaced.
#[track_caller]
fn refused(layout: SparseLayout, at: usize, part: &[u8], said: &str) {
    let matrix = matrix(DType::U8, &[3, 5]);
    let mut stored = encode(matrix, layout, &SMALL).expect("encodes");
    stored[at..at + part.len()].copy_from_slice(part);
    let error = dense(matrix, layout, &stored).expect_err(said);
    assert_eq!(error.code(), Code::Corrupt, "{error}");
    assert!(error.message().contains(said) && error.offset().is_some(), "{error}");
}

#[test]
fn contradictions_are_reported() {
    let csr = SparseLayout::Csr;
    refused(csr, 0, &[4], "4 entries of the sparse matrix do not take 55 bytes");
    refused(csr, 0, &u64::MAX.to_le_bytes(), "do not take 55 bytes");
    refused(csr, 8, &[1], "entries 1 to 3, not 0 to 3");
    refused(csr, 32, &[2], "entries 0 to 2, not 0 to 3");
    refused(csr, 24, &[1], "row 1 of the sparse matrix has entries 2 to 1");
    refused(csr, 24, &[9], "row 1 of the sparse matrix has entries 2 to 9");
    refused(csr, 40, &[4], "column 4 in row 0 of the sparse matrix does not ascend");
    refused(csr, 44, &[0], "column 0 in row 0 of the sparse matrix does not ascend");
    refused(csr, 48, &[5], "column 5 in row 2 of the sparse matrix is outside it");
    refused(BSR_2, 0, &[0], "missing block size");
    refused(BSR_2, 5, &[1], "missing block size");
    refused(BSR_2, 0, &[0xff; 4], "do not take");
    refused(BSR_2, 40, &[3], "column");
}

#[test]
fn every_cut_and_every_flipped_bit_is_an_error_or_another_matrix() {
    for layout in [SparseLayout::Csr, BSR_2, SparseLayout::Bsr { block: 3 }] {
        let matrix = matrix(DType::U8, &[3, 5]);
        let stored = encode(matrix, layout, &SMALL).expect("encodes");
        for cut in 0..stored.len() {
            let error = dense(matrix, layout, &stored[..cut]).expect_err("cut");
            assert_eq!(error.code(), Code::Corrupt, "{layout:?} cut at {cut}: {error}");
        }
        let longer = [&stored[..], &[0]].concat();
        assert!(dense(matrix, layout, &longer).is_err());
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Err(error) = dense(matrix, layout, &flipped) {
                assert_eq!(error.code(), Code::Corrupt, "{layout:?} bit {bit}: {error}");
            }
        }
    }
}

#[test]
fn a_range_costs_its_rows() {
    let matrix = matrix(DType::F32, &[1000, 1000]);
    let plain: Vec<u8> =
        (0..1_000_000_u32).flat_map(|at| (at % 10 / 9 * at).to_le_bytes()).collect();
    for (layout, most) in [(SparseLayout::Csr, 1000), (SparseLayout::Bsr { block: 4 }, 70_000)] {
        let stored = encode(matrix, layout, &plain).expect("encodes");
        let read = Cell::new(0);
        let counted = |offset: u64, buf: &mut [u8]| {
            read.set(read.get() + buf.len());
            source(&stored)(offset, buf)
        };
        let reader = open(matrix, layout, &stored).expect("opens");
        let mut row = vec![0; 4000];
        reader.read(500 * 4000, &mut row, counted).expect("reads");
        assert_eq!(row, plain[500 * 4000..501 * 4000]);
        assert!(read.get() <= most, "{layout:?}: {} bytes", read.get());
    }
}

#[test]
fn blocks_larger_than_the_buffer_are_read_in_parts() {
    let matrix = matrix(DType::U16, &[300, 500]);
    let plain: Vec<u8> =
        (0..300_000_u32).map(|at| at.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]).collect();
    for block in [200, 256, 1000] {
        let layout = SparseLayout::Bsr { block };
        let stored = encode(matrix, layout, &plain).expect("encodes");
        assert_eq!(dense(matrix, layout, &stored), Ok(plain.clone()), "blocks of {block}");
        let reader = open(matrix, layout, &stored).expect("opens");
        let mut part = vec![0; 12_345];
        reader.read(100_001, &mut part, source(&stored)).expect("reads");
        assert_eq!(part, plain[100_001..112_346]);
    }
}

fn any_matrix() -> impl Strategy<Value = (DType, Vec<u64>, Vec<u8>, SparseLayout)> {
    let dtype =
        prop::sample::select(vec![DType::U8, DType::BF16, DType::F32, DType::F64, DType::C64]);
    let layout = prop_oneof![
        Just(SparseLayout::Csr),
        (1_u32..6).prop_map(|block| SparseLayout::Bsr { block }),
    ];
    (dtype, prop::collection::vec(0_u64..9, 1..4), layout).prop_flat_map(|(dtype, dims, layout)| {
        let len =
            usize::try_from(dims.iter().product::<u64>() * dtype.block_bytes()).expect("small");
        let bytes = prop::collection::vec(prop_oneof![8 => Just(0_u8), 1 => any::<u8>()], len);
        (Just(dtype), Just(dims), bytes, Just(layout))
    })
}

proptest! {
    #[test]
    fn every_matrix_comes_back_in_whole_and_in_parts(
        (dtype, dims, plain, layout) in any_matrix(),
        ends in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let matrix = matrix(dtype, &dims);
        let stored = encode(matrix, layout, &plain).expect("encodes");
        prop_assert_eq!(dense(matrix, layout, &stored), Ok(plain.clone()));
        let ends = [ends.0.index(plain.len() + 1), ends.1.index(plain.len() + 1)];
        let (start, end) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        let reader = open(matrix, layout, &stored).expect("opens");
        let mut part = vec![0xaa; end - start];
        reader.read(start as u64, &mut part, source(&stored)).expect("reads");
        prop_assert_eq!(part, &plain[start..end]);
        let mut past = vec![0; plain.len() - start + 1];
        prop_assert!(reader.read(start as u64, &mut past, source(&stored)).is_err());
    }
}
