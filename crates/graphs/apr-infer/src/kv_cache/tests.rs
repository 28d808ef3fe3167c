use apr_tensor::block;
use half::f16;

use super::*;
use crate::matrix::{Left, product};
use crate::moving::{joined, part, transposed};
use crate::workers::Alone;

const HEADS: usize = 3;
const SIZE: usize = 64;

fn fresh(tokens: usize, seed: usize) -> Tensor {
    let of = |at: usize| ((at + 31 * seed) as f32 * 0.37).sin() * 3.0;
    let values: Vec<f32> = (0..HEADS * tokens * SIZE).map(of).collect();
    Tensor::new(vec![1, HEADS, tokens, SIZE], values).unwrap()
}

/// Five tokens, one, none and nine.
fn grown(kind: CacheType) -> (CachedHeads, Tensor) {
    let parts = [fresh(5, 1), fresh(1, 2), fresh(0, 3), fresh(9, 4)];
    let empty = CachedHeads::new(kind, HEADS, SIZE).unwrap();
    let cached = parts.iter().try_fold(empty, CachedHeads::with).unwrap();
    (cached, joined(&parts.iter().collect::<Vec<_>>(), 2).unwrap())
}

#[test]
fn rows_that_were_added_are_what_joined_tensors_are() {
    let (cached, whole) = grown(CacheType::F32);
    assert_eq!(cached.tensor().unwrap(), whole);
    let turned = cached.clone().turned();
    assert_eq!(turned.tensor().unwrap(), transposed(&whole, &[0, 1, 3, 2]).unwrap());
    let (first, last) = (part(&whole, 2, 0, 6).unwrap(), part(&whole, 2, 6, 9).unwrap());
    assert_eq!(cached.clone().truncated(6).tensor().unwrap(), first);
    assert_eq!(cached.without_first(6).tensor().unwrap(), last);
}

#[test]
fn other_types_hold_what_their_encodings_do() {
    let (cached, whole) = grown(CacheType::F16);
    let halves = whole.values::<f32>().unwrap().iter().map(|value| f16::from_f32(*value).to_f32());
    assert_eq!(cached.tensor().unwrap().into_values::<f32>().unwrap(), halves.collect::<Vec<_>>());

    let (cached, whole) = grown(CacheType::Q8_0);
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    block::quantize(DType::Q8_0, whole.values().unwrap(), SIZE, None, &mut bytes);
    block::dequantize(DType::Q8_0, &bytes, SIZE, &mut expected);
    let found = cached.tensor().unwrap();
    assert_eq!(found.values::<f32>().unwrap(), expected);

    // What they stand for becomes the same bits again: files of prompts rely on that.
    let again = CachedHeads::new(CacheType::Q8_0, HEADS, SIZE).unwrap().with(&found).unwrap();
    assert_eq!(again.tensor().unwrap(), found);
}

#[test]
fn rows_grow_in_place_if_they_are_not_shared() {
    for kind in [CacheType::F32, CacheType::F16, CacheType::Q8_0] {
        let (cached, _) = grown(kind);
        let (identity, bytes) = (cached.identity(), cached.bytes());
        let cached = cached.with(&fresh(1, 5)).unwrap();
        assert_eq!((cached.identity(), cached.bytes()), (identity, bytes));

        let (kept, longer) = (cached.clone(), cached.with(&fresh(2, 6)).unwrap());
        assert_eq!((kept.tokens(), longer.tokens()), (16, 18));
        assert_eq!(longer.truncated(16).tensor().unwrap(), kept.tensor().unwrap());
    }
}

#[test]
fn texts_side_by_side_are_joined_tensors_behind_zeros() {
    for kind in [CacheType::F32, CacheType::F16, CacheType::Q8_0] {
        let empty = || CachedHeads::new(kind, HEADS, SIZE).unwrap();
        let short = empty().with(&fresh(2, 7)).unwrap();
        let (long, _) = grown(kind);
        let both = CachedHeads::side_by_side(&[short.clone(), long.clone()]).unwrap();
        assert_eq!(both.shape(), [2, HEADS, 15, SIZE]);

        let zeros = Tensor::new(vec![1, HEADS, 13, SIZE], vec![0.0_f32; HEADS * 13 * SIZE]);
        let padded = joined(&[&zeros.unwrap(), &short.tensor().unwrap()], 2).unwrap();
        let whole = joined(&[&padded, &long.tensor().unwrap()], 0).unwrap();
        assert_eq!(both.tensor().unwrap(), whole);

        let more = joined(&[&fresh(1, 8), &fresh(1, 9)], 0).unwrap();
        let both = both.with(&more).unwrap();
        let first = both.clone().select(&[0]).tensor().unwrap();
        let expected = CachedHeads::side_by_side(&[short, empty().with(&fresh(15, 0)).unwrap()]);
        let expected = expected.unwrap().select(&[0]).with(&fresh(1, 8)).unwrap();
        assert_eq!(first, expected.tensor().unwrap());

        let turned_around = both.clone().select(&[1, 0, 1]);
        let long = long.with(&fresh(1, 9)).unwrap().tensor().unwrap();
        assert_eq!(turned_around.tensor().unwrap(), joined(&[&long, &first, &long], 0).unwrap());
    }
    let wider = CachedHeads::new(CacheType::F32, HEADS, 32).unwrap();
    let other = CachedHeads::new(CacheType::F32, HEADS, SIZE).unwrap();
    assert!(CachedHeads::side_by_side(&[other, wider]).is_err());
}

#[test]
fn products_read_cached_rows_in_place() {
    for kind in [CacheType::F32, CacheType::F16, CacheType::Q8_0] {
        let (cached, _) = grown(kind);
        let floats = cached.tensor().unwrap().into_values::<f32>().unwrap();
        let x: Vec<f32> = (0..4 * SIZE).map(|at| (at as f32 * 0.11).cos()).collect();
        for rows in [1, 4] {
            for (is_keys, heads) in [(true, cached.clone().turned()), (false, cached.clone())] {
                let (depth, width) = if is_keys { (SIZE, 15) } else { (15, SIZE) };
                for (head, matrix) in heads.matrices().iter().enumerate() {
                    let mut out = vec![0.0; rows * width];
                    let left = Left::in_rows(&x[..rows * depth], rows, depth);
                    product(left, matrix.right(), &mut out, &Alone).unwrap();
                    let stored = &floats[head * 15 * SIZE..][..15 * SIZE];
                    let at = |depth: usize, column: usize| {
                        stored[if is_keys { column * SIZE + depth } else { depth * SIZE + column }]
                    };
                    for (number, found) in out.iter().enumerate() {
                        let (row, column) = (number / width, number % width);
                        let terms = (0..depth)
                            .map(|place| f64::from(x[row * depth + place] * at(place, column)));
                        let expected: f64 = terms.sum();
                        assert!((f64::from(*found) - expected).abs() < 1e-4, "{kind:?} {rows}");
                    }
                }
            }
        }
    }
}

#[test]
fn values_that_a_cache_type_cant_hold_are_rejected() {
    let error = CachedHeads::new(CacheType::Q8_0, 2, 40).unwrap_err();
    assert_eq!(error.code(), apr_core::Code::Version);
    let large = Tensor::new(vec![1, 1, 1, 32], vec![70_000.0_f32; 32]).unwrap();
    let of = |kind, tensor: &Tensor| CachedHeads::new(kind, 1, 32).unwrap().with(tensor);
    let message = of(CacheType::F16, &large).unwrap_err().to_string();
    assert!(message.contains("7e4") && message.contains("f16"), "{message}");
    assert!(of(CacheType::Q8_0, &large).is_ok());
    let wrong = Tensor::new(vec![1, 1, 1, 32], vec![f32::NAN; 32]).unwrap();
    assert!(of(CacheType::Q8_0, &wrong).is_err());
    assert!(of(CacheType::F16, &wrong).is_ok());
    assert!(of(CacheType::F32, &fresh(1, 0)).is_err(), "three heads are not one");
}
