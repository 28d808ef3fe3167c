//! Sounds as a model's input: samples of one channel at the model's rate, and what is made of them.

#[cfg(feature = "audio")]
mod decode;
#[cfg(not(feature = "audio"))]
#[path = "decode_off.rs"]
mod decode;
mod mel;
#[cfg(feature = "audio")]
mod repair;
mod resample;

use apr_core::{Error, Result};

pub use decode::decode;
pub use mel::{LogMel, MelSettings};
pub use resample::resample;

/// A sound of one channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Sound {
    /// Samples in a second.
    pub rate: u32,
    /// Number of channels in the file. Samples are averaged over them.
    pub channels: usize,
    /// Samples, of which -1 to 1 is the full range.
    pub samples: Vec<f32>,
}

impl Sound {
    /// Returns the duration in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate.max(1))
    }

    /// The sound at another rate.
    ///
    /// # Errors
    /// E001 for rates that no sound has.
    pub fn at_rate(&self, rate: u32) -> Result<Self> {
        Ok(Self {
            rate,
            channels: self.channels,
            samples: resample(&self.samples, self.rate, rate)?,
        })
    }

    /// Returns warnings about the samples, in words.
    ///
    /// # Errors
    /// E001 for audio without samples, or with values that are not numbers.
    pub fn check(&self) -> Result<Vec<String>> {
        if self.samples.is_empty() {
            return Err(Error::format("the audio is empty: no samples"));
        }
        if let Some(at) = self.samples.iter().position(|sample| !sample.is_finite()) {
            return Err(Error::format(format!("sample {at} of the audio is {}", self.samples[at])));
        }

        let loudest = self.samples.iter().map(|sample| sample.abs()).fold(0.0, f32::max);
        let mut odd = Vec::new();

        // What is compressed overshoots a little.
        if loudest > 1.5 {
            odd.push(format!(
                "samples reach {loudest}, and models expect -1 to 1: the audio is not normalized"
            ));
        }

        if loudest == 0.0 {
            odd.push("the audio is silent: all samples are 0".to_owned());
        }

        Ok(odd)
    }

    /// Returns the samples with mean 0 and variance 1, as feature extractors with `do_normalize`
    /// require.
    #[must_use]
    pub fn normalized(&self) -> Vec<f32> {
        let count = self.samples.len().max(1) as f64;
        let mean = self.samples.iter().map(|sample| f64::from(*sample)).sum::<f64>() / count;
        let variance =
            self.samples.iter().map(|sample| (f64::from(*sample) - mean).powi(2)).sum::<f64>()
                / count;
        let scale = 1.0 / (variance + 1e-7).sqrt();
        #[expect(clippy::cast_possible_truncation, reason = "samples have single precision")]
        let normal = |sample: &f32| ((f64::from(*sample) - mean) * scale) as f32;
        self.samples.iter().map(normal).collect()
    }
}
