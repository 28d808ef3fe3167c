//! Other rates, by a windowed sinc, with the settings that transformers' pipelines resample with.
//!
//! The filter is that of torchaudio's `resample` (Smith, "Digital Audio Resampling Home Page",
//! 2002): six zero crossings on each side under a Hann window, the cut-off at 0.99 of the lower
//! rate's half.

use std::f64::consts::PI;

use apr_core::{Error, Result};

/// Zero crossings on each side.
const CROSSINGS: f64 = 6.0;
/// Cut-off as a part of half the lower rate.
const ROLL_OFF: f64 = 0.99;
/// Lowest and highest rate of a sound, in Hz.
const MIN_RATE: u32 = 1000;
const MAX_RATE: u32 = 1 << 20;
/// Taps of all filters together.
const MAX_TAPS: usize = 1 << 22;

/// Samples at another rate.
///
/// # Errors
/// E001 for a rate that no sound has.
pub fn resample(samples: &[f32], from: u32, to: u32) -> Result<Vec<f32>> {
    if [from, to].iter().any(|rate| !(MIN_RATE..=MAX_RATE).contains(rate)) {
        return Err(Error::format(format!("can't resample audio from {from} Hz to {to} Hz")));
    }
    if from == to {
        return Ok(samples.to_vec());
    }

    let divisor = greatest_divisor(from, to);
    let (from, to) = ((from / divisor) as usize, (to / divisor) as usize);
    let filters = filters(from, to)?;
    let length = (samples.len() * to).div_ceil(from);
    let mut made = Vec::with_capacity(length);
    for position in 0..length {
        let Filter { offset, taps } = &filters[position % to];
        let start = (position / to * from) as i64 + offset;
        let sum: f64 = taps
            .iter()
            .zip(start..)
            .filter_map(|(tap, at)| {
                Some(f64::from(*tap) * f64::from(*samples.get(usize::try_from(at).ok()?)?))
            })
            .sum();
        #[expect(clippy::cast_possible_truncation, reason = "samples have single precision")]
        made.push(sum as f32);
    }

    Ok(made)
}

/// Filter for one of the samples in a period. `offset` is the position of its first tap relative to
/// the first sample of the period.
struct Filter {
    offset: i64,
    taps: Vec<f32>,
}

fn filters(from: usize, to: usize) -> Result<Vec<Filter>> {
    let (wide, narrow) = (from as f64, to as f64);
    let cut_off = wide.min(narrow) * ROLL_OFF;
    let reach = CROSSINGS * wide / cut_off;
    #[expect(clippy::cast_possible_truncation, reason = "at most a few million samples")]
    let whole = |number: f64| number as i64;
    if to.saturating_mul(usize::try_from(whole(2.0 * reach)).unwrap_or(usize::MAX / 2) + 2)
        > MAX_TAPS
    {
        return Err(Error::memory(format!(
            "rates with the ratio {from} : {to} take too large a filter"
        )));
    }
    Ok((0..to)
        .map(|phase| {
            let moved = phase as f64 / narrow;
            let centre = moved * wide;
            let (first, last) = (whole((centre - reach).ceil()), whole((centre + reach).floor()));
            let tap = |at: i64| {
                let place = ((at as f64 / wide - moved) * cut_off).clamp(-CROSSINGS, CROSSINGS);
                let window = (place * PI / CROSSINGS / 2.0).cos().powi(2);
                let angle = place * PI;
                let sinc = if angle == 0.0 { 1.0 } else { angle.sin() / angle };
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "filters have single precision, as theirs"
                )]
                let tap = (sinc * window * cut_off / wide) as f32;
                tap
            };
            Filter { offset: first, taps: (first..=last).map(tap).collect() }
        })
        .collect())
}

fn greatest_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_rates_including_unusual_rates() {
        assert_eq!(resample(&[0.5; 441], 44_100, 16_000).unwrap().len(), 160);
        assert_eq!(resample(&[0.5; 3], 16_000, 44_101).unwrap().len(), 9);
        assert!(resample(&[], 8_000, 16_000).unwrap().is_empty());
        assert!(resample(&[0.5], 0, 16_000).is_err() && resample(&[0.5], 1, 16_000).is_err());
        assert!(resample(&[0.5], u32::MAX, 16_000).is_err());
        assert!(
            resample(&[0.5; 100], 1001, 1 << 20).is_err(),
            "a filter for each of a million samples"
        );
    }
}
