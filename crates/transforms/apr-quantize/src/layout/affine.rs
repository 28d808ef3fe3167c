//! Scales and biases of which values are made, found again from the values.

use super::rounding::{Scale, most};

/// Returns a scale and a bias for which all values have codes of `bits` bits, if they exist.
///
/// `short` returns the nearest number that can be stored. Each value is the exact sum of a product
/// and a bias, so differences of values are exact multiples of the scale.
pub(super) fn exact(values: &[f32], bits: u32, short: impl Fn(f32) -> f32) -> Option<Scale> {
    let mut sorted: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup();
    let (&low, &high) = (sorted.first()?, sorted.last()?);
    let most = f64::from(most(bits));
    let stored = |number: f64| {
        #[expect(clippy::cast_possible_truncation, reason = "compared with the number below")]
        let found = short(number as f32);
        (f64::from(found) == number).then_some(found)
    };
    let codes = || (0..1_u32 << bits).map(f64::from);
    // The lowest value may have any code that leaves room for the others.
    let with_bias = |scale: f64| {
        let free = most - (high - low) / scale;
        let biases = codes().take_while(|code| *code <= free).map(|code| low - code * scale);
        Some(Scale { scale: stored(scale)?, zero: 0.0, bias: biases.filter_map(stored).next()? })
    };
    let steps = sorted.windows(2).map(|pair| pair[1] - pair[0]);
    let is_whole = |scale: f64| {
        let is_code = |value: &f64| ((value - low) / scale).fract() == 0.0;
        (high - low) / scale <= most && sorted.iter().all(is_code)
    };
    match steps.min_by(f64::total_cmp) {
        Some(step) => {
            let scales = codes().skip(1).map(|parts| step / parts);
            let scales = scales.filter(|scale| stored(*scale).is_some() && is_whole(*scale));
            scales.into_iter().find_map(with_bias)
        }
        None if stored(low).is_some() => with_bias(1.0),
        None => numbers_near(low).find_map(with_bias),
    }
}

/// Numbers of 12 binary digits, of which one value alone may be made: up to 2,048 of them, or what
/// a product and a bias leave where they cancel each other.
fn numbers_near(value: f64) -> impl Iterator<Item = f64> {
    const DIGITS: u32 = 1 << 12;
    #[expect(clippy::cast_possible_truncation, reason = "bounds of a search")]
    let bits = |factor: f64| ((value.abs() * factor) as f32).to_bits() / DIGITS;
    let numbers = bits(1.0 / 2048.0)..bits(f64::from(1 << 20));
    numbers.map(|number| f64::from(f32::from_bits(number * DIGITS)))
}

#[cfg(test)]
mod tests {
    use apr_tensor::half_float::round_to_bf16;

    use super::*;

    fn short(number: f32) -> f32 {
        round_to_bf16(number)
    }

    #[test]
    fn a_single_value_that_is_not_a_bias_is_found_as_a_sum() {
        for (scale, bias, code) in [(0.3, -2.1, 3.0), (0.011, -1.4, 255.0), (1.7, 0.0, 5.0)] {
            let (scale, bias) = (short(scale), short(bias));
            let value = code * scale + bias;
            assert_ne!(short(value), value, "it takes a product");
            let found = exact(&[value; 4], 8, short).expect("it is made of a scale and a bias");
            let codes = (0..=255_u8).map(f32::from);
            assert!(codes.into_iter().any(|code| code * found.scale + found.bias == value));
            assert_eq!((short(found.scale), short(found.bias)), (found.scale, found.bias));
        }
    }
}
