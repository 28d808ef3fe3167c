//! Mel filterbanks: weights that sum the bins of a spectrum into mels.

use serde_json::Value;

/// Mels and frequency bins of a filterbank; Whisper has 128 and 201.
const MAX_MELS: usize = 512;
const MAX_FREQS: usize = 8193;

/// Upper end of the highest filter in Hz, whatever the sampling rate.
const MAX_FREQUENCY: f64 = 8000.0;

/// Weights, row by row: `mels` rows of `freqs`.
#[derive(Debug, PartialEq)]
pub(super) struct Filterbank {
    pub(super) mels: usize,
    pub(super) freqs: usize,
    pub(super) values: Vec<f32>,
}

/// Reads rows of numbers. Rows are mels, or bins if that fits the known sizes; bins are transposed.
pub(super) fn from_json(
    written: &Value,
    mels: Option<usize>,
    freqs: Option<usize>,
) -> Result<Filterbank, String> {
    let rows: Option<Vec<_>> =
        written.as_array().and_then(|rows| rows.iter().map(Value::as_array).collect());
    let rows = rows.ok_or("its mel_filters are not a list of lists")?;
    let width = rows.first().map_or(0, |row| row.len());
    if width == 0 || rows.iter().any(|row| row.len() != width) {
        return Err("its mel_filters are not a rectangle".to_owned());
    }

    let fits = |rows: usize, columns: usize| {
        mels.is_none_or(|mels| mels == rows) && freqs.is_none_or(|freqs| freqs == columns)
    };

    // Where neither number is known: there are more bins than mels.
    let upright =
        fits(rows.len(), width) && (mels.is_some() || freqs.is_some() || rows.len() <= width);
    if !upright && !fits(width, rows.len()) {
        let known =
            |number: Option<usize>| number.map_or("?".to_owned(), |number| number.to_string());
        let (mels, freqs, height) = (known(mels), known(freqs), rows.len());
        return Err(format!(
            "its mel_filters have the shape [{height}, {width}], not [{mels}, {freqs}]"
        ));
    }

    let values = rows.iter().map(|row| row.iter().map(number).collect::<Option<Vec<f32>>>());
    let values = values
        .collect::<Option<Vec<_>>>()
        .ok_or("its mel_filters have values that are not finite F32 numbers")?;
    if upright {
        return Ok(Filterbank { mels: rows.len(), freqs: width, values: values.concat() });
    }

    let turned =
        (0..width).flat_map(|column| values.iter().filter_map(move |row| row.get(column).copied()));
    Ok(Filterbank { mels: width, freqs: rows.len(), values: turned.collect() })
}

fn number(value: &Value) -> Option<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "the weights are F32")]
    let number = value.as_f64()? as f32;
    number.is_finite().then_some(number)
}

/// Computes the filterbank of Whisper's feature extractor: triangles of equal area on Slaney's mel
/// scale, from 0 to 8000 Hz.
pub(super) fn compute(mels: usize, n_fft: usize, sample_rate: usize) -> Result<Filterbank, String> {
    let freqs = n_fft / 2 + 1;
    if mels > MAX_MELS || !(2..=MAX_FREQS).contains(&freqs) {
        return Err(format!(
            "a filterbank of {mels} mels and {freqs} bins is not one that apr computes"
        ));
    }

    let nyquist = as_f64(sample_rate / 2);
    let bin = |bin: usize| nyquist * as_f64(bin) / as_f64(freqs - 1);
    let top = hertz_to_mel(MAX_FREQUENCY);
    let edge = |edge: usize| mel_to_hertz(top * as_f64(edge) / as_f64(mels + 1));
    let mut values = Vec::with_capacity(mels * freqs);
    for mel in 0..mels {
        let (low, middle, high) = (edge(mel), edge(mel + 1), edge(mel + 2));
        // Slaney's normalisation: every triangle has the same area.
        let height = 2.0 / (high - low);
        values.extend((0..freqs).map(|at| {
            let (rising, falling) =
                ((bin(at) - low) / (middle - low), (high - bin(at)) / (high - middle));
            #[expect(clippy::cast_possible_truncation, reason = "the weights are F32")]
            let weight = (rising.min(falling).max(0.0) * height) as f32;
            weight
        }));
    }

    Ok(Filterbank { mels, freqs, values })
}

#[expect(clippy::cast_precision_loss, reason = "sizes and rates are far below 2^53")]
fn as_f64(number: usize) -> f64 {
    number as f64
}

/// Slaney's scale is linear up to 1000 Hz, which is 15 mels, and logarithmic above, 27 mels for a
/// factor of 6.4.
const LINEAR_HERTZ_PER_MEL: f64 = 200.0 / 3.0;
const BREAK_HERTZ: f64 = 1000.0;
const BREAK_MEL: f64 = 15.0;

fn log_step() -> f64 {
    6.4_f64.ln() / 27.0
}

fn hertz_to_mel(hertz: f64) -> f64 {
    if hertz < BREAK_HERTZ {
        hertz / LINEAR_HERTZ_PER_MEL
    } else {
        BREAK_MEL + (hertz / BREAK_HERTZ).ln() / log_step()
    }
}

fn mel_to_hertz(mel: f64) -> f64 {
    if mel < BREAK_MEL {
        mel * LINEAR_HERTZ_PER_MEL
    } else {
        BREAK_HERTZ * (log_step() * (mel - BREAK_MEL)).exp()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use apr_testkit::locate;
    use serde_json::json;

    use super::*;

    /// Reads the arrays that Whisper ships, made by librosa, as little-endian F32.
    fn reference(name: &str) -> Option<Vec<f32>> {
        let (python, file) = (
            locate::reference_python()?,
            locate::shared_data("whisper/openai_whisper__mel_filters.npz")?,
        );
        let script = "import sys, numpy; \
            sys.stdout.buffer.write(numpy.load(sys.argv[1])[sys.argv[2]].astype('<f4').tobytes())";
        let output =
            Command::new(python).args(["-c", script]).arg(file).arg(name).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(output.stdout.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    #[test]
    fn the_filterbank_is_the_one_that_whisper_ships() {
        for mels in [80, 128] {
            let Some(expected) = reference(&format!("mel_{mels}")) else { return };
            let computed = compute(mels, 400, 16_000).unwrap();
            assert_eq!((computed.freqs, computed.values.len()), (201, expected.len()));
            for (at, (&ours, &theirs)) in computed.values.iter().zip(&expected).enumerate() {
                // The reference rounds to F32 before it scales, and again after.
                assert!(
                    (ours - theirs).abs() <= 2.0 * f32::EPSILON * theirs.abs(),
                    "{mels}, {at}: {ours} {theirs}"
                );
            }
        }
    }

    #[test]
    fn both_orientations_are_the_same_filterbank() {
        let upright = json!([[1, 2, 3], [4, 5, 6]]);
        let turned = json!([[1, 4], [2, 5], [3, 6]]);
        let expected = Filterbank { mels: 2, freqs: 3, values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] };
        for (mels, freqs) in [(Some(2), Some(3)), (Some(2), None), (None, Some(3)), (None, None)] {
            assert_eq!(from_json(&upright, mels, freqs).as_ref(), Ok(&expected));
            assert_eq!(from_json(&turned, mels, freqs).as_ref(), Ok(&expected));
        }
    }

    #[test]
    fn an_invalid_filterbank_is_rejected() {
        for written in [
            json!(1),
            json!([]),
            json!([[]]),
            json!([[1, 2], [3]]),
            json!([1]),
            json!([["a"]]),
            json!([[1e60]]),
        ] {
            assert!(from_json(&written, None, None).is_err(), "{written}");
        }
        let wrong = from_json(&json!([[1, 2, 3]]), Some(80), Some(201)).unwrap_err();
        assert_eq!(wrong, "its mel_filters have the shape [1, 3], not [80, 201]");
        for (mels, n_fft) in [(513, 400), (80, 0), (80, 1), (80, 1 << 20)] {
            assert!(compute(mels, n_fft, 16_000).is_err());
        }
    }
}
