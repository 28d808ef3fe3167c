//! Exponentials, error functions and hyperbolic tangents of many elements at a time.
//!
//! The functions have no branches, so that the compiler makes vector instructions of loops over
//! them; they are compiled for several instruction sets, and every version gives the same bits.
//! Results are a few units in the last place off.
#![allow(
    unsafe_code,
    reason = "multiversion calls the version for a processor's features after detecting them"
)]

use crate::targets::for_several_targets;

for_several_targets! {
    /// Replaces each element by `e^(x - offset)` and returns their sum.
    pub(crate) fn exp_and_sum(values: &mut [f32], offset: f32) -> f32 {
        const LANES: usize = 16;

        let mut sums = [0.0_f32; LANES];
        let (groups, rest) = values.as_chunks_mut::<LANES>();
        for group in groups {
            for value in group.iter_mut() {
                *value = exp(*value - offset);
            }
            for lane in 0..LANES {
                sums[lane] += group[lane];
            }
        }

        let mut sum: f32 = sums.iter().sum();
        for value in rest {
            *value = exp(*value - offset);
            sum += *value;
        }

        sum
    }
}

for_several_targets! {
    /// Returns the largest element that is a number, or NaN if there is none.
    pub(crate) fn largest(values: &[f32]) -> f32 {
        const LANES: usize = 16;

        let mut largest = [f32::NAN; LANES];
        let (groups, rest) = values.as_chunks::<LANES>();
        for group in groups {
            for lane in 0..LANES {
                largest[lane] = largest[lane].max(group[lane]);
            }
        }
        rest.iter().chain(&largest).copied().fold(f32::NAN, f32::max)
    }
}

for_several_targets! {
    /// The sum of `e^(x - offset)` in double precision, over what is a number.
    pub(crate) fn sum_of_exponentials(values: &[f32], offset: f32) -> f64 {
        const LANES: usize = 16;

        let mut sums = [0.0_f64; LANES];
        let term = |value: f32| {
            let power = exp_double(f64::from(value - offset));
            if value.is_nan() { 0.0 } else { power }
        };
        let (groups, rest) = values.as_chunks::<LANES>();
        for group in groups {
            for lane in 0..LANES {
                sums[lane] += term(group[lane]);
            }
        }
        sums.iter().sum::<f64>() + rest.iter().map(|value| term(*value)).sum::<f64>()
    }
}

for_several_targets! {
    /// Replaces each value with `e^x`.
    pub(crate) fn exp_all(values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = exp(*value));
    }
}

for_several_targets! {
    /// `1 / (1 + e^-x)`.
    pub(crate) fn sigmoid_all(values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = 1.0 / (1.0 + exp(-*value)));
    }
}

for_several_targets! {
    /// `x / (1 + e^(-alpha x))`.
    pub(crate) fn swish_all(values: &mut [f32], alpha: f32) {
        values.iter_mut().for_each(|value| *value /= 1.0 + exp(-alpha * *value));
    }
}

for_several_targets! {
    /// The hyperbolic tangent.
    pub(crate) fn tanh_all(values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = tanh(*value));
    }
}

for_several_targets! {
    /// The error function.
    pub(crate) fn erf_all(values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = erf(*value));
    }
}

for_several_targets! {
    /// `x / 2 (1 + erf(x / sqrt 2))`.
    pub(crate) fn gelu_all(values: &mut [f32]) {
        values.iter_mut().for_each(|value| {
            *value *= 0.5 + 0.5 * erf(*value * std::f32::consts::FRAC_1_SQRT_2);
        });
    }
}

/// `e^x`: a power of two times a polynomial on half a factor of two.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Added to a small number, it leaves the nearest integer in the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts: products of the first with small integers are exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;

    // Beyond these the result is infinite or 0 anyway.
    let bounded = if x < -104.0 { -104.0 } else { x };
    let bounded = if bounded > 89.0 { 89.0 } else { bounded };
    let rounded = bounded * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let rest = bounded - power * LN2_HIGH - power * LN2_LOW;

    // The series to the sixth power: the next term is below a unit in the last place.
    let sum = 1.0 / 720.0;
    let sum = sum * rest + 1.0 / 120.0;
    let sum = sum * rest + 1.0 / 24.0;
    let sum = sum * rest + 1.0 / 6.0;
    let sum = sum * rest + 0.5;
    let sum = sum * rest + 1.0;
    let sum = sum * rest + 1.0;

    // In two steps, so that results below the normal numbers and those near the largest come out.
    let whole = rounded.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = whole >> 1;
    let scale = |power: i32| f32::from_bits((power + 127).cast_unsigned() << 23);
    sum * scale(half) * scale(whole - half)
}

/// Returns `e^x` in double precision, for `x` of at most 0.
#[inline(always)]
pub(crate) fn exp_double(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

    // Below, results are no normal numbers, which no sum of weights that begins at 1 sees.
    let bounded = if x > -700.0 { x } else { -700.0 };
    let rounded = bounded * std::f64::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let rest = bounded - power * LN2_HIGH - power * LN2_LOW;

    // The series to the 13th power.
    let sum = 1.0 / 6_227_020_800.0;
    let sum = sum * rest + 1.0 / 479_001_600.0;
    let sum = sum * rest + 1.0 / 39_916_800.0;
    let sum = sum * rest + 1.0 / 3_628_800.0;
    let sum = sum * rest + 1.0 / 362_880.0;
    let sum = sum * rest + 1.0 / 40_320.0;
    let sum = sum * rest + 1.0 / 5_040.0;
    let sum = sum * rest + 1.0 / 720.0;
    let sum = sum * rest + 1.0 / 120.0;
    let sum = sum * rest + 1.0 / 24.0;
    let sum = sum * rest + 1.0 / 6.0;
    let sum = sum * rest + 0.5;
    let sum = sum * rest + 1.0;
    let sum = sum * rest + 1.0;

    let whole = rounded.to_bits().wrapping_sub(ROUND.to_bits());
    sum * f64::from_bits(whole.wrapping_add(1023) << 52)
}

/// Near 0 a polynomial, elsewhere by the exponential.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let square = x * x;
    let near = ((-17.0 / 315.0 * square + 2.0 / 15.0) * square - 1.0 / 3.0) * square * x + x;
    let e = exp(2.0 * x.abs());
    let far = (1.0 - 2.0 / (e + 1.0)).copysign(x);
    let value = if square < 0.04 { near } else { far };
    if x.is_nan() { x } else { value }
}

/// Abramowitz and Stegun 1964, 7.1.26 beyond 1/2 (off by 1.5e-7 at most), the Taylor series below.
#[inline(always)]
fn erf(x: f32) -> f32 {
    const TWO_BY_ROOT_PI: f32 = std::f32::consts::FRAC_2_SQRT_PI;

    let square = x * x;
    let series = -1.0 / 1320.0;
    let series = series * square + 1.0 / 216.0;
    let series = series * square - 1.0 / 42.0;
    let series = series * square + 1.0 / 10.0;
    let series = series * square - 1.0 / 3.0;
    let near = TWO_BY_ROOT_PI * (series * square * x + x);
    let magnitude = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * magnitude);
    let sum = 1.061_405_4;
    let sum = sum * t - 1.453_152;
    let sum = sum * t + 1.421_413_7;
    let sum = sum * t - 0.284_496_74;
    let sum = sum * t + 0.254_829_6;
    let far = (1.0 - sum * t * exp(-square)).copysign(x);
    let value = if magnitude < 0.5 { near } else { far };
    if x.is_nan() { x } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> impl Iterator<Item = f32> {
        (-200_000..200_000).map(|n| n as f32 * 5.3e-4)
    }

    fn assert_close(ours: fn(f32) -> f32, exact: fn(f64) -> f64, absolute: f64, relative: f64) {
        for x in numbers() {
            let (ours, exact) = (f64::from(ours(x)), exact(f64::from(x)));
            let close = (ours - exact).abs() <= absolute + relative * exact.abs();
            assert!(
                close || exact > f64::from(f32::MAX) && ours.is_infinite(),
                "{x}: {ours} and {exact}"
            );
        }
    }

    #[test]
    fn functions_are_close_to_their_double_precision_versions() {
        assert_close(exp, f64::exp, 1e-45, 4e-7);
        assert_close(tanh, f64::tanh, 0.0, 8e-7);
        assert_close(erf, libm::erf, 3e-7, 0.0);
    }

    #[test]
    fn exponentials_of_double_precision_are_close_to_the_library_s() {
        for n in 0..200_000 {
            let x = f64::from(n) * -3.4e-3;
            let (ours, exact) = (exp_double(x), libm::exp(x));
            assert!((ours - exact).abs() <= 4e-16 * exact, "{x}: {ours} and {exact}");
        }
        assert!(exp_double(f64::NEG_INFINITY) < 1e-300);
        let all = [1.0, f32::NAN, 0.0, f32::NEG_INFINITY];
        assert!((sum_of_exponentials(&all, 1.0) - 1.0 - libm::exp(-1.0)).abs() < 1e-15);
        assert_eq!(largest(&all), 1.0);
        assert!(largest(&[f32::NAN]).is_nan());
    }

    #[test]
    fn functions_keep_nan_and_accept_infinity() {
        for function in [exp, tanh, erf] {
            assert!(function(f32::NAN).is_nan());
        }
        assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert_eq!((erf(f32::INFINITY), erf(f32::NEG_INFINITY)), (1.0, -1.0));
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn many_at_a_time_give_the_bits_of_one_at_a_time() {
        let all: Vec<f32> = numbers().collect();
        for (many, one) in
            [(exp_all as fn(&mut [f32]), exp as fn(f32) -> f32), (tanh_all, tanh), (erf_all, erf)]
        {
            let mut changed = all.clone();
            many(&mut changed);
            assert!(changed.iter().zip(&all).all(|(ours, x)| ours.to_bits() == one(*x).to_bits()));
        }
        let mut few = all[..100].to_vec();
        let sum = exp_and_sum(&mut few, 3.0);
        assert!((sum - few.iter().sum::<f32>()).abs() <= 1e-5 * sum);
    }
}
