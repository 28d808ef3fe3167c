//! Matrices stored as factors against numpy, by properties, and broken.

use std::cell::Cell;

use apr_core::{Code, DType, Error, Result, Shape};
use apr_tensor::element::widen_f32;
use apr_tensor::factors::{FactorsReader, encode, stored_len};
use apr_tensor::sparse::Matrix;
use proptest::prelude::*;

// Stored bytes and products, from tests/factors_expected.py.
const F32: [&str; 2] = [
    "02000000000000006b9e0240049023c00d11d63e595911bfa6c1e7be81c55cbe744701c0ae7f6dbe\
        9b7e5dbf06ac54409b34673e068cb4bee80490be16052bbf",
    "a46396c0490fdb3e920286bf13d407410e0679bfbf70d33d16e34ebec062e23f509c5d3fbe5a393e\
        9f91e73e8f18aebf",
];
const F16: [&str; 2] = [
    "020000000000000038bc41b6b637a2b3a93b65b236262f3e5c380bb8dab15338be3f50b4",
    "e0295ebf53bd1b39142bee385fb2bdb1a72b7d3d5230e1b6",
];
const BF16: [&str; 2] = [
    "020000000000000079be803f63bf95be623f153fbb3d2c3f35c0833f76bfd6bf8e3e333f",
    "7cbfebbf773fe73e4b3ee0bd1b408ebff5bec3be15c0a83f",
];

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

fn dense(matrix: Matrix, dtype: DType, stored: &[u8]) -> Result<Vec<u8>> {
    let reader = FactorsReader::open(matrix, dtype, stored.len() as u64, source(stored))?;
    let mut bytes = vec![0xaa; usize::try_from(matrix.dense_len()).expect("small")];
    reader.read(0, &mut bytes, source(stored))?;
    Ok(bytes)
}

fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = Vec::new();
    widen_f32(dtype, bytes, &mut values);
    values
}

#[test]
fn products_have_the_bits_of_numpy() {
    for (dtype, [stored, product]) in [(DType::F32, F32), (DType::F16, F16), (DType::BF16, BF16)] {
        let (stored, product) = (bytes_of_hex(stored), bytes_of_hex(product));
        let matrix = matrix(dtype, &[3, 4]);
        assert_eq!(dense(matrix, dtype, &stored), Ok(product), "{dtype}");
        assert_eq!(stored_len(matrix, 2), Some(stored.len() as u64));
        let factors = floats(dtype, &stored[8..]);
        let again = encode(dtype, 2, &factors[..6], &factors[6..]);
        assert_eq!(again, Ok(stored), "{dtype}");
    }
}

#[test]
fn a_rank_of_none_is_a_matrix_of_zeros_and_a_matrix_may_be_empty() {
    let stored = encode(DType::F32, 0, &[], &[]).expect("encodes");
    assert_eq!(dense(matrix(DType::F32, &[2, 3]), DType::F32, &stored), Ok(vec![0; 24]));
    for dims in [&[0, 5][..], &[5, 0], &[3, 2, 0]] {
        assert_eq!(dense(matrix(DType::F32, dims), DType::F32, &stored), Ok(Vec::new()));
    }
}

#[test]
fn other_dtypes_and_sizes_are_refused() {
    let stored = encode(DType::F32, 1, &[1.0, 2.0], &[3.0]).expect("encodes");
    let two = matrix(DType::F32, &[2, 1]);
    assert!(dense(two, DType::F32, &stored).is_ok());
    for dtype in [DType::F64, DType::I32, DType::F8_E4M3, DType::Q8_0] {
        let error = encode(dtype, 1, &[1.0], &[1.0]).expect_err("no factors");
        assert_eq!(error.code(), Code::Format, "{dtype}");
    }
    let error = dense(matrix(DType::I32, &[2, 1]), DType::I32, &stored).expect_err("integers");
    assert_eq!(error.code(), Code::Format);
    for dims in [&[2, 2][..], &[3, 1], &[1 << 31, 1 << 29]] {
        let matrix = matrix(DType::F32, dims);
        let open = FactorsReader::open(matrix, DType::F32, 20, source(&stored));
        assert_eq!(open.expect_err("another size").code(), Code::Corrupt, "{dims:?}");
    }
    assert_eq!(stored_len(matrix(DType::F32, &[1 << 31, 1 << 29]), 1 << 62), None);
}

#[test]
fn every_cut_and_every_flipped_bit_is_an_error_or_another_matrix() {
    let stored = bytes_of_hex(BF16[0]);
    let matrix = matrix(DType::BF16, &[3, 4]);
    for cut in 0..stored.len() {
        let error = dense(matrix, DType::BF16, &stored[..cut]).expect_err("cut");
        assert_eq!(error.code(), Code::Corrupt, "cut at {cut}: {error}");
    }
    let longer = [&stored[..], &[0]].concat();
    assert!(dense(matrix, DType::BF16, &longer).is_err());
    for bit in 0..stored.len() * 8 {
        let mut flipped = stored.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let read = dense(matrix, DType::BF16, &flipped);
        assert_eq!(read.is_err(), bit < 64, "bit {bit}");
        if let Err(error) = read {
            assert_eq!(error.code(), Code::Corrupt, "bit {bit}: {error}");
        }
    }
}

/// Numbers that are all different.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37) % 101) as f32 / 64.0 - 0.75).collect()
}

#[test]
fn a_row_costs_its_row_of_the_first_factor_and_an_element_two_rows() {
    let (rows, columns, rank) = (500, 300, 7);
    let (left, right) = (numbers(rows * rank), numbers(rank * columns));
    let stored = encode(DType::F32, rank, &left, &right).expect("encodes");
    let matrix = matrix(DType::F32, &[500, 300]);
    let whole = dense(matrix, DType::F32, &stored).expect("reads");
    let read = Cell::new(0);
    let counted = |offset: u64, buf: &mut [u8]| {
        read.set(read.get() + buf.len());
        source(&stored)(offset, buf)
    };
    let len = stored.len() as u64;
    let reader = FactorsReader::open(matrix, DType::F32, len, counted).expect("opens");
    assert_eq!(reader.rank(), 7);
    for (offset, len, most) in [(300 * 1200, 1200, 4 * 7 * 301), (300 * 1200 + 40, 4, 4 * 14)] {
        read.set(0);
        let mut part = vec![0; len];
        reader.read(offset as u64, &mut part, counted).expect("reads");
        assert_eq!(part, whole[offset..][..len]);
        assert_eq!(read.get(), most);
    }
}

#[test]
fn matrices_larger_than_the_buffers_are_multiplied_in_parts() {
    // Wider than a tile, higher than one, and of a rank that takes several batches.
    for (rows, columns, rank) in [(2, 300_000, 3), (3_000, 200, 2), (900, 1_000, 700)] {
        let (left, right) = (numbers(rows * rank), numbers(rank * columns));
        let stored = encode(DType::F32, rank, &left, &right).expect("encodes");
        let matrix = matrix(DType::F32, &[rows as u64, columns as u64]);
        let product = floats(DType::F32, &dense(matrix, DType::F32, &stored).expect("reads"));
        for at in (0..rows * columns).step_by(9_973) {
            let (row, column) = (at / columns, at % columns);
            let expected = (0..rank)
                .fold(0.0_f32, |sum, k| sum + left[row * rank + k] * right[k * columns + column]);
            assert_eq!(product[at].to_bits(), expected.to_bits(), "{row}, {column}");
        }
    }
}

proptest! {
    #[test]
    fn every_range_matches_the_whole_matrix(
        (rows, columns, rank) in (1_usize..9, 1_usize..9, 0_usize..5),
        dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]),
        ends in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let (left, right) = (numbers(rows * rank), numbers(rank * columns));
        let stored = encode(dtype, rank, &left, &right).expect("encodes");
        let matrix = matrix(dtype, &[rows as u64, columns as u64]);
        let whole = dense(matrix, dtype, &stored).expect("reads");
        let ends = [ends.0.index(whole.len() + 1), ends.1.index(whole.len() + 1)];
        let (start, end) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        let len = stored.len() as u64;
        let reader = FactorsReader::open(matrix, dtype, len, source(&stored)).expect("opens");
        let mut part = vec![0xaa; end - start];
        reader.read(start as u64, &mut part, source(&stored)).expect("reads");
        prop_assert_eq!(part, &whole[start..end]);
        let mut past = vec![0; whole.len() - start + 1];
        prop_assert!(reader.read(start as u64, &mut past, source(&stored)).is_err());
    }
}
