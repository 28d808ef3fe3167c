//! Log-mel spectra, as Whisper's feature extractor makes them.

use std::f64::consts::PI;

use apr_core::{Error, Result};

/// Points of a frame.
const MAX_POINTS: usize = 1 << 14;
/// A frame takes the product of its points and their prime factors: the largest factor, and the
/// points up to which any will do.
const MAX_PRIME: usize = 64;
const MAX_ODD_POINTS: usize = 4096;
/// Values of a spectrum: three hours of sound for the largest models.
const MAX_VALUES: usize = 1 << 27;
/// Least power that the logarithm sees.
const FLOOR: f64 = 1e-10;
/// Range of the spectrum in powers of ten. Values further below the maximum are clipped.
const RANGE: f64 = 8.0;

/// Settings of a mel spectrum.
#[derive(Debug, Clone, PartialEq)]
pub struct MelSettings {
    /// Samples of a frame.
    pub points: usize,
    /// Samples from a frame to the next.
    pub hop: usize,
    /// Number of bands.
    pub mels: usize,
    /// Weights of the frequencies for each band, `[mels, points / 2 + 1]`.
    pub filterbank: Vec<f32>,
}

/// Makes log-mel spectra.
#[derive(Debug, Clone)]
pub struct LogMel {
    settings: MelSettings,
    window: Vec<f64>,
    /// Cosine and sine of each part of a turn.
    turns: Vec<(f64, f64)>,
}

impl LogMel {
    /// Prepares the window and the transform.
    ///
    /// # Errors
    /// E001 for settings that contradict each other.
    pub fn new(settings: MelSettings) -> Result<Self> {
        let MelSettings { points, hop, mels, .. } = settings;
        let fits = (2..=MAX_POINTS).contains(&points)
            && (1..=points).contains(&hop)
            && (points <= MAX_ODD_POINTS || largest_prime(points) <= MAX_PRIME)
            && (1..=4096).contains(&mels);
        if !fits || settings.filterbank.len() != mels * (points / 2 + 1) {
            let found = settings.filterbank.len();
            return Err(Error::format(format!(
                "a spectrum of {mels} bands from {points} samples every {hop}, with a filterbank \
                 of {found} weights"
            )));
        }

        let part = |at: usize| 2.0 * PI * at as f64 / points as f64;
        let window = (0..points).map(|at| 0.5 - 0.5 * part(at).cos()).collect();
        let turns = (0..points).map(|at| (part(at).cos(), -part(at).sin())).collect();
        Ok(Self { settings, window, turns })
    }

    /// The spectrum of samples, `[mels, frames]`, with a frame for each whole hop.
    ///
    /// # Errors
    /// E001 for fewer samples than the half of a frame, E008 for more frames than fit in memory.
    pub fn spectrum(&self, samples: &[f32]) -> Result<Vec<f32>> {
        let MelSettings { points, hop, mels, ref filterbank } = self.settings;
        let (half, frequencies) = (points / 2, points / 2 + 1);
        if samples.len() <= half {
            return Err(Error::format(format!(
                "{} samples are fewer than a spectrum needs",
                samples.len()
            )));
        }

        let frames = samples.len() / hop;
        if mels.saturating_mul(frames) > MAX_VALUES {
            let message = format!("a spectrum of {mels} bands and {frames} frames is too large");
            return Err(Error::memory(message));
        }
        let mut made = vec![0.0_f64; mels * frames];
        let mut frame = vec![(0.0, 0.0); points];
        let mut out = vec![(0.0, 0.0); points];
        for number in 0..frames {
            for (at, point) in frame.iter_mut().enumerate() {
                let place = mirrored((number * hop + at) as i64 - half as i64, samples.len());
                *point = (f64::from(samples[place]) * self.window[at], 0.0);
            }

            self.transform(&frame, 1, &mut out);
            let power: Vec<f64> =
                out[..frequencies].iter().map(|(re, im)| re * re + im * im).collect();
            for (mel, weights) in filterbank.chunks_exact(frequencies).enumerate() {
                let sum: f64 = weights
                    .iter()
                    .zip(&power)
                    .map(|(weight, power)| f64::from(*weight) * power)
                    .sum();
                made[mel * frames + number] = sum.max(FLOOR).log10();
            }
        }

        let floor = made.iter().copied().fold(f64::NEG_INFINITY, f64::max) - RANGE;
        #[expect(clippy::cast_possible_truncation, reason = "features have single precision")]
        Ok(made.into_iter().map(|value| ((value.max(floor) + 4.0) / 4.0) as f32).collect())
    }

    /// A Fourier transform of every `stride`-th number of `input`, by the smallest factor of its
    /// length (Cooley and Tukey).
    fn transform(&self, input: &[(f64, f64)], stride: usize, out: &mut [(f64, f64)]) {
        let length = out.len();
        if length == 1 {
            out[0] = input[0];
            return;
        }

        let factor = (2..=length).find(|factor| length.is_multiple_of(*factor)).unwrap_or(length);
        let inner = length / factor;
        let mut parts = vec![(0.0, 0.0); length];
        for (number, part) in parts.chunks_exact_mut(inner).enumerate() {
            self.transform(&input[number * stride..], stride * factor, part);
        }

        for (at, sum) in out.iter_mut().enumerate() {
            *sum = (0.0, 0.0);
            for number in 0..factor {
                let (re, im) = parts[number * inner + at % inner];
                let (cos, sin) = self.turns[number * at * stride % self.turns.len()];
                *sum = (sum.0 + re * cos - im * sin, sum.1 + re * sin + im * cos);
            }
        }
    }
}

/// The largest prime factor of a number above 1.
fn largest_prime(mut number: usize) -> usize {
    let mut factor = 2;
    while factor * factor <= number {
        if number.is_multiple_of(factor) {
            number /= factor;
        } else {
            factor += 1;
        }
    }
    number
}

/// A place beyond an end, mirrored there without repeating the last sample.
fn mirrored(place: i64, length: usize) -> usize {
    let last = length as i64 - 1;
    let place = if place < 0 { -place } else { place };
    let place = if place > last { 2 * last - place } else { place };
    usize::try_from(place.clamp(0, last)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transform_is_the_sum_that_defines_it() {
        for points in [2, 5, 12, 400, 7 * 11] {
            let settings =
                MelSettings { points, hop: 1, mels: 1, filterbank: vec![1.0; points / 2 + 1] };
            let mel = LogMel::new(settings).unwrap();
            let input: Vec<_> =
                (0..points).map(|at| ((at * at % 7) as f64, (at % 3) as f64)).collect();
            let mut out = vec![(0.0, 0.0); points];
            mel.transform(&input, 1, &mut out);
            for (k, (re, im)) in out.iter().enumerate() {
                let term = |n: usize| -2.0 * PI * (k * n % points) as f64 / points as f64;
                let sum =
                    |f: &dyn Fn(usize, f64) -> f64| (0..points).map(|n| f(n, term(n))).sum::<f64>();
                let real = sum(&|n, angle| input[n].0 * angle.cos() - input[n].1 * angle.sin());
                let imaginary =
                    sum(&|n, angle| input[n].0 * angle.sin() + input[n].1 * angle.cos());
                assert!((re - real).abs() + (im - imaginary).abs() < 1e-8, "{points}");
            }
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let of = |points, hop, mels, weights| MelSettings {
            points,
            hop,
            mels,
            filterbank: vec![1.0; weights],
        };
        for settings in [
            of(400, 0, 80, 80 * 201),
            of(400, 401, 80, 80 * 201),
            of(400, 160, 80, 10),
            of(0, 1, 1, 1),
            of(1 << 30, 1, 1, 1),
            // A prime: each frame would take the square of its points.
            of(16_381, 160, 1, 8191),
        ] {
            assert!(LogMel::new(settings).is_err());
        }
        assert!(LogMel::new(of(8, 4, 1, 5)).unwrap().spectrum(&[0.0; 4]).is_err());
    }
}
