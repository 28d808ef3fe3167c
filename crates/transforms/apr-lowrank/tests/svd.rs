//! Truncated decompositions: against numpy (`fixtures/lowrank/lowrank.py`), and by properties.

use apr_lowrank::{Extent, Svd, memory, product_svd, truncated_svd};
use apr_testkit::locate;
use proptest::prelude::*;
use serde_json::Value;

/// Numbers from -1 to 1, of the generator that the script has.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The script's matrix: noise, and outer products of decreasing size.
fn generated(rows: usize, columns: usize) -> Vec<f32> {
    let numbers = noise(rows * columns + 20 * (rows + columns));
    let (first, rest) = numbers.split_at(rows * columns);
    let mut values: Vec<f32> = first.iter().map(|value| value / 8.0).collect();
    for (term, sides) in rest.chunks_exact(rows + columns).enumerate() {
        let (of_rows, of_columns) = sides.split_at(rows);
        let size = (1 << (term / 4)) as f32;
        for (row, side) in values.chunks_exact_mut(columns).zip(of_rows) {
            row.iter_mut().zip(of_columns).for_each(|(value, other)| *value += side * other / size);
        }
    }
    values
}

fn expected() -> Vec<Value> {
    let text = std::fs::read(locate::fixture("lowrank/lowrank.json")).expect("a fixture");
    let all: Value = serde_json::from_slice(&text).expect("JSON");
    all["matrix"].as_array().expect("a list").clone()
}

fn number(of: &Value, key: &str) -> usize {
    usize::try_from(of[key].as_u64().expect("a number")).expect("small")
}

/// The product of a decomposition.
fn product(svd: &Svd, columns: usize) -> Vec<f64> {
    let row = |left: &[f32]| {
        let mut sums = vec![0.0; columns];
        let terms = left.iter().zip(&svd.values).zip(svd.right.chunks_exact(columns));
        for ((left, value), right) in terms {
            let factor = f64::from(*left) * f64::from(*value);
            sums.iter_mut().zip(right).for_each(|(sum, value)| *sum += factor * f64::from(*value));
        }
        sums
    };
    svd.left.chunks_exact(svd.rank()).flat_map(row).collect()
}

fn distance(matrix: &[f32], other: &[f64]) -> f64 {
    let squares = |pair: (&f32, &f64)| (f64::from(*pair.0) - pair.1).powi(2);
    let lost: f64 = matrix.iter().zip(other).map(squares).sum();
    let all: f64 = matrix.iter().map(|value| f64::from(*value).powi(2)).sum();
    (lost / all).sqrt()
}

#[test]
fn singular_values_and_errors_match_numpy_and_are_no_worse_than_torch() {
    for of in expected() {
        let (rows, columns, rank) =
            (number(&of, "rows"), number(&of, "columns"), number(&of, "rank"));
        let matrix = generated(rows, columns);
        let svd = truncated_svd(&matrix, rows, columns, Extent::Rank(rank)).expect("decomposes");
        let singular = of["singular"].as_array().expect("numbers");
        assert_eq!(svd.rank(), singular.len());
        for (found, wanted) in svd.values.iter().zip(singular) {
            let wanted = wanted.as_f64().expect("a number");
            // The last are of the noise, where one is hardly larger than the next.
            assert!((f64::from(*found) / wanted - 1.0).abs() < 5e-3, "{found}, not {wanted}");
        }
        let error = distance(&matrix, &product(&svd, columns));
        let (best, torchs) = (of["error"].as_f64(), of["torch"].as_f64());
        let (best, torchs) = (best.expect("a number"), torchs.expect("a number"));
        assert!(error < best * 1.001 && error > best * 0.999, "{error}, not {best}");
        assert!(error <= torchs, "{error}, torch {torchs}");
        assert!((svd.share() - (1.0 - best * best)).abs() < 1e-4);
    }
}

#[test]
fn a_share_of_the_energy_takes_as_many_as_numpy_counts() {
    for of in expected() {
        let (rows, columns) = (number(&of, "rows"), number(&of, "columns"));
        let matrix = generated(rows, columns);
        for pair in of["ranks"].as_array().expect("a list") {
            let share = pair[0].as_f64().expect("a share");
            let wanted = pair[1].as_u64().expect("a rank");
            for (most, wanted) in [(400, wanted), (2, 2)] {
                let extent = Extent::Energy { share, most };
                let svd = truncated_svd(&matrix, rows, columns, extent).expect("decomposes");
                assert_eq!(svd.rank() as u64, wanted, "{share} of {rows} x {columns}");
            }
        }
        // All of it, of rounded numbers.
        let extent = Extent::Energy { share: 1.0, most: usize::MAX };
        let svd = truncated_svd(&matrix, rows, columns, extent).expect("decomposes");
        assert!(distance(&matrix, &product(&svd, columns)) < 1e-5);
    }
}

#[test]
fn the_same_matrix_gives_the_same_bits() {
    let matrix = generated(500, 420);
    let once = truncated_svd(&matrix, 500, 420, Extent::Rank(20)).expect("decomposes");
    let again = truncated_svd(&matrix, 500, 420, Extent::Rank(20)).expect("decomposes");
    assert_eq!(once, again);
}

#[test]
fn invalid_matrices_are_rejected_and_zeros_have_no_energy() {
    let rank = Extent::Rank(1);
    for wrong in [vec![1.0, f32::NAN], vec![1.0, f32::INFINITY]] {
        let error = truncated_svd(&wrong, 1, 2, rank).expect_err("no numbers");
        assert_eq!(error.message(), "it has NaN or infinity");
    }
    truncated_svd(&[1.0; 6], 2, 2, rank).expect_err("another size");
    truncated_svd(&[], 0, 2, rank).expect_err("empty");
    let zeros = truncated_svd(&[0.0; 6], 2, 3, rank).expect("decomposes");
    assert_eq!((zeros.values, zeros.energy), (vec![0.0], 0.0));
    // Squares of the largest numbers exceed single precision, not the sums.
    let large = truncated_svd(&[3e38, 0.0, 0.0, 1.0], 2, 2, Extent::Rank(2)).expect("decomposes");
    assert!((large.values[0] / 3e38 - 1.0).abs() < 1e-6);
}

#[test]
fn a_subspace_takes_less_memory_than_all_singular_vectors() {
    let few = memory(4096, 4096, Extent::Rank(64));
    let all = memory(4096, 4096, Extent::Rank(4096));
    assert!(few * 10 < all, "{few} {all}");
    assert_eq!(memory(4096, 4096, Extent::Energy { share: 0.5, most: 100 }), all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn all_singular_values_give_the_matrix_back_and_vectors_are_orthonormal(
        (rows, columns) in (1_usize..40, 1_usize..40),
        scale in -20_i32..20,
    ) {
        let scale = (scale as f32).exp2();
        let matrix: Vec<f32> = noise(rows * columns).iter().map(|value| value * scale).collect();
        let rank = rows.min(columns);
        let svd = truncated_svd(&matrix, rows, columns, Extent::Rank(rank + 3))?;
        prop_assert_eq!(svd.rank(), rank);
        prop_assert!(distance(&matrix, &product(&svd, columns)) < 1e-5);
        prop_assert!(svd.values.is_sorted_by(|a, b| a >= b));
        for k in 0..rank {
            for other in 0..rank {
                let right = |k: usize| &svd.right[k * columns..][..columns];
                let dot: f32 = right(k).iter().zip(right(other)).map(|(a, b)| a * b).sum();
                let wanted = if k == other { 1.0 } else { 0.0 };
                prop_assert!((dot - wanted).abs() < 1e-4, "{dot}");
            }
        }
    }
}

#[test]
fn a_product_is_decomposed_as_its_elements_are() {
    for [rows, inner, columns] in [[40, 6, 30], [5, 12, 30], [40, 50, 8], [1, 1, 1]] {
        let values = noise(rows * inner + inner * columns);
        let (left, right) = values.split_at(rows * inner);
        let element = |at: usize| {
            let (row, column) = (at / columns, at % columns);
            (0..inner).map(|k| left[row * inner + k] * right[k * columns + column]).sum()
        };
        let whole: Vec<f32> = (0..rows * columns).map(element).collect();
        for extent in [Extent::Rank(4), Extent::Energy { share: 0.6, most: usize::MAX }] {
            let found = product_svd(left, right, [rows, inner, columns], extent).expect("finite");
            let expected = truncated_svd(&whole, rows, columns, extent).expect("finite");
            assert_eq!(found.rank(), expected.rank());
            for (found, expected) in found.values.iter().zip(&expected.values) {
                assert!((found - expected).abs() <= 1e-5 * expected, "{found} {expected}");
            }
            let errors = [&found, &expected].map(|svd| distance(&whole, &product(svd, columns)));
            assert!((errors[0] - errors[1]).abs() < 1e-5, "{errors:?}");
        }
    }
    let nan = product_svd(&[f32::NAN], &[1.0], [1, 1, 1], Extent::Rank(1));
    nan.expect_err("not a number");
    product_svd(&[1.0], &[1.0], [1, 2, 1], Extent::Rank(1)).expect_err("another size");
}
