//! Statistics and histograms against numpy (see `golden/make_stats.py`), and by property.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use apr_core::DType;
use apr_tensor::cast::cast_float;
use apr_tensor::element::{chunk_len, widen_f64};
use apr_tensor::stats::{Histogram, Moments, Scratch, Stats};
use proptest::prelude::*;
use serde_json::Value;

fn moments(dtype: DType, bytes: &[u8]) -> Moments {
    Moments::of(dtype, bytes, &mut Scratch::default())
}

fn histogram(dtype: DType, bytes: &[u8]) -> Histogram {
    let mut histogram = Histogram::default();
    histogram.add(dtype, bytes, &mut Scratch::default());
    histogram
}

fn f64_bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The generator of `make_stats.py`.
fn gaussian(count: usize) -> Vec<f64> {
    let mut state = 1_u64;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 * 2_f64.powi(-53)
    };
    (0..count).map(|_| (0..12).fold(0.0, |sum, _| sum + uniform()) - 6.0).collect()
}

fn tensor(case: &Value) -> (DType, Vec<u8>) {
    let number = |key: &str| case[key].as_f64().unwrap();
    let mut values = gaussian(case["count"].as_u64().unwrap() as usize);
    for value in &mut values {
        *value = *value * number("scale") + number("shift");
    }
    for patch in case["patches"].as_array().unwrap() {
        values[patch[0].as_u64().unwrap() as usize] = patch[1].as_str().unwrap().parse().unwrap();
    }
    let dtype = *DType::ALL.iter().find(|dtype| dtype.name() == case["dtype"]).unwrap();
    let integer = |width: usize| {
        values.iter().flat_map(|&v| (v as i128).to_le_bytes()[..width].to_vec()).collect()
    };
    let double = f64_bytes(&values);
    let mut bytes = Vec::new();
    let bytes = match dtype {
        DType::F64 => double,
        DType::BF16 => {
            cast_float(DType::F64, DType::F32, &double, &mut bytes);
            let single = bytes.clone();
            cast_float(DType::F32, DType::BF16, &single, &mut bytes);
            bytes
        }
        _ if dtype.is_float() => {
            cast_float(DType::F64, dtype, &double, &mut bytes);
            bytes
        }
        _ => integer(dtype.block_bytes() as usize),
    };
    (dtype, bytes)
}

fn assert_close(ours: Option<f64>, theirs: &Value, scale: f64, what: &str) {
    let theirs = theirs.as_f64();
    let close = match (ours, theirs) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * b.abs().max(scale),
        _ => ours == theirs,
    };
    assert!(close, "{what}: {ours:?} instead of {theirs:?}");
}

#[test]
fn statistics_agree_with_numpy() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../golden/stats.json")).unwrap();
    for case in &cases {
        let (dtype, bytes) = tensor(case);
        let (name, expected) = (case["name"].as_str().unwrap(), &case["expected"]);
        let stats = moments(dtype, &bytes).finish();
        for (key, ours) in
            [("count", stats.count), ("nan", stats.nan), ("inf", stats.inf), ("zeros", stats.zeros)]
        {
            assert_eq!(Some(ours), expected[key].as_u64(), "{name}: {key}");
        }
        for (key, ours) in [("min", stats.min), ("max", stats.max)] {
            assert_eq!(ours, expected[key].as_f64(), "{name}: {key}");
        }
        // A mean near zero is only as good as the values it is summed from.
        assert_close(
            stats.mean,
            &expected["mean"],
            stats.std.unwrap_or_default() * 1e-3,
            &format!("{name}: mean"),
        );
        assert_close(stats.std, &expected["std"], 0.0, &format!("{name}: std"));
        assert_close(Some(stats.l2), &expected["l2"], 0.0, &format!("{name}: l2"));
    }
}

#[test]
fn histograms_agree_with_numpy() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../golden/stats.json")).unwrap();
    for case in cases.iter().filter(|case| !case["bins"].is_null()) {
        let (dtype, bytes) = tensor(case);
        assert_eq!(
            serde_json::to_value(histogram(dtype, &bytes).bins(64)).unwrap(),
            case["bins"],
            "{}",
            case["name"]
        );
    }
}

#[test]
fn no_data_and_quantized_data_have_no_statistics() {
    let nothing = Stats {
        count: 0,
        nan: 0,
        inf: 0,
        zeros: 0,
        min: None,
        max: None,
        mean: None,
        std: None,
        l2: 0.0,
    };
    assert_eq!(Moments::default().finish(), nothing);
    for &dtype in DType::ALL {
        assert_eq!(moments(dtype, &[]).finish(), nothing);
        assert!(histogram(dtype, &[]).bins(64).counts.is_empty());
    }
    assert_eq!(moments(DType::Q4_K, &[7; 144]), Moments::default());
    assert_eq!(histogram(DType::Q4_K, &[7; 144]), Histogram::default());
}

#[test]
fn merging_chunks_in_order_equals_one_read_of_whole_blocks() {
    let bytes: Vec<u8> =
        gaussian(40_000).iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
    let mut merged = Moments::default();
    for block in bytes.chunks(4096 * 4) {
        merged.merge(&moments(DType::F32, block));
    }
    assert_eq!(merged, moments(DType::F32, &bytes));
    assert_eq!(chunk_len(DType::F32) % (4096 * 4), 0);
}

#[test]
fn equal_elements_have_no_deviation() {
    let stats = moments(DType::F64, &f64_bytes(&[0.1; 10_000])).finish();
    assert_eq!((stats.mean, stats.std), (Some(0.1), Some(0.0)));
}

#[test]
fn packed_elements_are_all_counted() {
    // 5000 blocks of every code: more than one kernel block.
    let stats =
        moments(DType::F4_E2M1, &[0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe].repeat(5000))
            .finish();
    assert_eq!(
        (stats.count, stats.zeros, stats.min, stats.max),
        (80_000, 10_000, Some(-6.0), Some(6.0))
    );
    assert_eq!(moments(DType::F6_E2M3, &[0; 30_000]).finish().zeros, 40_000);
}

#[test]
fn sums_beyond_f64_are_not_finite_but_counted() {
    let stats = moments(DType::F64, &f64_bytes(&[f64::MAX; 20])).finish();
    assert_eq!((stats.count, stats.nan, stats.inf, stats.max), (20, 0, 0, Some(f64::MAX)));
    assert!(!stats.mean.unwrap().is_finite());
}

#[test]
fn histograms_of_extreme_values_end_and_count_all() {
    let cases: [&[f64]; 8] = [
        &[0.0, -0.0],
        &[0.1, 0.1, 0.1],
        &[5e-324, 1e-323, -5e-324],
        &[1e-300, 1e300, -1e-300],
        &[f64::MIN, f64::MAX, 0.0, f64::MIN_POSITIVE],
        &[-5e-324, 1.0],
        &[f64::MAX],
        &[f64::MIN],
    ];
    for values in cases {
        let histogram = histogram(DType::F64, &f64_bytes(values));
        for at_most in [0, 1, 4, 64, 5000] {
            let bins = histogram.bins(at_most);
            assert!(
                bins.counts.len() <= at_most.clamp(4, 2048)
                    && bins.start.is_finite()
                    && bins.width.is_finite()
            );
            assert_eq!(bins.counts.iter().sum::<u64>(), values.len() as u64);
            for &value in values {
                let above = |edge: f64| edge <= value || edge == f64::MIN;
                assert!(bins.counts.iter().enumerate().any(|(i, &count)| {
                    count > 0
                        && above(bins.start + i as f64 * bins.width)
                        && value < bins.start + (i + 1) as f64 * bins.width
                        || bins.start + (i + 1) as f64 * bins.width >= f64::MAX / 2.0
                }));
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_are_not_binned() {
    let bins =
        histogram(DType::F64, &f64_bytes(&[f64::NAN, 1.0, f64::INFINITY, f64::NEG_INFINITY]))
            .bins(64);
    assert_eq!((bins.start, bins.counts), (1.0, vec![1]));
    assert_eq!(histogram(DType::F64, &f64_bytes(&[f64::NAN])), Histogram::default());
}

/// Values of all kinds: any bits, near one, small integers.
fn any_value() -> impl Strategy<Value = f64> {
    prop_oneof![any::<u64>().prop_map(f64::from_bits), -1.0..1.0_f64, (-9..9).prop_map(f64::from)]
}

proptest! {
    #[test]
    fn a_histogram_depends_on_neither_order_nor_chunking(
        values in prop::collection::vec(any_value(), 0..300),
        cut in 0..300_usize,
        at_most in 4..100_usize,
    ) {
        let whole = histogram(DType::F64, &f64_bytes(&values));
        let mut reversed = values.clone();
        reversed.reverse();
        let (left, right) = reversed.split_at(cut.min(reversed.len()));
        let mut parts = histogram(DType::F64, &f64_bytes(left));
        parts.merge(&histogram(DType::F64, &f64_bytes(right)));
        prop_assert_eq!(&parts, &whole);
        let mut one_by_one = Histogram::default();
        for value in &values {
            one_by_one.add(DType::F64, &value.to_le_bytes(), &mut Scratch::default());
        }
        prop_assert_eq!(one_by_one.bins(at_most), whole.bins(at_most));
        let finite = values.iter().filter(|value| value.is_finite()).count() as u64;
        prop_assert_eq!(whole.bins(at_most).counts.iter().sum::<u64>(), finite);
    }

    #[test]
    fn merged_moments_match_the_whole_tensor(
        values in prop::collection::vec(-1e3..1e3_f64, 1..500),
        cut in 0..500_usize,
    ) {
        let (left, right) = values.split_at(cut.min(values.len()));
        let mut parts = moments(DType::F64, &f64_bytes(left));
        parts.merge(&moments(DType::F64, &f64_bytes(right)));
        let (parts, whole) = (parts.finish(), moments(DType::F64, &f64_bytes(&values)).finish());
        prop_assert_eq!((parts.count, parts.min, parts.max), (whole.count, whole.min, whole.max));
        prop_assert!((parts.mean.unwrap() - whole.mean.unwrap()).abs() <= 1e-12 * 1e3);
        prop_assert!((parts.std.unwrap() - whole.std.unwrap()).abs() <= 1e-9 * 1e3);
        prop_assert!((parts.l2 - whole.l2).abs() <= 1e-12 * whole.l2);
    }

    #[test]
    fn any_bytes_of_any_dtype_are_summarised_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        for &dtype in DType::ALL {
            let stats = moments(dtype, &bytes).finish();
            prop_assert!(stats.nan + stats.inf <= stats.count);
            let binned: u64 = histogram(dtype, &bytes).bins(32).counts.iter().sum();
            prop_assert_eq!(binned, stats.count - stats.nan - stats.inf);
            if !dtype.is_quantized() {
                let mut values = Vec::new();
                widen_f64(dtype, &bytes, &mut values);
                prop_assert_eq!(values.len() as u64, stats.count);
            }
        }
    }
}
