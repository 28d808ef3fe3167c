//! Big-endian files.

use apr_core::{CheckpointReader, Code, DType};
use apr_gguf::{WriteOptions, from_ggml_type};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};

use crate::{assert_refused, contents, open, pairs, rewrite};

/// Offset and width of the numbers in a block, as in ggml's structs.
const NUMBERS: [(u32, &[(usize, usize)]); 20] = [
    (0, &[(0, 4)]),
    (1, &[(0, 2)]),
    (2, &[(0, 2)]),
    (3, &[(0, 2), (2, 2)]),
    (8, &[(0, 2)]),
    (10, &[(80, 2), (82, 2)]),
    (12, &[(0, 2), (2, 2)]),
    (13, &[(0, 2), (2, 2)]),
    (14, &[(208, 2)]),
    (20, &[(0, 2)]),
    (24, &[]),
    (25, &[(0, 2)]),
    (26, &[(0, 4)]),
    (27, &[(0, 8)]),
    (28, &[(0, 8)]),
    (30, &[(0, 2)]),
    (34, &[(52, 2)]),
    (35, &[(64, 2)]),
    (39, &[]),
    (41, &[(0, 2)]),
];

fn block(dtype: DType) -> (u64, usize) {
    (dtype.block_len(), usize::try_from(dtype.block_bytes()).expect("small"))
}

#[test]
fn a_big_endian_file_reads_as_its_little_endian_twin() {
    for (number, numbers) in NUMBERS {
        let (row, len) = block(from_ggml_type(number).expect("a type"));
        let little: Vec<u8> = (0..1000 * len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let mut big = little.clone();
        for block in big.chunks_mut(len) {
            numbers.iter().for_each(|&(at, width)| block[at..at + width].reverse());
        }
        let dims = [row * 10, 100];
        let of = |builder: GgufBuilder, bytes: &[u8]| {
            let builder = builder.text("general.architecture", "llama").u32("llama.block_count", 7);
            builder.entry(GgufEntry::new("t", number, &dims, bytes)).build()
        };
        let little = open(of(GgufBuilder::new(), &little)).expect("a sound file");
        let big = open(of(GgufBuilder::new().big_endian(), &big)).expect("a sound file");
        assert_eq!(big.container().header_fields()["endian"], "big");
        assert_eq!(pairs(&big), pairs(&little));
        assert!(contents(&big) == contents(&little), "type {number}");
        // Any range, wherever blocks begin.
        let whole = &contents(&little)[0].1;
        for (start, end) in [
            (0, 1),
            (1, 2),
            (len - 1, len + 1),
            (3, 3),
            (5, whole.len()),
            (whole.len() - 1, whole.len()),
        ] {
            let mut range = vec![0; end - start];
            big.read_tensor(0, start as u64, &mut range).expect("inside");
            assert_eq!(range, whole[start..end], "type {number}, {start}..{end}");
        }
        assert_eq!(
            rewrite(&big, &WriteOptions::default()),
            rewrite(&little, &WriteOptions::default())
        );
    }
}

#[test]
fn all_versions_and_lengths_are_swapped() {
    for version in 1..=3 {
        let builder =
            GgufBuilder::new().version(version).big_endian().texts("k", &["a", "b"]).u16("h", 258);
        let reader = open(builder.entry(GgufEntry::new("t", 25, &[2], &[1, 2, 3, 4])).build())
            .expect("a sound file");
        assert_eq!(reader.container().header_fields()["version"], version);
        assert_eq!(contents(&reader)[0].1, [2, 1, 4, 3]);
        assert_eq!(reader.tensor_slice(0), None);
    }
}

#[test]
fn types_without_an_agreed_order_are_refused() {
    for number in [6, 7, 11, 15, 16, 17, 18, 19, 21, 22, 23, 29] {
        let dtype = from_ggml_type(number).expect("a type");
        let (row, len) = block(dtype);
        let of = |builder: GgufBuilder| {
            builder.entry(GgufEntry::new("t", number, &[row], &vec![0; len])).build()
        };
        let error =
            assert_refused(open(of(GgufBuilder::new().big_endian())), Code::Version, dtype.name());
        assert_eq!(error.tensor(), Some("t"));
        assert!(open(of(GgufBuilder::new())).is_ok());
    }
}
