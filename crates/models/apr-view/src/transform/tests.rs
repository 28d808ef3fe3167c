//! Transformed tensors against what NumPy makes of the same bytes.

use apr_core::{CheckpointReader, DType, TensorInfo};
use apr_registry::Limits;

use super::Change;
use crate::view::View;
use crate::windows::Windows;
use crate::windows::tests::Counted;

/// One tensor `t` with these bytes.
fn model(dtype: &str, shape: &[u64], bytes: &[u8]) -> Box<dyn CheckpointReader> {
    let header = format!(
        r#"{{"t":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[0,{}]}}}}"#,
        bytes.len()
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(bytes);
    apr_registry::open(file, "model.safetensors", &Limits::default()).expect("a model")
}

/// The bytes, which every range is part of.
pub(crate) fn bytes(change: &Change, base: &dyn CheckpointReader, len: usize) -> Vec<u8> {
    let mut whole = vec![0; len];
    change.read(base, None, 0, &mut whole).expect("bytes");
    let counted = Counted::new(base);
    let lends_nothing: &dyn CheckpointReader = &counted;
    let windows = [1, 5, 1 << 20].map(Windows::of);
    let ways = windows.iter().map(|windows| (lends_nothing, Some(windows)));
    for (base, windows) in ways.chain([(base, None), (lends_nothing, None)]) {
        for offset in 0..len {
            for end in offset..=len {
                let mut part = vec![0; end - offset];
                change.read(base, windows, offset as u64, &mut part).expect("bytes");
                assert_eq!(part, whole[offset..end], "{offset}..{end}");
            }
        }
    }
    whole
}

fn counting(count: u8) -> Vec<u8> {
    (0..count).collect()
}

/// `np.arange(24).reshape(2, 2, 3, 2).swapaxes(1, 2)`: two heads of six rows of two bytes.
#[test]
fn rows_of_heads_are_interleaved() {
    let base = model("U8", &[12, 2], &counting(24));
    let change = Change::rows(&base.tensors()[0], 0, [2, 2, 3, 1]).expect("twelve rows");
    let expected =
        [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, 12, 13, 18, 19, 14, 15, 20, 21, 16, 17, 22, 23];
    assert_eq!(bytes(&change, &*base, 24), expected);
    let base = model("U8", &[12, 2], &expected);
    let back = Change::rows(&base.tensors()[0], 0, [2, 3, 2, 1]).expect("twelve rows");
    assert_eq!(bytes(&back, &*base, 24), counting(24));
}

/// `np.arange(12).reshape(2, 3, 2).swapaxes(0, 1)`: two heads with two rows each of queries,
/// keys and values.
#[test]
fn runs_of_rows_are_grouped() {
    let base = model("U8", &[12], &counting(12));
    let change = Change::rows(&base.tensors()[0], 0, [1, 2, 3, 2]).expect("twelve rows");
    assert_eq!(bytes(&change, &*base, 12), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
}

/// `g = np.arange(16).reshape(2, 4, 2)`, then `g[:, :2]`, `g[:, 2]` and `g[:, 3]` one after
/// another.
#[test]
fn queries_keys_and_values_of_groups_are_distinguished() {
    let base = model("U8", &[16], &counting(16));
    let change = Change::grouped(&base.tensors()[0], 0, [2, 2, 2], false).expect("two groups");
    let expected = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];
    assert_eq!(bytes(&change, &*base, 16), expected);
    let base = model("U8", &[16], &expected);
    let back = Change::grouped(&base.tensors()[0], 0, [2, 2, 2], true).expect("two groups");
    assert_eq!(bytes(&back, &*base, 16), counting(16));
    for order in [[2, 3, 2], [0, 2, 2], [4, 0, 2], [u64::MAX, 2, 2], [2, u64::MAX, 2]] {
        assert!(Change::grouped(&base.tensors()[0], 0, order, false).is_err(), "{order:?}");
    }
}

#[test]
fn quantized_rows_move_as_a_whole_and_stay_what_they_are() {
    let weights = model("U8", &[1], &[0]);
    let mut base = View::new(&*weights);
    let info = TensorInfo { name: "q".to_owned(), dtype: DType::Q8_0, shape: [4, 64].into() };
    let rows: Vec<u8> = (0..4).flat_map(|row| [row; 68]).collect();
    base.add(info.clone(), rows);
    let change = Change::rows(&info, 1, [1, 2, 2, 1]).expect("four rows");
    let expected: Vec<u8> = [0, 2, 1, 3].iter().flat_map(|&row| [row; 68]).collect();
    let mut moved = vec![0; 4 * 68];
    change.read(&base, None, 0, &mut moved).expect("bytes");
    assert_eq!(moved, expected);
    for refused in
        [Change::sum(&mut info.clone(), 1, 1.0), Change::transposed(&mut info.clone(), 1)]
    {
        let error = refused.expect_err("its elements have no bytes of their own").to_string();
        assert!(error.starts_with("E001: tensor 'q': its elements are q8_0"), "{error}");
        assert!(error.ends_with("with `dequantize` f16 they are"), "{error}");
    }
    let vector = TensorInfo { shape: [64].into(), ..info };
    assert!(Change::rows(&vector, 1, [1, 2, 32, 1]).is_err(), "a block is not a row");
}

#[test]
fn rows_that_are_not_there_are_refused() {
    let base = model("U8", &[12, 2], &counting(24));
    for order in [[2, 2, 2, 1], [0, 2, 3, 1], [u64::MAX, 2, 3, 1]] {
        assert!(Change::rows(&base.tensors()[0], 0, order).is_err(), "{order:?}");
    }
}

/// `np.arange(6).reshape(2, 3).T`
#[test]
fn columns_become_rows() {
    for (dtype, width) in [("U8", 1), ("I16", 2), ("F32", 4), ("F64", 8)] {
        let wide = |elements: &[u8]| -> Vec<u8> {
            elements.iter().flat_map(|&at| vec![at; width]).collect()
        };
        let base = model(dtype, &[2, 3], &wide(&counting(6)));
        let mut info = base.tensors()[0].clone();
        let change = Change::transposed(&mut info, 0).expect("a matrix");
        assert_eq!(info.shape.dims(), [3, 2]);
        assert_eq!(bytes(&change, &*base, 6 * width), wide(&[0, 3, 1, 4, 2, 5]), "{dtype}");
    }
    let base = model("U8", &[6], &counting(6));
    assert!(Change::transposed(&mut base.tensors()[0].clone(), 0).is_err());
}

/// `np.float32(x) + np.float32(1)`
#[test]
fn sums_are_single_precision() {
    let half: Vec<u8> =
        [0x3c00_u16, 0x1001, 0xbc00].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let base = model("F16", &[3], &half);
    let mut info = base.tensors()[0].clone();
    let change = Change::sum(&mut info, 0, 1.0).expect("floats");
    assert_eq!(info.dtype, DType::F32);
    let expected: Vec<u8> =
        [0x4000_0000_u32, 0x3f80_1004, 0].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    assert_eq!(bytes(&change, &*base, 12), expected);
    let base = model("I16", &[3], &half);
    let error = Change::sum(&mut base.tensors()[0].clone(), 0, 1.0).expect_err("integers");
    assert!(error.message().contains("`dequantize` f16"), "{error}");
}

#[test]
fn parts_are_stacked_and_taken_apart() {
    let base = model("U8", &[3, 2], &counting(6));
    let (info, part) = Change::part(&base.tensors()[0], 0, 1, "second").expect("a part");
    assert_eq!((info.name.as_str(), info.shape.dims()), ("second", &[2][..]));
    assert_eq!(bytes(&part, &*base, 2), [2, 3]);
    assert!(Change::part(&base.tensors()[0], 0, 3, "fourth").is_err());
    let (info, stack) = Change::stack(base.tensors(), &[0, 0], "both").expect("alike");
    assert_eq!(info.shape.dims(), [2, 3, 2]);
    assert_eq!(bytes(&stack, &*base, 12), [counting(6), counting(6)].concat());
}

#[test]
fn rows_are_left_out_and_come_back_as_zeros() {
    let base = model("U8", &[3, 2], &counting(6));
    let mut info = base.tensors()[0].clone();
    let later = Change::some_rows(&mut info, 0, 1, 2).expect("two rows");
    assert_eq!((info.shape.dims(), bytes(&later, &*base, 4)), (&[2, 2][..], vec![2, 3, 4, 5]));
    let mut info = base.tensors()[0].clone();
    let padded = Change::some_rows(&mut info, 0, -1, 4).expect("four rows");
    assert_eq!(
        (info.shape.dims(), bytes(&padded, &*base, 8)),
        (&[4, 2][..], vec![0, 0, 0, 1, 2, 3, 4, 5])
    );
    for (skipped, count) in [(2, 2), (0, 4), (-5, 3), (i64::MIN, 1)] {
        assert!(
            Change::some_rows(&mut base.tensors()[0].clone(), 0, skipped, count).is_err(),
            "{skipped} {count}"
        );
    }
}

/// A transposed matrix of 8-bit blocks equals the transposed result of `block::dequantize`, which
/// is compared with ggml's elsewhere.
#[test]
fn blocks_are_decoded_where_elements_are_moved() {
    let weights = model("U8", &[1], &[0]);
    let mut base = View::new(&*weights);
    let mut info = TensorInfo { name: "q".to_owned(), dtype: DType::Q8_0, shape: [3, 64].into() };
    let scale = |block: u8| [0, 0x3c + block % 3];
    let blocks = (0..6_u8).flat_map(|block| {
        let elements = (0..32_u8).map(move |at| at.wrapping_mul(7).wrapping_add(block));
        scale(block).into_iter().chain(elements)
    });
    let blocks: Vec<u8> = blocks.collect();
    let mut values = Vec::new();
    apr_tensor::block::dequantize(DType::Q8_0, &blocks, 64, &mut values);
    base.add(info.clone(), blocks);
    for dtype in [DType::F32, DType::F16] {
        info.dtype = dtype;
        info.shape = [3, 64].into();
        let change = Change::transposed(&mut info, 1).expect("a matrix").of_decoded(dtype);
        let width = usize::try_from(dtype.block_bytes()).expect("few bytes");
        let turned = (0..64).flat_map(|column| (0..3).map(move |row| row * 64 + column));
        let wide: Vec<u8> = turned.flat_map(|at: usize| values[at].to_le_bytes()).collect();
        let mut expected = Vec::new();
        apr_tensor::cast::cast_float(DType::F32, dtype, &wide, &mut expected);
        let expected = if dtype == DType::F32 { wide } else { expected };
        let mut found = vec![0; 192 * width];
        change.read(&base, None, 0, &mut found).expect("bytes");
        assert_eq!(found, expected, "{dtype}");

        // Ends that split elements.
        let mut part = vec![0; 101];
        change.read(&base, None, 33, &mut part).expect("bytes");
        assert_eq!(part, expected[33..134], "{dtype}");
        let windows = crate::windows::Windows::of(1 << 10);
        change.read(&base, Some(&windows), 0, &mut found).expect("bytes");
        assert_eq!(found, expected, "{dtype}");
    }
}
